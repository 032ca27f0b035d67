"""`radfact export`: the scores of a results folder in the published command's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radfact.cli.options import OUTPUT
from radfact.cli.tables import new_console, say_path


def export(
    folder: Annotated[Path, typer.Argument(help="A results folder.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The file to write; by default radfact_scores_INPUT.json in the folder, as published.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Write the scores as the published command writes them: flat keys such as logical_precision/p2.5th."""
    from radfact.results.export import export as write

    written = write(folder, out)
    say_path(new_console(), "Scores in the published layout:", written)
