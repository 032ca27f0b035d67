"""Whether metrics agree with experts: correlations, the experts among themselves, counts of errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from radfact.error_categories import ERROR_CATEGORIES
from radfact.meta.datasets.matching import Match
from radfact.meta.datasets.ratings import COUNTS, Better, Ratings, is_of_category
from radfact.statistics.bootstrap import Direction
from radfact.statistics.correlation import REPLICATES, SEED, Estimate, correlate
from radfact.statistics.error_counts import (
    Detection,
    Mean,
    Share,
    category_accuracy,
    error_type_detection,
    mean_detected,
)

MEAN = "mean of all"
"""In the place of a rater."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of rated samples, in their order.

    Attributes:
        values: figure -> one value a sample, NaN = not scored.
        directions: which way is better; a neutral one agrees with nobody and is left out.
        unavailable: why a metric gave nothing.
        matches: of each results folder that they are from, whose samples it has.
    """

    values: Mapping[str, Sequence[float]]
    directions: Mapping[str, Direction]
    unavailable: Mapping[str, str] = field(default_factory=dict)
    matches: Sequence[Match] = ()

    def worse(self, name: str) -> list[float] | None:
        """The values turned so that higher is worse (paper 002, section 2.4); None where neither way is better."""
        return orient(self.values[name], self.directions.get(name, "higher"))


def orient(values: Sequence[float], direction: Direction | Better) -> list[float] | None:
    """Values turned so that higher is worse; None for a figure of which neither way is better."""
    if direction == "neutral":
        return None
    return [-value if direction == "higher" else value for value in values]


@dataclass(frozen=True, slots=True)
class Agreement:
    """A figure and the experts in one group: coefficients by name, positive where both call the same reports bad."""

    figure: str
    group: str
    coefficients: Mapping[str, Estimate]


@dataclass(frozen=True, slots=True)
class Raters:
    """Two raters of one quantity: Kendall's tau-b, and the mean absolute difference, over what both have rated.

    One of them may be the mean of all (paper 000, figure 5).
    """

    quantity: str
    first: str
    second: str
    kendall: Estimate
    mean_absolute_difference: float | None


@dataclass(frozen=True, slots=True)
class CountError:
    """Mean absolute error of counts, with the standard deviation over samples (paper 000, tables 2 and 4).

    `rater` is one of the experts, or the mean of all.
    """

    figure: str
    quantity: str
    rater: str
    mean: float | None
    deviation: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts of errors of one kind that a metric gives, beside the mean expert's.

    Attributes:
        figure: of the metric.
        quantity: of the experts.
        detected: mean number by the experts' number.
        by_category: errors matched, missed and too many, by letter; empty where counts by category are not known.
        accuracy: share of reports with the same number, by letter.
    """

    figure: str
    quantity: str
    detected: Mapping[int, Mean]
    by_category: Mapping[str, Detection]
    accuracy: Mapping[str, Share]


def agreement(
    ratings: Ratings,
    figures: Figures,
    *,
    group: str | None = None,
    replicates: int = REPLICATES,
    seed: int = SEED,
) -> list[Agreement]:
    """Correlations of every figure with the experts' target, over all samples and in every group.

    Args:
        ratings: of the experts; the mean over raters counts.
        figures: of the same samples.
        group: kind of group, such as site; by default the set's own.
        replicates: of the bootstrap.
        seed: of the bootstrap.
    """
    expert = orient(ratings.means(ratings.target), ratings.better[ratings.target]) or []
    found = []
    for name in figures.values:
        column = figures.worse(name)
        if column is None:
            continue
        for label, places in ratings.in_group(group or ratings.group).items():
            ours, theirs = ([values[place] for place in places] for values in (column, expert))
            found.append(Agreement(name, label, correlate(theirs, ours, replicates=replicates, seed=seed)))
    return found


