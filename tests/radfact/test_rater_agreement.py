"""Agreement of raters: kappa and alpha against statsmodels and published values, and counts of errors by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radfact.statistics.bootstrap import summarize_counts
from radfact.statistics.clusters import Clusters
from radfact.statistics.rater_agreement import (
    Level,
    Mean,
    alpha_from_counts,
    coincidence_counts,
    confusion_counts,
    count_accuracy,
    error_type_f1,
    kappa_from_counts,
    mean_detected,
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
    assert (summary.low or 1) < (summary.point or 0) < (summary.high or 0)
    one = summarize_counts(counts, functions, clusters=Clusters("sample_id", ["same"] * 200))["kappa"]
    assert (one.point, one.low) == (summary.point, None)


COUNTS = st.lists(st.integers(0, 5), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("expert", "predicted", "f1"),
    [
        # VERT, appendix C. Report 1: 1 detected, 2 missed; report 2: 1 detected, 1 too many.
        ([3, 1], [1, 2], 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4)),
        # A score whose denominator is 0 is 0.
        ([0, 0], [0, 1], 0),
        ([0], [0], 0),
        # Reports without a count are excluded.
        ([3, 1], [math.nan, 1], 1),
        ([1], [math.nan], None),
    ],
)
def test_error_type_f1_by_hand(expert: list[float], predicted: list[float], f1: float | None) -> None:
    assert error_type_f1(expert, predicted) == (None if f1 is None else pytest.approx(f1))


@given(COUNTS, st.data())
def test_f1_is_1_for_the_same_counts_only(expert: list[float], data: st.DataObject) -> None:
    predicted = data.draw(st.lists(st.integers(0, 5), min_size=len(expert), max_size=len(expert)))
    f1 = error_type_f1(expert, predicted)
    assert f1 is not None
    assert 0 <= f1 <= 1
    assert (f1 == 1) == (expert == predicted and any(expert))
    assert f1 == error_type_f1(predicted, expert)


def test_counts_are_compared_where_both_are_known() -> None:
    assert mean_detected([3, 1, 3, 1], [2, 1, 1, math.nan]) == {1: Mean(1, 1), 3: Mean(1.5, 2)}
    # The mean expert is rounded half up.
    assert count_accuracy([1.5, 1 / 3, 1], [2, 1, math.nan]) == Mean(0.5, 2)
    assert count_accuracy([1], [math.nan]) == Mean(None, 0)
