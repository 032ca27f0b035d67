"""`radfact compare`: systems side by side, with paired significance."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radfact.cli.inputs import check_folder
from radfact.cli.options import FIGURES, OUTPUT
from radfact.cli.tables import MARKS, new_console, number, say, say_path

MANUAL = "\n".join(
    (
        "Compare results folders: the scores of each system, and how far the others are from the first, on the "
        "samples that all of them have.",
        "",
        "Differences have paired bootstrap intervals and p of approximate randomisation: the results of each sample "
        "are swapped between the two systems or not, and p = (k + 1) / (n + 1) counts the rounds in which the "
        "difference is at least as large.",
        "",
        "[bold]Examples[/bold]",
        "  radfact compare results/base results/tuned results/other",
        "  radfact compare results/base results/tuned --out results/comparison",
    )
)


def compare(
    folders: Annotated[list[Path], typer.Argument(help="Results folders; the first is what the others differ from.")],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:OBJECT",
            help="A custom metric whose pooled scores are compared too; may be repeated.",
            rich_help_panel=FIGURES,
        ),
    ] = None,
    bootstrap: Annotated[
        int, typer.Option(min=0, metavar="N", help="Bootstrap replicates; 0 for none.", rich_help_panel=FIGURES)
    ] = 500,
    rounds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Rounds of approximate randomisation.", rich_help_panel=FIGURES)
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of both.", rich_help_panel=FIGURES)] = 42,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write comparison.json, comparison.csv and a page there too.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Compare results folders on the samples that all of them have."""
    from rich.markup import escape
    from rich.table import Table

    from radfact.html.comparison_page import format_difference, write_comparison
    from radfact.results.compare import compare as compare_folders

    console = new_console()
    if out is not None:
        check_folder(out)
    found = compare_folders(folders, metrics=metric or (), replicates=bootstrap, rounds=rounds, seed=seed)
    table = Table()
    for heading in ("score", *found.systems):
        table.add_column(escape(heading), justify="left" if heading == "score" else "right")
    for name, contrasts in found.scores.items():
        lead = f"{escape(name)} {MARKS[contrasts[0].summary.direction]}".strip()
        cells = (f"{number(one.summary.point)} {format_difference(one, rounds)}".rstrip() for one in contrasts)
        table.add_row(lead, *map(escape, cells))
    console.print(table)
    for name, count in zip(found.systems, found.own, strict=True):
        say(console, f"{name}: {count} samples, {found.shared} shared")
    for note in found.notes:
        say(console, note)
    if out is not None:
        say_path(console, "Read the comparison in", write_comparison(found, out))
