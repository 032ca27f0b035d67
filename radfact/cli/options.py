"""Options of the commands that belong to no option model: files, folders and prices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

INPUT, JUDGE, SCORES, OUTPUT = "Input", "Judge", "Scores", "Output"
"""Panels of the help."""

PairsArgument = Annotated[Path | None, typer.Argument(help="Pairs: grounded (.json) or narrative (.csv).")]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Results folder.", rich_help_panel=OUTPUT)]
CacheFolder = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Response cache of a model; runs on one machine may share it. Default: cache/ in the results.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
PriceOption = Annotated[
    str | None,
    typer.Option(
        "--price", metavar="IN,OUT", help="Price of a million tokens in and out: shows the cost.", rich_help_panel=JUDGE
    ),
]
