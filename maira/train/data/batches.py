"""Packed rows of the steps of a run, prepared ahead of time."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Literal, NamedTuple

from maira.train.data.packing import EncodedSample, PackedBatch, SampleDataset, StepTotals, collate
from maira.train.data.schedule import DataSchedule
from maira.train.data.sources import UnreadableSample
from maira.train.data.workers import map_in_workers
from radfact.errors import ErrorCode, InputError

LENGTH_MULTIPLE = 64
"""Rows are padded to multiples of this many tokens, since kernels are compiled for every new shape."""

Phase = Literal["training", "validation"]


class SkippedSample(NamedTuple):
    """A sample that is in no row because one of its images or its line cannot be read."""

    sample_id: str
    answer_tokens: int
    reason: str


class StepBatches(NamedTuple):
    """What one process runs in an optimizer step.

    Attributes:
        number: of the step, from 0.
        rows: packed rows; their totals count all samples of the step, over all processes.
        skipped: samples of this process's rows that are unreadable.
        metrics: of the samples, over all processes.
    """

    number: int
    rows: list[PackedBatch]
    skipped: list[SkippedSample]
    metrics: Mapping[str, float] = MappingProxyType({})


class EncodedRow(NamedTuple):
    """The readable samples of a row, and the skipped ones."""

    samples: list[EncodedSample]
    skipped: list[SkippedSample]


def iterate_steps(
    dataset: SampleDataset,
    schedule: DataSchedule,
    first_step: int = 0,
    *,
    rank: int = 0,
    world_size: int = 1,
    workers: int = 1,
) -> Generator[StepBatches]:
    """Yield the steps of a run with the rows of one process; closing the generator ends its worker processes."""
    pending: deque[tuple[int, int, StepTotals]] = deque()

    def rows_ahead() -> Iterator[list[int]]:
        for step in range(first_step, schedule.steps):
            rows = schedule.rows(step, rank, world_size)
            pending.append((step, len(rows), schedule.totals(step)))
            yield from rows

    encode = partial(encode_row, dataset, schedule.config.faults.unreadable == "skip", "training")
    with closing(map_in_workers(encode, rows_ahead(), workers)) as encoded:
        for _ in range(first_step, schedule.steps):
            # `pending` has a step once its first row has been scheduled.
            first = next(encoded)
            step, count, totals = pending.popleft()
            rows = [first, *(next(encoded) for _ in range(count - 1))]
            skipped = [sample for row in rows for sample in row.skipped]
            yield StepBatches(step, [collate_row(row, totals, dataset) for row in rows], skipped)


def encode_row(dataset: SampleDataset, skips: bool, phase: Phase, row: Sequence[int]) -> EncodedRow:
    """Encode the samples of a row."""
    encoded = EncodedRow([], [])
    for index in row:
        try:
            encoded.samples.append(dataset.encode(index))
        except UnreadableSample as error:
            if not skips:
                raise unreadable_sample_error(error, f"a sample of the {phase}") from None
            try:
                name = dataset.sample_id(index)
            except UnreadableSample:  # not even the name, in a damaged shard
                name = dataset.location(index)
            encoded.skipped.append(SkippedSample(name, int(dataset.table[index]["answer"]), str(error)))
    return encoded


def unreadable_sample_error(error: InputError, owner: str) -> InputError:
    """Return the error of an unreadable sample that is not to be skipped, with a hint."""
    return InputError(
        f"{error.message}, in {owner}. Repair it, or set faults.unreadable=skip to skip such samples; the same command "
        "then resumes",
        code=ErrorCode.FILE_UNREADABLE,
        file=error.file,
        line=error.line,
    )


def collate_row(row: EncodedRow, totals: StepTotals, dataset: SampleDataset) -> PackedBatch:
    """Return the tensors of a row; a row without readable samples holds a blank sample without an answer.

    Processes exchange tensors in every row, so that none of them can omit one.
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
