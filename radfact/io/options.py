"""Options for the input reports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import PositiveInt

from radfact.options import Option, Options

Missing = Literal["refuse", "skip", "empty"]
Section = Literal["findings", "report"]


class InputOptions(Options):
    """The candidates and the references, if they are not in one file of pairs."""

    panel = "Input"

    candidates: Annotated[
        Path | None, Option("Drafts (.jsonl) or COCO (.json); requires --references.", metavar="FILE")
    ] = None
    references: Annotated[
        Path | None, Option("Manifest (.jsonl) with the reference reports, or COCO (.json).", metavar="FILE")
    ] = None
    missing: Annotated[
        Missing,
        Option(
            "What to do if a reference has no candidate: stop, skip and list the reference, or score an empty report."
        ),
    ] = "refuse"
    section: Annotated[
        Section | None,
        Option(
            "Part of the reports in a ReXrank file (.json) to score: findings (default), or report for findings and "
            "impression.",
            show_default=False,
        ),
    ] = None
    limit: Annotated[
        PositiveInt | None,
        Option(
            "Score a random subset of N samples, determined by the sample ids and --seed: the same for every system. "
            "Default: all.",
            metavar="N",
            show_default=False,
        ),
    ] = None
    narrative: Annotated[
        bool | None,
        Option(
            "Treat all reports as narratives and ignore regions / require grounded reports. Default: as in the file.",
            flag="--narrative/--grounded",
            show_default=False,
        ),
    ] = None
