"""Which samples each optimiser step takes, and how they share rows: a function of seed, step and world size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from maira.train.config.run_config import BaseTrainConfig
from maira.train.data.packing import ALL_TASKS, StepTotals, pack
from radfact.errors import InputError

Rows = npt.NDArray[np.int64]
"""Places in the table of answers."""


class DataSchedule:
    """The course of a run.

    An epoch takes each answer of the table as often as the recipe's shares say: whole times, and of what is left as
    many answers as the fraction says, drawn anew each epoch. Its order is a function of the seed and the epoch, and
    step s of it takes the items from s * global_batch on, whatever the number of processes; what does not fill a step
    waits for another epoch.

    Args:
        table: (answers,) of `SAMPLE_LENGTHS`.
        config: its seed, shares, batch, budget and length count.

    Raises:
        InputError: an epoch does not fill one step.

    Attributes:
        items_per_epoch: answers seen in an epoch, before the rest that fills no step is left out.
        steps_per_epoch, steps: optimiser steps of an epoch and of the run.
    """

    def __init__(self, table: npt.NDArray[Any], config: BaseTrainConfig) -> None:
        self.table, self.config = table, config
        self.lengths: Rows = table["prompt"].astype(np.int64) + table["answer"]
        self._groups = _groups(table, config)
        self._order: tuple[int, Rows] | None = None
        self.items_per_epoch = sum(_times(len(rows), share) for rows, share in self._groups)
        self.steps_per_epoch = self.items_per_epoch // config.global_batch
        if not self.steps_per_epoch:
            raise InputError(
                f"an epoch has {self.items_per_epoch} answers to train on, too few for one global_batch of "
                f"{config.global_batch}",
                field="train",
            )
        if config.passes is not None:
            self.steps = config.passes // config.global_batch
        else:
            self.steps = max(1, round((config.epochs or 0) * self.steps_per_epoch))

    def epoch(self, step: int) -> int:
        """The epoch that a step belongs to, from 0."""
        return step // self.steps_per_epoch

    def order(self, epoch: int) -> Rows:
        """The items of an epoch in their order."""
        if self._order is None or self._order[0] != epoch:
            rng = np.random.default_rng(np.random.SeedSequence((self.config.seed, epoch)))
            taken = []
            for rows, share in self._groups:
                whole = int(share)
                drawn = rng.choice(rows, _times(len(rows), share) - whole * len(rows), replace=False)
                taken += [*[rows] * whole, drawn]
            self._order = epoch, rng.permutation(np.concatenate(taken))
        return self._order[1]

    def step_items(self, step: int) -> Rows:
        """Places in the table of a step's samples.

        Args:
            step: from 0, over all epochs.
        """
        epoch, within = divmod(step, self.steps_per_epoch)
        begin = within * self.config.global_batch
        return self.order(epoch)[begin : begin + self.config.global_batch]

    def totals(self, step: int) -> StepTotals:
        """What the losses of a step are divided by."""
        items = self.step_items(step)
        return StepTotals(answer_tokens=int(self.table["answer"][items].sum()), samples=len(items))

    def rows(self, step: int, rank: int = 0, world_size: int = 1) -> list[list[int]]:
        """The packed rows that one process runs in a step, as many for each; a row is a list of places in the table."""
        items = self.step_items(step)
        packed = pack(self.lengths[items].tolist(), self.config.token_budget, world_size)
        return [[int(items[i]) for i in row] for row in packed[rank::world_size]]

    def check(self, sample_id: Callable[[int], str], world_size: int = 1) -> None:
        """See before the first step that every sample fits.

        Args:
            sample_id: names the study of a place in the table.
            world_size: processes.

        Raises:
            InputError: a sample is longer than a row, or a step has too few samples for that many processes.
        """
        budget = self.config.token_budget
        trained = np.concatenate([rows for rows, _ in self._groups])
        longest = int(trained[self.lengths[trained].argmax()])
        if self.lengths[longest] > budget:
            raise InputError(
                f"sample '{sample_id(longest)}' has {self.lengths[longest]} tokens (task "
                f"{ALL_TASKS[self.table['task'][longest]]}), more than the {budget} of a row; raise it, or leave it "
                "out",
                field="token_budget",
            )
        # No step is harder to pack than one of the longest samples.
        hardest = np.sort(self.lengths[trained])[-self.config.global_batch :]
        pack(np.resize(hardest, self.config.global_batch).tolist(), budget, world_size)


def _groups(table: npt.NDArray[Any], config: BaseTrainConfig) -> list[tuple[Rows, float]]:
    """Places in the table that have a share of their own, with it."""
    groups = []
    for number, source in enumerate(config.train):
        for task, share in config.shares(source).items():
            rows = np.flatnonzero((table["source"] == number) & (table["task"] == ALL_TASKS.index(task)))
            groups.append((rows, share))
    return groups


def _times(rows: int, share: float) -> int:
    """How many items so many answers make in an epoch."""
    return round(rows * share)
