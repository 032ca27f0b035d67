"""Direct preference optimization (DPO) on packed rows, with precomputed reference log-probabilities.

docs/post-training.md explains why TRL's trainer is not used.
Source: Rafailov et al., "Direct Preference Optimization", 2023, section 4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maira.runtime.processes import TerminationSignal
from maira.train.config.run_config import DpoConfig, TrainConfig
from maira.train.data.packing import PackedBatch, StepTotals
from maira.train.data.schedule import (
    DataSchedule,
    EncodedRow,
    StepBatches,
    collate_row,
    encode_row,
    iterate_steps,
    map_in_workers,
)
from maira.train.logging import MetricsLogger
from maira.train.loss import Losses, sum_losses, token_losses
from maira.train.parallel import ParallelModel
from maira.train.post.preferences import PreferenceDataset
from maira.train.validation import evaluation_mode
from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.jsonl import read_json, write_json

REFERENCE_FILE = "reference_log_probs.json"
"""File in the folder of a run with the log-probabilities of the reference model."""
_ROWS_PER_SAVE = 200
"""Rows per process between two saves of the reference log-probabilities."""
_STATISTICS = ("pairs", "rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "nll_loss")
"""Sums over the pairs of a row, with the names that TRL uses for their means."""
_LogProbs = npt.NDArray[np.float64]
"""(pairs, 2), of the chosen and rejected report; NaN for a pair that is not computed yet or cannot be read."""


class DpoLoss(nn.Module):
    """DPO loss, summed over preference pairs."""

    def __init__(self, config: DpoConfig) -> None:
        super().__init__()
        self._config = config

    def forward(self, hidden: Tensor, head: nn.Module, batch: PackedBatch) -> Losses:
        """Compute the loss of a row of preference pairs; `hidden` is (1, tokens, width), `head` computes logits."""
        assert batch.reference_log_probs is not None
        # (answer tokens,)
        losses = token_losses(hidden, head, batch)
        sums = sum_losses(losses, batch)
        # (samples,)
        log_probs = torch.zeros_like(sums.tokens).index_add(0, batch.answer_samples, -losses)
        # (pairs,)
        chosen, rejected = (self._config.beta * (log_probs - batch.reference_log_probs)).view(-1, 2).unbind(1)
        margins = chosen - rejected
        nll = -(log_probs / sums.tokens)[::2]
        pair_losses = -F.logsigmoid(margins) + self._config.nll_weight * nll
        terms = (torch.ones_like(margins), chosen, rejected, margins, (margins > 0).float(), nll)
        statistics = torch.stack([term.detach().sum() for term in terms]).double()
        return sums._replace(answer=pair_losses.sum(), statistics=statistics)


@dataclass
class DpoObjective:
    """DPO objective: yields the preference pairs of each step, with log-probabilities under the initial weights."""

    # These are computed before the first step and saved to the folder of the run, periodically, so that the reference
    # model needs no memory in training, and a resumed run uses the same values.

    config: TrainConfig
    dataset: PreferenceDataset
    fingerprint: Any  # of the model that the run starts from
    model: ParallelModel
    schedule: DataSchedule
    log: MetricsLogger
    statistics: Sequence[str] = _STATISTICS

    def __post_init__(self) -> None:
        self._context = self.model.context
        # Other initial weights, precision or pairs have other log-probabilities.
        digest = hashlib.sha256(f"{self.fingerprint} {self.config.precision}".encode())
        digest.update(self.dataset.table.tobytes())
        self._key, self._file = digest.hexdigest()[:16], self.config.out / REFERENCE_FILE

    def iterate(self, first_step: int, termination: TerminationSignal) -> Generator[StepBatches]:
        log_probs = self._read(first_step)
        if first_step == 0 and np.isnan(log_probs).any():
            self._compute(log_probs, termination)
        self.dataset.reference_log_probs = log_probs
        iterated = iterate_steps(self.dataset, self.schedule, first_step, self._context, self.config.workers)
        with closing(iterated) as steps:
            for step in steps:
                # The loss is the mean over pairs, not over answer tokens.
                totals = StepTotals(step.rows[0].totals.samples, step.rows[0].totals.samples)
                skipped = [sample._replace(answer_tokens=1) for sample in step.skipped]
                yield step._replace(rows=[replace(row, totals=totals) for row in step.rows], skipped=skipped)

    def after_backward(
        self, loss: float, metrics: Mapping[str, float], statistics: Sequence[float], log_probs: Sequence[Tensor]
    ) -> dict[str, float]:
        del metrics, log_probs
        pairs, *sums = statistics
        means = {name: value / max(1.0, pairs) for name, value in zip(_STATISTICS[1:], sums, strict=True)}
        return {"loss": loss, **means}

    def _read(self, first_step: int) -> _LogProbs:
        """Return the reference log-probabilities that an earlier start of this run has saved, in all processes."""
        saved: list[list[float | None] | None] | None = None
        if self._context.is_main and self._file.exists():
            content = read_json(self._file)
            saved = content["log_probs"] if isinstance(content, dict) and content.get("key") == self._key else None
        saved = self._context.gather(saved)[0]
        if first_step and saved is None:
            message = f"expected the reference log-probabilities of this run, which resumes at step {first_step}"
            message += "; restore the file, or set another `out`"
            raise InputError(message, code=ErrorCode.MISMATCH, file=self._file)
        # Earlier starts wrote null for a pair without values.
        return np.array([pair or [None, None] for pair in saved or [None] * len(self.dataset.table)], np.float64)

    def _save(self, log_probs: _LogProbs) -> None:
        """Merge the log-probabilities of all processes into those of each, and save them."""
        for other in self._context.gather(log_probs.copy()):
            np.copyto(log_probs, other, where=~np.isnan(other))
        if self._context.is_main:
            rows = [[None if np.isnan(value) else value for value in pair] for pair in log_probs.tolist()]
            write_json(self._file, {"key": self._key, "log_probs": rows})
        self._context.wait()  # if the main process cannot write, all end

    def _compute(self, log_probs: _LogProbs, termination: TerminationSignal) -> None:
        """Compute and save the missing reference log-probabilities; called by all processes."""
        missing = set(np.flatnonzero(np.isnan(log_probs).any(1)).tolist())
        self.log.info(f"computing the reference log-probabilities of {len(missing)} pairs")
        # The same rows as in a run without interruption, so that rounding is the same.
        rows = _reference_rows(self.schedule.lengths, self.config.token_budget)
        rows = [row for row in rows if not missing.isdisjoint(row)]
        own = rows[self._context.rank :: self._context.size]
        # Processes exchange tensors in every row, so each needs the same number of rows.
        own += rows[:1] * (-(-len(rows) // self._context.size) - len(own))

        def encode(row: list[int]) -> list[EncodedRow]:
            # Each pair of a row separately, to know which pairs are unreadable.
            return [encode_row(self.dataset, self.config.faults, "training", [index]) for index in row]

        with (
            evaluation_mode(self.model.wrapped),
            torch.no_grad(),
            closing(map_in_workers(encode, own, self.config.workers)) as encoded,
        ):
            for number, (row, pairs) in enumerate(zip(own, encoded, strict=True)):
                # Processes that have failed report it here.
                is_terminated = any(self._context.gather(termination.is_received))
                if is_terminated or (number and number % _ROWS_PER_SAVE == 0):
                    self._save(log_probs)
                    known = len(log_probs) - int(np.isnan(log_probs).any(1).sum())
                    self.log.info(f"reference log-probabilities of {known} of {len(log_probs)} pairs computed")
                if is_terminated:
                    message = "terminated while computing the reference log-probabilities; the same command resumes"
                    raise RunError(message, code=ErrorCode.INTERRUPTED)
                samples = EncodedRow([sample for pair in pairs for sample in pair.samples], [])
                batch = collate_row(samples, StepTotals(1, 1), self.dataset)
                with self._context.collective_section():
                    losses = self.model(batch.to(self._context.device))
                readable = [index for index, pair in zip(row, pairs, strict=True) if pair.samples]
                log_probs[readable] = -losses.per_sample.view(-1, 2).cpu().double().numpy()
        self._save(log_probs)


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
