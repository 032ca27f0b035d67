"""Agreement of metrics with experts, of experts with each other, and of metrics compared with each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import ErrorCode, InputError, suggest_name
from radfact.meta.datasets.ratings import COUNTS, Better, RatingSet, is_category_count
from radfact.meta.scores import ScoreColumns, orient
from radfact.optional import load_module
from radfact.statistics.bootstrap import round_noise
from radfact.statistics.correlation import Coefficient, KendallDifference, compare_kendall, correlate
from radfact.statistics.rater_agreement import Mean, count_accuracy, error_type_f1, mean_detected, round_half_up
from radfact.statistics.significance import adjust_holm

MEAN_RATER = "mean of all"
LISTED = 10
"""Reports of each score in a list of disagreements."""


@dataclass(frozen=True, slots=True)
class MetricAgreement:
    """Correlation coefficients of a score with experts in one group; positive if both rate the same reports as bad."""

    score: str
    group: str
    coefficients: Mapping[str, Coefficient]


@dataclass(frozen=True, slots=True)
class RaterAgreement:
    """Agreement of two raters, or of a rater and the mean of all, over the candidates that both have rated."""

    quantity: str
    first: str
    second: str
    kendall: Coefficient
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


@dataclass(frozen=True, slots=True)
class MetricContrast:
    """Agreement of a score (`kendall.second`) compared with the baseline (`first`); p, also by Holm's method."""

    score: str
    baseline: str
    kendall: KendallDifference
    p_holm: float | None


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A report that a score and the experts' mean rank differently; ranks are from 0 = best to 1 = worst."""

    score: str
    sample_id: str
    expert: float
    value: float
    expert_rank: float
    score_rank: float


def _oriented_target(ratings: RatingSet) -> list[float]:
    return orient(ratings.means(ratings.target), ratings.better[ratings.target])


def correlate_with_experts(
    ratings: RatingSet, scores: ScoreColumns, *, group: str | None = None, **draws: int
) -> list[MetricAgreement]:
    """Correlate scores with the experts' target, over all and within groups (GREEN, ReXamine-Global and VERT)."""
    expert = _oriented_target(ratings)
    results, clusters = [], ratings.clusters
    for name, column in scores.oriented.items():
        for label, indices in ratings.indices_by_group(group or ratings.group).items():
            ours, theirs = ([values[index] for index in indices] for values in (column, expert))
            estimates = correlate(theirs, ours, clusters=clusters.select(indices), **draws)
            results.append(MetricAgreement(name, label, estimates))
    return results


def compare_raters(ratings: RatingSet, **draws: int) -> list[RaterAgreement]:
    """Compare raters in pairs and with the mean of all; not their counts by category (GREEN, figure 5)."""
    results, clusters = [], ratings.candidate_clusters
    for quantity in dict.fromkeys((ratings.target, *(name for name in ratings.better if not is_category_count(name)))):
        columns = {rater: np.array(values) for rater, values in ratings.values_by_rater(quantity).items()}
        if len(columns) > 2:
            means = [Mean.of(row).value for row in zip(*columns.values(), strict=True)]
            columns = {MEAN_RATER: np.array(means, dtype=np.float64), **columns}
        for (first, left), (second, right) in combinations(columns.items(), 2):
            kendall = correlate(left.tolist(), right.tolist(), clusters=clusters, **draws)["kendall"]
            difference = Mean.of(np.abs(left - right).tolist()).value
            results.append(RaterAgreement(quantity, first, second, kendall, difference))
    return results


def counted_quantity(score: str, quantities: Mapping[str, Better]) -> str | None:
    """Return the quantity that a score counts: `significant` for `green_significant`, `errors` for `green_ec`."""
    if score.endswith("_ec"):
        return "errors" if "errors" in quantities else None
    counts = (name for name in quantities if name in COUNTS or is_category_count(name))
    return max((name for name in counts if score.endswith(f"_{name}")), key=len, default=None)


def _counted_quantities(ratings: RatingSet, scores: ScoreColumns) -> list[tuple[str, str]]:
    quantities = ((name, counted_quantity(name, ratings.better)) for name in scores.values)
    return [(name, quantity) for name, quantity in quantities if quantity is not None]


