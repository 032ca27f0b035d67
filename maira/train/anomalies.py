"""What is not as it should be: losses that are not finite, gradients that jump, unreadable images (`config.AnomalyConfig`)."""

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
from radfact.errors import InputError, RunError
from radfact.io.jsonl import append_jsonl

REMEMBERED = 100
"""Steps whose gradient norms make the running mean that a spike is measured by."""
FEWEST = 20
"""Before so many steps nothing is a spike: the first norms of a run say little."""

Kind = Literal["not_finite", "spike"]


@dataclass
class AnomalyDetector:
    """Judges every step before the weights are changed, the same on all processes.

    Attributes:
        faults: what becomes of which fault.
        norms: gradient norms of the last steps that were as they should be.
        skipped: steps skipped in a row.
        unreadable: names of the samples that were left out so far.
        started: when this start of the run was, which its lines in `faults.jsonl` are known by.
    """

    faults: AnomalyConfig
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    skipped: int = 0
    unreadable: set[str] = field(default_factory=set)
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))

    def judge(self, loss: float, norm: float) -> Kind | None:
        """The fault of a step by its loss and gradient norm, both over all processes; None without."""
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.skipped += 1
            return "not_finite"
        if self.faults.spike is not None and len(self.norms) >= FEWEST and norm > self.faults.spike * self.mean:
            self.skipped += 1
            return "spike"
        self.norms.append(norm)
        self.skipped = 0
        return None

    @property
    def mean(self) -> float:
        """Running mean of the gradient norm; NaN before the first step."""
        return sum(self.norms) / len(self.norms) if self.norms else math.nan

    def stops(self, kind: Kind) -> bool:
        """Whether a fault ends the run, be it that too many steps were skipped in a row."""
        action = self.faults.not_finite if kind == "not_finite" else self.faults.on_spike
        return action == "stop" or self.skipped > self.faults.most_skipped

    def record(self, kind: Kind, step: int, loss: float, norm: float, sample_ids: list[str]) -> dict[str, Any]:
        """A line of `faults.jsonl`; numbers that are not finite are strings there."""
        return {
            "started": self.started,
            "step": step,
            "fault": kind,
            "action": "stop" if self.stops(kind) else "skip",
            "loss": _number(loss),
            "grad_norm": _number(norm),
            "mean_grad_norm": _number(self.mean),
            "sample_ids": sample_ids,
        }

    def record_skipped(self, step: int, samples: Sequence[SkippedSample], part: Phase, *, of: int) -> dict[str, Any]:
        """A line of `faults.jsonl` on samples of all processes that a step or its validation goes without.

        Args:
            step: from 1.
            samples: that cannot be read.
            part: what they are of.
            of: how many it has with them; without any it is nothing.
        """
        self.unreadable.update(sample.sample_id for sample in samples)
        is_over = len(samples) == of or len(self.unreadable) > self.faults.most_unreadable
        return {
            "started": self.started,
            "step": step,
            "fault": "unreadable",
            "part": part,
            "action": "stop" if is_over else "skip",
            "of": of,
            "sample_ids": [sample.sample_id for sample in samples],
            "reasons": [sample.reason for sample in samples],
        }

    def state_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"norms": list(self.norms), "skipped": self.skipped, "unreadable": sorted(self.unreadable)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.norms = deque(state["norms"], maxlen=REMEMBERED)
        self.skipped = state["skipped"]
        self.unreadable = set(state["unreadable"])


def anomaly_file(out: Path) -> Path:
    """Where the faults of a run are written down."""
    return out / "faults.jsonl"


def append_anomaly(out: Path, row: dict[str, Any]) -> None:
    """Add a line to the faults of a run."""
    out.mkdir(parents=True, exist_ok=True)
    append_jsonl(anomaly_file(out), [row])


def place(row: dict[str, Any]) -> str:
    """What went without samples that cannot be read, in words."""
    return f"the validation after step {row['step']}" if row["part"] == "validation" else f"step {row['step']}"


def describe(row: dict[str, Any]) -> str:
    """A fault in words."""
    if row["fault"] == "not_finite":
        return f"the loss is {row['loss']}, the gradient norm {row['grad_norm']}"
    return f"the gradient norm {row['grad_norm']:.3g} is a spike over a mean of {row['mean_grad_norm']:.3g}"


def anomaly_error(row: dict[str, Any], out: Path, resume_hint: str) -> RunError:
    """The error of a fault that ends a run.

    Args:
        row: of `faults.jsonl`.
        out: folder of the run.
        resume_hint: what the same command will do.
    """
    field = "not_finite" if row["fault"] == "not_finite" else "on_spike"
    return RunError(
        f"{describe(row)} at step {row['step']}; its samples are listed in {anomaly_file(out)}, and {resume_hint}. A lower "
        f"learning_rate or faults.{field}=skip may help"
    )


def unreadable(row: dict[str, Any], out: Path, resume_hint: str) -> InputError:
    """The error of too many samples that cannot be read; arguments as of `anomaly_error`."""
    count, of = len(row["sample_ids"]), row["of"]
    mend = "Mend them" if count == of else "Mend them, or raise faults.most_unreadable"
    return InputError(
        f"{count} of {of} samples of {place(row)} cannot be read, the first: {row['reasons'][0]}. All that "
        f"were left out are listed in {anomaly_file(out)}. {mend}; {resume_hint}"
    )


def _number(value: float) -> float | str:
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)
