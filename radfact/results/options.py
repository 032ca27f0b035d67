"""Options of the page of a results folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from radfact.options import Option, Options

ImagePlace = Literal["inside", "beside"]


class PageOptions(Options):
    """What a page shows in addition to the results."""

    panel = "Output"

    manifest: Annotated[Path | None, Option("Manifest with the images for the page.", metavar="FILE")] = None
    notes: Annotated[
        tuple[str, ...], Option("Sentence for the page's banner; repeatable.", flag="--note", metavar="TEXT")
    ] = ()
    unscored: Annotated[
        Path | None,
        Option(
            "Drafts without a reference, shown on the page and in no score. Default: those among the candidates.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None
    images: Annotated[
        ImagePlace | None,
        Option(
            "Images inside the page, one file to share, or in report_images/ next to it, quick to open. Default: "
            "inside up to 200 studies.",
            show_default=False,
        ),
    ] = None
    drafts: Annotated[tuple[str, ...], Option("Ids of the unscored drafts to show; by default all.")] = ()
