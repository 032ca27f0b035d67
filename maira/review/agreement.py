"""How far two reviewers agree on the same drafts."""

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
    """The error type without its refinement: "OMISSION" of "OMISSION: Normal Finding"."""
    return UNTYPED if error_type is None else error_type.split(":")[0].strip()


def worst_severity(state: State) -> int | None:
    """Of a study: -1 without a correction, else the highest severity of its corrections; None where none is rated."""
    if not state.corrections:
        return -1
    rated = [one.assessment.severity for one in state.corrections if one.assessment.severity is not None]
    return max(rated, default=None)


def agreements(store: Store, reviewers: Sequence[str]) -> list[dict[str, Any]]:
    """Agreement of each two reviewers on the studies that both have finished.

    Args:
        store: the review.
        reviewers: their names.

    Returns:
        For each two: `reviewers`, `studies`, and as `kappa` with its `n` (None where nothing is left to chance):
        `needs_correction` of each sentence of the drafts; `severity` (weighted) of the sentences that both corrected
        and rated; `worst_severity` (weighted) of each study, no correction being the lowest; `error_types` of each
        study, which takes in additions: they have no sentence of the draft to be compared on.
    """
    states = {name: [review.state for review in store.reviews(name)] for name in reviewers}
    found = []
    for first, second in combinations(states, 2):
        both = [(a, b) for a, b in zip(states[first], states[second], strict=True) if a.done and b.done]
        found.append({"reviewers": [first, second], "studies": len(both), **_agreement(both)})
    return found


def weighted_kappa(pairs: Sequence[tuple[int, int]]) -> float | None:
    """Agreement beyond chance on ordered values, a disagreement weighing as much as it is far (Cohen, 1968; linear).

    Args:
        pairs: what each said of the same things.

    Returns:
        None without pairs, or where both always say the same one value.
    """
    if not pairs:
        return None
    observed = sum(abs(a - b) for a, b in pairs) / len(pairs)
    first, second = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    expected = sum(abs(a - b) * first[a] * second[b] for a in first for b in second) / len(pairs) ** 2
    return 1 - observed / expected if expected else None


def _agreement(both: Sequence[tuple[State, State]]) -> dict[str, Any]:
    sentences = [
        (one, other)
        for a, b in both
        for one, other in zip(a.sentences, b.sentences, strict=False)
        if not one.is_added and not other.is_added
    ]
    severities = [
        (one.assessment.severity, other.assessment.severity)
        for one, other in sentences
        if one.is_correction and other.is_correction
    ]
    worst = [(worst_severity(a), worst_severity(b)) for a, b in both]
    types = [(_types(a), _types(b)) for a, b in both]
    names = sorted({name for pair in types for found in pair for name in found})
    corrected = [(one.is_correction, other.is_correction) for one, other in sentences]
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
    return {error_group(one.assessment.error_type) for one in state.corrections}
