"""The order of a run's samples: which ones each optimizer step takes, and how they share rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from maira.train.config.run_config import BaseTrainConfig
from maira.train.data.packing import ALL_TASKS, StepTotals, check_lengths, pack
from radfact.errors import InputError

Indices = npt.NDArray[np.int64]
"""Rows of the table of samples."""


class DataSchedule:
    """The samples of each optimizer step, a function of seed, step and number of processes.

    An epoch takes each sample as often as the shares of the configuration say: whole times, and for the remaining
    fraction as many samples as it stands for, drawn anew each epoch. Its draw d takes the samples from
    d * samples_per_draw on, whatever the number of processes; samples that do not fill a draw are omitted from the
    epoch. A draw serves `steps_per_draw` steps, one unless responses to its prompts are sampled.
    """

    def __init__(self, table: npt.NDArray[Any], config: BaseTrainConfig) -> None:
        self.table, self.config = table, config
        self.lengths: Indices = table["prompt"].astype(np.int64) + table["answer"]
        # Samples that have the same share, with it.
        self._groups = [
            (np.flatnonzero((table["source"] == number) & (table["task"] == ALL_TASKS.index(task))), share)
            for number, source in enumerate(config.train)
            for task, share in config.shares(source).items()
        ]
        self._order: tuple[int, Indices] | None = None
        self.samples_per_epoch = sum(round(len(rows) * share) for rows, share in self._groups)
        self.steps_per_epoch = self.samples_per_epoch // config.samples_per_draw * config.steps_per_draw
        if not self.steps_per_epoch:
            raise InputError(
                f"an epoch has {self.samples_per_epoch} samples to train on, too few for a step, which takes "
                f"{config.samples_per_draw}",
                field="train",
            )
        if config.passes is not None:
            self.steps = config.passes // config.global_batch * config.steps_per_draw
        else:
            self.steps = max(1, round((config.epochs or 0) * self.steps_per_epoch))

    def epoch(self, step: int) -> int:
        """Return the epoch that a step belongs to, from 0."""
        return step // self.steps_per_epoch

    def order(self, epoch: int) -> Indices:
        """Return the samples of an epoch in their order."""
        if self._order is None or self._order[0] != epoch:
            rng = np.random.default_rng(np.random.SeedSequence((self.config.seed, epoch)))
            samples = []
            for rows, share in self._groups:
                repeats = int(share)
                drawn = rng.choice(rows, round(len(rows) * share) - repeats * len(rows), replace=False)
                samples += [*[rows] * repeats, drawn]
            self._order = epoch, rng.permutation(np.concatenate(samples))
        return self._order[1]

    def step_samples(self, step: int) -> Indices:
        """Return the samples of a step; steps are counted from 0 over all epochs."""
        epoch, step_of_epoch = divmod(step, self.steps_per_epoch)
        count = self.config.samples_per_draw
        begin = step_of_epoch // self.config.steps_per_draw * count
        return self.order(epoch)[begin : begin + count]

    def totals(self, step: int) -> StepTotals:
        """Return the divisors of the losses of a step."""
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
