"""Options of `maira judge-data`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from radfact.cli.meta.agreement import BetterName

_RATED = "Experts' ratings (VERT)"
_TAUGHT = "Reports and teachers"


class TaskName(StrEnum):
    """What a judge is asked."""

    GREEN = "green"
    VERT = "vert"
    ENTAILMENT = "entailment"


class PairingName(StrEnum):
    """How a candidate is found for a reference."""

    RANDOM = "random"
    EDITED = "edited"
    DRAFTED = "drafted"
    NEAREST = "nearest"
    PERMUTED = "permuted"
    REWORDED = "reworded"


class RatingsLayout(StrEnum):
    """How a set of ratings is laid out."""

    PLAIN = "plain"
    REXVAL = "rexval"
    REFISCO_V0 = "refisco-v0"
    REFISCO_V1 = "refisco-v1"
    RATE_EVAL = "rate-eval"
    RADEVAL = "radeval"


TaskOption = Annotated[TaskName, typer.Option(help="What the judge will be asked.")]
OutOption = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write to.")]
Reports = Annotated[
    Path | None,
    typer.Argument(help="References: CSV (id, report) or JSON Lines (sample_id, findings), as a manifest."),
]
Teachers = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Who says what is right; may be repeated.", rich_help_panel=_TAUGHT),
]
Pairings = Annotated[
    list[PairingName] | None,
    typer.Option(
        help="Kind of pairs; may be repeated. Default: all that there is something for.", rich_help_panel=_TAUGHT
    ),
]
DraftsOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Drafts of a model (maira generate).", rich_help_panel=_TAUGHT),
]
FewShots = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Worked examples the judge will be shown, or none. Default: as --judge shows them.",
        rich_help_panel=_TAUGHT,
    ),
]
Balanced = Annotated[
    bool,
    typer.Option(
        "--balanced",
        help="Draw as many entailed questions as others; of those to train on, few of them word for word.",
        rich_help_panel=_TAUGHT,
    ),
]
Count = Annotated[int | None, typer.Option(min=1, help="Most pairs.", rich_help_panel=_TAUGHT)]
BaseUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="OpenAI-compatible server of the last teacher.", rich_help_panel=_TAUGHT),
]
JudgeArgs = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="Argument of the last teacher; may be repeated.", rich_help_panel=_TAUGHT),
]
Concurrency = Annotated[int | None, typer.Option(min=1, help="Calls in flight.", rich_help_panel=_TAUGHT)]
RatingsOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Rated pairs, instead of reports.", rich_help_panel=_RATED)
]
LayoutOption = Annotated[
    RatingsLayout | None, typer.Option(help="How they are laid out. Default: plain.", rich_help_panel=_RATED)
]
Scale = Annotated[
    tuple[float, float] | None,
    typer.Option(metavar="LEAST GREATEST", help="Of the ratings. Default for rate-eval: 0 5.", rich_help_panel=_RATED),
]
BetterOption = Annotated[
    BetterName | None, typer.Option(help="Which way those of a plain table are better.", rich_help_panel=_RATED)
]
Target = Annotated[
    str | None,
    typer.Option(
        metavar="QUANTITY", help="What of the ratings is learnt. Default: the set's own.", rich_help_panel=_RATED
    ),
]
HeldOut = Annotated[float, typer.Option(min=0, max=0.9, help="Share of the references to hold out.")]
Seed = Annotated[int, typer.Option(min=0, help="Of all that is drawn.")]
