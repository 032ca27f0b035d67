"""Agreement of metrics with experts, and of experts with each other: correlations and counts of errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from radfact.error_categories import ERROR_CATEGORIES
from radfact.meta.datasets.ratings import COUNTS, Better, RatingSet, is_category_count
from radfact.meta.scores import ScoreColumns, orient
from radfact.statistics.correlation import REPLICATES, SEED, Estimate, correlate
from radfact.statistics.rater_agreement import Mean, count_accuracy, error_type_f1, mean_detected, round_half_up

MEAN_RATER = "mean of all"


@dataclass(frozen=True, slots=True)
class MetricAgreement:
    """Correlation coefficients of a score with experts in one group; positive if both rate the same reports as bad."""

    score: str
    group: str
    coefficients: Mapping[str, Estimate]

    @property
    def n(self) -> int:
        return self.coefficients["kendall"].n


@dataclass(frozen=True, slots=True)
class RaterAgreement:
    """Agreement of two raters, or of a rater and the mean of all, over the candidates that both have rated."""

    quantity: str
    first: str
    second: str
    kendall: Estimate
    mean_absolute_difference: float | None


@dataclass(frozen=True, slots=True)
class CountError:
    """Mean absolute error of counts with its standard deviation over samples, for one rater or the mean of all."""

    score: str
    quantity: str
    rater: str
    mean: float | None
    deviation: float | None
    n: int


@dataclass(frozen=True, slots=True)
class CountAgreement:
    """Counts of errors by a metric and the mean expert: means by the experts' count; F1 and accuracy by letter."""

    score: str
    quantity: str
    detected: Mapping[int, Mean]
    f1: Mapping[str, float | None]
    accuracy: Mapping[str, Mean]


def correlate_with_experts(
    ratings: RatingSet,
    scores: ScoreColumns,
    *,
    group: str | None = None,
    replicates: int = REPLICATES,
    seed: int = SEED,
) -> list[MetricAgreement]:
    """Correlate scores with the experts' target, over all and within groups (GREEN, ReXamine-Global and VERT)."""
    expert = orient(ratings.means(ratings.target), ratings.better[ratings.target])
    results, clusters = [], ratings.clusters
    for name, column in scores.oriented.items():
        for label, indices in ratings.indices_by_group(group or ratings.group).items():
            ours, theirs = ([values[index] for index in indices] for values in (column, expert))
            estimates = correlate(theirs, ours, replicates=replicates, seed=seed, clusters=clusters.select(indices))
            results.append(MetricAgreement(name, label, estimates))
    return results


def compare_raters(ratings: RatingSet, *, replicates: int = REPLICATES, seed: int = SEED) -> list[RaterAgreement]:
    """Compare raters in pairs and with the mean of all; not their counts by category (GREEN, figure 5)."""
    results, clusters = [], ratings.candidate_clusters
    for quantity in dict.fromkeys((ratings.target, *(name for name in ratings.better if not is_category_count(name)))):
        columns = {rater: np.array(values) for rater, values in ratings.values_by_rater(quantity).items()}
        if len(columns) > 2:
            means = [Mean.of(row).value for row in zip(*columns.values(), strict=True)]
            columns = {MEAN_RATER: np.array(means, dtype=np.float64), **columns}
        for (first, left), (second, right) in combinations(columns.items(), 2):
            estimates = correlate(left.tolist(), right.tolist(), replicates=replicates, seed=seed, clusters=clusters)
            kendall = estimates["kendall"]
            difference = Mean.of(np.abs(left - right).tolist()).value
            results.append(RaterAgreement(quantity, first, second, kendall, difference))
    return results


def counted_quantity(score: str, quantities: Mapping[str, Better]) -> str | None:
    """Return the quantity that a score counts: `significant` for `green_significant`, `errors` for `green_ec`."""
    if score.endswith("_ec"):
        return "errors" if "errors" in quantities else None
    counts = (name for name in quantities if name in COUNTS or is_category_count(name))
    return max((name for name in counts if score.endswith(f"_{name}")), key=len, default=None)


def count_errors(ratings: RatingSet, scores: ScoreColumns) -> list[CountError]:
    """Compare the numbers of errors of metrics with those of the mean expert and each expert (GREEN, tables 2, 4)."""
    results = []
    for name, values in scores.values.items():
        quantity = counted_quantity(name, ratings.better)
        if quantity is None:
            continue
        experts = {MEAN_RATER: ratings.means(quantity)}
        # In sets with counts, every sample has its own candidate.
        by_rater = ratings.values_by_rater(quantity)
        if len(by_rater) > 1 and not is_category_count(quantity):
            experts |= by_rater
        for rater, expert in experts.items():
            gaps = np.abs(np.array(values, dtype=np.float64) - np.array(expert))
            gaps = np.sort(gaps[~np.isnan(gaps)])
            mean, deviation = (float(gaps.mean()), float(gaps.std())) if gaps.size else (None, None)
            results.append(CountError(name, quantity, rater, mean, deviation, len(gaps)))
    return results


def compare_counts(ratings: RatingSet, scores: ScoreColumns) -> list[CountAgreement]:
    """Compare counts with the mean expert, rounded half up (VERT, figures 2, 4 and appendix C; GREEN, table 4)."""
    results = []
    for name, values in scores.values.items():
        quantity = counted_quantity(name, ratings.better)
        if quantity is None or quantity not in COUNTS:
            continue
        f1: dict[str, float | None] = {}
        accuracy: dict[str, Mean] = {}
        if all(f"{name}_{x}" in scores.values and f"{quantity}_{x}" in ratings.better for x in ERROR_CATEGORIES):
            for letter in ERROR_CATEGORIES:
                counts = _rounded_means(ratings, f"{quantity}_{letter}"), scores.values[f"{name}_{letter}"]
                f1[letter], accuracy[letter] = error_type_f1(*counts), count_accuracy(*counts)
        detected = mean_detected(_rounded_means(ratings, quantity), values)
        results.append(CountAgreement(name, quantity, detected, f1, accuracy))
    return results


def _rounded_means(ratings: RatingSet, quantity: str) -> list[float]:
    return [round_half_up(value) for value in ratings.means(quantity)]
