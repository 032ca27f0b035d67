"""Randomization tests, paired differences, scores of summed counts, and metrics tested against each other."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from radfact.meta.agreement.analysis import LISTED, compare_metrics, find_disagreements
from radfact.meta.datasets.ratings import RatedReport, RatingSet
from radfact.meta.scores import ScoreColumns
from radfact.records import Pair
from radfact.statistics import significance
from radfact.statistics.bootstrap import harmonic_mean
from radfact.statistics.clusters import Clusters
from radfact.statistics.correlation import compare_kendall, correlate
from radfact.statistics.significance import f1_counts, f1_from_counts, mean_counts, mean_from_counts, randomization_test

NAN = math.nan
MEAN = {"x": mean_from_counts}
F1 = {"f": f1_from_counts}

EXPERT = [0.0, 1.0, 1.0, 2.0, 3.0, 5.0]
GOOD, POOR = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [20.0, 10.0, 40.0, 30.0, 10.0, 50.0]
VALUES = st.lists(st.integers(0, 4).map(float), min_size=7, max_size=7)


def test_p_is_the_share_of_swaps_with_a_larger_difference() -> None:
    """Against all 2 ** 6 swaps of six samples, counted one by one."""
    left, right = [0.9, 0.8, 0.7, 0.9, 0.4, 0.6], [0.1, 0.5, 0.6, 0.3, 0.5, 0.2]
    gaps = np.array(left) - np.array(right)
    signs = np.array(list(itertools.product((1, -1), repeat=6)))
    exact = float((abs(signs @ gaps) >= abs(gaps.sum()) - 1e-12).mean())
    p = randomization_test(mean_counts(left), mean_counts(right), MEAN, rounds=20_000)["x"]
    assert p == pytest.approx(exact, abs=0.01)


def test_range_of_p() -> None:
    column = mean_counts([0.2, 0.4, 0.9])
    assert randomization_test(column, column, MEAN, rounds=99)["x"] == 1.0
    many = [mean_counts([value] * 200) for value in (0.0, 1.0)]
    assert randomization_test(*many, MEAN, rounds=99)["x"] == pytest.approx(1 / 100)


def test_samples_that_a_system_has_not_scored_are_excluded() -> None:
    left, right, other = (mean_counts(values) for values in ([1.0, 0.0, NAN], [0.0, 0.0, 1.0], [NAN, NAN, 1.0]))
    gap = significance.paired_difference(left, right, MEAN, replicates=20)["x"]
    assert (gap.point, gap.n) == (0.5, 2)
    # Without common samples there is no difference and no p.
    assert significance.paired_difference(left, other, MEAN)["x"].point is None
    assert randomization_test(left, other, MEAN) == {"x": None}


def test_systems_without_common_parts_have_no_difference_of_f1_and_no_p() -> None:
    left, right = (f1_counts(np.array(one)) for one in ([[0.5, NAN], [0.5, 1.0]], [[0.5, 1.0], [0.5, NAN]]))
    assert significance.paired_difference(left, right, F1, pairing=significance.common_parts)["f"].point is None
    assert randomization_test(left, right, F1, pairing=significance.common_parts) == {"f": None}


def test_differences_are_paired() -> None:
    base = np.random.default_rng(0).random(40)
    left, right = mean_counts((base - 0.25).tolist()), mean_counts(base.tolist())
    gap = significance.paired_difference(left, right, MEAN)["x"]
    # Every resample is shifted by the same amount, however far the samples themselves spread.
    assert [gap.point, gap.low, gap.median, gap.high, gap.n] == pytest.approx([-0.25] * 4 + [40])


def test_a_difference_of_f1_compares_parts_of_both_systems_and_n_counts_complete_samples() -> None:
    left = {"p": [1.0, NAN, 0.5, 0.2, NAN], "r": [0.5, 0.5, NAN, 0.1, NAN]}
    right = {"p": [0.5, 0.1, 0.5, NAN, 0.3], "r": [1.0] * 5}
    counts = [f1_counts(np.array(list(one.values())).T) for one in (left, right)]
    how: dict[str, Any] = {"has_value": significance.has_f1, "pairing": significance.common_parts, "replicates": 20}
    gap = significance.paired_difference(*counts, F1, **how)["f"]
    # Precisions of samples 0 and 2, recalls of 0, 1 and 3.
    assert gap.point == pytest.approx(harmonic_mean(0.75, 1.1 / 3) - harmonic_mean(0.5, 1.0))
    assert gap.n == 1


def test_rounds_without_a_value_count_towards_p() -> None:
    """Two systems with the same F1, each with a recall in a single sample."""
    left, right = (np.full((8, 2), NAN) for _ in range(2))
    left[:, 0] = right[:, 0] = 0.5
    left[0, 1] = right[1, 1] = 1.0
    assert randomization_test(f1_counts(left), f1_counts(right), F1, rounds=200) == {"f": 1.0}


def tau(first: list[float], second: list[float]) -> float:
    return float(stats.kendalltau(first, second).statistic)


def exact_p(expert: list[float], first: list[float], second: list[float], units: list[int]) -> float:
    """The share of all swaps of whole units with a difference at least as large as without one."""
    ranks = [stats.rankdata(column) for column in (first, second)]
    gaps = []
    for flags in itertools.product((False, True), repeat=max(units) + 1):
        chosen = np.array([flags[unit] for unit in units])
        left, right = np.where(chosen, ranks[1], ranks[0]), np.where(chosen, ranks[0], ranks[1])
        gaps.append(abs(tau(expert, list(right)) - tau(expert, list(left))))
    return float((np.array(gaps) >= gaps[0] - 1e-9).mean())


@pytest.mark.parametrize("units", [[0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 2, 3]])
def test_p_is_the_share_of_swaps_of_ranks_with_a_larger_difference(units: list[int]) -> None:
    clusters = None if len(set(units)) == 6 else Clusters("study_id", [str(unit) for unit in units])
    result = compare_kendall(EXPERT, POOR, GOOD, rounds=20_000, clusters=clusters)
    assert (result.first, result.second) == (pytest.approx(tau(EXPERT, POOR)), pytest.approx(tau(EXPERT, GOOD)))
    assert result.difference.value == pytest.approx(tau(EXPERT, GOOD) - tau(EXPERT, POOR))
    assert result.p == pytest.approx(exact_p(EXPERT, POOR, GOOD, units), abs=0.015)


@settings(deadline=None, max_examples=25)
@given(VALUES, VALUES, VALUES)
def test_swaps_and_scales_change_no_p(expert: list[float], first: list[float], second: list[float]) -> None:
    draws = {"replicates": 0, "rounds": 50}
    forward = compare_kendall(expert, first, second, **draws)
    backward = compare_kendall(expert, [100 * value + 7 for value in second], first, **draws)
    assert forward.p == backward.p
    if forward.difference.value is not None and backward.difference.value is not None:
        assert forward.difference.value == pytest.approx(-backward.difference.value)


def test_both_scores_are_correlated_over_the_same_reports() -> None:
    first, second = [*POOR[:-1], math.nan], [math.nan, *GOOD[1:]]
    result = compare_kendall(EXPERT, first, second, replicates=50, rounds=20)
    assert result.difference.n == 4
    assert result.first == pytest.approx(correlate(EXPERT[1:-1], POOR[1:-1])["kendall"].value)
    # A score with itself never differs, in no replicate and in every permutation.
    same = compare_kendall(EXPERT, GOOD, GOOD, replicates=50, rounds=20)
    assert (same.difference.low, same.difference.high, same.p) == (0, 0, 1.0)


def test_without_a_coefficient_or_with_one_cluster_there_is_no_test() -> None:
    assert compare_kendall(EXPERT, [1.0] * 6, GOOD).p is None
    one = compare_kendall(EXPERT, POOR, GOOD, clusters=Clusters("study_id", ["a"] * 6))
    assert (one.p, one.difference.low, one.difference.value is None) == (None, None, False)


def rating_set(expert: list[float]) -> RatingSet:
    samples = [RatedReport(Pair(str(i), f"c{i}", f"r{i}"), {"errors": {"x": n}}) for i, n in enumerate(expert)]
    return RatingSet(samples, {"errors": "lower"}, "errors")


def test_every_score_is_tested_against_the_baseline_and_adjusted() -> None:
    values = {"good": [-value for value in GOOD], "poor": POOR, "rate": GOOD, "neither": GOOD}
    directions = {"good": "higher", "poor": "lower", "rate": "lower", "neither": "neutral"}
    scores = ScoreColumns(values, directions)  # type: ignore[arg-type]
    poor, rate = compare_metrics(rating_set(EXPERT), scores, rounds=99)
    assert [(row.score, row.baseline) for row in (poor, rate)] == [("poor", "good"), ("rate", "good")]
    assert (rate.kendall.difference.value, rate.kendall.p) == (0, 1.0)
    assert poor.kendall.p is not None
    assert poor.p_holm == pytest.approx(min(1, 2 * poor.kendall.p))
    assert [row.score for row in compare_metrics(rating_set(EXPERT), scores, "rate", rounds=9)] == ["good", "poor"]


def test_the_largest_disagreements_come_first_and_equal_ranks_are_none() -> None:
    scores = ScoreColumns({"f1": [1.0, 0.0, 0.6, 0.4, math.nan]}, {"f1": "higher"})
    rows = find_disagreements(rating_set([0.0, 1.0, 2.0, 3.0, 9.0]), scores)
    # By the experts 0, 1, 2, 3 from best to worst; by the score 0, 2, 3, 1.
    assert [(row.sample_id, row.expert_rank * 3, row.score_rank * 3) for row in rows] == [
        ("1", pytest.approx(1), pytest.approx(3)),
        ("2", pytest.approx(2), pytest.approx(1)),
        ("3", pytest.approx(3), pytest.approx(2)),
    ]
    assert (rows[0].expert, rows[0].value) == (1.0, 0.0)
    many = [float(value) for value in range(30)]
    assert len(find_disagreements(rating_set(many), ScoreColumns({"f1": many}, {"f1": "higher"}))) == LISTED
