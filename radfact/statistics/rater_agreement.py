"""Agreement with raters on counts of errors, severities and preferences."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from radfact.statistics.bootstrap import CountsFunction, round_noise
from radfact.statistics.clusters import Clusters, draw_weights
from radfact.statistics.correlation import Estimate

Counts = Mapping[str, float]
"""Number of errors of a report by category; an absent category counts 0, NaN is unknown."""

Preference = Literal["first", "second", "equal"]
"""The better one of two candidates."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over `n` reports; None without a report."""

    value: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Return the mean of the values that are not NaN."""
        known = [value for value in values if not math.isnan(value)]
        return cls(sum(known) / len(known) if known else None, len(known))


@dataclass(frozen=True, slots=True)
class Share:
    """A share of `n` cases; None without a case."""

    value: float | None
    n: int

    @classmethod
    def of(cls, part: int, whole: int) -> Share:
        """Return a share of cases."""
        return cls(part / whole if whole else None, whole)


def round_half_up(value: float) -> float:
    """Round a mean of raters to a whole number; NaN stays NaN. The papers do not say how they round."""
    return math.floor(value + 0.5) if not math.isnan(value) else math.nan


# Counts of errors


@dataclass(frozen=True, slots=True)
class Detection:
    """Errors of one category over `n` reports: detected, wrongly detected and missed ones."""

    true_positives: int
    false_positives: int
    false_negatives: int
    n: int

    @property
    def precision(self) -> float:
        """Precision; 0 if nothing was detected."""
        return _ratio(self.true_positives, self.true_positives + self.false_positives)

    @property
    def recall(self) -> float:
        """Recall; 0 if there was nothing to detect."""
        return _ratio(self.true_positives, self.true_positives + self.false_negatives)

    @property
    def f1(self) -> float | None:
        """F1; 0 if precision and recall are 0, None without a report."""
        return None if not self.n else _ratio(2 * self.precision * self.recall, self.precision + self.recall)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def detect_error_types(
    expert: Sequence[Counts], predicted: Sequence[Counts], categories: Sequence[str]
) -> dict[str, Detection]:
    """Compare the number of errors of each category, summed over reports.

    Of h errors of the expert and g predicted ones, min(h, g) are true positives, max(0, g - h) false positives and
    max(0, h - g) false negatives.

    Source: VERT, appendix C.
    """
    table = {}
    for category in categories:
        pairs = [(int(h), int(g)) for h, g in _known_pairs(expert, predicted, category)]
        table[category] = Detection(
            sum(min(h, g) for h, g in pairs),
            sum(max(0, g - h) for h, g in pairs),
            sum(max(0, h - g) for h, g in pairs),
            len(pairs),
        )
    return table


def category_accuracy(
    expert: Sequence[Counts], predicted: Sequence[Counts], categories: Sequence[str]
) -> dict[str, Share]:
    """Return the share of reports with the same count as the mean expert, rounded half up, by category.

    Source: GREEN, table 4.
    """
    table = {}
    for category in categories:
        same = [round_half_up(h) == g for h, g in _known_pairs(expert, predicted, category)]
        table[category] = Share.of(sum(same), len(same))
    return table


def _known_pairs(expert: Sequence[Counts], predicted: Sequence[Counts], category: str) -> list[tuple[float, float]]:
    pairs = ((h.get(category, 0), g.get(category, 0)) for h, g in zip(expert, predicted, strict=True))
    return [pair for pair in pairs if not math.isnan(sum(pair))]


def mean_detected(expert: Sequence[float], predicted: Sequence[float]) -> dict[int, Mean]:
    """Return the mean predicted number of errors by the true number.

    Source: VERT, figures 2 and 3.
    """
    groups: dict[int, list[float]] = {}
    for true, count in zip(expert, predicted, strict=True):
        if not math.isnan(true + count):
            groups.setdefault(int(true), []).append(count)
    return {true: Mean.of(counts) for true, counts in sorted(groups.items())}


# Severities


@dataclass(frozen=True, slots=True)
class SeverityErrors:
    """Differences of severities, predicted minus true: mean absolute difference, share of each difference, number."""

    mean_absolute: float
    shares: Mapping[int, float]
    n: int


def severity_errors(expert: Sequence[int], predicted: Sequence[int]) -> SeverityErrors:
    """Compare the greatest severity of each report, 0 to 4.

    Source: FineRadScore, section 6.4 and figure 2.
    """
    gaps = [ours - theirs for theirs, ours in zip(expert, predicted, strict=True)]
    if not gaps:
        raise ValueError("no severities to compare")
    counts = Counter(gaps)
    shares = {gap: counts[gap] / len(gaps) for gap in sorted(counts)}
    return SeverityErrors(sum(map(abs, gaps)) / len(gaps), shares, len(gaps))


def rater_severity_errors(ratings: Sequence[Sequence[int]], *, seed: int = 42) -> SeverityErrors:
    """Compare one random rater of each report with all other raters of it.

    Source: FineRadScore, section 6.4.
    """
    generator = random.Random(seed)
    expert: list[int] = []
    predicted: list[int] = []
    for severities in ratings:
        if len(severities) < 2:
            continue
        chosen = generator.randrange(len(severities))
        others = [severity for index, severity in enumerate(severities) if index != chosen]
        expert += others
        predicted += [severities[chosen]] * len(others)
    return severity_errors(expert, predicted)


# Preferences


@dataclass(frozen=True, slots=True)
class PreferenceAccuracy(Estimate):
    """Share of expert preferences that are met, with a 95% bootstrap interval; None without a pair.

    `ties` is the share of "equal", which meets no expert preference.
    """

    ties: float | None = None


def prefer_by_score(
    first: Sequence[float], second: Sequence[float], *, direction: Literal["higher", "lower"]
) -> list[Preference | None]:
    """Prefer the candidate with the better score; "equal" for the same score, None where one is not scored."""
    sign = 1 if direction == "higher" else -1
    rounded = round_noise([*first, *second])
    gaps = sign * (rounded[: len(first)] - rounded[len(first) :])
    return [None if math.isnan(gap) else "first" if gap > 0 else "second" if gap < 0 else "equal" for gap in gaps]


def preference_accuracy(
    expert: Sequence[Preference | None],
    preferred: Sequence[Preference | None],
    *,
    replicates: int = 1000,
    seed: int = 42,
    clusters: Clusters | None = None,
) -> PreferenceAccuracy:
    """Return how often the preferred candidate is the experts' one; "equal" never is.

    Source: GREEN, section 4.3.2 and table 6.
    """
    rows = list(zip(expert, preferred, strict=True))
    places = [index for index, pair in enumerate(rows) if None not in pair]
    pairs = [rows[index] for index in places]
    if not pairs:
        return PreferenceAccuracy(None)
    met = [ours == theirs for theirs, ours in pairs]
    n, ties = len(pairs), sum(ours == "equal" for _, ours in pairs) / len(pairs)
    clusters = None if clusters is None else clusters.select(places)
    if not replicates or (clusters is not None and clusters.count < 2):
        return PreferenceAccuracy(sum(met) / n, n=n, ties=ties)
    weights = draw_weights(np.random.default_rng(seed), n, replicates, clusters)
    drawn = weights @ np.array(met, dtype=np.float64) / weights.sum(axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975)).tolist()
    return PreferenceAccuracy(sum(met) / n, low, high, n, ties)


def accuracy_by_confidence(
    expert: Sequence[Preference | None],
    preferred: Sequence[Preference | None],
    confidence: Sequence[float],
    *,
    replicates: int = 1000,
    seed: int = 42,
    clusters: Clusters | None = None,
) -> dict[float, PreferenceAccuracy]:
    """Return `preference_accuracy` over the pairs of at least each confidence that occurs.

    Source: GREEN, figure 6.
    """
    rows = list(zip(expert, preferred, confidence, strict=True))
    table = {}
    for level in sorted({sure for theirs, _, sure in rows if theirs is not None}):
        places = [index for index, (_, _, sure) in enumerate(rows) if sure >= level]
        table[level] = preference_accuracy(
            [rows[index][0] for index in places],
            [rows[index][1] for index in places],
            replicates=replicates,
            seed=seed,
            clusters=None if clusters is None else clusters.select(places),
        )
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


def kappa_from_counts(categories: Sequence[float]) -> CountsFunction:
    """Return the linearly weighted kappa of two raters as a function of summed `confusion_counts`.

    With two categories, it is the kappa without weights. It has no value (NaN) without ratings, or if both raters use
    a single category.

    Source: Cohen, "Weighted kappa", 1968.
    """
    values = np.asarray(categories, dtype=np.float64)
    weights = np.abs(values[:, None] - values[None, :])

    def kappa(counts: NDArray[np.float64]) -> float:
        matrix = counts.reshape(len(values), len(values))
        total = matrix.sum()
        expected = float((weights * np.outer(matrix.sum(axis=1), matrix.sum(axis=0))).sum())
        return 1 - float((weights * matrix).sum()) * total / expected if expected else math.nan

    return kappa


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
    """Return Krippendorff's alpha as a function of summed `coincidence_counts`.

    It has no value (NaN) without an item with two ratings, or if all ratings are the same.

    Source: Krippendorff, "Computing Krippendorff's Alpha-Reliability", 2011.
    """
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
