"""Comparison of the findings of two reports: an optimal matching, a verdict on each finding, and errors with costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field

from radfact.findings.details import FindingDetails
from radfact.findings.differences import UnitDifference, compare_units, has_comparison
from radfact.findings.records import ErrorKind, Finding, FindingError, FindingMatch, JudgedFinding, describe_finding
from radfact.findings.significance import Significance
from radfact.findings.units import FindingUnit, group_findings, is_covered, merge_units, unconfirmed_changes
from radfact.metrics.radfact.scores import OTHER, Side
from radfact.optional import load_module
from radfact.records import PatientContext

_FORBIDDEN = 1e6
_PREFERENCE = 1e-6
_SMALL_DIFFERENCE = 0.25
"""Differences that cost less than this part of a finding are minor errors, whatever the finding."""
_NARROWING_CHANGES = frozenset({"new", "increased"})
"""Changes that narrow a denial: "no new nodule" allows old nodules."""


class FindingComparison(FindingDetails):
    """The findings of two reports, how they compare, and the units of positive findings that were matched."""

    units: dict[Side, list[FindingUnit]] = Field(exclude=True)

    @property
    def error_sum(self) -> float:
        """Sum of the costs of all errors: the smallest weighted number of edits between the lists of findings."""
        return float(sum(error.cost for error in self.errors))

    def credit(self, side: Side) -> tuple[float, float]:
        """Return the weight of the findings of a report that the other one confirms, and the weight of all."""
        credits = {index: max(0.0, 1.0 - match.cost) for match in self.matches for index in getattr(match, side)}
        units = self.units[side]
        confirmed = sum(unit.weight * credits.get(unit.indices[0], 0.0) for unit in units)
        return confirmed, sum(unit.weight for unit in units)


def compare_findings(
    candidate: Sequence[Finding], reference: Sequence[Finding], significance: Significance, context: PatientContext
) -> FindingComparison:
    """Match the findings of two reports with the least total cost, and judge each finding."""
    return _Comparer({"candidate": candidate, "reference": reference}, significance, context).compare()


@dataclass(slots=True)
class _Group:
    """Matched findings as one unit of each report, their difference and the heavier unit."""

    units: dict[Side, FindingUnit]
    difference: UnitDifference
    heavier: FindingUnit

    @property
    def cost(self) -> float:
        return self.heavier.weight * self.difference.cost


class _Comparer:
    def __init__(
        self, findings: Mapping[Side, Sequence[Finding]], significance: Significance, context: PatientContext
    ) -> None:
        self.findings, self.significance, self.context = findings, significance, context
        self.ontology = significance.ontology
        self.units = {side: group_findings(listed, significance, context) for side, listed in findings.items()}

    def compare(self) -> FindingComparison:
        groups = self._assign() if all(self.units.values()) else []
        for side in self.units:
            for unit in self._unmatched(groups, side):
                self._join(groups, side, unit)
        matches = [self._to_match(group) for group in groups]
        errors = [error for match in matches for error in _attribute_errors(match)]
        for side in self.units:
            errors += [self._to_error(side, unit) for unit in self._unmatched(groups, side)]
            errors += self._change_errors(side)
        judged = {side: self._judge(side, [*errors, *matches]) for side in self.units}
        return FindingComparison(**judged, matches=matches, errors=errors, units=self.units)

    def _unmatched(self, groups: Sequence[_Group], side: Side) -> list[FindingUnit]:
        matched = {index for group in groups for index in group.units[side].indices}
        return [unit for unit in self.units[side] if unit.indices[0] not in matched]

    def _group(self, units: dict[Side, FindingUnit], heavier: FindingUnit) -> _Group | None:
        """Return a unit of each report as a match; None if they do not describe the same thing."""
        difference = compare_units(units["candidate"], units["reference"], self.significance, self.context)
        return None if difference is None else _Group(units, difference, heavier)

    def _describe(self, finding: Finding) -> str:
        return describe_finding(finding, self.ontology)

    def _denies(self, other: Finding, finding: Finding) -> bool:
        """Return whether a finding of the other report rules a positive finding out."""
        if other.is_positive:
            return other.status == "present" and self.ontology.is_excluded_by(other.concept, finding.concept)
        if not self.ontology.is_denied_by(other.concept, finding.concept):
            return False
        if _NARROWING_CHANGES.intersection(other.change) - set(finding.change):
            return False
        if "chronic" in finding.character and self.ontology.denies_only_acute(other.concept):
            return False  # "intact bones" allow a healed fracture
        if other.degree and set(other.degree).isdisjoint(finding.degree):
            return False  # "no large effusion" allows a small one
        return not other.places or bool(finding.places and is_covered(finding.places, other.places, self.ontology))

    def _assign(self) -> list[_Group]:
        """Return the one-to-one matching of least cost; a unit may also stay unmatched, for its own cost."""
        candidates, references = self.units["candidate"], self.units["reference"]
        pairs: dict[tuple[int, int], _Group] = {}
        size = len(candidates) + len(references)
        costs = np.full((size, size), _FORBIDDEN)
        costs[len(candidates) :, len(references) :] = 0.0
        for row, unit in enumerate(candidates):
            costs[row, len(references) + row] = unit.weight
            for column, other in enumerate(references):
                heavier = unit if unit.weight >= other.weight else other
                if group := self._group({"candidate": unit, "reference": other}, heavier):
                    pairs[row, column] = group
                    # Findings of weight 0 are matched as well.
                    costs[row, column] = group.cost - _PREFERENCE * (2.0 - group.difference.cost)
        for column, other in enumerate(references):
            costs[len(candidates) + column, column] = other.weight
        rows, columns = load_module("scipy.optimize").linear_sum_assignment(costs)
        chosen = zip(rows.tolist(), columns.tolist(), strict=True)
        return [pairs[key] for key in chosen if key in pairs]

    def _join(self, groups: list[_Group], side: Side, unit: FindingUnit) -> None:
        """Let an unmatched unit join the match whose other side covers it, where that costs least."""
        options = []
        for index, group in enumerate(groups):
            other = group.units[OTHER[side]]
            # It is the same finding as one of the other report, or a specific kind, at its places.
            pairs = ((concept, general) for concept, _ in unit.claims for general, _ in other.claims)
            is_specific = any(self.ontology.is_a(concept, general) for concept, general in pairs)
            if is_specific and is_covered(unit.finding.places, other.finding.places, self.ontology):
                heavier = unit if unit.weight > group.heavier.weight else group.heavier
                units = group.units | {side: merge_units(group.units[side], unit)}
                joined = self._group(units, heavier)
                if joined is not None and joined.cost - group.cost < unit.weight:
                    options.append((joined.cost - group.cost, index, joined))
        if options:
            _, index, joined = min(options, key=lambda option: option[0])
            groups[index] = joined

    def _to_match(self, group: _Group) -> FindingMatch:
        candidate, reference = group.units["candidate"], group.units["reference"]
        relation, attributes = group.difference
        differing = [item.attribute.replace("_", " ") for item in attributes if item.cost > 0]
        related = "matches" if relation == "the same" else f"is {relation} {'than' if 'more' in relation else 'to'}"
        reason = f"{self._describe(candidate.finding)} {related} {self._describe(reference.finding)}"
        reason += f"; different: {', '.join(differing)}." if differing else "."
        indices, heavier = (tuple(candidate.indices), tuple(reference.indices)), group.heavier
        return FindingMatch(*indices, relation, heavier.tier, heavier.weight, group.difference.cost, attributes, reason)

    def _to_error(self, side: Side, unit: FindingUnit) -> FindingError:
        others = self.findings[OTHER[side]]
        denials = tuple(place for place, other in enumerate(others) if self._denies(other, unit.finding))
        stated = self._describe(unit.finding)
        kind: ErrorKind = "omitted" if side == "reference" else "unsupported"
        reason = f"The {OTHER[side]} does not state {stated}."
        if denials:
            kind = "contradicted"
            reason = f"The {OTHER[side]} states {self._describe(others[denials[0]])}, which contradicts {stated}."
        indices = {side: tuple(unit.indices), OTHER[side]: denials}
        return FindingError(kind, unit.tier, unit.weight, **indices, attribute=None, reason=reason)

    def _change_errors(self, side: Side) -> Iterator[FindingError]:
        """Yield an error for each statement of change without a finding that the other report does not make."""
        if side == "reference" and not has_comparison(self.context):
            return
        costs = self.significance.differences
        part = costs.change_added if side == "candidate" else costs.change_missing
        cost = part * self.significance.weights["minor"]
        for index in unconfirmed_changes(self.findings[side], self.findings[OTHER[side]], self.ontology):
            indices: dict[Side, tuple[int, ...]] = {side: (index,), OTHER[side]: ()}
            concept = self.findings[side][index].concept
            reason = f"Only the {side} states a change of {self.ontology.terms.get(concept, concept)}."
            yield FindingError("attribute_error", "minor", cost, **indices, attribute="change", reason=reason)

    def _judge(self, side: Side, links: Sequence[FindingMatch | FindingError]) -> list[JudgedFinding]:
        """Return the findings of a report with their verdicts; the last link of a finding counts."""
        by_index = {index: link for link in links for index in getattr(link, side)}
        scored = {index for unit in self.units[side] for index in unit.indices}
        judged = []
        for index, finding in enumerate(self.findings[side]):
            verdict: dict[str, Any] = {"verdict": None, "tier": "expected", "weight": 0.0, "reason": ""}
            if (link := by_index.get(index)) is not None:
                weight = link.weight if isinstance(link, FindingMatch) else link.cost
                verdict = {"verdict": link.verdict, "tier": link.tier, "weight": weight, "reason": link.reason}
            elif self._is_confirmed(side, finding):
                verdict |= {"verdict": "correct", "reason": f"The {OTHER[side]} states it, too."}
            judged.append(
                JudgedFinding(
                    **dict(finding) | verdict,
                    attributes=link.differing if link else (),
                    name=self.ontology.terms.get(finding.concept, finding.concept),
                    description=self._describe(finding),
                    is_positive=index in scored,
                )
            )
        return judged

    def _is_confirmed(self, side: Side, finding: Finding) -> bool:
        """Return whether the other report agrees with a finding that is in no match and no error."""
        if finding.concept in self.ontology.structures:
            return True
        denials = [other.concept for other in self.findings[OTHER[side]] if not other.is_positive]
        return not finding.is_positive and any(self.ontology.is_denied_by(name, finding.concept) for name in denials)


def _attribute_errors(match: FindingMatch) -> Iterator[FindingError]:
    indices = match.candidate, match.reference
    for item in match.attributes:
        if item.cost > 0:
            is_small = item.cost < _SMALL_DIFFERENCE and match.tier != "expected"
            tier, cost = "minor" if is_small else match.tier, match.weight * item.cost
            yield FindingError("attribute_error", tier, cost, *indices, item.attribute, match.reason)
