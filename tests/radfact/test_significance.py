"""Randomization tests, paired differences, and scores of summed counts."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radfact.statistics.bootstrap import harmonic_mean, summarize, summarize_counts
from radfact.statistics.significance import (
    common_parts,
    f1_counts,
    f1_from_counts,
    has_f1,
    mean_counts,
    mean_from_counts,
    paired_difference,
    randomization_test,
)

NAN = math.nan

values = st.lists(st.one_of(st.floats(0, 1), st.just(math.nan)), min_size=1, max_size=20)


@settings(deadline=None, max_examples=50)
@given(values)
def test_a_mean_by_counts_is_the_mean_of_the_values(column: list[float]) -> None:
    plain = summarize({"x": column}, replicates=20)["x"]
    pooled = summarize_counts(mean_counts(column), {"x": mean_from_counts}, replicates=20)["x"]
    assert plain.n == pooled.n
    for name in ("point", "low", "median", "high"):
        assert getattr(pooled, name) == pytest.approx(getattr(plain, name))


def test_p_is_the_share_of_swaps_with_a_larger_difference() -> None:
    """Against all 2 ** 6 swaps of six samples, counted one by one."""
    left, right = [0.9, 0.8, 0.7, 0.9, 0.4, 0.6], [0.1, 0.5, 0.6, 0.3, 0.5, 0.2]
    gaps = np.array(left) - np.array(right)
    signs = np.array(list(itertools.product((1, -1), repeat=6)))
    exact = float((abs(signs @ gaps) >= abs(gaps.sum()) - 1e-12).mean())
    p = randomization_test(mean_counts(left), mean_counts(right), {"x": mean_from_counts}, rounds=20_000)["x"]
    assert p == pytest.approx(exact, abs=0.01)


def test_range_of_p() -> None:
    column = mean_counts([0.2, 0.4, 0.9])
    assert randomization_test(column, column, {"x": mean_from_counts}, rounds=99)["x"] == 1.0
    many = [mean_counts([value] * 200) for value in (0.0, 1.0)]
    assert randomization_test(*many, {"x": mean_from_counts}, rounds=99)["x"] == pytest.approx(1 / 100)


def test_samples_that_a_system_has_not_scored_are_excluded() -> None:
    left, right, other = (mean_counts(values) for values in ([1.0, 0.0, NAN], [0.0, 0.0, 1.0], [NAN, NAN, 1.0]))
    gap = paired_difference(left, right, {"x": mean_from_counts}, replicates=20)["x"]
    assert (gap.point, gap.n) == (0.5, 2)
    # Without common samples there is no difference and no p.
    assert paired_difference(left, other, {"x": mean_from_counts})["x"].point is None
    assert randomization_test(left, other, {"x": mean_from_counts}) == {"x": None}


def test_systems_without_common_parts_have_no_difference_of_f1_and_no_p() -> None:
    left, right = (f1_counts(np.array(one)) for one in ([[0.5, NAN], [0.5, 1.0]], [[0.5, 1.0], [0.5, NAN]]))
    assert paired_difference(left, right, {"f": f1_from_counts}, pairing=common_parts)["f"].point is None
    assert randomization_test(left, right, {"f": f1_from_counts}, pairing=common_parts) == {"f": None}


def test_differences_are_paired() -> None:
    base = np.random.default_rng(0).random(40)
    left, right = mean_counts((base - 0.25).tolist()), mean_counts(base.tolist())
    gap = paired_difference(left, right, {"x": mean_from_counts})["x"]
    # Every resample is shifted by the same amount, however far the samples themselves spread.
    assert [gap.point, gap.low, gap.median, gap.high, gap.n] == pytest.approx([-0.25] * 4 + [40])


def test_a_difference_of_f1_compares_parts_of_both_systems_and_n_counts_complete_samples() -> None:
    left = {"p": [1.0, NAN, 0.5, 0.2, NAN], "r": [0.5, 0.5, NAN, 0.1, NAN]}
    right = {"p": [0.5, 0.1, 0.5, NAN, 0.3], "r": [1.0] * 5}
    counts = [f1_counts(np.array(list(one.values())).T) for one in (left, right)]
    how = {"f": f1_from_counts}
    gap = paired_difference(*counts, how, has_value=has_f1, pairing=common_parts, replicates=20)["f"]
    # Precisions of samples 0 and 2, recalls of 0, 1 and 3.
    assert gap.point == pytest.approx(harmonic_mean(0.75, 1.1 / 3) - harmonic_mean(0.5, 1.0))
    assert gap.n == 1


def test_rounds_without_a_value_count_towards_p() -> None:
    """Two systems with the same F1, each with a recall in a single sample."""
    left, right = (np.full((8, 2), NAN) for _ in range(2))
    left[:, 0] = right[:, 0] = 0.5
    left[0, 1] = right[1, 1] = 1.0
    assert randomization_test(f1_counts(left), f1_counts(right), {"f": f1_from_counts}, rounds=200) == {"f": 1.0}
