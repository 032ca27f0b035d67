"""Counted errors beside the experts': detection by category, mean numbers, accuracy."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radfact.statistics.error_counts import (
    Mean,
    Share,
    category_accuracy,
    error_type_detection,
    mean_detected,
)

reports = st.lists(st.fixed_dictionaries({letter: st.integers(0, 5) for letter in "abcdef"}), min_size=1, max_size=8)


def test_error_type_f1_by_hand() -> None:
    # Paper 003, appendix C. Report 1: 1 matched, 2 missed; report 2: 1 matched, 1 too many.
    found = error_type_detection([{"a": 3}, {"a": 1}], [{"a": 1}, {"a": 2, "b": 1}])
    assert (found["a"].true_positives, found["a"].false_positives, found["a"].false_negatives) == (2, 1, 2)
    assert found["a"].f1 == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    # A score whose denominator is 0 is 0.
    assert (found["b"].precision, found["b"].recall, found["b"].f1) == (0, 0, 0)
    assert found["f"].f1 == 0


@given(reports, st.data())
def test_every_error_is_matched_too_many_or_missed(expert: list[dict[str, int]], data: st.DataObject) -> None:
    found = data.draw(st.lists(st.sampled_from(expert), min_size=len(expert), max_size=len(expert)))
    for letter, one in error_type_detection(expert, found).items():
        assert one.true_positives + one.false_negatives == sum(counts[letter] for counts in expert)
        assert one.true_positives + one.false_positives == sum(counts[letter] for counts in found)
        assert 0 <= one.f1 <= 1
    assert all(one.f1 in (0, 1) for one in error_type_detection(expert, expert).values())


def test_reports_that_were_not_scored_are_left_out() -> None:
    found = error_type_detection([{"a": 3}, {"a": 1}], [{"a": math.nan}, {"a": 1}])
    assert (found["a"].true_positives, found["a"].false_negatives) == (1, 0)
    assert mean_detected([1, 1, 2], [2, math.nan, 1]) == {1: Mean(2, 1), 2: Mean(1, 1)}


def test_a_category_of_which_no_report_was_scored_has_no_value() -> None:
    expert, found = [{"a": 1}], [{"a": math.nan}]
    assert error_type_detection(expert, found)["a"].f1 is None
    assert category_accuracy(expert, found)["a"] == Share(None, 0)
    assert category_accuracy(expert, found)["b"] == Share(1.0, 1)


def test_mean_detected_by_true_number() -> None:
    assert mean_detected([3, 1, 3], [2, 1, 1]) == {1: Mean(1, 1), 3: Mean(1.5, 2)}


def test_accuracy_meets_the_average_expert_rounded_halves_up() -> None:
    found = category_accuracy([{"a": 1.5}, {"a": 1 / 3}], [{"a": 2}, {"a": 1}])
    assert found["a"] == Share(0.5, 2)
    assert found["b"] == Share(1.0, 2)
