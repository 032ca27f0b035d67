"""`radfact page`: regenerate the HTML page of a results folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radfact.cli.command import with_options
from radfact.cli.options import UPDATED_RESULTS
from radfact.cli.tables import new_console, say
from radfact.options import only
from radfact.pages.page import write_page
from radfact.results.options import PageOptions


@with_options
def page(
    folder: Annotated[Path, typer.Argument(help="Results folder."), UPDATED_RESULTS],
    options: Annotated[PageOptions, only("manifest", "notes", "unscored", "images")],
) -> None:
    """Regenerate the HTML page of a results folder.

    Options that are not given keep the values of the run.
    """
    path = write_page(
        folder, manifest=options.manifest, notes=options.notes or None, unscored=options.unscored, images=options.images
    )
    say(new_console(), f"Read the studies in {path}", wrap=False)
