"""Packed rows of the steps of a run, made ahead of time."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from functools import partial

from maira.train.items import Encoded, PackedBatch, Samples, Totals
from maira.train.packing import collate
from maira.train.plan import Plan
from maira.train.workers import in_workers

LENGTH_MULTIPLE = 64
"""Rows are padded to multiples of this many tokens: kernels are compiled anew for every shape."""


def stream(
    corpus: Samples, plan: Plan, first_step: int = 0, *, rank: int = 0, world: int = 1, workers: int = 1
) -> Generator[tuple[int, list[PackedBatch]]]:
    """The steps of a run from one on, each with the rows that one process runs in it.

    Closed, it ends its worker processes; so it should be, whatever ends the run.

    Args:
        corpus: of the table that the plan is for.
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

    with closing(in_workers(partial(encode_row, corpus), jobs(), workers)) as encoded:
        for _ in range(first_step, plan.steps):
            # Not taken before its first row is here: only then has its step been planned for certain.
            first = next(encoded)
            step, count, totals = ahead.popleft()
            rows = [first, *(next(encoded) for _ in range(count - 1))]
            yield step, [collate(row, totals, corpus.pad_id, LENGTH_MULTIPLE) for row in rows]


def encode_row(corpus: Samples, row: Sequence[int]) -> list[Encoded]:
    """The samples of a row, by their places in the table."""
    return [corpus.encode(place) for place in row]
