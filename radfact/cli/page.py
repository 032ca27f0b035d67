"""`radfact page`: the page of a results folder, drawn again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radfact.cli import options as shared
from radfact.cli.tables import new_console, say_path


def page(
    folder: Annotated[Path, typer.Argument(help="A results folder.")],
    manifest: shared.Manifest = None,
    note: shared.Notes = None,
    unscored: shared.Unscored = None,
    images: shared.Images = None,
) -> None:
    """Draw the page of a results folder again.

    Manifest, notes, unscored drafts and the place of the images are those of the run unless given anew.
    """
    from radfact.html.page import write_page

    written = write_page(
        folder, manifest=manifest, notes=note, unscored=unscored, images=images.value if images else None
    )
    say_path(new_console(), "Read the studies in", written)
