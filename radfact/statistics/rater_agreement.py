"""Agreement with raters on counts of errors, severities and preferences."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from radfact.statistics.bootstrap import CountsFunction, harmonic_mean, round_noise, summarize
from radfact.statistics.clusters import Clusters
from radfact.statistics.correlation import Estimate

Preference = Literal["first", "second", "equal"]
"""The better one of two candidates."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over `n` reports, or a share of `n` cases; None without one."""

    value: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Mean:
        """Return the mean of the values that are not NaN; that of booleans is the share that is true."""
        known = [value for value in values if not math.isnan(value)]
        return cls(math.fsum(known) / len(known) if known else None, len(known))


def round_half_up(value: float) -> float:
    """Round a mean of raters to a whole number; NaN stays NaN. The papers do not say how they round."""
    return math.floor(value + 0.5) if not math.isnan(value) else math.nan


def error_type_f1(expert: Sequence[float], predicted: Sequence[float]) -> float | None:
    """Return F1 of one category from counts of two raters (VERT, appendix C); None without both, 0 without any."""
    counts = np.array([expert, predicted], dtype=np.float64)
    counts = np.trunc(counts[:, ~np.isnan(counts).any(axis=0)])
    if not counts.size:
        return None
    detected, (true, found) = float(counts.min(axis=0).sum()), counts.sum(axis=1).tolist()
    return harmonic_mean(detected / found if found else 0.0, detected / true if true else 0.0)


def count_accuracy(expert: Sequence[float], predicted: Sequence[float]) -> Mean:
    """Return the share of reports with the same count as the mean expert, rounded half up (GREEN, table 4)."""
    pairs = zip(expert, predicted, strict=True)
    return Mean.of(round_half_up(theirs) == ours for theirs, ours in pairs if not math.isnan(theirs + ours))


def mean_detected(expert: Sequence[float], predicted: Sequence[float]) -> dict[int, Mean]:
    """Return the mean predicted number of errors by the true number (VERT, figures 2 and 3)."""
    groups: dict[int, list[float]] = {}
    for true, count in zip(expert, predicted, strict=True):
        if not math.isnan(true + count):
            groups.setdefault(int(true), []).append(count)
    return {true: Mean.of(counts) for true, counts in sorted(groups.items())}


@dataclass(frozen=True, slots=True)
class SeverityErrors:
    """Differences of severities, predicted minus true: mean absolute difference, share of each difference, number."""

    mean_absolute: float
    shares: Mapping[int, float]
    n: int


def severity_errors(expert: Sequence[int], predicted: Sequence[int]) -> SeverityErrors | None:
    """Compare the greatest severity of each report, 0 to 4 (FineRadScore, section 6.4, figure 2); None without any."""
    gaps = [ours - theirs for theirs, ours in zip(expert, predicted, strict=True)]
    if not gaps:
        return None
    shares = {gap: count / len(gaps) for gap, count in sorted(Counter(gaps).items())}
    return SeverityErrors(sum(map(abs, gaps)) / len(gaps), shares, len(gaps))


def rater_severity_errors(ratings: Iterable[Sequence[int]], *, seed: int = 42) -> SeverityErrors | None:
    """Compare one random rater of each report with all others (FineRadScore, section 6.4); None without two raters."""
    generator = random.Random(seed)
    expert: list[int] = []
    predicted: list[int] = []
    for severities in ratings:
        if len(severities) > 1:
            chosen = generator.randrange(len(severities))
            expert += [*severities[:chosen], *severities[chosen + 1 :]]
            predicted += [severities[chosen]] * (len(severities) - 1)
    return severity_errors(expert, predicted)


@dataclass(frozen=True, slots=True)
class PreferenceAccuracy(Estimate):
    """Share of expert preferences that are met, with a 95% bootstrap interval; `ties` is the share of "equal"."""

    ties: float | None = None


def prefer_lower(first: Sequence[float], second: Sequence[float]) -> list[Preference | None]:
    """Prefer the candidate with the lower score; "equal" for the same score, None where one is not scored."""
    rounded = round_noise([*first, *second])
    gaps = rounded[len(first) :] - rounded[: len(first)]
    return [None if math.isnan(gap) else "first" if gap > 0 else "second" if gap < 0 else "equal" for gap in gaps]


def preference_accuracy(
    expert: Sequence[Preference | None],
    preferred: Sequence[Preference | None],
    *,
    replicates: int = 1000,
    seed: int = 42,
    clusters: Clusters | None = None,
) -> PreferenceAccuracy:
    """Return how often the preferred candidate is the experts' one; "equal" never is (GREEN, 4.3.2 and table 6)."""
    rows = [(index, *row) for index, row in enumerate(zip(expert, preferred, strict=True)) if None not in row]
    if not rows:
        return PreferenceAccuracy(None)
    met = {"met": [float(theirs == ours) for _, theirs, ours in rows]}
    ties = sum(ours == "equal" for *_, ours in rows) / len(rows)
    clusters = clusters and clusters.select([index for index, *_ in rows])
    share = summarize(met, replicates=replicates, seed=seed, clusters=clusters)["met"]
    return PreferenceAccuracy(share.point, share.low, share.high, share.n, ties)


