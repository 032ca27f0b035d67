"""Output of the commands: progress, tables, failures."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from maira.runtime.processes import is_main, process_count
from radfact.errors import ExitCode, escape_for_terminal
from radfact.progress import ProgressDisplay

if TYPE_CHECKING:
    from maira.data.study import Study
    from maira.evaluate.comparison import ExperimentComparison
    from maira.grounding.evaluation import BoxResult
    from maira.grounding.labels import LabelScore
    from radfact.statistics.bootstrap import Summary

_WINDOW = 300.0
"""Seconds over which the rate is averaged: responses arrive in batches, which may take minutes."""


@contextmanager
def generation_progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of generation; of several processes, that of the main one's share."""
    from transformers.utils.logging import disable_progress_bar

    from maira.model.task_examples import UnusedInputWarning

    disable_progress_bar()
    title = title if process_count() == 1 else f"{title}, process 0 of {process_count()}"
    with (
        warnings.catch_warnings(action="ignore", category=UnusedInputWarning),  # the commands count it themselves
        show_progress(title) as on_progress,
    ):
        yield on_progress


def report_changed(items: str, done: str) -> Callable[[int], None]:
    """Return a callback that prints how many items have changed since an earlier run.

    Args:
        items: name of the items, in the plural.
        done: participle for the work, such as "drafted".
    """

    def report(count: int) -> None:
        if is_main():
            print_line(Console(stderr=True), f"{items} changed since the last run and {done} again: {count}")

    return report


def print_unused_inputs(console: Console, studies: Sequence[Study], count: int) -> None:
    """Print the number of studies whose prior report is not used.

    Args:
        console: console to print to.
        studies: studies of the run.
        count: number of studies to relate it to.
    """
    from maira.model.task_examples import PRIOR_REPORT_UNUSED, has_unused_prior_report

    unused = [study.sample_id for study in studies if has_unused_prior_report(study)]
    if unused:
        print_line(console, f"{len(unused)} of {count} studies, such as {unused[0]}: {PRIOR_REPORT_UNUSED}")


@contextmanager
def show_progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress on standard error; yields a callback for (finished items, all items)."""
    usage: dict[str, int] = {}
    display = ProgressDisplay(Console(stderr=True), {title: usage.copy}, window=_WINDOW)
    with display if is_main() else nullcontext():
        yield lambda done, total: usage.update(planned=total, done=done)


def print_box_scores(title: str, summary: str, run: BoxResult) -> None:
    """Print the result of a run, with its scores if references are known, and exit if there are failures.

    Args:
        title: title of the table.
        summary: line with the number of responses.
        run: result of the run.
    """
    console = Console()
    if run.compared:
        print_scores(console, title, run.scores)
    else:
        print_line(console, "no scores: no reference boxes are known")
    if run.clipped:
        print_line(console, f"references that the crop cuts, of which the part inside counts: {run.clipped}")
    if run.outside:
        print_line(console, f"references outside the crop, which are not compared: {run.outside}")
    if run.masked:
        print_line(console, f"references with masks, which are ignored: {run.masked}")
    print_line(console, summary)
    exit_with_failures(console, [(str(f.sample_id), f.reason) for f in run.failures])


def print_scores(console: Console, title: str, scores: Mapping[str, LabelScore | Summary]) -> None:
    """Print a table of scores with their intervals.

    Args:
        console: console to print to.
        title: title of the table.
        scores: scores by name.
    """
    table = Table(title=title, title_justify="left")
    for heading in ("score", "point", "95% interval", "n"):
        table.add_column(heading, justify="left" if heading == "score" else "right")
    for name, score in scores.items():
        interval = "-" if score.low is None else f"{score.low:.3f} to {score.high:.3f}"
        table.add_row(name, "-" if score.point is None else f"{score.point:.3f}", interval, str(score.n))
    console.print(table)


def print_comparison(
    console: Console,
    table: ExperimentComparison,
    folder: Path,
    stem: str,
    title: str,
    settings: Mapping[str, Any],
    about: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Write a comparison, and print its tables and footnotes.

    Args:
        console: console to print to.
        table: the comparison.
        folder: to write to.
        stem: of the names of the files.
        title: of the table.
        settings: see `maira.evaluate.comparison.write_comparison`.
        about: see `maira.evaluate.comparison.write_comparison`.
    """
    from maira.evaluate.comparison import footnotes, write_comparison
    from radfact.cli.tables import show_table
    from radfact.io.outputs import replace_files

    with replace_files(folder) as new:
        write_comparison(table, new, stem, title, settings, about)
    for heading, scores in table.tables().items():
        print_line(console, heading)
        show_table(console, scores)
    for note in footnotes(table):
        print_line(console, note)
    print_line(console, f"tables: {folder / f'{stem}.md'}")


def print_table(console: Console, title: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print a table of text.

    Args:
        console: console to print to.
        title: title of the table.
        heads: heads of the columns.
        lines: cells of each row.
    """
    table = Table(title=title, title_justify="left")
    for heading in heads:
        table.add_column(heading, justify="left" if heading == heads[0] else "right", overflow="fold")
    for line in lines:
        table.add_row(*line)
    console.print(table)


def print_line(console: Console, text: str) -> None:
    """Print one line without markup or wrapping.

    Args:
        console: console to print to.
        text: text of the line.
    """
    console.print(escape_for_terminal(text), highlight=False, markup=False, soft_wrap=True)


def exit_with_failures(console: Console, failures: list[tuple[str, str]]) -> None:
    """Print failures, and exit with the code of an incomplete run if there are any.

    Args:
        console: console to print to.
        failures: (sample, reason).

    Raises:
        typer.Exit: there are failures.
    """
    for key, reason in failures[:10]:
        line = escape_for_terminal(f"skipped: {key}: {reason}")
        console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
    if len(failures) > 10:
        console.print(f"and {len(failures) - 10} more, listed in failures.jsonl", style="red")
    if failures:
        raise typer.Exit(ExitCode.INCOMPLETE)
