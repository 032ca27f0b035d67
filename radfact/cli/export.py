"""`radfact export`: export scores in the format of the published command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radfact.cli.command import with_options
from radfact.cli.options import OUTPUT
from radfact.cli.tables import new_console, say
from radfact.io.outputs import Output


@with_options
def export(
    folder: Annotated[Path, typer.Argument(help="Results folder.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Output file. Default: radfact_scores_INPUT.json in the results folder, as published.",
            rich_help_panel=OUTPUT,
        ),
        Output("file"),
    ] = None,
) -> None:
    """Export the scores in the format of the published command, with flat keys such as logical_precision/p2.5th."""
    from radfact.results.export import export as write

    written = write(folder, out)
    say(new_console(), f"Scores in the published layout: {written}", wrap=False)
