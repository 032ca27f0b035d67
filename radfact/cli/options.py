"""Options that several commands have: input reports, files, folders and prices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BeforeValidator, PositiveInt

from radfact.io.columns import FIELDS, Missing, Section, check_columns
from radfact.io.outputs import RESULTS_FOLDER, Output
from radfact.metrics.options import split_names
from radfact.options import Option, Options

INPUT, JUDGE, SCORES, OUTPUT = "Input", "Judge", "Scores", "Output"
"""Panels of the help."""


def option(help_text: str, metavar: str | None, panel: str | None, *flags: str, **more: Any) -> Any:
    return typer.Option(*flags, metavar=metavar, help=help_text, rich_help_panel=panel, **more)


PairsArgument = Annotated[
    Path | None,
    typer.Argument(help="Pairs of candidate and reference: grounded (.json), narrative (.csv) or of ReXrank (.json)."),
]
Out = Annotated[Path, option("Results folder.", "FOLDER", OUTPUT), RESULTS_FOLDER]
UPDATED_RESULTS = Output("folder", resumes=True)
"""A results folder to which a command adds files."""
_CACHE = "Cache of model responses; runs on the same machine can share it. Default: cache/ in the results folder."
CacheFolder = Annotated[Path | None, option(_CACHE, "FOLDER", OUTPUT)]
_PRICE = "Price per million input and output tokens, such as 0.5,1.5,EUR; prints the running cost."
PriceOption = Annotated[str | None, option(_PRICE, "IN,OUT[,CURRENCY]", JUDGE, "--price")]
_DRY_RUN = "Print the queries, tokens and cost of the run, and exit before anything is sent or written."
DryRunOption = Annotated[bool, option(_DRY_RUN, None, JUDGE, "--dry-run")]
_VERBOSE = "Print all scores instead of the main ones, counts and usage."
VerboseOption = Annotated[bool, option(_VERBOSE, None, OUTPUT, "--verbose")]


class ScoreSelection(Options):
    """The scores of a table."""

    panel = "Scores"

    scores: Annotated[
        tuple[str, ...],
        BeforeValidator(split_names),
        Option(
            "Main scores, separated by commas; the name of a metric stands for its main scores. Default: those of each "
            "metric; of a comparison, one of each.",
            metavar="NAMES",
            cli_type=str,
        ),
    ] = ()


class ColumnOptions(Options):
    """A user's own names of columns."""

    panel = "Input"

    columns: Annotated[
        Mapping[str, str] | None,
        BeforeValidator(check_columns),
        Option(
            "Own names of columns or JSON fields, such as id=study,candidate=draft,reference=report. Fields: "
            f"{', '.join(FIELDS)}.",
            metavar="FIELD=NAME,...",
        ),
    ] = None


class InputOptions(ColumnOptions):
    """The candidates and the references, if they are not in one file of pairs."""

    candidates: Annotated[
        Path | None, Option("Drafts (.jsonl) or COCO (.json); requires --references.", metavar="FILE")
    ] = None
    references: Annotated[
        Path | None, Option("Manifest (.jsonl) with the reference reports, or COCO (.json).", metavar="FILE")
    ] = None
    missing: Annotated[
        Missing,
        Option(
            "What to do if a reference has no candidate, or it is missing (null, NaN, N/A): stop, skip and list the "
            "reference, or score an empty report."
        ),
    ] = "refuse"
    section: Annotated[
        Section | None,
        Option(
            "Part of the reports in a ReXrank file (.json) to score: findings (default), or report for findings and "
            "impression."
        ),
    ] = None
    limit: Annotated[
        PositiveInt | None,
        Option(
            "Score a random subset of N samples, determined by the sample ids and --seed: the same for every system. "
            "Default: all.",
            metavar="N",
        ),
    ] = None
    narrative: Annotated[
        bool | None,
        Option(
            "Treat all reports as narratives and ignore regions / require grounded reports. Default: as in the file.",
            flag="--narrative/--grounded",
        ),
    ] = None
