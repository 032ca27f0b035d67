"""Anomalies of a run: losses that are not finite, gradient spikes, unreadable samples (`AnomalyConfig`)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from maira.train.config.run_config import AnomalyConfig
from maira.train.data.batches import Phase, SkippedSample
from radfact.errors import ErrorCode, InputError, RunError

WINDOW = 100
"""Steps whose gradient norms make the running mean that a spike is compared with."""
WARMUP = 20
"""Steps before which nothing is a spike, since the first norms of a run vary widely."""

Kind = Literal["not_finite", "spike"]


@dataclass
class AnomalyDetector:
    """Checks each step before the weights are updated, with the same result on all processes.

    Attributes:
        config: the action for each kind of anomaly.
        norms: gradient norms of the last normal steps.
        skipped: number of steps skipped in a row.
        unreadable: names of the samples skipped so far.
        started: start time of this process, by which its rows in `faults.jsonl` are known.
    """

    config: AnomalyConfig
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    skipped: int = 0
    unreadable: set[str] = field(default_factory=set)
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))

    def check(self, loss: float, norm: float) -> Kind | None:
        """Return the kind of anomaly of a step, if any."""
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.skipped += 1
            return "not_finite"
        if self.config.spike is not None and len(self.norms) >= WARMUP and norm > self.config.spike * self.mean_norm:
            self.skipped += 1
            return "spike"
        self.norms.append(norm)
        self.skipped = 0
        return None

    @property
    def mean_norm(self) -> float:
        """Running mean of the gradient norm; NaN before the first step."""
        return sum(self.norms) / len(self.norms) if self.norms else math.nan

    def ends_run(self, kind: Kind) -> bool:
        """Return whether an anomaly ends the run, by its action or because too many steps were skipped in a row."""
        is_stop = kind == "not_finite" and self.config.not_finite == "stop"
        return is_stop or self.skipped > self.config.most_skipped

    def make_row(self, kind: Kind, step: int, loss: float, norm: float, sample_ids: list[str]) -> dict[str, Any]:
        """Return a row of `faults.jsonl` for a step, in which numbers that are not finite are strings."""
        return {
            "started": self.started,
            "step": step,
            "fault": kind,
            "action": "stop" if self.ends_run(kind) else "skip",
            "loss": _json_number(loss),
            "grad_norm": _json_number(norm),
            "mean_grad_norm": _json_number(self.mean_norm),
            "sample_ids": sample_ids,
        }

    def record_skipped(self, step: int, samples: Sequence[SkippedSample], phase: Phase, *, of: int) -> dict[str, Any]:
        """Count unreadable samples and return their row of `faults.jsonl`."""
        self.unreadable.update(sample.sample_id for sample in samples)
        ends_run = len(samples) == of or len(self.unreadable) > self.config.most_unreadable
        return {
            "started": self.started,
            "step": step,
            "fault": "unreadable",
            "part": phase,
            "action": "stop" if ends_run else "skip",
            "of": of,
            "sample_ids": [sample.sample_id for sample in samples],
            "reasons": [sample.reason for sample in samples],
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {"norms": list(self.norms), "skipped": self.skipped, "unreadable": sorted(self.unreadable)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.norms = deque(state["norms"], maxlen=WINDOW)
        self.skipped = state["skipped"]
        self.unreadable = set(state["unreadable"])


def describe_row(row: dict[str, Any]) -> str:
    """Return what a row of `faults.jsonl` is about, as the beginning of a message."""
    if row["fault"] == "not_finite":
        return f"the loss is {row['loss']}, the gradient norm {row['grad_norm']}"
    if row["fault"] == "spike":
        return f"the gradient norm {row['grad_norm']:.3g} is a spike over a mean of {row['mean_grad_norm']:.3g}"
    step = f"the validation after step {row['step']}" if row["part"] == "validation" else f"step {row['step']}"
    return f"{len(row['sample_ids'])} of {row['of']} samples of {step} cannot be read, the first: {row['reasons'][0]}"


def stop_error(row: dict[str, Any], file: Path, resume_hint: str) -> InputError | RunError:
    """Return the error of a row of `faults.jsonl` that ends a run, with what the same command will do."""
    if row["fault"] == "unreadable":
        hint = "Repair them" if len(row["sample_ids"]) == row["of"] else "Repair them, or raise faults.most_unreadable"
        message = f"{describe_row(row)}. All skipped samples are listed in {file}. {hint}; {resume_hint}"
        return InputError(message, code=ErrorCode.FILE_UNREADABLE)
    hint = "A lower learning_rate" + (" or faults.not_finite=skip" if row["fault"] == "not_finite" else "")
    reason = f"{describe_row(row)} at step {row['step']}"
    return RunError(f"{reason}; its samples are listed in {file}, and {resume_hint}. {hint} may help")


def _json_number(value: float) -> float | str:
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)
