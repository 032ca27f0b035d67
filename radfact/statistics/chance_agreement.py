"""Chance-corrected agreement of raters: Cohen's kappa and Krippendorff's alpha as functions of summed counts.

Counts of items can be summed, so `radfact.statistics.bootstrap.summarize_counts` gives intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from radfact.statistics.bootstrap import CountsFunction

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
