"""Reader of expert preferences between two candidates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from radfact.errors import ErrorCode, InputError
from radfact.io.columns import Columns
from radfact.meta.datasets.rows import read_report_table
from radfact.records import Pair, PatientContext
from radfact.statistics.clusters import Clusters, clusters_of
from radfact.statistics.rater_agreement import Mean, Preference, describe_agreement

_LABELS: dict[str, Preference] = {
    **dict.fromkeys(("first", "1", "a", "better"), "first"),
    **dict.fromkeys(("second", "2", "b", "worse"), "second"),
    **dict.fromkeys(("equal", "0", "tie", "same"), "equal"),
}


Consensus = Literal["unanimous", "majority"]
"""Which experts of a row must prefer the same candidate: all of them, or more than half of those with a label."""


@dataclass(frozen=True, slots=True)
class PreferenceSet:
    """Pairs of candidates of the same references with the preference of experts, which is None in an excluded row."""

    first: Sequence[Pair]
    second: Sequence[Pair]
    expert: Sequence[Preference | None]
    confidence: Sequence[float]
    clusters: Clusters
    notes: Sequence[str] = ()

    @property
    def pairs(self) -> list[Pair]:
        """All candidates with their references, the first ones first."""
        return [*self.first, *self.second]


def read_preferences(
    path: Path,
    *,
    consensus: Consensus = "unanimous",
    cluster: str | None = None,
    columns: Columns | None = None,
    texts_only: bool = False,
) -> PreferenceSet:
    """Read a CSV of the layout `preferences` in `docs/meta.md` (GREEN, section 3.4.2)."""
    table = read_report_table(path, ("reference", "candidate_1", "candidate_2"), cluster, columns)
    experts = [] if texts_only else [name for name in table.columns if name.startswith("expert")]
    has_confidence = "confidence" in table.columns and not texts_only
    if not experts and not texts_only:
        message = "expected a column with a name that begins with 'expert'"
        raise InputError(message, code=ErrorCode.MISSING_FIELD, file=path, line=1)
    first, second, votes, confidences = list[Pair](), list[Pair](), [], []
    for key, by_rater in table.rows.items():
        row, *_ = rows = [*by_rater.values()]
        for number, of_row in enumerate((first, second), start=1):
            reports = row.text(f"candidate_{number}"), row.text("reference")
            of_row.append(Pair(f"{key}_{number}", *reports, context=PatientContext.of(row.cells)))
        cells = ((row, name) for row in rows for name in experts if row.text(name))
        votes.append(Counter(row.choice(name, _LABELS, "first, second or equal") for row, name in cells))
        sure = [row.number("confidence", accepts=lambda n: not math.isnan(n)) for row in rows if has_confidence]
        confidences.append(Mean.of(sure).value or 0.0)
    notes = [*table.notes, *([] if texts_only else _notes(votes, consensus, has_confidence))]
    expert = [_decide(row, consensus) for row in votes]
    clusters = clusters_of(table.by, table.clusters, list(table.rows))
    return PreferenceSet(first, second, expert, confidences, clusters, notes)


def _decide(votes: Counter[Preference], consensus: Consensus) -> Preference | None:
    if not votes:
        return None
    label, count = votes.most_common(1)[0]
    needed = votes.total() if consensus == "unanimous" else votes.total() // 2 + 1
    return label if count >= needed and label != "equal" else None


def _notes(votes: Sequence[Counter[Preference]], consensus: Consensus, has_confidence: bool) -> list[str]:
    excluded = [row for row in votes if _decide(row, consensus) is None]
    kinds = {
        "without a label": sum(not row for row in excluded),
        "the experts prefer neither": sum(bool(row) and set(row) == {"equal"} for row in excluded),
        "the experts differ": sum(len(row) > 1 for row in excluded),
    }
    reasons = "; ".join(f"{kind}: {count}" for kind, count in kinds.items() if count)
    notes = [
        f"{len(excluded)} of {len(votes)} rows are excluded{f' ({reasons})' if reasons else ''}. Consensus: "
        + ("all experts of a row agree." if consensus == "unanimous" else "more than half of the experts of a row.")
    ]
    if more := sum(_decide(row, "majority") is not None for row in excluded):
        notes.append(f"A majority decides {more} of the excluded rows: --consensus majority includes them.")
    if not has_confidence:
        notes.append("The file has no confidence: the table shows all rows at a minimum confidence of 0.")
    numbers = [[float(ord(label[0])) for label in row.elements()] for row in votes]
    if any(len(row) > 1 for row in numbers):
        notes.append(describe_agreement(numbers, "nominal", "preferences"))
    return notes
