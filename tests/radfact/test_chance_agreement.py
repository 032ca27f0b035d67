"""Kappa and alpha against statsmodels and published values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from radfact.statistics.bootstrap import summarize_counts
from radfact.statistics.clusters import Clusters
from radfact.statistics.rater_agreement import (
    Level,
    alpha_from_counts,
    coincidence_counts,
    confusion_counts,
    kappa_from_counts,
)

# Krippendorff, "Computing Krippendorff's Alpha-Reliability", 2011, part C: four observers, twelve units, 0 = missing.
OBSERVERS = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, 0, 0, 0],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, 0, 3],
    [0, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, 0],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, 0],
]


@pytest.mark.parametrize(("level", "expected"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_alpha_of_the_published_example(level: Level, expected: float) -> None:
    items = [[rating for rating in ratings if rating] for ratings in zip(*OBSERVERS, strict=True)]
    counts = coincidence_counts(items, [1, 2, 3, 4, 5])
    assert round(alpha_from_counts([1, 2, 3, 4, 5], level)(counts.sum(axis=0)), 3) == expected


def test_kappa_equals_that_of_statsmodels() -> None:
    inter_rater = pytest.importorskip("statsmodels.stats.inter_rater")
    first, second = np.random.default_rng(0).integers(0, 4, (2, 50))
    pairs = list(zip(first.tolist(), np.where(first > 1, first, second).tolist(), strict=True))
    counts = confusion_counts(pairs, [0, 1, 2, 3]).sum(axis=0)
    expected = inter_rater.cohens_kappa(counts.reshape(4, 4), wt="linear").kappa
    assert kappa_from_counts([0, 1, 2, 3])(counts) == pytest.approx(expected)
    binary = confusion_counts([(a > 1, b > 0) for a, b in pairs], [0, 1]).sum(axis=0)
    assert kappa_from_counts([0, 1])(binary) == pytest.approx(inter_rater.cohens_kappa(binary.reshape(2, 2)).kappa)


def test_a_single_category_has_no_value() -> None:
    assert math.isnan(kappa_from_counts([0, 1])(confusion_counts([(1, 1)], [0, 1]).sum(axis=0)))
    assert math.isnan(alpha_from_counts([0, 1], "nominal")(coincidence_counts([[1, 1], [0]], [0, 1]).sum(axis=0)))


def test_an_interval_contains_the_value_and_follows_the_clusters() -> None:
    generator = np.random.default_rng(1)
    first = generator.integers(0, 2, 200)
    pairs = list(zip(first.tolist(), np.where(generator.random(200) < 0.8, first, 1 - first).tolist(), strict=True))
    counts = confusion_counts(pairs, [0, 1])
    functions = {"kappa": kappa_from_counts([0, 1])}
    summary = summarize_counts(counts, functions)["kappa"]
    assert summary.low is not None
    assert summary.high is not None
    assert summary.point is not None
    assert summary.low < summary.point < summary.high
    one = summarize_counts(counts, functions, clusters=Clusters("sample_id", ["same"] * 200))["kappa"]
    assert (one.point, one.low) == (summary.point, None)
