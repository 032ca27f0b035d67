"""Options of the page of a results folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from radfact.options import Option, Options

ImagePlace = Literal["inside", "beside"]


class PageOptions(Options):
    """Additional content of a page."""

    panel = "Output"

    manifest: Annotated[Path | None, Option("Manifest with the images to show on the page.", metavar="FILE")] = None
    notes: Annotated[
        tuple[str, ...], Option("Note shown at the top of the page; repeatable.", flag="--note", metavar="TEXT")
    ] = ()
    unscored: Annotated[
        Path | None,
        Option(
            "Drafts without a reference, shown on the page but not scored. Default: those among the candidates.",
            metavar="FILE",
        ),
    ] = None
    images: Annotated[
        ImagePlace | None,
        Option(
            "inside: embed images in the page (one file to share); beside: write them to report_images/ (loads "
            "faster). Default: inside for up to 200 studies."
        ),
    ] = None
    drafts: Annotated[tuple[str, ...], Option("Ids of the unscored drafts to show. Default: all.")] = ()
