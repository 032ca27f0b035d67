"""Statements of change without a positive finding, such as "no interval change" and "the effusion has resolved"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from radfact.findings.records import Finding
from radfact.reader.ontology import Ontology

_OPPOSITE = (("increased", "not_increased"), ("decreased", "not_decreased"), ("new", "previous"))
_COMPARING = frozenset({"unchanged", "resolved"})
"""Changes of an absent finding that compare with an earlier examination, unlike those of "no new nodule"."""
_WHOLE = "chest"


def are_opposite(first: Finding, second: Finding) -> bool:
    """Return whether the changes of two findings exclude each other."""
    own, other = set(first.change), set(second.change)
    return any((a in own and b in other) or (b in own and a in other) for a, b in _OPPOSITE)


def unconfirmed_changes(own: Sequence[Finding], others: Sequence[Finding], ontology: Ontology) -> Iterator[int]:
    """Yield, one per sentence, the statements of change without a positive finding that only this report makes."""
    sentences: set[int] = set()
    for index, finding in enumerate(own):
        if finding.sentence in sentences or not _states_change(finding, ontology):
            continue
        if not any(confirms_change(other, finding, ontology) for other in others):
            sentences.add(finding.sentence)
            yield index


def _states_change(finding: Finding, ontology: Ontology) -> bool:
    if finding.concept in ontology.structures:
        return True
    return not finding.is_positive and not _COMPARING.isdisjoint(finding.change)


def confirms_change(other: Finding, finding: Finding, ontology: Ontology) -> bool:
    """Return whether a finding states a compatible change of the same part of the chest, or of the chest as a whole."""
    if not other.change or are_opposite(other, finding):
        return False
    first, second = other.concept, finding.concept
    if _WHOLE in (first, second) or first == second:
        return True
    if first in ontology.structures:
        return ontology.concerns(second, first)
    if second in ontology.structures:
        return ontology.concerns(first, second)
    return ontology.is_a(first, second) or ontology.is_a(second, first)
