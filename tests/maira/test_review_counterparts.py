"""Counterparts of draft sentences in the reference report."""

from __future__ import annotations

import pytest

from maira.review.counterparts import find_counterparts

REFERENCE = [
    ("The heart is mildly enlarged.", []),
    ("Small left pleural effusion.", [(0.1, 0.6, 0.4, 0.9)]),
    ("Right basal consolidation.", [(0.6, 0.6, 0.9, 0.9)]),
    ("Zyx marker in the corner.", []),
]


@pytest.mark.parametrize(
    ("text", "boxes", "places"),
    [
        # The same finding, whether present, absent or on the other side.
        ("The heart size is normal.", [], [0]),
        ("Large right pleural effusion.", [], [1]),
        ("No effusion, and the heart is not enlarged.", [], [0, 1]),
        # A more general finding, words, and a region.
        ("Basal opacity.", [], [2]),
        ("A zyx marker.", [], [3]),
        ("Something here.", [(0.6, 0.6, 0.9, 0.8)], [2]),
        ("Something else.", [(0.6, 0.1, 0.9, 0.2)], []),
    ],
)
def test_counterparts_are_about_the_same_subject(text: str, boxes: list[object], places: list[int]) -> None:
    assert find_counterparts([(text, boxes)], REFERENCE) == [places]
