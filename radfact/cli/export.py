"""`radfact export`: export scores in the format of the published command, or reports in that of ReXrank."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from radfact.cli.command import with_options
from radfact.cli.options import OUTPUT
from radfact.cli.tables import new_console, say
from radfact.io.outputs import Output
from radfact.results.export import export as write_scores
from radfact.results.export import export_rexrank


@with_options
def export(
    folder: Annotated[Path, typer.Argument(help="Results folder.")],
    format: Annotated[
        Literal["published", "rexrank"],
        typer.Option(
            help="published: scores with flat keys such as logical_precision/p2.5th. rexrank: the scored reports as a "
            "file of the ReXrank leaderboard, read again from the input files of the run.",
            rich_help_panel=OUTPUT,
        ),
    ] = "published",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Output file. Default: radfact_scores_INPUT.json in the results folder, as published, or "
            "rexrank_INPUT.json.",
            rich_help_panel=OUTPUT,
        ),
        Output("file"),
    ] = None,
) -> None:
    """Export scores in the published format, or reports in the format of ReXrank."""
    if format == "rexrank":
        say(new_console(), f"Reports in the layout of ReXrank: {export_rexrank(folder, out)}", wrap=False)
    else:
        say(new_console(), f"Scores in the published layout: {write_scores(folder, out)}", wrap=False)
