"""Cases of `tests/benchmarks/gpu.py`, their measurements, and the results file with one JSON object for each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CaseKey = tuple[str, str]
"""Stage and case."""
MEASURED, OUT_OF_MEMORY, SKIPPED, FAILED = "measured", "out of memory", "skipped", "failed"
FINISHED = (MEASURED, OUT_OF_MEMORY)
"""Outcomes after which a case does not run again; a skipped or failed one does."""


@dataclass(frozen=True)
class Measurement:
    """One value of a case.

    Attributes:
        name: name of the measured quantity.
        value: number or text; None with a reason if it cannot be measured here.
        unit: unit of the number.
        at_least, at_most: limits of the target.
        reason: reason why there is no value.
    """

    name: str
    value: float | str | None
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    reason: str | None = None

    @property
    def target(self) -> str | None:
        """The target as text."""
        parts = [(">=", self.at_least), ("<=", self.at_most)]
        return " and ".join(f"{sign} {limit:g}" for sign, limit in parts if limit is not None) or None

    @property
    def passed(self) -> bool | None:
        """Whether the target is reached; None without a target or a number. NaN never passes."""
        if self.target is None or not isinstance(self.value, int | float):
            return None
        low = -math.inf if self.at_least is None else self.at_least
        high = math.inf if self.at_most is None else self.at_most
        return low <= self.value <= high

    def row(self) -> dict[str, Any]:
        """Return the fields as JSON values; a number that is not finite is a text."""
        value = self.value
        if isinstance(value, float) and not math.isfinite(value):
            value = str(value)
        return {
            "name": self.name,
            "value": value,
            "unit": self.unit,
            "target": self.target,
            "passed": self.passed,
            "reason": self.reason,
        }


@dataclass
class Results:
    """The results file of a folder.

    Attributes:
        folder: folder with `results.jsonl`.
        rows: rows of the file, in its order; a truncated row is ignored.
    """

    folder: Path
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path.exists():
            self.rows = [row for line in self.path.read_text(encoding="utf-8").splitlines() if (row := _parse(line))]

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self.folder / "results.jsonl"

    def add(self, task: CaseKey, outcome: str, measurements: Iterable[Measurement], **details: Any) -> None:
        """Append the measurements of a run of a case, all or none of them.

        Args:
            task: stage and case.
            outcome: outcome of the run.
            measurements: at least one measurement.
            **details: shared fields, such as the device.
        """
        head = {"stage": task[0], "case": task[1], "outcome": outcome}
        rows = [head | measurement.row() | details for measurement in measurements]
        text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
        is_cut_off = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" * is_cut_off + text)
        self.rows += rows

    def last_runs(self) -> dict[CaseKey, list[dict[str, Any]]]:
        """Return the rows of the last run of each case, in the order of first runs."""
        runs: dict[CaseKey, list[dict[str, Any]]] = {}
        for row in self.rows:
            task = row["stage"], row["case"]
            is_same_run = task in runs and runs[task][-1].get("started") == row.get("started")
            runs[task] = [*runs[task], row] if is_same_run else [row]
        return runs

    def value(self, task: CaseKey, name: str) -> float | None:
        """Return a measured number of the last run of a case; None without one."""
        rows = self.last_runs().get(task, [])
        return next((row["value"] for row in rows if row["name"] == name and row["outcome"] == MEASURED), None)


@dataclass(frozen=True)
class Setup:
    """Environment of a case.

    Attributes:
        device: `torch.device` to measure.
        results: results of earlier cases.
        is_tiny: whether to use tiny models.
        folder: folder for temporary files.
    """

    device: Any
    results: Results
    is_tiny: bool
    folder: Path


class SkipCase(Exception):
    """Raised by a case that cannot run on this machine."""


def _parse(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and {"stage", "case", "outcome", "name"} <= row.keys() else None


def parse_case(case: str) -> Mapping[str, str]:
    """Return the options of a case such as "method=lora compile=1"; a word alone is an option that is set."""
    return {name: value or "1" for name, _, value in (word.partition("=") for word in case.split())}
