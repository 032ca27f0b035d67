"""Direct preference optimization (DPO) on packed rows, with precomputed reference log-probabilities.

docs/post-training.md explains why TRL's trainer is not used.

Source: Rafailov et al., "Direct Preference Optimization", 2023, section 4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maira.runtime.signals import TerminationSignal
from maira.train.config.run_config import DpoConfig, TrainConfig
from maira.train.data.batches import EncodedRow, StepBatches, collate_row, encode_row, iterate_steps
from maira.train.data.packing import PackedBatch, StepTotals
from maira.train.data.preferences import PreferenceDataset
from maira.train.data.schedule import DataSchedule
from maira.train.data.workers import map_in_workers
from maira.train.generation import evaluation_mode
from maira.train.logging import MetricsLogger
from maira.train.loss import Losses, token_losses
from maira.train.parallel import ParallelModel
from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.jsonl import read_json, write_json

REFERENCE_FILE = "reference_log_probs.json"
"""File in the folder of a run with the log-probabilities of the reference model."""
_ROWS_PER_SAVE = 200
"""Rows per process between two saves of the reference log-probabilities."""
_LogProbs = dict[int, tuple[float, ...]]
"""Log-probabilities of the chosen and rejected report by the index of the pair, NaN for a pair that cannot be read."""
_STATISTICS = ("pairs", "rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "nll_loss")
"""Sums over the pairs of a row, with the names that TRL uses for their means."""


class DpoLoss(nn.Module):
    """DPO loss, summed over preference pairs.

    Args:
        config: options of the objective.
    """

    def __init__(self, config: DpoConfig) -> None:
        super().__init__()
        self._config = config

    def forward(self, hidden: Tensor, head: nn.Module, batch: PackedBatch) -> Losses:
        """Compute the loss of a row of preference pairs.

        Args:
            hidden: (1, tokens, width), output of the language model's last layer.
            head: layer that computes logits.
            batch: the row.

        Raises:
            ValueError: the row has no preference pairs.
        """
        if batch.reference_log_probs is None:
            raise ValueError("expected a row of preference pairs with reference log-probabilities")
        # (answer tokens,)
        losses = token_losses(hidden, head, batch)
        zeros = torch.zeros(len(batch.sample_ids), device=losses.device)
        # (samples,)
        log_probs = zeros.index_add(0, batch.answer_samples, -losses)
        tokens = zeros.index_add(0, batch.answer_samples, torch.ones_like(losses))
        # (pairs,)
        chosen, rejected = (self._config.beta * (log_probs - batch.reference_log_probs)).view(-1, 2).unbind(1)
        margins = chosen - rejected
        nll = -(log_probs / tokens)[::2]
        pair_losses = -F.logsigmoid(margins) + self._config.nll_weight * nll
        terms = (torch.ones_like(margins), chosen, rejected, margins, (margins > 0).float(), nll)
        return Losses(
            answer=pair_losses.sum(),
            patches=losses.new_zeros(()),
            per_sample=-log_probs.detach(),
            tokens=tokens,
            statistics=torch.stack([term.detach().sum() for term in terms]).double(),
        )


class DpoObjective:
    """DPO objective: yields the preference pairs of each step with their log-probabilities under the initial weights.

    The reference log-probabilities are computed before the first step and saved to the folder of the run, so that the
    reference model needs no memory during training, and a resumed run uses the same values. They are saved
    periodically, so an interrupted run resumes with the missing ones.

    Args:
        config: run config.
        dataset: preference pairs.
        schedule: order of the pairs.
        model: model in training.
        fingerprint: fingerprint of the initial weights; None in processes other than the main one.
        log: receives messages.
    """

    statistics: Sequence[str] = _STATISTICS

    def __init__(
        self,
        config: TrainConfig,
        dataset: PreferenceDataset,
        schedule: DataSchedule,
        model: ParallelModel,
        fingerprint: Any,
        log: MetricsLogger,
    ) -> None:
        self._config, self._dataset, self._schedule = config, dataset, schedule
        self._model, self._context, self._fingerprint, self._log = model, model.context, fingerprint, log

    def iterate(self, first_step: int, termination: TerminationSignal) -> Generator[StepBatches]:
        """Yield the steps of a run with the rows of this process.

        Args:
            first_step: from 0.
            termination: ends the computation of the reference log-probabilities once any process has received it.

        Raises:
            InputError: a sample cannot be read, or the run resumes without its reference log-probabilities.
            RunError: the run was terminated before its first step.
        """
        log_probs = self._load(first_step)
        if missing := len(self._dataset.table) - len(log_probs):
            self._log.info(f"computing the reference log-probabilities of {missing} pairs")
            self._compute(log_probs, termination)
        self._dataset.reference_log_probs = np.array([log_probs[index] for index in range(len(log_probs))])
        rank, size = self._context.rank, self._context.size
        workers = self._config.workers
        with closing(
            iterate_steps(self._dataset, self._schedule, first_step, rank=rank, world_size=size, workers=workers)
        ) as steps:
            for step in steps:
                # The loss is the mean over pairs, not over answer tokens.
                totals = StepTotals(step.rows[0].totals.samples, step.rows[0].totals.samples)
                yield step._replace(
                    rows=[replace(row, totals=totals) for row in step.rows],
                    skipped=[sample._replace(answer_tokens=1) for sample in step.skipped],
                )

    def after_backward(
        self, loss: float, metrics: Mapping[str, float], statistics: Sequence[float], log_probs: Sequence[Tensor]
    ) -> dict[str, float]:
        """Return the means over the pairs of a step. See `maira.train.loop.Objective`."""
        del metrics, log_probs
        pairs, *sums = statistics
        means = {name: value / max(1.0, pairs) for name, value in zip(_STATISTICS[1:], sums, strict=True)}
        return {"loss": loss, **means}

    def _load(self, first_step: int) -> _LogProbs:
        """Return the reference log-probabilities saved by an earlier start of this run, in all processes.

        Before the first step, those of unreadable pairs are left out: the pairs may be readable now.
        """
        file = self._config.out / REFERENCE_FILE
        log_probs: _LogProbs = {}
        if self._context.is_main and file.exists():
            content = read_json(file)
            if isinstance(content, dict) and content.get("key") == self._key:
                pairs = enumerate(content["log_probs"])
                log_probs = {index: tuple(np.array(pair, float)) for index, pair in pairs if pair is not None}
                if not first_step:
                    log_probs = {index: pair for index, pair in log_probs.items() if not np.isnan(pair).any()}
        log_probs = self._context.gather(log_probs)[0]
        if first_step and len(log_probs) < len(self._dataset.table):
            raise InputError(
                f"expected the reference log-probabilities of this run, which resumes at step {first_step}; restore "
                "the file, or set another `out`",
                code=ErrorCode.MISMATCH,
                file=file,
            )
        return log_probs

    def _save(self, log_probs: _LogProbs, computed: _LogProbs) -> None:
        """Add the log-probabilities computed in each process, and save all; called by all processes."""
        for new in self._context.gather(computed):
            log_probs.update(new)
        computed.clear()
        if self._context.is_main:
            # null for a pair that is not computed yet, [null, null] for one that cannot be read
            pairs = [log_probs.get(index) for index in range(len(self._dataset.table))]
            rows = [pair and [None if np.isnan(value) else float(value) for value in pair] for pair in pairs]
            write_json(self._config.out / REFERENCE_FILE, {"key": self._key, "log_probs": rows})
        self._context.wait()  # if the main process cannot write, all end

    @property
    def _key(self) -> str:
        """Fingerprint of the initial weights, their precision and the pairs."""
        digest = hashlib.sha256(f"{self._fingerprint} {self._config.precision}".encode())
        digest.update(self._dataset.table.tobytes())
        return digest.hexdigest()[:16]

    def _compute(self, log_probs: _LogProbs, termination: TerminationSignal) -> None:
        """Compute and save the missing reference log-probabilities; called by all processes.

        Raises:
            RunError: a process received a termination signal.
        """
        pairs = len(self._dataset.table)
        # The same rows as in a run without interruption, so that rounding is the same.
        rows = _reference_rows(self._schedule.lengths, self._config.token_budget)
        rows = [row for row in rows if not log_probs.keys() >= set(row)]
        own = rows[self._context.rank :: self._context.size]
        # Processes exchange tensors in every row, so each needs the same number of rows.
        own += rows[:1] * (-(-len(rows) // self._context.size) - len(own))
        computed: _LogProbs = {}
        encode = partial(_encode_pairs, self._dataset, self._config.faults.unreadable == "skip")
        with (
            evaluation_mode(self._model.wrapped),
            torch.no_grad(),
            closing(map_in_workers(encode, own, self._config.workers)) as encoded,
        ):
            for number, (row, encoded_pairs) in enumerate(zip(own, encoded, strict=True)):
                # Processes that have failed report it here.
                is_terminated = any(self._context.gather(termination.is_received))
                if is_terminated or (number and number % _ROWS_PER_SAVE == 0):
                    self._save(log_probs, computed)
                    self._log.info(f"reference log-probabilities of {len(log_probs)} of {pairs} pairs computed")
                if is_terminated:
                    raise RunError(
                        "terminated while computing the reference log-probabilities; the same command resumes",
                        code=ErrorCode.INTERRUPTED,
                    )
                samples = EncodedRow([sample for pair in encoded_pairs for sample in pair.samples], [])
                batch = collate_row(samples, StepTotals(1, 1), self._dataset)
                with self._context.collective_section():
                    losses = self._model(batch.to(self._context.device))
                values = iter((-losses.per_sample.view(-1, 2)).tolist())
                for index, pair in zip(row, encoded_pairs, strict=True):
                    computed[index] = tuple(next(values)) if pair.samples else (np.nan, np.nan)
        self._save(log_probs, computed)


def _encode_pairs(dataset: PreferenceDataset, skips: bool, row: Sequence[int]) -> list[EncodedRow]:
    """Encode each pair of a row separately, to know which pairs are unreadable."""
    return [encode_row(dataset, skips, "training", [index]) for index in row]


def _reference_rows(lengths: npt.NDArray[np.int64], budget: int) -> list[list[int]]:
    """Pack pairs of similar length into rows of at most `budget` tokens; return the indices per row."""
    rows: list[list[int]] = []
    load = budget
    for index in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[index])
        if load + length > budget:
            rows.append([])
            load = 0
        rows[-1].append(index)
        load += length
    return rows
