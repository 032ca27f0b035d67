"""Options of the commands that belong to no option model: files, folders and prices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

INPUT, JUDGE, SCORES, OUTPUT = "Input", "Judge", "Scores", "Output"
"""Panels of the help."""

PairsArgument = Annotated[
    Path | None, typer.Argument(help="Pairs of candidate and reference: grounded (.json) or narrative (.csv).")
]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Results folder.", rich_help_panel=OUTPUT)]
CacheFolder = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Cache of model responses; runs on the same machine can share it. Default: cache/ in the results folder.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
PriceOption = Annotated[
    str | None,
    typer.Option(
        "--price",
        metavar="IN,OUT",
        help="Price per million input and output tokens; prints the running cost.",
        rich_help_panel=JUDGE,
    ),
]
