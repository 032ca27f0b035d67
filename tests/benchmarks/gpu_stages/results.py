"""Measurements of the cases of `tests/benchmarks/gpu.py`, and the file with one JSON object for each."""

import json
import math
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Task = tuple[str, str]
"""Stage and options of a case."""
MEASURED, OUT_OF_MEMORY, SKIPPED, FAILED = "measured", "out of memory", "skipped", "failed"
FINISHED = (MEASURED, OUT_OF_MEMORY)
"""Outcomes after which a case does not run again; a skipped or failed one does."""
OUTCOME = "outcome"
"""Name of the last measurement of every case, whose value is one of the outcomes."""


@dataclass(frozen=True)
class Measurement:
    """One value of a case, a number or a text; None with a reason if it cannot be measured here."""

    name: str
    value: float | str | None
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    reason: str | None = None

    @property
    def target(self) -> str | None:
        """The target as text."""
        limits = [(">=", self.at_least), ("<=", self.at_most)]
        return " and ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None) or None

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
        row = asdict(self) | {"target": self.target, "passed": self.passed}
        if isinstance(self.value, float) and not math.isfinite(self.value):
            row["value"] = str(self.value)
        return {name: value for name, value in row.items() if name not in ("at_least", "at_most")}

    def __str__(self) -> str:
        line = " ".join(filter(None, [f"{self.name}:", _format(self.value), self.unit, self.reason]))
        if self.passed is None:
            return line
        return f"{line} (target {self.target}: {'reached' if self.passed else 'MISSED'})"


@dataclass
class Results:
    """The rows of `results.jsonl` in a folder; a row that was cut off is ignored."""

    folder: Path
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else ():
            with suppress(ValueError):
                self.rows.append(json.loads(line))

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self.folder / "results.jsonl"

    def add(self, task: Task, measurement: Measurement, **details: Any) -> None:
        """Append a measurement at once, so that it is kept if the process ends."""
        row = {"stage": task[0], "case": task[1]} | measurement.row() | details
        is_cut_off = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" * is_cut_off + json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
        self.rows.append(row)

    def last_runs(self) -> dict[Task, list[dict[str, Any]]]:
        """Return the rows of the last run of each case, which its outcome ends, in the order of first runs."""
        runs: dict[Task, list[dict[str, Any]]] = {}
        for row in self.rows:
            task = row["stage"], row["case"]
            last = runs.get(task, [row])[-1]
            is_same = last["name"] != OUTCOME and row.get("started", last.get("started")) == last.get("started")
            runs[task] = [*runs[task], row] if task in runs and is_same else [row]
        return runs

    def outcome(self, task: Task) -> str | None:
        """Return how the last run of a case ended; None if it never did."""
        last = self.last_runs().get(task, [{}])[-1]
        return last["value"] if last.get("name") == OUTCOME else None

    def value(self, task: Task, name: str) -> float | None:
        """Return a measured number of the last run of a case; None without one."""
        return next((row["value"] for row in self.last_runs().get(task, []) if row["name"] == name), None)

    def ratio(self, name: str, value: float, task: Task, measurement: str, at_least: float | None) -> Measurement:
        """Return the ratio of a value to a measured one of another case."""
        other = self.value(task, measurement)
        if other is None:
            return Measurement(name, None, reason=f"'{task[1]}' has not been measured")
        return Measurement(name, value / other, at_least=at_least)

    def table(self) -> str:
        """Return the last runs as a table in Markdown."""
        lines = ["| case | measurement | value | target |", "|---|---|---|---|"]
        for (stage, case), rows in self.last_runs().items():
            for row in rows:
                cell = " ".join(filter(None, [_format(row["value"]), row["unit"], row["reason"]]))
                missed = " (missed)" if row["passed"] is False else ""
                lines.append(f"| {stage} {case} | {row['name']} | {cell} | {row['target'] or ''}{missed} |")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Setup:
    """Environment of a case: its device, earlier results, whether models are tiny, and a temporary folder."""

    device: Any
    results: Results
    is_tiny: bool
    folder: Path


def _format(value: float | str | None) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else "" if value is None else str(value)


def parse_case(case: str) -> dict[str, str]:
    """Return the options of a case such as "method=lora compile"; a word alone is an option that is set."""
    return {name: value or "1" for name, _, value in (word.partition("=") for word in case.split())}
