"""Packed rows of the steps of a run, made ahead of time."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from maira.train.items import Encoded, PackedBatch, Samples, Totals
from maira.train.packing import collate
from maira.train.plan import Plan
from maira.train.sources import Unreadable
from maira.train.workers import in_workers
from radfact.errors import InputError

LENGTH_MULTIPLE = 64
"""Rows are padded to multiples of this many tokens: kernels are compiled anew for every shape."""


class LeftOut(NamedTuple):
    """A sample that is in no row, since one of its images cannot be read."""

    sample_id: str
    answer_tokens: int
    reason: str


class Step(NamedTuple):
    """What one process runs in an optimiser step.

    Attributes:
        number: from 0.
        rows: their totals are those of all samples of the step.
        left_out: samples of this process's rows that are in none.
    """

    number: int
    rows: list[PackedBatch]
    left_out: list[LeftOut]


def stream(
    corpus: Samples, plan: Plan, first_step: int = 0, *, rank: int = 0, world: int = 1, workers: int = 1
) -> Generator[Step]:
    """The steps of a run from one on, with the rows that one process runs in each.

    Closed, it ends its worker processes; so it should be, whatever ends the run.

    Args:
        corpus: of the table that the plan is for; its recipe says whether samples may be left out.
        plan: of the run.
        first_step: from 0; the steps before it cost nothing.
        rank, world: this process, and how many there are.
        workers: processes that prepare rows.

    Raises:
        InputError: a sample cannot be read.
        RunFailed: a worker process died.
    """
    ahead: deque[tuple[int, int, Totals]] = deque()

    def jobs() -> Iterator[list[int]]:
        for step in range(first_step, plan.steps):
            rows = plan.rows(step, rank, world)
            ahead.append((step, len(rows), plan.totals(step)))
            yield from rows

    skips = plan.recipe.faults.unreadable == "skip"
    with closing(in_workers(partial(_encode_what_can_be, corpus, skips), jobs(), workers)) as encoded:
        for _ in range(first_step, plan.steps):
            # Not taken before its first row is here: only then has its step been planned for certain.
            first = next(encoded)
            step, count, totals = ahead.popleft()
            rows = [first, *(next(encoded) for _ in range(count - 1))]
            left_out = [sample for row in rows for sample in row if isinstance(sample, LeftOut)]
            readable = [[sample for sample in row if isinstance(sample, Encoded)] for row in rows]
            yield Step(step, [_collated(row, totals, corpus) for row in readable], left_out)


def encode_row(corpus: Samples, row: Sequence[int]) -> list[Encoded]:
    """The samples of a row, by their places in the table."""
    return [corpus.encode(place) for place in row]


def _encode_what_can_be(corpus: Samples, skips: bool, row: Sequence[int]) -> list[Encoded | LeftOut]:
    """The samples of a row; if some may be left out, those that cannot be read stand there without what they hold."""
    samples: list[Encoded | LeftOut] = []
    for place in row:
        try:
            samples.append(corpus.encode(place))
        except Unreadable as error:
            if not skips:
                raise InputError(
                    f"{error.message}. Mend it, or set faults.unreadable=skip to leave out such samples; the same "
                    "command then goes on",
                    file=error.file,
                    line=error.line,
                ) from None
            samples.append(LeftOut(_name(corpus, place), int(corpus.table[place]["answer"]), str(error)))
    return samples


def _name(corpus: Samples, place: int) -> str:
    try:
        return corpus.sample_id(place)
    except Unreadable:
        # Of a damaged shard not even the name can be read.
        return corpus.place(place)


def _collated(row: list[Encoded], totals: Totals, corpus: Samples) -> PackedBatch:
    return collate(row, totals, corpus.pad_id, LENGTH_MULTIPLE) if row else _empty(totals, corpus)


def _empty(totals: Totals, corpus: Samples) -> PackedBatch:
    """A row without samples. Processes wait for each other's tensors in every row, so that one cannot pass it over."""
    batch = collate([corpus.blank()], totals, corpus.pad_id, LENGTH_MULTIPLE)
    return replace(
        batch,
        frontal_rows=batch.frontal_rows[:0],
        coverage=None if batch.coverage is None else batch.coverage[:0],
        sample_ids=(),
        tasks=(),
    )
