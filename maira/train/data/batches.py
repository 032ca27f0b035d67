"""Packed rows of the steps of a run, prepared ahead of time."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Literal, NamedTuple

from maira.train.config.run_config import AnomalyConfig
from maira.train.data.packing import EncodedSample, PackedBatch, SampleDataset, StepTotals, collate
from maira.train.data.schedule import DataSchedule
from maira.train.data.sources import UnreadableSample, skipping_unreadable
from maira.train.data.workers import map_in_workers

LENGTH_MULTIPLE = 64
"""Rows are padded to multiples of this many tokens, since kernels are compiled for every new shape."""

Phase = Literal["training", "validation"]


class SkippedSample(NamedTuple):
    """A sample that is in no row because one of its images or its line cannot be read."""

    sample_id: str
    answer_tokens: int
    reason: str


class StepBatches(NamedTuple):
    """What one process runs in an optimizer step."""

    number: int  # of the step, from 0
    rows: list[PackedBatch]  # their totals count all samples of the step, over all processes
    skipped: list[SkippedSample]  # unreadable samples of this process's rows
    metrics: Mapping[str, float] = MappingProxyType({})  # of the samples, over all processes


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

    encode = partial(encode_row, dataset, schedule.config.faults, "training")
    with closing(map_in_workers(encode, rows_ahead(), workers)) as encoded:
        for _ in range(first_step, schedule.steps):
            # `pending` has a step once its first row has been scheduled.
            first = next(encoded)
            step, count, totals = pending.popleft()
            rows = [first, *(next(encoded) for _ in range(count - 1))]
            skipped = [sample for row in rows for sample in row.skipped]
            yield StepBatches(step, [collate_row(row, totals, dataset) for row in rows], skipped)


def encode_row(dataset: SampleDataset, config: AnomalyConfig, phase: Phase, row: Sequence[int]) -> EncodedRow:
    """Encode the samples of a row."""
    encoded = EncodedRow([], [])
    for index in row:
        with skipping_unreadable(config, f"the {phase}") as reasons:
            encoded.samples.append(dataset.encode(index))
        for reason in reasons:
            try:
                name = dataset.sample_id(index)
            except UnreadableSample:  # not even the name, in a damaged shard
                name = dataset.location(index)
            encoded.skipped.append(SkippedSample(name, int(dataset.table[index]["answer"]), reason))
    return encoded


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