def count_errors(ratings: RatingSet, scores: ScoreColumns) -> list[CountError]:
    """Compare the numbers of errors of metrics with those of the mean expert and each expert (GREEN, tables 2, 4)."""
    results = []
    for name, quantity in _counted_quantities(ratings, scores):
        experts = {MEAN_RATER: ratings.means(quantity)}
        # In sets with counts, every sample has its own candidate.
        by_rater = ratings.values_by_rater(quantity)
        if len(by_rater) > 1 and not is_category_count(quantity):
            experts |= by_rater
        for rater, expert in experts.items():
            gaps = np.abs(np.array(scores.values[name], dtype=np.float64) - np.array(expert))
            gaps = np.sort(gaps[~np.isnan(gaps)])
            mean, deviation = (float(gaps.mean()), float(gaps.std())) if gaps.size else (None, None)
            results.append(CountError(name, quantity, rater, mean, deviation, len(gaps)))
    return results


def compare_counts(ratings: RatingSet, scores: ScoreColumns) -> list[CountAgreement]:
    """Compare counts with the mean expert, rounded half up (VERT, figures 2, 4 and appendix C; GREEN, table 4)."""
    results = []
    for name, quantity in _counted_quantities(ratings, scores):
        if is_category_count(quantity):
            continue
        f1: dict[str, float | None] = {}
        accuracy: dict[str, Mean] = {}
        if all(f"{name}_{x}" in scores.values and f"{quantity}_{x}" in ratings.better for x in ERROR_CATEGORIES):
            for letter in ERROR_CATEGORIES:
                counts = _rounded_means(ratings, f"{quantity}_{letter}"), scores.values[f"{name}_{letter}"]
                f1[letter], accuracy[letter] = error_type_f1(*counts), count_accuracy(*counts)
        detected = mean_detected(_rounded_means(ratings, quantity), scores.values[name])
        results.append(CountAgreement(name, quantity, detected, f1, accuracy))
    return results


def _rounded_means(ratings: RatingSet, quantity: str) -> list[float]:
    return [round_half_up(value) for value in ratings.means(quantity)]


def compare_metrics(
    ratings: RatingSet, scores: ScoreColumns, baseline: str | None = None, **draws: int
) -> list[MetricContrast]:
    """Test each score against the baseline: does it agree better or worse with the experts' target?"""
    columns = scores.oriented
    if baseline is not None and baseline not in columns:
        hint = suggest_name(baseline, columns, f"scores are {', '.join(columns)}")
        raise InputError(f"unknown score '{baseline}'; {hint}", code=ErrorCode.UNKNOWN_NAME, field="baseline")
    if not columns:
        return []
    first = baseline or next(iter(columns))
    expert = _oriented_target(ratings)
    tests = {
        name: compare_kendall(expert, columns[first], column, clusters=ratings.clusters, **draws)
        for name, column in columns.items()
        if name != first
    }
    adjusted = adjust_holm([test.p for test in tests.values()])
    return [MetricContrast(name, first, test, p) for (name, test), p in zip(tests.items(), adjusted, strict=True)]


def find_disagreements(ratings: RatingSet, scores: ScoreColumns) -> list[Disagreement]:
    """Return the reports whose ranks by a score and by the experts differ most, by score, the largest first."""
    target, expert = ratings.means(ratings.target), np.array(_oriented_target(ratings))
    results, order = [], np.array(ratings.clusters.order, dtype=np.intp)
    for name, column in scores.oriented.items():
        known = order[~np.isnan(expert + np.array(column))[order]]
        if len(known) < 2:
            continue
        ranks = [load_module("scipy.stats").rankdata(round_noise(np.array(side)[known])) for side in (expert, column)]
        theirs, ours = (((rank - 1) / (len(known) - 1)).tolist() for rank in ranks)  # from 0 to 1
        rows = sorted(zip(known.tolist(), theirs, ours, strict=True), key=lambda row: -round(abs(row[2] - row[1]), 9))
        for index, first, second in rows[:LISTED]:
            if first != second:
                sample_id, value = ratings.samples[index].pair.sample_id, scores.values[name][index]
                results.append(Disagreement(name, sample_id, target[index], value, first, second))
    return results
