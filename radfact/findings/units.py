"""Units of a report: findings that describe the same thing, such as an opacity and the pneumonia that it may be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from radfact.findings.records import TIERS, Finding, Status, Tier
from radfact.findings.significance import Significance
from radfact.reader.facts import Place
from radfact.reader.ontology import Finding as Node
from radfact.reader.ontology import Ontology
from radfact.records import PatientContext

_NO_NODE = Node()
_INTERPRETATION = 0.5
"""Largest distance between what a sentence describes and what it concludes from it."""
_FILLED = ("places", "degree", "sizes", "change", "character", "position", "boxes", "masks")


@dataclass(slots=True)
class FindingUnit:
    """Findings of a report, by their indices, that are scored as one, and the changes that the report states of it."""

    indices: list[int]
    finding: Finding
    claims: list[tuple[str, Status]] = field(default_factory=list)
    tier: Tier = "expected"
    weight: float = 0.0
    statements: Sequence[Finding] = ()

    def absorb(self, other: FindingUnit, *, is_same: bool) -> None:
        update: dict[str, Any] = {}
        for name in _FILLED:
            own, added = getattr(self.finding, name), getattr(other.finding, name)
            if added and (is_same or not own):
                update[name] = tuple(dict.fromkeys((*(own or ()), *added)))
        if is_same and other.finding.status == "present":
            update["status"] = "present"
        self.finding = self.finding.model_copy(update=update)
        self.indices = sorted({*self.indices, *other.indices})
        self.claims += [claim for claim in other.claims if claim not in self.claims]


def group_findings(
    findings: Sequence[Finding], significance: Significance, context: PatientContext
) -> list[FindingUnit]:
    """Return the positive findings of a report as units, in reading order."""
    ontology = significance.ontology
    units: list[FindingUnit] = []
    statements = tuple(finding for finding in findings if finding.concept in ontology.structures)
    for index, finding in enumerate(findings):
        is_normal = finding.concept in ontology.structures or node_of(finding, ontology).normal
        if not finding.is_positive or is_normal:
            continue
        unit = FindingUnit([index], finding, [(finding.concept, finding.status)], statements=statements)
        for other in units:
            if other.finding.concept == finding.concept and _may_be_at_one_place(other.finding, finding, ontology):
                other.absorb(unit, is_same=True)
                break
        else:
            units.append(unit)
    units = _join_general(units, ontology)
    units = _join_alternatives(units, significance, context)
    for unit in units:
        claimed = [
            unit.finding.model_copy(update={"concept": concept, "status": status}) for concept, status in unit.claims
        ]
        unit.tier = min((significance.tier(finding, context) for finding in claimed), key=TIERS.index)
        unit.weight = max(significance.weight(finding, context) for finding in claimed)
    return units


def node_of(finding: Finding, ontology: Ontology) -> Node:
    return ontology.findings.get(finding.concept, _NO_NODE)


def _join_general(units: Sequence[FindingUnit], ontology: Ontology) -> list[FindingUnit]:
    """Join each general finding to the nearest specific one: "opacity ... consistent with pneumonia"."""
    joined: set[int] = set()
    # The most general one first: what it joins may be a general finding itself.
    for unit in sorted(units, key=lambda unit: len(ontology.ancestors.get(unit.finding.concept, ()))):
        specific = [
            other
            for other in units
            if other.finding.concept != unit.finding.concept
            and ontology.is_a(other.finding.concept, unit.finding.concept)
            and is_covered(unit.finding.places, other.finding.places, ontology)
            and _may_specify(unit.finding, other.finding)
        ]
        if specific:
            sentence = unit.finding.sentence
            nearest = min(specific, key=lambda other: abs(other.finding.sentence - sentence))
            nearest.absorb(unit, is_same=False)
            joined.add(id(unit))
    return [unit for unit in units if id(unit) not in joined]


def _may_specify(general: Finding, specific: Finding) -> bool:
    """Return whether both may be one, unlike in "Opacity at the right base. Interstitial markings are prominent."."""
    is_apart = specific.sentence != general.sentence and bool(general.places) and not specific.places
    return not is_apart or specific.status == "uncertain" or specific.is_conclusion


def _join_alternatives(
    units: Sequence[FindingUnit], significance: Significance, context: PatientContext
) -> list[FindingUnit]:
    """Join uncertain alternatives of one sentence or the next one: "atelectasis or pneumonia"."""
    kept: list[FindingUnit] = []
    for unit in units:
        earlier = [other for other in kept if _are_alternatives(other.finding, unit.finding, significance, context)]
        if not earlier:
            kept.append(unit)
            continue
        for other in (*earlier[1:], unit):
            earlier[0].absorb(other, is_same=False)
        kept = [other for other in kept if all(other is not later for later in earlier[1:])]
    return kept


def _are_alternatives(first: Finding, second: Finding, significance: Significance, context: PatientContext) -> bool:
    """Return whether a later finding is an alternative to an earlier one, or how the report interprets it."""
    if not (second.status == "uncertain" or second.is_conclusion) or not 0 <= second.sentence - first.sentence <= 1:
        return False
    if not _may_be_at_one_place(first, second, significance.ontology):
        return False
    is_same_sentence = first.sentence == second.sentence
    if first.status == "uncertain" or (not is_same_sentence and not second.places):
        return significance.is_comparable(first.concept, second.concept)
    distance = significance.distance(second.concept, first.concept, context) if is_same_sentence else None
    return distance is not None and distance.relation == "related" and distance.value <= _INTERPRETATION


def _may_be_at_one_place(first: Finding, second: Finding, ontology: Ontology) -> bool:
    if not first.places or not second.places:
        return True
    return any(_overlap(a, b, ontology) for a in first.places for b in second.places)


def is_covered(places: Sequence[Place], around: Sequence[Place], ontology: Ontology) -> bool:
    """Return whether every place of a finding lies at a place of another one, or one of both states none."""
    return not around or all(any(_overlap(a, b, ontology) for b in around) for a in places)


def _overlap(first: Place, second: Place, ontology: Ontology) -> bool:
    sides = first[0] == second[0] or not {first[0], second[0]}.isdisjoint((None, "each"))
    return sides and overlapping_zones(first[1], second[1], ontology)


def overlapping_zones(first: str | None, second: str | None, ontology: Ontology) -> bool:
    """Return whether two zones are the same, one is a part of the other, or one is not stated."""
    if None in (first, second) or "all" in (first, second) or first == second:
        return True
    known = ontology.zone_wholes
    if first not in known or second not in known:
        return False
    return ontology.is_within(first, second) or ontology.is_within(second, first)


def merge_units(first: FindingUnit, second: FindingUnit) -> FindingUnit:
    """Return two units of one report as one, at the places of both."""
    heavier = second if second.weight > first.weight else first
    merged = replace(first, claims=list(first.claims), tier=heavier.tier, weight=heavier.weight)
    merged.absorb(second, is_same=True)
    return merged


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
        is_denied_change = not finding.is_positive and not _COMPARING.isdisjoint(finding.change)
        states_change = finding.concept in ontology.structures or is_denied_change
        if finding.sentence in sentences or not states_change:
            continue
        if not any(confirms_change(other, finding, ontology) for other in others):
            sentences.add(finding.sentence)
            yield index


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
