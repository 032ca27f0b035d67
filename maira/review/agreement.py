"""Agreement of readers on the same drafts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from maira.review.changes import ReviewedSentence, State
from maira.review.store import Store
from radfact.statistics.bootstrap import Summary, summarize_counts
from radfact.statistics.clusters import Clusters
from radfact.statistics.rater_agreement import (
    Level,
    alpha_from_counts,
    coincidence_counts,
    confusion_counts,
    kappa_from_counts,
)

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

    Returns:
        For each pair `readers`, `studies` (a sample counts once in each arm that both read), and Cohen's `kappa` (None
        if undefined) with its 95% interval (`low`, `high`, from a bootstrap of samples) and its `n` of
        `needs_correction` per draft sentence; `severity` (weighted) per sentence that both corrected and rated;
        `worst_severity` (weighted) per study, where no correction is the lowest; `error_types` per study, which
        includes additions.
    """
    reviews = {name: store.counted_reviews(name) for name in readers}
    results = []
    for first, second in combinations(reviews, 2):
        both = [
            (draft.sample_id, a.state, b.state)
            for (draft, a), (_, b) in zip(reviews[first], reviews[second], strict=True)
            if a.state.done and b.state.done
        ]
        results.append({"readers": [first, second], "studies": len(both), **_agreement(both)})
    return results


def krippendorff_alphas(store: Store, readers: Sequence[str]) -> list[dict[str, Any]]:
    """Return Krippendorff's alpha of all readers on the studies that they finished, over all arms and for each arm.

    Returns:
        For each arm (None = all) and measure `arm`, `measure`, `level`, `alpha` (None if undefined) with its 95%
        interval (`low`, `high`, from a bootstrap of samples), and `n`, the number of items that two readers rated. The
        measures are those of `agreements`, and the number of `corrections` of a study.
    """
    if len(readers) < 2:
        return []
    reviews = [store.counted_reviews(name) for name in readers]
    arms = list(dict.fromkeys(draft.arm for draft in store.drafts))
    results = []
    for arm in [None, *(arms if len(arms) > 1 else ())]:
        items: dict[str, list[tuple[str, list[float]]]] = {name: [] for name in _LEVELS}
        for same in zip(*reviews, strict=True):
            draft = same[0][0]
            states = [review.state for _, review in same if review.state.done]
            if arm in (None, draft.arm):
                for name, ratings in _ratings(states):
                    items[name].append((draft.sample_id, ratings))
        results += [{"arm": arm, "measure": name, **_alpha(items[name], level)} for name, level in _LEVELS.items()]
    return results


_LEVELS: dict[str, Level] = {
    "needs_correction": "nominal",
    "severity": "ordinal",
    "worst_severity": "ordinal",
    "corrections": "interval",
}


def _ratings(states: Sequence[State]) -> Iterable[tuple[str, list[float]]]:
    """Yield the measure and the ratings of each item of a study."""
    for sentences in zip(*(_drafted(state) for state in states), strict=True):
        yield "needs_correction", [float(sentence.is_correction) for sentence in sentences]
        rated = [sentence.assessment.severity for sentence in sentences if sentence.is_correction]
        yield "severity", [float(severity) for severity in rated if severity is not None]
    worst = (worst_severity(state) for state in states)
    yield "worst_severity", [float(severity) for severity in worst if severity is not None]
    yield "corrections", [float(len(state.corrections)) for state in states]


def _alpha(items: Sequence[tuple[str, list[float]]], level: Level) -> dict[str, Any]:
    rated = [(sample, ratings) for sample, ratings in items if len(ratings) > 1]
    categories = sorted({rating for _, ratings in rated for rating in ratings})
    counts = coincidence_counts([ratings for _, ratings in rated], categories)
    clusters = Clusters("sample_id", [sample for sample, _ in rated])
    summary = summarize_counts(counts, {"alpha": alpha_from_counts(categories, level)}, clusters=clusters)["alpha"]
    return {"level": level, **_as_json("alpha", summary, len(rated))}


def _agreement(both: Sequence[tuple[str, State, State]]) -> dict[str, Any]:
    sentences = [
        (sample, first, second) for sample, a, b in both for first, second in zip(_drafted(a), _drafted(b), strict=True)
    ]
    severities = [
        (sample, first.assessment.severity, second.assessment.severity)
        for sample, first, second in sentences
        if first.is_correction and second.is_correction
    ]
    types = [(sample, _types(a), _types(b)) for sample, a, b in both]
    names = sorted({name for _, *pair in types for group in pair for name in group})
    return {
        "needs_correction": _kappa((sample, a.is_correction, b.is_correction) for sample, a, b in sentences),
        "severity": _kappa(severities),
        "worst_severity": _kappa((sample, worst_severity(a), worst_severity(b)) for sample, a, b in both),
        "error_types": {name: _kappa((sample, name in a, name in b) for sample, a, b in types) for name in names},
    }


def _kappa(items: Iterable[tuple[str, float | None, float | None]]) -> dict[str, Any]:
    rated = [(sample, a, b) for sample, a, b in items if a is not None and b is not None]
    pairs = [(a, b) for _, a, b in rated]
    categories = sorted({rating for pair in pairs for rating in pair})
    counts = confusion_counts(pairs, categories)
    clusters = Clusters("sample_id", [sample for sample, *_ in rated])
    summary = summarize_counts(counts, {"kappa": kappa_from_counts(categories)}, clusters=clusters)["kappa"]
    return _as_json("kappa", summary, len(rated))


def _as_json(name: str, summary: Summary, n: int) -> dict[str, Any]:
    value = None if summary.point is None or math.isnan(summary.point) else float(summary.point)
    return {name: value, "low": summary.low, "high": summary.high, "n": n}


def _drafted(state: State) -> list[ReviewedSentence]:
    return [sentence for sentence in state.sentences if not sentence.is_added]


def _types(state: State) -> set[str]:
    return {error_group(sentence.assessment.error_type) for sentence in state.corrections}
