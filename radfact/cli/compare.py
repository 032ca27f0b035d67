"""`radfact compare`: compare systems, with paired significance tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from radfact.cli.command import with_options
from radfact.cli.options import OUTPUT, SCORES, ScoreSelection, VerboseOption, option
from radfact.cli.tables import new_console, say, show_table
from radfact.io.csv_tables import format_csv
from radfact.io.outputs import Output, replace_files
from radfact.metrics.radfact.options import MAX_REPLICATES, BootstrapOptions
from radfact.options import Option
from radfact.pages.comparison_page import difference_table, finding_table, systems_table, write_comparison
from radfact.pages.meta_page import Table
from radfact.results.compare import SCORE_COLUMNS, Comparison
from radfact.results.compare import compare as compare_folders

_LISTED = 10
"""Number of findings that are printed, of those that are better and of those that are worse."""
_METRIC = "Also compare the pooled scores of this custom metric; repeatable."
_ROUNDS = "Number of rounds of approximate randomization. Default: 1000, or 200 for each test if that is more."
_FORMAT = "Print only the table of main scores, for a paper or other programs."
_OUT = "Also write comparison.json, comparison.csv, an HTML page and its plot to this folder."


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
    selection: ScoreSelection,
    metric: Annotated[list[str] | None, option(_METRIC, "MODULE:OBJECT", SCORES)] = None,
    rounds: Annotated[int | None, option(_ROUNDS, "N", SCORES, min=1, max=MAX_REPLICATES)] = None,
    verbose: VerboseOption = False,
    format: Annotated[Literal["latex", "markdown", "csv"] | None, option(_FORMAT, None, OUTPUT)] = None,
    out: Annotated[Path | None, option(_OUT, "FOLDER", OUTPUT), Output("folder")] = None,
) -> None:
    """Compare results folders on their common samples, with paired significance tests.

    Differences have paired bootstrap intervals and a p-value from approximate randomization; 'Holm' is p adjusted for
    the main scores of all systems, which --scores names. Clusters of samples, such as the studies of a patient, are
    resampled and swapped as a whole, if the folders have them.
    """
    options: dict[str, Any] = {
        "replicates": draws.bootstrap,
        "seed": draws.seed,
        "rounds": rounds,
        "cluster": draws.cluster,
    }
    comparison = compare_folders(folders, metrics=metric or (), scores=selection.scores, **options)
    console = new_console(stderr=format is not None)
    if format == "csv":
        typer.echo(format_csv(SCORE_COLUMNS, comparison.score_rows(comparison.main_scores)), nl=False)
    elif format is not None:
        typer.echo(comparison.to_latex() if format == "latex" else comparison.to_markdown(), nl=False)
    else:
        _show(console, comparison, verbose)
    if out is not None:
        with replace_files(out) as new:
            write_comparison(comparison, new)
        say(console, f"Read the comparison in {out / 'comparison.html'}", wrap=False)


def _short_table(table: Table) -> Table:
    """Return a table of differences without the intervals of the values."""
    rows = []
    for label, *values, difference, n, p, holm, _ in table.rows:
        points = [value and value.partition(" ")[0] for value in values]
        rows.append([label, *points, *(difference or "-").partition(" ")[::2], n, holm or p])
    is_adjusted = any(row[-2] for row in table.rows)
    headings = ["Score", "baseline", "system", "diff.", "95% interval", "n", "p (Holm)" if is_adjusted else "p"]
    return Table(headings, rows)


def _show(console: Console, comparison: Comparison, verbose: bool) -> None:
    for sentence in comparison.results():
        say(console, sentence)
    others = [name for name in comparison.scores if name not in comparison.main_scores]
    first = comparison.systems[0]
    for index, system in list(enumerate(comparison.systems))[1:]:
        say(console, f"{system} (system) compared with {first} (baseline):", wrap=False)
        for names in (comparison.main_scores, others if verbose else ()):
            if names:
                show_table(console, _short_table(difference_table(comparison, index, names)))
        if verbose and comparison.findings and comparison.findings[index]:
            table = finding_table(comparison, index, most=_LISTED)
            show_table(console, table.select([table.headings[0], *table.headings[2:]]))
            say(
                console,
                f"Numbers of samples; improved and worse: the verdict of {system} is better or worse than that of "
                f"{first}. Up to {_LISTED} findings are listed in which {system} is better on balance, and as many in "
                "which it is worse.",
            )
    say(console, "↑ higher is better, ↓ lower is better.")
    if not verbose:
        say(console, f"--verbose prints {len(others)} other scores and the findings.")
    show_table(console, systems_table(comparison))
    for note in comparison.notes:
        say(console, note)
