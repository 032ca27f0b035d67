"""Bootstrap summaries compared with resampling one by one, and agreement of raters with published values."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from call_counts import count_calls
from hypothesis import given
from hypothesis import strategies as st

from radfact.statistics.bootstrap import Summary, harmonic_mean, summarize, summarize_counts
from radfact.statistics.clusters import Clusters
from radfact.statistics.proportions import wilson_interval
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

shares = st.floats(0, 1) | st.just(math.nan)


def resample_one_by_one(
    precision: Sequence[float], recall: Sequence[float], seed: int, replicates: int
) -> list[list[float]]:
    """Rows low, q25, median, q75, high of precision, recall and F1, computed replicate by replicate."""
    generator = np.random.default_rng(seed)
    drawn = []
    for _ in range(replicates):
        sample = generator.choice(len(precision), len(precision), replace=True)
        means = [np.nanmean(np.array(values)[sample]) for values in (precision, recall)]
        drawn.append([*means, harmonic_mean(*means)])
    rows: list[list[float]] = np.nanquantile(drawn, [0.025, 0.25, 0.5, 0.75, 0.975], axis=0).T.tolist()
    return rows


def spread(summary: Summary) -> list[float | None]:
    return [summary.low, summary.q25, summary.median, summary.q75, summary.high]


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
@given(
    samples=st.lists(st.tuples(shares, shares), min_size=1, max_size=12).filter(
        lambda rows: all(not all(math.isnan(value) for value in column) for column in zip(*rows, strict=True))
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_intervals_are_those_of_replicates_drawn_one_by_one(samples: list[tuple[float, float]], seed: int) -> None:
    precision, recall = (list(column) for column in zip(*samples, strict=True))
    summaries = summarize({"p": precision, "r": recall}, f1={"f": ("p", "r")}, replicates=20, seed=seed)
    expected = resample_one_by_one(precision, recall, seed, 20)
    for name, row in zip(("p", "r", "f"), expected, strict=True):
        if np.isnan(row).all():
            assert spread(summaries[name]) == [None] * 5
        else:
            assert spread(summaries[name]) == pytest.approx(row, abs=1e-12)


NO = math.nan


@pytest.mark.parametrize(
    ("precision", "recall", "expected"),
    [
        ([1.0, 0.0], [0.0, 1.0], {"p": (0.5, 2), "r": (0.5, 2), "f": (0.5, 2)}),
        ([1.0, NO, 0.5], [NO, 1.0, 0.75], {"p": (0.75, 2), "r": (0.875, 2), "f": (pytest.approx(21 / 26), 1)}),
        ([NO, NO], [1.0, 1.0], {"p": (None, 0), "r": (1.0, 2), "f": (None, 0)}),
        ([], [], dict.fromkeys("prf", (None, 0))),
    ],
    ids=["the F1 of a set is that of its means", "samples without a value", "no value", "no samples"],
)
def test_points_are_means_over_the_samples_with_a_value(
    precision: list[float], recall: list[float], expected: dict[str, tuple[float | None, int]]
) -> None:
    summaries = summarize({"p": precision, "r": recall}, f1={"f": ("p", "r")}, replicates=5)
    assert {name: (summary.point, summary.n) for name, summary in summaries.items()} == expected


def test_without_replicates_there_is_a_point_and_no_interval() -> None:
    assert summarize({"p": [0.25]}, replicates=0)["p"] == Summary(0.25, n=1)


@given(precision=st.floats(0, 1), recall=st.floats(0, 1))
def test_a_harmonic_mean_lies_between_its_parts(precision: float, recall: float) -> None:
    low, high = sorted((precision, recall))
    assert low - 1e-12 <= harmonic_mean(precision, recall) <= high + 1e-12
    assert harmonic_mean(0.0, 0.0) == 0.0


def test_golden_interval_of_ten_samples() -> None:
    # Origin, with numpy 2.4: g = default_rng(42); v = arange(10) / 10;
    # quantile([v[g.choice(10, 10)].mean() for _ in range(500)], [.025, .25, .5, .75, .975])
    summaries = summarize({"p": [share / 10 for share in range(10)]})["p"]
    assert summaries.point == pytest.approx(0.45)
    assert spread(summaries) == pytest.approx([0.28, 0.39, 0.44, 0.51, 0.63])


def test_the_bootstrap_makes_no_call_per_sample() -> None:
    def calls(samples: int) -> int:
        values = {name: np.linspace(0, 1, samples).tolist() for name in "abcdef"}
        f1 = {"x": ("a", "b"), "y": ("c", "d"), "z": ("e", "f")}
        return count_calls(lambda: summarize(values, f1=f1))

    calls(150)  # the first call imports modules
    assert calls(15_000) <= calls(150)


@pytest.mark.parametrize(
    ("part", "whole", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (3, 10, 0.1078, 0.6032), (1, 1000, 0.0002, 0.0056)],
)
def test_the_wilson_interval_is_that_of_scipy(part: int, whole: int, low: float, high: float) -> None:
    # From scipy.stats.binomtest(part, whole).proportion_ci(method="wilson").
    assert wilson_interval(part, whole) == pytest.approx((low, high), abs=1e-4)
    assert wilson_interval(0, 0) is None


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
