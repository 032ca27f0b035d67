"""Statistics of a review: corrections, error types and clinical implications (MAIRA-2, figure 4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import mean, median
from typing import Any

from maira.review.agreement import UNTYPED, agreements, error_group, worst_severity
from maira.review.changes import ReviewedSentence, State
from maira.review.export import kind_of
from maira.review.store import Store

KINDS = ("edit", "deletion", "addition")
"""Kinds of corrections."""

SEVERITY_NAMES: Mapping[int | None, str] = {0: "no", 1: "minor", 2: "significant", None: "not rated"}
NO_CORRECTION = "no correction"
WORST_NAMES = (NO_CORRECTION, *SEVERITY_NAMES.values())
"""Names of the worst severity of a report."""


def summarize(store: Store, readers: Sequence[str]) -> dict[str, Any]:
    """Return statistics of each reader and their agreement, as JSON values.

    Statistics are over finished studies; comments on studies include unfinished ones.

    Returns:
        `studies`, `readers` (by name, see `_summarize_reader`) and `agreement` (see `agreements`).
    """
    names = [store.registered_name(reader) for reader in readers]
    return {
        "studies": len(store.drafts),
        "readers": {name: _summarize_reader(store, name) for name in names},
        "agreement": agreements(store, names),
    }


def _summarize_reader(store: Store, reader: str) -> dict[str, Any]:
    reviews = store.counted_reviews(reader)
    states = [review.state for _, review in reviews]
    finished = [state for state in states if state.done]
    corrections = [correction for state in finished for correction in state.corrections]
    drafted = [sum(not sentence.is_added for sentence in state.sentences) for state in finished]
    kinds: Counter[str] = Counter(map(kind_of, corrections))
    unchanged = sum(drafted) - kinds["edit"] - kinds["deletion"]
    counts = [len(state.corrections) for state in finished]
    comments = {draft.name: review.state.comment for draft, review in reviews if review.state.comment}
    assigned = (store.drafts[number - 1] for number in store.study_list(reader))
    return {
        "assigned": sum(not draft.is_training for draft in assigned),
        "finished": len(finished),
        "sentences": sum(drafted),
        "sentences_per_report": _distribution(drafted),
        "unchanged_sentences": unchanged,
        "corrections": len(corrections),
        "kinds": {kind: kinds[kind] for kind in KINDS},
        "boxes_only": sum(kind_of(item) == "edit" and not item.is_edited for item in corrections),
        "reports_without_corrections": counts.count(0),
        "reports_with_fewer_than_two": sum(count < 2 for count in counts),
        "corrections_per_corrected_report": _distribution([count for count in counts if count]),
        "reports_by_corrections": _reports_by_corrections(finished),
        "error_types": _by_kind(corrections, lambda item: error_group(item.assessment.error_type)),
        "error_types_in_full": dict(Counter(item.assessment.error_type or UNTYPED for item in corrections)),
        "severities": _by_kind(corrections, lambda item: SEVERITY_NAMES[item.assessment.severity]),
        "comments": comments,
    }


def _distribution(values: Sequence[int]) -> dict[str, float | None]:
    if not values:
        return dict.fromkeys(("median", "mean", "min", "max"))
    return {"median": median(values), "mean": mean(values), "min": min(values), "max": max(values)}


def _reports_by_corrections(states: Sequence[State]) -> dict[str, dict[str, int]]:
    """Return number of corrections -> worst severity -> number of reports (figure 4, panel A)."""
    counts: dict[int, Counter[str]] = {}
    for state in states:
        counts.setdefault(len(state.corrections), Counter())[worst_name(worst_severity(state))] += 1
    return {str(number): dict(counts[number]) for number in sorted(counts)}


def worst_name(worst: int | None) -> str:
    """Return the name of the worst severity of a report, see `worst_severity`."""
    return NO_CORRECTION if worst == -1 else SEVERITY_NAMES[worst]


def _by_kind(
    corrections: Sequence[ReviewedSentence], name_of: Callable[[ReviewedSentence], str]
) -> dict[str, dict[str, int]]:
    """Return name -> kind of correction -> number (figure 4, panels B and C), the most frequent first, untyped last."""
    counts: dict[str, Counter[str]] = {}
    for correction in corrections:
        counts.setdefault(name_of(correction), Counter())[kind_of(correction)] += 1
    names = sorted(counts, key=lambda name: (name == UNTYPED, -counts[name].total(), name))
    return {name: {kind: counts[name][kind] for kind in KINDS} for name in names}
