"""Differences between two findings: which attributes differ, and what part of the finding's weight that costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from radfact.findings.records import AttributeDifference, Finding
from radfact.findings.significance import Differences, Significance
from radfact.findings.units import FindingUnit, are_opposite, confirms_change, node_of, overlapping_zones
from radfact.metrics.radfact.regions import has_area, spatially_entailed
from radfact.records import PatientContext

_GOOD, _BAD = "good_position", "malpositioned"
_NO_COMPARISON = ("none", "no ", "not available", "n/a")


class UnitDifference(NamedTuple):
    """How a finding of the candidate differs from one of the reference; the attributes are those of `FindingMatch`."""

    relation: str
    attributes: tuple[AttributeDifference, ...]

    @property
    def cost(self) -> float:
        """Part of the weight of the finding that all differences cost; may exceed 1."""
        return sum(difference.cost for difference in self.attributes)


def compare_units(
    candidate: FindingUnit, reference: FindingUnit, significance: Significance, context: PatientContext
) -> UnitDifference | None:
    """Return how two units differ; None if they do not describe the same thing."""
    costs = significance.differences
    options = []
    for concept, status in candidate.claims:
        for other, other_status in reference.claims:
            distance = significance.distance(concept, other, context)
            if distance is not None:
                certainty = 0.0 if status == other_status else costs.certainty
                options.append((distance.value + certainty, distance, (concept, other), (status, other_status)))
    if not options:
        return None
    cost, distance, concepts, statuses = min(options, key=lambda option: option[0])
    attributes = (
        AttributeDifference("finding", *concepts, distance.value),
        AttributeDifference("certainty", *statuses, cost - distance.value),
        *_compare_attributes(candidate.finding, reference.finding, significance),
        *_compare_changes(candidate, reference, significance, context),
    )
    return UnitDifference(distance.relation, attributes)


def _compare_attributes(
    candidate: Finding, reference: Finding, significance: Significance
) -> Iterator[AttributeDifference]:
    """Yield the attributes that one of two findings states, apart from changes."""
    costs, ontology = significance.differences, significance.ontology
    first, second = candidate.located_sentence, reference.located_sentence
    if first is not None and second is not None and (has_area(first) or has_area(second)):
        # RadFact's rule (MAIRA-2, section RadFact): each region lies in the other one.
        agree = spatially_entailed(first, [second]) and spatially_entailed(second, [first])
        yield AttributeDifference("region", None, None, 0.0 if agree else costs.region)
    elif not (node_of(candidate, ontology).midline or node_of(reference, ontology).midline):
        if candidate.sides or reference.sides:
            cost = _side_cost(candidate.sides, reference.sides, costs)
            yield AttributeDifference("side", sorted(candidate.sides), sorted(reference.sides), cost)
        if reference.zones:
            zones, others = candidate.zones, reference.zones
            agree = others == {node_of(reference, ontology).usual_zone}
            if zones:
                agree = all(any(overlapping_zones(zone, other, ontology) for zone in zones) for other in others)
            cost = 0.0 if agree else costs.zone if zones else costs.zone_missing
            yield AttributeDifference("zone", sorted(zones), sorted(others), cost)
    if reference.degree:
        cost = costs.degree_missing
        if candidate.degree:
            own, other = candidate.degree, reference.degree
            levels = max(min(own) - max(other), min(other) - max(own), 0)
            cost = min(1.0, costs.degree * levels)
        yield AttributeDifference("degree", list(candidate.degree), list(reference.degree), cost)
    is_device = ontology.is_a(reference.concept, "device") or ontology.is_a(candidate.concept, "device")
    if reference.sizes and not is_device:
        cost = costs.size_missing
        if candidate.sizes:
            own_size, other_size = max(candidate.sizes), max(reference.sizes)
            # No radiograph distinguishes 2 mm.
            are_same = abs(own_size - other_size) <= 2.0 or min(own_size, other_size) <= 0
            cost = 0.0 if are_same else min(1.0, costs.size * abs(math.log2(own_size / other_size)))
        yield AttributeDifference("size", list(candidate.sizes), list(reference.sizes), cost)
    if is_device and (reference.position or _BAD in candidate.position):
        cost = _position_cost(set(candidate.position), set(reference.position), costs)
        yield AttributeDifference("device_position", list(candidate.position), list(reference.position), cost)


def _side_cost(sides: frozenset[str], others: frozenset[str], costs: Differences) -> float:
    if sides == others or not others:
        return 0.0  # a side that the reference does not state may be right
    if not sides:
        return costs.side_missing
    return costs.side_partly if sides & others else costs.side


def has_comparison(context: PatientContext) -> bool:
    """Return whether there may be an earlier examination: false only if the context says that there is none."""
    return not (context.comparison or "").strip().lower().startswith(_NO_COMPARISON)


def _compare_changes(
    candidate: FindingUnit, reference: FindingUnit, significance: Significance, context: PatientContext
) -> Iterator[AttributeDifference]:
    """Yield the changes over time, if one of two findings states some."""
    costs, own, other = significance.differences, candidate.finding, reference.finding
    if not own.change and not other.change:
        return
    cost = 0.0
    if are_opposite(own, other):
        cost = costs.change
    elif not other.change:
        cost = 0.0 if _is_implied(own, reference, significance) else costs.change_added
    elif not own.change and has_comparison(context):
        cost = 0.0 if _is_implied(other, candidate, significance) else costs.change_missing
    yield AttributeDifference("change", list(own.change), list(other.change), cost)


def _is_implied(finding: Finding, unit: FindingUnit, significance: Significance) -> bool:
    """Return whether the report of a unit states the change of a finding of a structure, or of the chest as a whole."""
    return any(confirms_change(statement, finding, significance.ontology) for statement in unit.statements)


def _position_cost(own: set[str], other: set[str], costs: Differences) -> float:
    if (_GOOD in own and _BAD in other) or (_BAD in own and _GOOD in other):
        return costs.position
    if not own:
        return costs.position_other if _BAD in other else costs.position_missing
    if own & other or not other:
        return 0.0
    return costs.position_other
