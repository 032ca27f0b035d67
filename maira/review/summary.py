"""The figures of a review: how much was corrected, what was wrong and how much it matters (paper 004, figure 4)."""

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
"""Of corrections."""

SEVERITY_NAMES: Mapping[int | None, str] = {0: "no", 1: "minor", 2: "significant", None: "not rated"}
NO_CORRECTION = "no correction"


def summarize(store: Store, reviewers: Sequence[str]) -> dict[str, Any]:
    """The figures of a review, JSON values only: of each reviewer, and their agreement.

    All are over the studies that a reviewer has finished; only comments on studies are given of unfinished ones too.

    Args:
        store: the review.
        reviewers: whose figures.

    Returns:
        `studies`, `reviewers` (by name, as `_of_reviewer` has them) and `agreement` (as `agreements` has it).

    Raises:
        InputError: there is no such reviewer.
    """
    names = [store.noted_name(reviewer) for reviewer in reviewers]
    return {
        "studies": len(store.drafts),
        "reviewers": {name: _of_reviewer(store, name) for name in names},
        "agreement": agreements(store, names),
    }


def _of_reviewer(store: Store, reviewer: str) -> dict[str, Any]:
    states = [review.state for review in store.reviews(reviewer)]
    finished = [state for state in states if state.done]
    corrections = [one for state in finished for one in state.corrections]
    drafted = [sum(not one.is_added for one in state.sentences) for state in finished]
    kinds: Counter[str] = Counter(kind_of(one) for one in corrections)
    unchanged = sum(drafted) - kinds["edit"] - kinds["deletion"]
    counts = [len(state.corrections) for state in finished]
    comments = {
        draft.sample_id: state.comment for draft, state in zip(store.drafts, states, strict=True) if state.comment
    }
    return {
        "finished": len(finished),
        "sentences": sum(drafted),
        "sentences_per_report": _spread(drafted),
        "unchanged_sentences": unchanged,
        "corrections": len(corrections),
        "kinds": {kind: kinds[kind] for kind in KINDS},
        "boxes_only": sum(kind_of(one) == "edit" and not one.is_edited for one in corrections),
        "reports_without_corrections": counts.count(0),
        "reports_with_fewer_than_two": sum(count < 2 for count in counts),
        "corrections_per_corrected_report": _spread([count for count in counts if count]),
        "reports_by_corrections": _reports_by_corrections(finished),
        "error_types": _by_kind(corrections, lambda one: error_group(one.assessment.error_type)),
        "error_types_in_full": dict(Counter(one.assessment.error_type or UNTYPED for one in corrections)),
        "severities": _by_kind(corrections, lambda one: SEVERITY_NAMES[one.assessment.severity]),
        "comments": comments,
    }


def _spread(values: Sequence[int]) -> dict[str, float | None]:
    if not values:
        return dict.fromkeys(("median", "mean", "min", "max"))
    return {"median": median(values), "mean": mean(values), "min": min(values), "max": max(values)}


def _reports_by_corrections(states: Sequence[State]) -> dict[str, dict[str, int]]:
    """Number of corrections -> how bad the worst of them is -> reports (figure 4, panel A)."""
    found: dict[int, Counter[str]] = {}
    for state in states:
        found.setdefault(len(state.corrections), Counter())[_worst(state)] += 1
    return {str(count): dict(found[count]) for count in sorted(found)}


def _worst(state: State) -> str:
    worst = worst_severity(state)
    return NO_CORRECTION if worst == -1 else SEVERITY_NAMES[worst]


def _by_kind(
    corrections: Sequence[ReviewedSentence], name_of: Callable[[ReviewedSentence], str]
) -> dict[str, dict[str, int]]:
    """Name -> kind of correction -> how many (figure 4, panels B and C).

    The most frequent name first; that nobody has named a type is none, and comes last.
    """
    counted: dict[str, Counter[str]] = {}
    for one in corrections:
        counted.setdefault(name_of(one), Counter())[kind_of(one)] += 1
    names = sorted(counted, key=lambda name: (name == UNTYPED, -counted[name].total(), name))
    return {name: {kind: counted[name][kind] for kind in KINDS} for name in names}
