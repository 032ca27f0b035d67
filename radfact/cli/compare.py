"""`radfact compare`: compare systems, with paired significance tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radfact.cli.command import with_options
from radfact.cli.inputs import check_folder
from radfact.cli.options import OUTPUT, SCORES
from radfact.cli.tables import MARKS, new_console, number, say
from radfact.scoring.options import BootstrapOptions

MANUAL = "\n".join(
    (
        "Compare results folders on their common samples: the scores of each system, and its differences to the first "
        "one.",
        "",
        "Differences have paired bootstrap intervals and a p-value from approximate randomization: each round swaps "
        "the results of samples between the two systems at random, and p = (k + 1) / (n + 1), where k of n rounds have "
        "a difference at least as large as the observed one.",
        "",
        "[bold]Examples[/bold]",
        "  radfact compare results/base results/tuned results/other",
        "  radfact compare results/base results/tuned --out results/comparison",
    )
)


@with_options
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Results folders, the baseline first.")],
    draws: BootstrapOptions,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:OBJECT",
            help="Also compare the pooled scores of this custom metric; repeatable.",
            rich_help_panel=SCORES,
        ),
    ] = None,
    rounds: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Number of rounds of approximate randomization.", rich_help_panel=SCORES),
    ] = 1000,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Also write comparison.json, comparison.csv and an HTML page to this folder.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Compare results folders on their common samples."""
    from rich.markup import escape
    from rich.table import Table

    from radfact.html.comparison_page import format_difference, write_comparison
    from radfact.results.compare import compare as compare_folders

    console = new_console()
    if out is not None:
        check_folder(out)
    comparison = compare_folders(
        folders, metrics=metric or (), replicates=draws.bootstrap, rounds=rounds, seed=draws.seed
    )
    table = Table()
    for heading in ("score", *comparison.systems):
        table.add_column(escape(heading), justify="left" if heading == "score" else "right")
    for name, contrasts in comparison.scores.items():
        lead = f"{escape(name)} {MARKS[contrasts[0].summary.direction]}".strip()
        cells = (
            f"{number(contrast.summary.point)} {format_difference(contrast, rounds)}".rstrip() for contrast in contrasts
        )
        table.add_row(lead, *map(escape, cells))
    console.print(table)
    for name, count in zip(comparison.systems, comparison.own, strict=True):
        say(console, f"{name}: {count} samples, {comparison.shared} shared")
    for note in comparison.notes:
        say(console, note)
    if out is not None:
        say(console, f"Read the comparison in {write_comparison(comparison, out)}", wrap=False)
