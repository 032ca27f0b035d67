"""Agreement of readers on the same drafts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from data.annotation import cohens_kappa
from maira.review.changes import State
from maira.review.store import Store

UNTYPED = "not named"


def error_group(error_type: str | None) -> str:
    """Return the error type without subtype: "OMISSION" for "OMISSION: Normal Finding"."""
    return UNTYPED if error_type is None else error_type.split(":")[0].strip()


def worst_severity(state: State) -> int | None:
    """Return the highest severity of a study's corrections: -1 without corrections, None if none is rated."""
    if not state.corrections:
        return -1
    rated = [item.assessment.severity for item in state.corrections if item.assessment.severity is not None]
    return max(rated, default=None)


def agreements(store: Store, readers: Sequence[str]) -> list[dict[str, Any]]:
    """Return the agreement of each pair of readers on the studies that both finished.

    Args:
        store: the review.
        readers: names.

    Returns:
        For each pair `readers` and `studies`, and `kappa` with its `n` (None if undefined) of `needs_correction` per
        draft sentence; `severity` (weighted) per sentence that both corrected and rated; `worst_severity` (weighted)
        per study, where no correction is the lowest; `error_types` per study, which includes additions.
    """
    states = {name: [review.state for _, review in store.counted_reviews(name)] for name in readers}
    results = []
    for first, second in combinations(states, 2):
        both = [(a, b) for a, b in zip(states[first], states[second], strict=True) if a.done and b.done]
        results.append({"readers": [first, second], "studies": len(both), **_agreement(both)})
    return results


def weighted_kappa(pairs: Sequence[tuple[int, int]]) -> float | None:
    """Return the linearly weighted kappa of two raters (Cohen, 1968).

    Args:
        pairs: ratings of both raters for the same items.

    Returns:
        None without pairs, or if both use a single value.
    """
    if not pairs:
        return None
    observed = sum(abs(a - b) for a, b in pairs) / len(pairs)
    first, second = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    expected = sum(abs(a - b) * first[a] * second[b] for a in first for b in second) / len(pairs) ** 2
    return 1 - observed / expected if expected else None


def _agreement(both: Sequence[tuple[State, State]]) -> dict[str, Any]:
    sentences = [
        (first, second)
        for a, b in both
        for first, second in zip(a.sentences, b.sentences, strict=False)
        if not first.is_added and not second.is_added
    ]
    severities = [
        (first.assessment.severity, second.assessment.severity)
        for first, second in sentences
        if first.is_correction and second.is_correction
    ]
    worst = [(worst_severity(a), worst_severity(b)) for a, b in both]
    types = [(_types(a), _types(b)) for a, b in both]
    names = sorted({name for pair in types for group in pair for name in group})
    corrected = [(first.is_correction, second.is_correction) for first, second in sentences]
    return {
        "needs_correction": {"kappa": cohens_kappa(corrected), "n": len(corrected)},
        "severity": _weighted(severities),
        "worst_severity": _weighted(worst),
        "error_types": {
            name: {"kappa": cohens_kappa([(name in a, name in b) for a, b in types]), "n": len(types)} for name in names
        },
    }


def _weighted(pairs: Iterable[tuple[int | None, int | None]]) -> dict[str, Any]:
    rated = [(a, b) for a, b in pairs if a is not None and b is not None]
    return {"kappa": weighted_kappa(rated), "n": len(rated)}


def _types(state: State) -> set[str]:
    return {error_group(sentence.assessment.error_type) for sentence in state.corrections}
