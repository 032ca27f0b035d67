"""`radfact export`: scores as a table for a paper or as the published command writes them, or reports for ReXrank."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from radfact.cli.command import with_options
from radfact.cli.options import OUTPUT, ScoreSelection, option
from radfact.cli.tables import new_console, say
from radfact.errors import ErrorCode, option_error
from radfact.io.csv_tables import format_csv
from radfact.io.jsonl import open_atomic
from radfact.io.outputs import Output
from radfact.machine import PROJECT
from radfact.results.export import export as write_scores
from radfact.results.export import export_rexrank
from radfact.results.paper import SCORE_COLUMNS, result_table, score_rows
from radfact.results.reader import read_run, read_scores

_FORMAT = (
    "published: scores with flat keys such as logical_precision/p2.5th. rexrank: the scored reports as a file of the "
    "ReXrank leaderboard, read again from the input files of the run. latex, markdown, csv: a table of the main "
    "scores, or of those of --scores, with intervals."
)
_OUT = (
    "Output file. Default: radfact_scores_INPUT.json in the results folder, as published, or rexrank_INPUT.json; a "
    "table is printed."
)


@with_options
def export(
    folder: Annotated[Path, typer.Argument(help="Results folder.")],
    selection: ScoreSelection,
    format: Annotated[
        Literal["published", "rexrank", "latex", "markdown", "csv"], option(_FORMAT, None, OUTPUT)
    ] = "published",
    out: Annotated[Path | None, option(_OUT, "FILE", OUTPUT), Output("file")] = None,
) -> None:
    """Export scores as a table or in the published format, or reports in the format of ReXrank."""
    console = new_console()
    if format in ("published", "rexrank"):
        if selection.scores:
            message = f"--scores selects the scores of a table, and --format {format} has none"
            raise option_error(message, "scores", ErrorCode.CONFLICTING_OPTIONS)
        write, content = (write_scores, "Scores") if format == "published" else (export_rexrank, "Reports")
        say(console, f"{content} in the layout {format}: {write(folder, out)}", wrap=False)
        return
    scores = read_scores(folder)
    table = result_table(scores, selection.scores, read_run(folder).versions.get(PROJECT))
    if format == "csv":
        text = format_csv(SCORE_COLUMNS, score_rows(scores, selection.scores))
    else:
        text = table.to_latex() if format == "latex" else table.to_markdown()
    if out is None:
        typer.echo(text, nl=False)
        return
    with open_atomic(out) as handle:
        handle.write(text)
    say(console, f"Table of scores: {out}", wrap=False)