def inter_rater(ratings: Ratings, *, replicates: int = REPLICATES, seed: int = SEED) -> list[Raters]:
    """Every two raters, and each beside the mean of all, of every quantity but counts in single categories.

    Args:
        ratings: of the experts.
        replicates: of the bootstrap.
        seed: of the bootstrap.
    """
    found = []
    for quantity in dict.fromkeys((ratings.target, *(name for name in ratings.better if not is_of_category(name)))):
        columns = {rater: np.array(ratings.by_rater(quantity, rater)) for rater in ratings.raters(quantity)}
        if len(columns) > 2:
            columns = {MEAN: np.array(_row_means(list(columns.values()))), **columns}
        for (first, one), (second, other) in combinations(columns.items(), 2):
            gaps = np.abs(one - other)
            known = ~np.isnan(gaps)
            kendall = correlate(one.tolist(), other.tolist(), replicates=replicates, seed=seed)["kendall"]
            mean = float(gaps[known].mean()) if known.any() else None
            found.append(Raters(quantity, first, second, kendall, mean))
    return found


def _row_means(columns: Sequence[NDArray[np.float64]]) -> list[float]:
    rows = (values[~np.isnan(values)] for values in np.array(columns).T)
    return [float(values.mean()) if values.size else math.nan for values in rows]


def counted_as(figure: str, quantities: Mapping[str, Better]) -> str | None:
    """The quantity of which a figure is the number: `green_significant` of `significant`, `green_ec` of `errors`."""
    if figure.endswith("_ec"):
        return "errors" if "errors" in quantities else None
    matching = [name for name in quantities if (name in COUNTS or is_of_category(name)) and figure.endswith(f"_{name}")]
    return max(matching, key=len, default=None)


def count_errors(ratings: Ratings, figures: Figures) -> list[CountError]:
    """How far the numbers of errors that metrics give lie from those of the mean expert, and of each."""
    found = []
    for name, values in figures.values.items():
        quantity = counted_as(name, ratings.better)
        if quantity is None:
            continue
        experts = {MEAN: ratings.means(quantity)}
        raters = ratings.raters(quantity)
        if len(raters) > 1 and not is_of_category(quantity):
            experts |= {rater: ratings.of_samples(quantity, rater) for rater in raters}
        for rater, expert in experts.items():
            gaps = np.abs(np.array(values, dtype=np.float64) - np.array(expert))
            gaps = gaps[~np.isnan(gaps)]
            mean, deviation = (float(gaps.mean()), float(gaps.std())) if gaps.size else (None, None)
            found.append(CountError(name, quantity, rater, mean, deviation, len(gaps)))
    return found


def counted(ratings: Ratings, figures: Figures) -> list[Counted]:
    """Mean detected errors by the experts' number; F1 and accuracy by category.

    Paper 003, figures 2 and 4 and appendix C; paper 000, table 4. The experts' number is the mean over raters, rounded,
    halves up: with one rater, as in paper 003, that is his.
    """
    found = []
    for name, values in figures.values.items():
        quantity = counted_as(name, ratings.better)
        if quantity is None or quantity not in COUNTS:
            continue
        expert = _rounded(ratings.means(quantity))
        by_letter = {letter: f"{name}_{letter}" for letter in ERROR_CATEGORIES}
        categories: dict[str, Detection] = {}
        accuracy: dict[str, Share] = {}
        if all(one in figures.values and f"{quantity}_{letter}" in ratings.better for letter, one in by_letter.items()):
            by_expert = _by_sample(
                {letter: _rounded(ratings.means(f"{quantity}_{letter}")) for letter in ERROR_CATEGORIES}
            )
            by_figure = _by_sample({letter: figures.values[one] for letter, one in by_letter.items()})
            categories = error_type_detection(by_expert, by_figure)
            accuracy = category_accuracy(by_expert, by_figure)
        found.append(Counted(name, quantity, mean_detected(expert, values), categories, accuracy))
    return found


def _rounded(values: Sequence[float]) -> list[float]:
    return [math.floor(value + 0.5) if value == value else math.nan for value in values]


def _by_sample(columns: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
