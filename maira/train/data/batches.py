"""Packed rows of the steps of a run, made ahead of time."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple

from maira.train.data.packing import EncodedSample, PackedBatch, SampleDataset, StepTotals, collate
from maira.train.data.schedule import DataSchedule
from maira.train.data.sources import Unreadable
from maira.train.data.workers import map_in_workers
from radfact.errors import InputError

LENGTH_MULTIPLE = 64
"""Rows are padded to multiples of this many tokens: kernels are compiled anew for every shape."""

Phase = Literal["training", "validation"]
"""Of a run, what a sample is of."""


class SkippedSample(NamedTuple):
    """A sample that is in no row, since one of its images cannot be read."""

    sample_id: str
    answer_tokens: int
    reason: str


class Step(NamedTuple):
    """What one process runs in an optimiser step.

    Attributes:
        number: from 0.
        rows: their totals are those of all samples of the step.
        skipped: samples of this process's rows that are in none.
    """

    number: int
    rows: list[PackedBatch]
    skipped: list[SkippedSample]


def stream(
    dataset: SampleDataset,
    schedule: DataSchedule,
    first_step: int = 0,
    *,
    rank: int = 0,
    world_size: int = 1,
    workers: int = 1,
) -> Generator[Step]:
    """The steps of a run from one on, with the rows that one process runs in each.

    Closed, it ends its worker processes; so it should be, whatever ends the run.

    Args:
        dataset: of the table that the plan is for; its recipe says whether samples may be left out.
        schedule: of the run.
        first_step: from 0; the steps before it cost nothing.
        rank, world_size: this process, and how many there are.
        workers: processes that prepare rows.

    Raises:
        InputError: a sample cannot be read.
        RunError: a worker process died.
    """
    ahead: deque[tuple[int, int, StepTotals]] = deque()

    def jobs() -> Iterator[list[int]]:
        for step in range(first_step, schedule.steps):
            rows = schedule.rows(step, rank, world_size)
            ahead.append((step, len(rows), schedule.totals(step)))
            yield from rows

    skips = schedule.config.faults.unreadable == "skip"
    with closing(map_in_workers(partial(encode_row, dataset, skips, "training"), jobs(), workers)) as encoded:
        for _ in range(first_step, schedule.steps):
            # Not taken before its first row is here: only then has its step been planned for certain.
            first = next(encoded)
            step, count, totals = ahead.popleft()
            rows = [first, *(next(encoded) for _ in range(count - 1))]
            skipped = [sample for row in rows for sample in row.skipped]
            yield Step(step, [collate_row(row, totals, dataset) for row in rows], skipped)


class EncodedRow(NamedTuple):
    """The samples of a row that can be read, and those that cannot."""

    samples: list[EncodedSample]
    skipped: list[SkippedSample]


def encode_row(dataset: SampleDataset, skips: bool, part: Phase, row: Sequence[int]) -> EncodedRow:
    """The samples of a row.

    Args:
        dataset: what they are of.
        skips: whether samples that cannot be read may be left out.
        part: of the run, for messages.
        row: their places in the table.

    Raises:
        InputError: a sample cannot be read and may not be left out, or is not as it was when the table was made.
    """
    encoded = EncodedRow([], [])
    for place in row:
        try:
            encoded.samples.append(dataset.encode(place))
        except Unreadable as error:
            if not skips:
                raise unreadable_sample_error(error, f"a sample of the {part}") from None
            encoded.skipped.append(
                SkippedSample(_name(dataset, place), int(dataset.table[place]["answer"]), str(error))
            )
    return encoded


def unreadable_sample_error(error: InputError, where: str) -> InputError:
    """The error of something that cannot be read and may not be left out, with what can be done about it."""
    return InputError(
        f"{error.message}, in {where}. Mend it, or set faults.unreadable=skip to leave out such samples; the same "
        "command then goes on",
        file=error.file,
        line=error.line,
    )


def _name(dataset: SampleDataset, place: int) -> str:
    try:
        return dataset.sample_id(place)
    except Unreadable:
        # Of a damaged shard not even the name can be read.
        return dataset.place(place)


def collate_row(row: EncodedRow, totals: StepTotals, dataset: SampleDataset) -> PackedBatch:
    """The tensors of a row.

    Processes wait for each other's tensors in every row, so that one cannot pass over that of which nothing is left.
    """
    if row.samples:
        return collate(row.samples, totals, dataset.pad_id, LENGTH_MULTIPLE)
    batch = collate([dataset.blank()], totals, dataset.pad_id, LENGTH_MULTIPLE)
    return replace(
        batch,
        frontal_rows=batch.frontal_rows[:0],
        coverage=None if batch.coverage is None else batch.coverage[:0],
        sample_ids=(),
        tasks=(),
    )
