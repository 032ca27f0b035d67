"""Options of sets of expert ratings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from radfact.options import Option, Options

RULES = "rules"
"""What changes reports if no language model does: rules of this project, with the ontology of the offline judge."""


class RatingOptions(Options):
    """The ratings to read, and how to interpret them."""

    panel = "Input"

    layout: Annotated[
        Literal["plain", "preferences", "rexval", "refisco-v0", "refisco-v1", "rate-eval", "radeval"],
        Option("Format of the ratings file."),
    ] = "plain"
    experts: Annotated[
        tuple[str, ...],
        Option(
            "Column with the ratings of one expert (--layout plain); repeatable. Default: all columns named "
            "QUANTITY:RATER, expert or expert_RATER.",
            flag="--expert",
            metavar="COLUMN",
        ),
    ] = ()
    better: Annotated[
        Literal["higher", "lower"] | None, Option("Whether higher or lower ratings are better (--layout plain).")
    ] = None
    target: Annotated[
        str | None,
        Option(
            "Rating to correlate with, such as significant. Default: the main rating of the data set.",
            metavar="QUANTITY",
            panel="Scores",
        ),
    ] = None
    ids: Annotated[
        Path | None,
        Option(
            "File with the ids of the reports to use, one per line; a prefix before an underscore, such as a study "
            "number, selects all ids that start with it.",
            metavar="FILE",
        ),
    ] = None
