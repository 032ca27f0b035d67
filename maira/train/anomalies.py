"""Anomalies of a run: losses that are not finite, gradient spikes, unreadable samples (`AnomalyConfig`)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from maira.train.config.run_config import AnomalyConfig
from maira.train.data.schedule import Phase, SkippedSample
from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.jsonl import append_jsonl

WINDOW = 100
"""Steps whose gradient norms make the running mean that a spike is compared with."""
WARMUP = 20
"""Steps before which nothing is a spike, since the first norms of a run vary widely."""

Kind = Literal["not_finite", "spike"]


class AnomalyDetector:
    """Checks each step before the weights are updated, alike on all processes; lists anomalies in `faults.jsonl`."""

    def __init__(self, config: AnomalyConfig, file: Path | None = None) -> None:
        self._config, self._file = config, file
        self.norms: deque[float] = deque(maxlen=WINDOW)  # of the last normal steps
        self.skipped = 0  # steps skipped in a row
        self.unreadable: set[str] = set()  # names of the samples skipped so far
        # By which the rows of this start are known.
        self._started = datetime.now(UTC).isoformat(timespec="milliseconds")

    def check(self, loss: float, norm: float) -> Kind | None:
        kind: Kind | None = None
        if not (math.isfinite(loss) and math.isfinite(norm)):
            kind = "not_finite"
        elif (
            self._config.spike is not None and len(self.norms) >= WARMUP and norm > self._config.spike * self.mean_norm
        ):
            kind = "spike"
        else:
            self.norms.append(norm)
        self.skipped = self.skipped + 1 if kind else 0
        return kind

    @property
    def mean_norm(self) -> float:
        """Running mean of the gradient norm; NaN before the first step."""
        return sum(self.norms) / len(self.norms) if self.norms else math.nan

    def record_step(self, kind: Kind, step: int, loss: float, norm: float, sample_ids: list[str]) -> dict[str, Any]:
        """List an anomalous step in a row, in which numbers that are not finite are strings."""
        is_stop = kind == "not_finite" and self._config.not_finite == "stop"
        numbers = {"loss": loss, "grad_norm": norm, "mean_grad_norm": self.mean_norm}
        row = {name: float(f"{x:.6g}") if math.isfinite(x) else str(x) for name, x in numbers.items()}
        ends_run = is_stop or self.skipped > self._config.most_skipped
        return self._record(step, kind, ends_run, row | {"sample_ids": sample_ids})

    def record_skipped(self, step: int, samples: Sequence[SkippedSample], phase: Phase, *, of: int) -> dict[str, Any]:
        sample_ids, reasons = [sample.sample_id for sample in samples], [sample.reason for sample in samples]
        self.unreadable.update(sample_ids)
        ends_run = len(samples) == of or len(self.unreadable) > self._config.most_unreadable
        row = {"part": phase, "of": of, "sample_ids": sample_ids, "reasons": reasons}
        return self._record(step, "unreadable", ends_run, row)

    def _record(self, step: int, fault: str, ends_run: bool, values: dict[str, Any]) -> dict[str, Any]:
        action = "stop" if ends_run else "skip"
        row = {"started": self._started, "step": step, "fault": fault, "action": action, **values}
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            append_jsonl(self._file, [row])
        return row

    def state_dict(self) -> dict[str, Any]:
        return {"norms": list(self.norms), "skipped": self.skipped, "unreadable": sorted(self.unreadable)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.norms = deque(state["norms"], maxlen=WINDOW)
        self.skipped, self.unreadable = state["skipped"], set(state["unreadable"])


def describe_row(row: dict[str, Any]) -> str:
    """Return what a row of `faults.jsonl` is about, as the beginning of a message."""
    if row["fault"] == "not_finite":
        return f"the loss is {row['loss']}, the gradient norm {row['grad_norm']}"
    if row["fault"] == "spike":
        return f"the gradient norm {row['grad_norm']:.3g} is a spike over a mean of {row['mean_grad_norm']:.3g}"
    step = f"the validation after step {row['step']}" if row["part"] == "validation" else f"step {row['step']}"
    return f"{len(row['sample_ids'])} of {row['of']} samples of {step} cannot be read, the first: {row['reasons'][0]}"


def stop_error(row: dict[str, Any], file: Path, resume_hint: str, advice: str) -> InputError | RunError:
    """Return the error of a row of `faults.jsonl` that ends a run, with what the same command and others will do."""
    if row["fault"] == "unreadable":
        hint = "Repair them" if len(row["sample_ids"]) == row["of"] else "Repair them, or raise faults.most_unreadable"
        message = f"{describe_row(row)}. All skipped samples are listed in {file}. {hint}; {resume_hint}"
        return InputError(message, code=ErrorCode.FILE_UNREADABLE)
    hint = "To skip such steps, add faults.not_finite=skip. " if row["fault"] == "not_finite" else ""
    reason = f"{describe_row(row)} at step {row['step']}"
    return RunError(f"{reason}; its samples are listed in {file}, and {resume_hint}. {hint}{advice}")
