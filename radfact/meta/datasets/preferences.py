"""Reader of expert preferences between two candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from radfact.errors import ErrorCode, InputError, check_unique_id
from radfact.meta.datasets.csv_rows import CsvRow, read_rows
from radfact.records import Pair
from radfact.statistics.rater_agreement import Preference

_LABELS: dict[str, Preference] = {
    **dict.fromkeys(("first", "1", "a", "better"), "first"),
    **dict.fromkeys(("second", "2", "b", "worse"), "second"),
    **dict.fromkeys(("equal", "0", "tie", "same"), "equal"),
}


@dataclass(frozen=True, slots=True)
class PreferenceSet:
    """Pairs of candidates with the preference of experts.

    Attributes:
        first: first candidates with their references.
        second: second candidates with the same references.
        expert: preference of all experts of a row; None if they differ or prefer neither, which excludes the row.
        confidence: confidence of the experts.
    """

    first: Sequence[Pair]
    second: Sequence[Pair]
    expert: Sequence[Preference | None]
    confidence: Sequence[float]

    @property
    def pairs(self) -> list[Pair]:
        """All candidates with their references, the first ones first."""
        return [*self.first, *self.second]


def read_preferences(path: Path) -> PreferenceSet:
    """Read a CSV with `id`, `reference`, `candidate_1`, `candidate_2`, `confidence` and columns `expert...`.

    A cell of an expert is first, second or equal; `confidence` is one number per row, such as the mean of the experts.

    Raises:
        InputError: the file cannot be read or a cell is wrong.

    Source: GREEN, section 3.4.2.
    """
    columns, rows = read_rows(path, ("id", "reference", "candidate_1", "candidate_2", "confidence"))
    experts = [name for name in columns if name.startswith("expert")]
    if not experts:
        raise InputError(
            "expected a column with a name that begins with 'expert'", code=ErrorCode.MISSING_FIELD, file=path, line=1
        )
    first, second, expert, confidences = [], [], [], []
    seen = dict[str, int]()
    for row in rows:
        key = row.id("id")
        check_unique_id(seen, key, row.line, file=path, field="id")
        labels = {_preference(row, name) for name in experts if row.text(name)}
        consensus = labels.pop() if len(labels) == 1 else None
        first.append(Pair(f"{key}_1", row.text("candidate_1"), row.text("reference")))
        second.append(Pair(f"{key}_2", row.text("candidate_2"), row.text("reference")))
        expert.append(None if consensus == "equal" else consensus)
        confidence = row.number("confidence")
        if math.isnan(confidence):
            raise row.error(f"expected a number, found '{row.text('confidence')}'", "confidence")
        confidences.append(confidence)
    return PreferenceSet(first, second, expert, confidences)


def _preference(row: CsvRow, column: str) -> Preference:
    preference = _LABELS.get(row.text(column).lower())
    if preference is None:
        raise row.error(f"expected first, second or equal, found '{row.text(column)}'", column)
    return preference
