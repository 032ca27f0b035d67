"""Options of the reports that are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from radfact.options import Option, Options

Missing = Literal["refuse", "skip", "empty"]


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
        Missing, Option("A reference without a candidate: refuse it, skip and list it, or take an empty report.")
    ] = "refuse"
    narrative: Annotated[
        bool | None,
        Option(
            "Split every report and ignore its regions / require sentences. Default: as the file has it.",
            flag="--narrative/--grounded",
            show_default=False,
        ),
    ] = None
