"""Options of the commands that belong to no option model: files, folders and prices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radfact.io.outputs import RESULTS_FOLDER, Output

INPUT, JUDGE, SCORES, OUTPUT = "Input", "Judge", "Scores", "Output"
"""Panels of the help."""

PairsArgument = Annotated[
    Path | None,
    typer.Argument(help="Pairs of candidate and reference: grounded (.json), narrative (.csv) or of ReXrank (.json)."),
]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Results folder.", rich_help_panel=OUTPUT), RESULTS_FOLDER]
UPDATED_RESULTS = Output("folder", resumes=True)
"""A results folder to which a command adds files."""
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
        metavar="IN,OUT[,CURRENCY]",
        help="Price per million input and output tokens, such as 0.5,1.5,EUR; prints the running cost.",
        rich_help_panel=JUDGE,
    ),
]
DryRunOption = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Print the queries, tokens and cost of the run, and exit before anything is sent or written.",
        rich_help_panel=JUDGE,
    ),
]
