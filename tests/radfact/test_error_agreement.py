"""Counted errors compared with the experts': F1 by category, mean numbers, accuracy."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radfact.statistics.rater_agreement import Mean, count_accuracy, error_type_f1, mean_detected

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


def test_mean_detected_by_true_number() -> None:
    assert mean_detected([3, 1, 3, 1], [2, 1, 1, math.nan]) == {1: Mean(1, 1), 3: Mean(1.5, 2)}


def test_accuracy_compares_with_the_mean_expert_rounded_half_up() -> None:
    assert count_accuracy([1.5, 1 / 3, 1], [2, 1, math.nan]) == Mean(0.5, 2)
    assert count_accuracy([1], [math.nan]) == Mean(None, 0)
