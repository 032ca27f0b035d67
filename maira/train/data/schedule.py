"""Which samples form which step on which process, and their packed rows, prepared ahead of time by worker processes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from maira.data.processes import process_pool
from maira.runtime.processes import DistributedContext
from maira.train.config.run_config import ALL_TASKS, AnomalyConfig, BaseTrainConfig
from maira.train.data.packing import EncodedSample, PackedBatch, SampleDataset, StepTotals, check_lengths, collate, pack
from maira.train.data.sources import UnreadableSample, skipping_unreadable
from radfact.errors import ErrorCode, RunError

Indices = npt.NDArray[np.int64]
"""Rows of the table of samples."""


class DataSchedule:
    """The samples of each optimizer step, a function of seed, step and number of processes."""

    # An epoch takes each sample as often as the shares of the configuration say: whole times, and for the remaining
    # fraction as many samples as it stands for, drawn anew each epoch. Its draw d takes the samples from
    # d * samples_per_draw on, whatever the number of processes; samples that do not fill a draw are omitted from the
    # epoch. A draw serves `steps_per_draw` steps, one unless responses to its prompts are sampled.

    def __init__(self, table: npt.NDArray[Any], config: BaseTrainConfig) -> None:
        self.table, self.config = table, config
        self.lengths: Indices = table["prompt"].astype(np.int64) + table["answer"]
        rows = {
            (number, task): np.flatnonzero((table["source"] == number) & (table["task"] == ALL_TASKS.index(task)))
            for number, source in enumerate(config.train)
            for task in config.shares(source)
        }
        self.parts = config.plan_epoch({key: len(own) for key, own in rows.items()})
        self._groups = [(rows[part.source, part.task], part) for part in self.parts]
        self._order: tuple[int, Indices] | None = None
        self.samples_per_epoch = sum(part.used for part in self.parts)
        self.steps_per_epoch, self.steps = config.plan_steps(self.samples_per_epoch)

    def order(self, epoch: int) -> Indices:
        if self._order is None or self._order[0] != epoch:
            rng = np.random.default_rng(np.random.SeedSequence((self.config.seed, epoch)))
            samples = []
            for rows, part in self._groups:
                repeats = int(part.share)
                samples += [*[rows] * repeats, rng.choice(rows, part.used - repeats * len(rows), replace=False)]
            self._order = epoch, rng.permutation(np.concatenate(samples))
        return self._order[1]

    def step_samples(self, step: int) -> Indices:
        """Return the samples of a step; steps are counted from 0 over all epochs."""
        epoch, step_of_epoch = divmod(step, self.steps_per_epoch)
        count = self.config.samples_per_draw
        begin = step_of_epoch // self.config.steps_per_draw * count
        return self.order(epoch)[begin : begin + count]

    def totals(self, step: int) -> StepTotals:
        samples = self.step_samples(step)
        return StepTotals(answer_tokens=int(self.table["answer"][samples].sum()), samples=len(samples))

    def rows(self, step: int, rank: int = 0, world_size: int = 1) -> list[list[int]]:
        """Return the packed rows of one process in a step, lists of samples; each process has the same number."""
        samples = self.step_samples(step)
        packed = pack(self.lengths[samples].tolist(), self.config.token_budget, world_size)
        return [[int(samples[i]) for i in row] for row in packed[rank::world_size]]

    def check(self, sample_id: Callable[[int], str], world_size: int = 1) -> None:
        """Check before the first step that every sample fits in a row."""
        budget = self.config.token_budget
        samples = np.concatenate([rows for rows, _ in self._groups])
        check_lengths(self.table, samples, sample_id, budget, "token_budget")
        # No step is harder to pack than one of the longest samples.
        hardest = np.sort(self.lengths[samples])[-self.config.global_batch :]
        pack(np.resize(hardest, self.config.global_batch).tolist(), budget, world_size)


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
    context: DistributedContext = DistributedContext(),
    workers: int = 1,
) -> Generator[StepBatches]:
    """Yield the steps of a run with the rows of one process; closing the generator ends its worker processes."""
    pending: deque[tuple[int, int, StepTotals]] = deque()

    def rows_ahead() -> Iterator[list[int]]:
        for step in range(first_step, schedule.steps):
            rows = schedule.rows(step, context.rank, context.size)
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
    """Return the tensors of a row; a row without readable samples, which no process may omit, holds a blank sample."""
    if row.samples:
        return collate(row.samples, totals, dataset.pad_id, LENGTH_MULTIPLE)
    batch = collate([dataset.blank()], totals, dataset.pad_id, LENGTH_MULTIPLE)
    coverage = None if batch.coverage is None else batch.coverage[:0]
    return replace(batch, frontal_rows=batch.frontal_rows[:0], coverage=coverage, sample_ids=(), tasks=())


ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
_function: Callable[[Any], Any]
"""What this worker does with an item; forked with the process, since it may refer to gigabytes of data."""


def map_in_workers(
    function: Callable[[ItemT], ResultT], items: Iterable[ItemT], workers: int, *, prefetch: int = 2
) -> Generator[ResultT]:
    """Yield the results of a function in the order of its items, computed ahead by worker processes."""
    # Results are pickled through pipes, not shared memory, of which containers have little (64 MB in Docker).
    if not workers:
        yield from map(function, items)
        return
    pending: deque[Future[Any]] = deque()
    try:
        with process_pool(workers, start_method="fork", prepare=partial(_prepare, function)) as pool:
            for item in items:
                pending.append(pool.submit(_call, item))
                if len(pending) > workers * prefetch:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
    except BrokenProcessPool:
        message = "a process that prepares samples was killed, most likely because memory ran out; give the run more "
        message += "memory or fewer workers, and start the same command again"
        raise RunError(message, code=ErrorCode.OUT_OF_MEMORY) from None


def _prepare(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    # Work comes item by item; threads of torch and of the tokenizer would compete with the other workers.
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _call(item: Any) -> Any:
    return _function(item)
