"""What the commands show: progress, tables, endings."""

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
    from data.study import Study
    from maira.evaluate.comparison import Comparison
    from maira.grounding.evaluation import BoxResult
    from maira.grounding.labels import LabelScore
    from radfact.statistics.bootstrap import Summary

_WINDOW = 300.0
"""Seconds over which the rate of a run is taken: answers come in batches, which may take minutes."""


@contextmanager
def generation_progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """Progress of a model's answers; of several processes, of the main one's share."""
    from transformers.utils.logging import disable_progress_bar

    from maira.model.task_examples import UnusedInputWarning

    disable_progress_bar()
    title = title if process_count() == 1 else f"{title}, process 0 of {process_count()}"
    with (
        warnings.catch_warnings(action="ignore", category=UnusedInputWarning),  # the commands count it themselves
        show_progress(title) as on_progress,
    ):
        yield on_progress


def report_changed(what: str, done: str) -> Callable[[int], None]:
    """Says, of as many as it is called with, that they have changed and are asked again.

    Args:
        what: was answered, in the plural.
        done: with them, as a participle.
    """

    def tell(count: int) -> None:
        which, has, was, are = (
            ("one of the ", "has", "was", "is") if count == 1 else (f"{count} ", "have", "were", "are")
        )
        text = (
            f"{which}{what} {has} changed since {'it' if count == 1 else 'they'} {was} {done}, and {are} {done} again"
        )
        if is_main():
            print_line(Console(stderr=True), text)

    return tell


def print_unused_inputs(console: Console, studies: Sequence[Study], count: int) -> None:
    """Name what of the studies has no place in a prompt.

    Args:
        console: to print to.
        studies: with a prior report but no prior image, and others.
        count: studies in all.
    """
    from maira.model.task_examples import PRIOR_REPORT_UNUSED, has_unused_prior_report

    unused = [study.sample_id for study in studies if has_unused_prior_report(study)]
    if unused:
        print_line(console, f"{len(unused)} of {count} studies, such as {unused[0]}: {PRIOR_REPORT_UNUSED}")


@contextmanager
def show_progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """How far a run is, on standard error; gives what to call with how much is done, and of how much."""
    usage: dict[str, int] = {}
    display = ProgressDisplay(Console(stderr=True), {title: usage.copy}, window=_WINDOW)
    with display if is_main() else nullcontext():
        yield lambda done, total: usage.update(planned=total, done=done)


def print_box_scores(title: str, summary: str, run: BoxResult) -> None:
    """What came of a run of boxes, with its figures where there is something to compare with."""
    console = Console()
    if run.compared:
        print_scores(console, title, run.scores)
    else:
        print_line(console, "no reference boxes are known, so nothing is compared")
    if run.clipped:
        print_line(
            console, f"references of which the crop cuts a part, compared as far as it shows them: {run.clipped}"
        )
    if run.outside:
        print_line(console, f"references that cover no pixel of the crop, not compared: {run.outside}")
    if run.masked:
        print_line(console, f"references with masks, of which only the boxes are compared: {run.masked}")
    print_line(console, summary)
    exit_with_failures(console, [(str(f.sample_id), f.reason) for f in run.failures])


def print_scores(console: Console, title: str, figures: Mapping[str, LabelScore | Summary]) -> None:
    """A table of figures with their intervals."""
    table = Table(title=title, title_justify="left")
    for heading in ("figure", "point", "95 % interval", "n"):
        table.add_column(heading, justify="left" if heading == "figure" else "right")
    for name, figure in figures.items():
        interval = "-" if figure.low is None else f"{figure.low:.3f} to {figure.high:.3f}"
        table.add_row(name, "-" if figure.point is None else f"{figure.point:.3f}", interval, str(figure.n))
    console.print(table)


def print_comparison(
    console: Console,
    table: Comparison,
    folder: Path,
    stem: str,
    title: str,
    settings: Mapping[str, Any],
    about: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Write a comparison, and show a table for each experiment, its differences to the base, and the footnotes.

    Args:
        console: to print to.
        table, folder, stem, title, settings, about: as of `maira.evaluate.comparison.write_comparison`.
    """
    from maira.evaluate.comparison import footnotes, lines_of, write_comparison

    write_comparison(table, folder, stem, title, settings, about)
    for one in table.experiments:
        heading = one.name
        if table.base is not None and one.name != table.base.name:
            heading += f", and its differences to {table.base.name}"
        print_table(console, heading, *lines_of(table, one))
    for note in footnotes(table):
        print_line(console, note)
    print_line(console, f"tables: {folder / f'{stem}.md'}")


def print_table(console: Console, title: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """A table of text."""
    table = Table(title=title, title_justify="left")
    for heading in heads:
        table.add_column(heading, justify="left" if heading == heads[0] else "right", overflow="fold")
    for line in lines:
        table.add_row(*line)
    console.print(table)


def print_line(console: Console, text: str) -> None:
    """A line as it is, however long."""
    console.print(escape_for_terminal(text), highlight=False, markup=False, soft_wrap=True)


def exit_with_failures(console: Console, failures: list[tuple[str, str]]) -> None:
    """List what was left out, and leave with the exit code that says so."""
    for key, reason in failures[:10]:
        said = escape_for_terminal(f"left out: {key}: {reason}")
        console.print(said, style="red", markup=False, highlight=False, soft_wrap=True)
    if len(failures) > 10:
        console.print(f"and {len(failures) - 10} more, listed in failures.jsonl", style="red")
    if failures:
        raise typer.Exit(ExitCode.INCOMPLETE)
