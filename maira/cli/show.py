"""Output of the commands: progress, tables, failures."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from maira.runtime.processes import is_main, process_count
from radfact.cli.tables import show_rows
from radfact.errors import ExitCode, escape_for_terminal
from radfact.progress import display_progress

if TYPE_CHECKING:
    from maira.data.study import Study
    from maira.grounding.evaluation import BoxResult
    from radfact.statistics.bootstrap import Summary

_WINDOW = 300.0
"""Seconds over which the rate is averaged: responses arrive in batches, which may take minutes."""


@contextmanager
def generation_progress(title: str, items: str, done: str) -> Iterator[dict[str, Callable[..., None]]]:
    """Show the progress of generation; yields callbacks. `done` is the participle of the work, such as "drafted"."""
    from transformers.utils.logging import disable_progress_bar

    def report_changed(count: int) -> None:
        if is_main():
            print_line(Console(stderr=True), f"{items} changed since the last run and {done} again: {count}")

    disable_progress_bar()
    title = title if process_count() == 1 else f"{title}, process 0 of {process_count()}"
    with show_progress(title) as on_progress:
        yield {"on_changed": report_changed, "on_progress": on_progress}


def print_unused_inputs(console: Console, studies: Sequence[Study], count: int) -> None:
    """Print how many of `count` studies have a prior report that is not used."""
    from maira.model.task_examples import PRIOR_REPORT_UNUSED, has_unused_prior_report

    unused = [study.sample_id for study in studies if has_unused_prior_report(study)]
    if unused:
        print_line(console, f"{len(unused)} of {count} studies, such as {unused[0]}: {PRIOR_REPORT_UNUSED}")


@contextmanager
def show_progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress on standard error; yields a callback for (finished items, all items)."""
    usage: dict[str, int] = {}
    display = display_progress(Console(stderr=True), {title: usage.copy}, window=_WINDOW)
    with display if is_main() else nullcontext():
        yield lambda done, total: usage.update(planned=total, done=done)


def print_box_scores(title: str, summary: str, run: BoxResult) -> None:
    """Print the result of a run, with its scores if references are known, and exit if there are failures."""
    console = Console()
    if run.compared:
        print_scores(console, title, run.scores)
    else:
        print_line(console, "no scores: no reference boxes are known")
    for count, description in (
        (run.clipped, "references that the crop cuts, of which the part inside counts"),
        (run.outside, "references outside the crop, which are not compared"),
        (run.masked, "references with masks, which are ignored"),
    ):
        if count:
            print_line(console, f"{description}: {count}")
    print_line(console, summary)
    exit_with_failures(console, [(str(f.sample_id), f.reason) for f in run.failures])


def print_scores(console: Console, title: str, scores: Mapping[str, Summary]) -> None:
    from radfact.results.display import format_interval, format_number

    rows = ([name, format_number(item.point), format_interval(item), str(item.n)] for name, item in scores.items())
    show_rows(console, ("score", "point", "95% interval", "n"), rows, title=title)


def warn_of_bfloat16(console: Console, precision: str) -> None:
    """Print that bfloat16 takes ten times as long on this CPU, which has no instructions for it (measured on AVX2)."""
    import torch

    # A torch that does not know, and another processor than these, say nothing.
    known = [getattr(torch.cpu, f"_is_{name}_supported", lambda: True)() for name in ("avx512_bf16", "amx_tile")]
    is_slow = platform.machine() in ("x86_64", "AMD64") and not any(known)
    if precision == "bf16" and is_slow and is_main() and not torch.cuda.is_available():
        text = "precision bf16: this CPU has no instructions for bfloat16, which takes up to ten times as long as "
        print_line(console, f"{text}float32; a new run with precision=no computes in float32", "yellow")


def print_line(console: Console, text: str, style: str | None = None) -> None:
    """Print one line without markup or wrapping."""
    console.print(escape_for_terminal(text), style=style, highlight=False, markup=False, soft_wrap=True)


def exit_with_failures(console: Console, failures: list[tuple[str, str]]) -> None:
    """Print failures, (sample, reason), and exit with the code of an incomplete run if there are any."""
    for key, reason in failures[:10]:
        print_line(console, f"skipped: {key}: {reason}", "red")
    if len(failures) > 10:
        print_line(console, f"and {len(failures) - 10} more, listed in failures.jsonl", "red")
    if failures:
        raise typer.Exit(ExitCode.INCOMPLETE)