def accuracy_by_confidence(
    expert: Sequence[Preference | None],
    preferred: Sequence[Preference | None],
    confidence: Sequence[float],
    **draws: Any,
) -> dict[float, PreferenceAccuracy]:
    """Return `preference_accuracy` at each minimum confidence (GREEN, figure 6); none without any preference."""
    rows = list(zip(expert, confidence, strict=True))
    table = {}
    for level in sorted({sure for theirs, sure in rows if theirs is not None}):
        of_level = [theirs if sure >= level else None for theirs, sure in rows]
        table[level] = preference_accuracy(of_level, preferred, **draws)
    if all(accuracy.ties in (None, 1) for accuracy in table.values()):
        return {level: replace(accuracy, value=None, low=None, high=None) for level, accuracy in table.items()}
    return table


Level = Literal["nominal", "ordinal", "interval"]
"""Level of measurement."""


def confusion_counts(pairs: Sequence[tuple[float, float]], categories: Sequence[float]) -> NDArray[np.float64]:
    """Return the confusion matrix of each item, (items, k * k), for `kappa_from_counts`."""
    places = {category: place for place, category in enumerate(categories)}
    counts = np.zeros((len(pairs), len(categories) ** 2))
    for row, (first, second) in zip(counts, pairs, strict=True):
        row[places[first] * len(categories) + places[second]] = 1
    return counts


def kappa_from_counts(categories: Sequence[float], *, is_nominal: bool = False) -> CountsFunction:
    """Return kappa of summed `confusion_counts`, linearly weighted (Cohen, 1968) if ordered; NaN of one category."""
    values = np.asarray(categories, dtype=np.float64)
    weights = np.abs(values[:, None] - values[None, :])
    weights = np.where(weights > 0, 1.0, 0.0) if is_nominal else weights

    def kappa(counts: NDArray[np.float64]) -> float:
        matrix = counts.reshape(len(values), len(values))
        total = matrix.sum()
        expected = float((weights * np.outer(matrix.sum(axis=1), matrix.sum(axis=0))).sum())
        return 1 - float((weights * matrix).sum()) * total / expected if expected else math.nan

    return kappa


def describe_agreement(items: Sequence[Sequence[float]], level: Level, what: str) -> str:
    """Return a sentence with Krippendorff's alpha of the ratings of each item."""
    categories = sorted({rating for item in items for rating in item})
    alpha = alpha_from_counts(categories, level)(coincidence_counts(items, categories).sum(axis=0))
    shown, n = "none" if math.isnan(alpha) else f"{alpha:.2f}", sum(len(item) > 1 for item in items)
    return f"Agreement of the experts on {what}: Krippendorff's alpha ({level}) {shown}, {n} with two or more ratings."


def coincidence_counts(items: Sequence[Sequence[float]], categories: Sequence[float]) -> NDArray[np.float64]:
    """Return the coincidence matrix of each item, (items, k * k), for `alpha_from_counts`."""
    places = {category: place for place, category in enumerate(categories)}
    counts = np.zeros((len(items), len(categories), len(categories)))
    for matrix, ratings in zip(counts, items, strict=True):
        if len(ratings) > 1:
            times = np.bincount([places[rating] for rating in ratings], minlength=len(categories)).astype(np.float64)
            matrix += (np.outer(times, times) - np.diag(times)) / (len(ratings) - 1)
    return counts.reshape(len(items), len(categories) ** 2)


def alpha_from_counts(categories: Sequence[float], level: Level) -> CountsFunction:
    """Return Krippendorff's alpha (2011) as a function of summed `coincidence_counts`; NaN if all are the same."""
    values = np.asarray(categories, dtype=np.float64)

    def alpha(counts: NDArray[np.float64]) -> float:
        matrix = counts.reshape(len(values), len(values))
        totals = matrix.sum(axis=0)
        if level == "nominal":
            distances = 1 - np.eye(len(values))
        elif level == "ordinal":
            # Number of ratings between two categories, half of each of the two included.
            middles = np.cumsum(totals) - totals / 2
            distances = (middles[:, None] - middles[None, :]) ** 2
        else:
            distances = (values[:, None] - values[None, :]) ** 2
        expected = float((distances * np.outer(totals, totals)).sum())
        return 1 - (totals.sum() - 1) * float((distances * matrix).sum()) / expected if expected else math.nan

    return alpha
