"""Options of sets of expert ratings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from radfact.options import Option, Options


class RatingOptions(Options):
    """Which ratings are read from a set."""

    panel = "Input"

    layout: Annotated[
        Literal["plain", "preferences", "rexval", "refisco-v0", "refisco-v1", "rate-eval", "radeval"],
        Option("Layout of the ratings."),
    ] = "plain"
    experts: Annotated[
        tuple[str, ...],
        Option(
            "Expert column of a plain table; repeatable. Default: all columns with such names.",
            flag="--expert",
            metavar="COLUMN",
        ),
    ] = ()
    better: Annotated[Literal["higher", "lower"] | None, Option("Which ratings of a plain table are better.")] = None
    target: Annotated[
        str | None,
        Option(
            "Rating to correlate with, such as significant. Default: the set's own.", metavar="QUANTITY", panel="Scores"
        ),
    ] = None
    ids: Annotated[
        Path | None,
        Option(
            "Use these reports only: one id per line, or the beginning of ids before an underscore, such as the number "
            "of a study.",
            metavar="FILE",
        ),
    ] = None
