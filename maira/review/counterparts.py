"""Find the reference sentences on the same subject as a sentence of the draft, without any verdict."""

from __future__ import annotations

from collections.abc import Sequence

from maira.review.changes import Corners
from radfact.reader.facts import parse_sentence
from radfact.reader.ontology_file import default_ontology

_MIN_WORDS = 0.3
"""Smallest overlap of words (Dice coefficient) of sentences without a related finding."""
_MIN_OVERLAP = 0.25
"""Smallest intersection over union of two boxes of sentences without a related finding."""

Located = tuple[str, Sequence[Corners]]
"""A sentence with its boxes."""


def find_counterparts(draft: Sequence[Located], reference: Sequence[Located]) -> list[list[int]]:
    """Return for each sentence of the draft the places of the reference sentences on the same subject."""
    others = [_Subject(*sentence) for sentence in reference]
    return [_counterparts(_Subject(*sentence), others) for sentence in draft]


class _Subject:
    def __init__(self, text: str, boxes: Sequence[Corners]) -> None:
        parsed = parse_sentence(text)
        self.findings = frozenset(fact.concept for fact in parsed.facts)
        self.words = parsed.words
        self.boxes = boxes

    def shares_finding(self, other: _Subject) -> bool:
        return bool(self.findings & other.findings)

    def has_related_finding(self, other: _Subject) -> bool:
        is_a = default_ontology().is_a
        return any(is_a(own, their) or is_a(their, own) for own in self.findings for their in other.findings)

    def shares_words_or_region(self, other: _Subject) -> bool:
        common = 2 * len(self.words & other.words) / max(1, len(self.words) + len(other.words))
        overlaps = (_intersection_over_union(own, their) for own in self.boxes for their in other.boxes)
        return common >= _MIN_WORDS or max(overlaps, default=0.0) >= _MIN_OVERLAP


def _counterparts(subject: _Subject, others: Sequence[_Subject]) -> list[int]:
    for is_counterpart in (subject.shares_finding, subject.has_related_finding, subject.shares_words_or_region):
        if places := [place for place, other in enumerate(others) if is_counterpart(other)]:
            return places
    return []


def _intersection_over_union(own: Corners, other: Corners) -> float:
    width = min(own[2], other[2]) - max(own[0], other[0])
    height = min(own[3], other[3]) - max(own[1], other[1])
    common = max(0.0, width) * max(0.0, height)
    union = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (own, other)) - common
    return common / union if union else 0.0
