"""`radfact compare`: compare systems, with paired significance tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radfact.cli.command import with_options
from radfact.cli.options import OUTPUT, SCORES
from radfact.cli.tables import new_console, say, show_table
from radfact.io.outputs import Output, replace_files
from radfact.metrics.radfact.options import MAX_REPLICATES, BootstrapOptions
from radfact.options import Option
from radfact.pages.comparison_page import difference_table, finding_table, systems_table, write_comparison
from radfact.results.compare import Comparison
from radfact.results.compare import compare as compare_folders

if TYPE_CHECKING:
    from rich.console import Console


_LISTED = 10
"""Number of findings that are printed, of those that are better and of those that are worse."""


class ComparisonOptions(BootstrapOptions):
    """Bootstrap intervals, the random seed, and which clusters of the results folders are resampled."""

    cluster: Annotated[
        str | None,
        Option(
            "Clusters to resample and swap as a whole: the --cluster that the folders were scored with. 'none': single "
            "samples. Default: the clusters of the first folder that has them.",
            metavar="COLUMN",
        ),
    ] = None


@with_options
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Results folders, the baseline first.")],
    draws: ComparisonOptions,
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
        typer.Option(
            min=1,
            max=MAX_REPLICATES,
            metavar="N",
            help="Number of rounds of approximate randomization.",
            rich_help_panel=SCORES,
        ),
    ] = 1000,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Also write comparison.json, comparison.csv and an HTML page to this folder.",
            rich_help_panel=OUTPUT,
        ),
        Output("folder"),
    ] = None,
) -> None:
    """Compare results folders on their common samples, with paired significance tests.

    Differences have paired bootstrap intervals and a p-value from approximate randomization; 'Holm' is p adjusted for
    all scores and all systems. Clusters of samples, such as the studies of a patient, are resampled and swapped as a
    whole, if the folders have them.
    """
    console = new_console()
    options = {"replicates": draws.bootstrap, "seed": draws.seed, "rounds": rounds}
    comparison = compare_folders(folders, metrics=metric or (), cluster=draws.cluster, **options)
    _show(console, comparison)
    if out is not None:
        with replace_files(out) as new:
            write_comparison(comparison, new)
        say(console, f"Read the comparison in {out / 'comparison.html'}", wrap=False)


def _show(console: Console, comparison: Comparison) -> None:
    for index in range(1, len(comparison.systems)):
        table = difference_table(comparison, index)
        # Without the verdict, which is for the page: a terminal has no space for it.
        show_table(console, table.select(table.headings[:-1]))
    say(console, "↑ higher is better, ↓ lower is better. Each row is computed over the same n samples.")
    for index, contrasts in enumerate(comparison.findings):
        if contrasts:
            first, system = comparison.systems[0], comparison.systems[index]
            table = finding_table(comparison, index, most=_LISTED)
            show_table(console, table.select([table.headings[0], *table.headings[2:]]))
            say(
                console,
                f"Numbers of samples; improved and worse: the verdict of {system} is better or worse than that of "
                f"{first}. Up to {_LISTED} findings are listed in which {system} is better on balance, and as many in "
                "which it is worse.",
            )
    show_table(console, systems_table(comparison))
    for note in comparison.notes:
        say(console, note)
