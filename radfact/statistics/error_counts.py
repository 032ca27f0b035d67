"""How far counted errors agree with those of experts, by category and in number (papers 000 and 003)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from radfact.error_categories import ERROR_CATEGORIES

Counts = Mapping[str, float]
"""Number of errors of a report by letter; a letter that is absent counts 0, NaN is not known."""


@dataclass(frozen=True, slots=True)
class Detection:
    """Errors of one category over `n` reports: matched, found too many, missed; and what follows."""

    true_positives: int
    false_positives: int
    false_negatives: int
    n: int

    @property
    def precision(self) -> float:
        """0 where nothing was found."""
        return _ratio(self.true_positives, self.true_positives + self.false_positives)

    @property
    def recall(self) -> float:
        """0 where there was nothing to find."""
        return _ratio(self.true_positives, self.true_positives + self.false_negatives)

    @property
    def f1(self) -> float | None:
        """0 where precision and recall are, None where there is no report."""
        return None if not self.n else _ratio(2 * self.precision * self.recall, self.precision + self.recall)


def error_type_detection(expert: Sequence[Counts], found: Sequence[Counts]) -> dict[str, Detection]:
    """Count-level detection of each category, summed over reports (paper 003, appendix C).

    Of h expert and g found errors of a report, min(h, g) match, max(0, g - h) are too many and max(0, h - g) missed.

    Args:
        expert: significant errors of each report.
        found: those that a model counted; a report with an unknown count is left out.
    """
    table = {}
    for letter in ERROR_CATEGORIES:
        pairs = [
            (int(h), int(g))
            for theirs, ours in zip(expert, found, strict=True)
            if not math.isnan((h := theirs.get(letter, 0)) + (g := ours.get(letter, 0)))
        ]
        table[letter] = Detection(
            sum(min(h, g) for h, g in pairs),
            sum(max(0, g - h) for h, g in pairs),
            sum(max(0, h - g) for h, g in pairs),
            len(pairs),
        )
    return table


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over `n` reports."""

    value: float
    n: int


def mean_detected(expert: Sequence[float], found: Sequence[float]) -> dict[int, Mean]:
    """Mean number of detected errors by the true number (paper 003, figures 2 and 3).

    Args:
        expert: number of errors of each report, or of injected ones.
        found: number that a model counted, NaN where it was not scored.
    """
    groups: dict[int, list[float]] = {}
    for true, count in zip(expert, found, strict=True):
        if not math.isnan(true + count):
            groups.setdefault(int(true), []).append(count)
    return {true: Mean(sum(counts) / len(counts), len(counts)) for true, counts in sorted(groups.items())}


@dataclass(frozen=True, slots=True)
class Share:
    """A share of `n` cases; None where there is no case."""

    value: float | None
    n: int

    @classmethod
    def of(cls, part: int, whole: int) -> Share:
        """`part` cases of `whole`."""
        return cls(part / whole if whole else None, whole)


def category_accuracy(expert: Sequence[Counts], found: Sequence[Counts]) -> dict[str, Share]:
    """Share of reports whose count of a category is that of the average expert (paper 000, table 4).

    The paper does not say how a mean of experts is met: here it is rounded to a whole number, halves up.

    Args:
        expert: mean number of errors of all experts, a report each.
        found: number that a model counted; a report with an unknown count is left out.
    """
    table = {}
    for letter in ERROR_CATEGORIES:
        same = [
            math.floor(h + 0.5) == g
            for theirs, ours in zip(expert, found, strict=True)
            if not math.isnan((h := theirs.get(letter, 0)) + (g := ours.get(letter, 0)))
        ]
        table[letter] = Share.of(sum(same), len(same))
    return table


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
