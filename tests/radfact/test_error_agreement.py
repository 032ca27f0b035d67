"""Counted errors compared with the experts': detection by category, mean numbers, accuracy."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radfact.statistics.rater_agreement import Mean, Share, category_accuracy, detect_error_types, mean_detected

LETTERS = "abcdef"
reports = st.lists(st.fixed_dictionaries({letter: st.integers(0, 5) for letter in LETTERS}), min_size=1, max_size=8)


def test_error_type_f1_by_hand() -> None:
    # VERT, appendix C. Report 1: 1 detected, 2 missed; report 2: 1 detected, 1 too many.
    table = detect_error_types([{"a": 3}, {"a": 1}], [{"a": 1}, {"a": 2, "b": 1}], LETTERS)
    assert (table["a"].true_positives, table["a"].false_positives, table["a"].false_negatives) == (2, 1, 2)
    assert table["a"].f1 == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    # A score whose denominator is 0 is 0.
    assert (table["b"].precision, table["b"].recall, table["b"].f1) == (0, 0, 0)
    assert table["f"].f1 == 0


@given(reports, st.data())
def test_every_error_is_detected_too_many_or_missed(expert: list[dict[str, int]], data: st.DataObject) -> None:
    predicted = data.draw(st.lists(st.sampled_from(expert), min_size=len(expert), max_size=len(expert)))
    for letter, detection in detect_error_types(expert, predicted, LETTERS).items():
        assert detection.true_positives + detection.false_negatives == sum(counts[letter] for counts in expert)
        assert detection.true_positives + detection.false_positives == sum(counts[letter] for counts in predicted)
        assert detection.f1 is not None
        assert 0 <= detection.f1 <= 1
    assert all(detection.f1 in (0, 1) for detection in detect_error_types(expert, expert, LETTERS).values())


def test_unscored_reports_are_excluded() -> None:
    table = detect_error_types([{"a": 3}, {"a": 1}], [{"a": math.nan}, {"a": 1}], LETTERS)
    assert (table["a"].true_positives, table["a"].false_negatives) == (1, 0)
    assert mean_detected([1, 1, 2], [2, math.nan, 1]) == {1: Mean(2, 1), 2: Mean(1, 1)}
    expert, predicted = [{"a": 1}], [{"a": math.nan}]
    assert detect_error_types(expert, predicted, LETTERS)["a"].f1 is None
    accuracy = category_accuracy(expert, predicted, LETTERS)
    assert (accuracy["a"], accuracy["b"]) == (Share(None, 0), Share(1.0, 1))


def test_mean_detected_by_true_number() -> None:
    assert mean_detected([3, 1, 3], [2, 1, 1]) == {1: Mean(1, 1), 3: Mean(1.5, 2)}


def test_accuracy_compares_with_the_mean_expert_rounded_half_up() -> None:
    accuracy = category_accuracy([{"a": 1.5}, {"a": 1 / 3}], [{"a": 2}, {"a": 1}], LETTERS)
    assert (accuracy["a"], accuracy["b"]) == (Share(0.5, 2), Share(1.0, 2))
