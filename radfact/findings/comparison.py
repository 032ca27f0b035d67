"""Comparison of the findings of two reports: an optimal matching, a verdict on each finding, and errors with costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from radfact.findings.differences import UnitDifference, compare_units, has_comparison
from radfact.findings.records import (
    ErrorKind,
    Finding,
    FindingError,
    FindingMatch,
    Tier,
    Verdict,
    describe_finding,
)
from radfact.findings.significance import Significance
from radfact.findings.units import FindingUnit, group_findings, is_covered, merge_units, unconfirmed_changes
from radfact.metrics.radfact.scores import OTHER, Side
from radfact.optional import load_optimize
from radfact.records import PatientContext

_FORBIDDEN = 1e6
_PREFERENCE = 1e-6
_SMALL_DIFFERENCE = 0.25
"""Differences that cost less than this part of a finding are minor errors, whatever the finding."""
_NARROWING_CHANGES = frozenset({"new", "increased"})
"""Changes that narrow a denial: "no new nodule" allows old nodules."""


@dataclass(frozen=True, slots=True)
class FindingVerdict:
    """The verdict on one finding.

    Attributes:
        verdict: None for an absent finding that the other report neither denies nor states.
        tier: significance.
        weight: of an error about the finding; 0 for absent findings.
        attributes: that differ.
        reason: the verdict in words.
    """

    verdict: Verdict | None
    tier: Tier
    weight: float
    attributes: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FindingComparison:
    """The findings of two reports, and how they compare.

    Attributes:
        findings: of each report, in reading order.
        units: positive findings of each report; those that describe the same thing are one unit.
        matches: between units of both reports.
        errors: of the candidate.
        verdicts: one per finding of each report.
    """

    findings: Mapping[Side, Sequence[Finding]]
    units: Mapping[Side, Sequence[FindingUnit]]
    matches: Sequence[FindingMatch]
    errors: Sequence[FindingError]
    verdicts: Mapping[Side, Sequence[FindingVerdict]]

    @property
    def error_sum(self) -> float:
        """Sum of the costs of all errors: the smallest weighted number of edits between the lists of findings."""
        return float(sum(error.cost for error in self.errors))

    def credit(self, side: Side) -> tuple[float, float]:
        """Return the weight of the findings of a report that the other one confirms, and the weight of all."""
        credits: dict[int, float] = {}
        for match in self.matches:
            credits |= dict.fromkeys(getattr(match, side), max(0.0, 1.0 - match.cost))
        units = self.units[side]
        confirmed = sum(unit.weight * credits.get(unit.indices[0], 0.0) for unit in units)
        return confirmed, sum(unit.weight for unit in units)


def compare_findings(
    candidate: Sequence[Finding],
    reference: Sequence[Finding],
    significance: Significance,
    context: PatientContext,
) -> FindingComparison:
    """Match the findings of two reports with the least total cost, and judge each finding."""
    return _Comparer({"candidate": candidate, "reference": reference}, significance, context).compare()


@dataclass(slots=True)
class _Group:
    """Matched units: indices of the units of each report, their difference and the heavier unit."""

    candidate: list[int]
    reference: list[int]
    difference: UnitDifference
    heavier: FindingUnit

    @property
    def cost(self) -> float:
        return self.heavier.weight * self.difference.cost


class _Comparer:
    """Compares the findings of two reports."""

    def __init__(
        self, findings: Mapping[Side, Sequence[Finding]], significance: Significance, context: PatientContext
    ) -> None:
        self.findings, self.significance, self.context = findings, significance, context
        self.ontology = significance.ontology
        self.units = {side: group_findings(listed, significance, context) for side, listed in findings.items()}

    def compare(self) -> FindingComparison:
        """Return the matches, errors and verdicts."""
        groups = self._assign() if all(self.units.values()) else []
        for side, units in self.units.items():
            taken = {index for group in groups for index in getattr(group, side)}
            for index in range(len(units)):
                if index not in taken:
                    self._join(groups, side, index)
        matches = [self._to_match(group) for group in groups]
        errors = [error for match in matches for error in _attribute_errors(match)]
        for side in self.units:
            taken = {index for group in groups for index in getattr(group, side)}
            errors += [self._to_error(side, index) for index in range(len(self.units[side])) if index not in taken]
            errors += self._change_errors(side)
        verdicts = {side: self._verdicts(side, matches, errors) for side in self.findings}
        return FindingComparison(self.findings, self.units, matches, errors, verdicts)

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
                difference = compare_units(unit, other, self.significance, self.context)
                if difference is not None:
                    group = _Group([row], [column], difference, unit if unit.weight >= other.weight else other)
                    pairs[row, column] = group
                    # Findings of weight 0 are matched as well.
                    costs[row, column] = group.cost - _PREFERENCE * (2.0 - difference.cost)
        for column, other in enumerate(references):
            costs[len(candidates) + column, column] = other.weight
        rows, columns = load_optimize().linear_sum_assignment(costs)
        chosen = zip(rows.tolist(), columns.tolist(), strict=True)
        return [pairs[key] for key in chosen if key in pairs]

    def _join(self, groups: Sequence[_Group], side: Side, index: int) -> None:
        """Let an unmatched unit join the match whose other side covers it, where that costs least."""
        unit, options = self.units[side][index], []
        for group in groups:
            parts = {name: [self.units[name][i] for i in getattr(group, name)] for name in self.units}
            if not self._is_covered(unit, merge_units(parts[OTHER[side]])):
                continue
            parts[side].append(unit)
            merged = {name: merge_units(units) for name, units in parts.items()}
            difference = compare_units(merged["candidate"], merged["reference"], self.significance, self.context)
            if difference is not None:
                heavier = unit if unit.weight > group.heavier.weight else group.heavier
                added = heavier.weight * difference.cost - group.cost
                if added < unit.weight:
                    options.append((added, group, difference, heavier))
        if options:
            _, group, group.difference, group.heavier = min(options, key=lambda option: option[0])
            getattr(group, side).append(index)

    def _is_covered(self, unit: FindingUnit, other: FindingUnit) -> bool:
        """Return whether a unit is the same finding as one of the other report, or a specific kind, at its places."""
        is_a = self.ontology.is_a
        is_specific = any(is_a(concept, general) for concept, _ in unit.claims for general, _ in other.claims)
        return is_specific and is_covered(unit.finding.places, other.finding.places, self.ontology)

    def _to_match(self, group: _Group) -> FindingMatch:
        candidate = merge_units(self.units["candidate"][index] for index in group.candidate)
        reference = merge_units(self.units["reference"][index] for index in group.reference)
        difference = group.difference
        differing = [item.attribute.replace("_", " ") for item in difference.attributes if item.cost > 0]
        link = "than" if difference.relation.startswith("more") else "to"
        related = "matches" if difference.relation == "the same" else f"is {difference.relation} {link}"
        reason = (
            f"{describe_finding(candidate.finding, self.ontology)} {related} "
            f"{describe_finding(reference.finding, self.ontology)}"
        )
        return FindingMatch(
            tuple(candidate.indices),
            tuple(reference.indices),
            difference.relation,
            group.heavier.tier,
            group.heavier.weight,
            difference.cost,
            difference.attributes,
            f"{reason}; different: {', '.join(differing)}." if differing else f"{reason}.",
        )

    def _to_error(self, side: Side, index: int) -> FindingError:
        """Return the error of a unit without a match."""
        unit, others = self.units[side][index], self.findings[OTHER[side]]
        denials = tuple(place for place, other in enumerate(others) if self._denies(other, unit.finding))
        stated = describe_finding(unit.finding, self.ontology)
        kind: ErrorKind = "omitted" if side == "reference" else "unsupported"
        reason = f"The {OTHER[side]} does not state {stated}."
        if denials:
            kind = "contradicted"
            denial = describe_finding(others[denials[0]], self.ontology)
            reason = f"The {OTHER[side]} states {denial}, which contradicts {stated}."
        indices = {side: tuple(unit.indices), OTHER[side]: denials}
        return FindingError(kind, unit.tier, unit.weight, indices["candidate"], indices["reference"], None, reason)

    def _change_errors(self, side: Side) -> Iterator[FindingError]:
        """Yield an error for each statement of change without a finding that the other report does not make."""
        if side == "reference" and not has_comparison(self.context):
            return
        costs, weights = self.significance.differences, self.significance.weights
        part = costs.change_added if side == "candidate" else costs.change_missing
        for index in unconfirmed_changes(self.findings[side], self.findings[OTHER[side]], self.ontology):
            indices: dict[Side, tuple[int, ...]] = {side: (index,), OTHER[side]: ()}
            concept = self.findings[side][index].concept
            yield FindingError(
                "attribute_error",
                "minor",
                part * weights["minor"],
                indices["candidate"],
                indices["reference"],
                "change",
                f"Only the {side} states a change of {self.ontology.terms.get(concept, concept)}.",
            )

    def _verdicts(
        self, side: Side, matches: Sequence[FindingMatch], errors: Sequence[FindingError]
    ) -> list[FindingVerdict]:
        verdicts: dict[int, FindingVerdict] = {}
        for error in errors:
            judged = FindingVerdict(error.kind, error.tier, error.cost, error.differing, error.reason)
            verdicts |= dict.fromkeys(getattr(error, side), judged)
        for match in matches:
            judged = FindingVerdict(match.verdict, match.tier, match.weight, match.differing, match.reason)
            verdicts |= dict.fromkeys(getattr(match, side), judged)
        others = [other for other in self.findings[OTHER[side]] if not other.is_positive]
        for index, finding in enumerate(self.findings[side]):
            if index not in verdicts:
                is_denied = any(self.ontology.is_denied_by(other.concept, finding.concept) for other in others)
                is_correct = finding.concept in self.ontology.structures or (not finding.is_positive and is_denied)
                reason = f"The {OTHER[side]} states it, too." if is_correct else ""
                verdicts[index] = FindingVerdict("correct" if is_correct else None, "expected", 0.0, (), reason)
        return [verdicts[index] for index in range(len(self.findings[side]))]


def _attribute_errors(match: FindingMatch) -> Iterator[FindingError]:
    """Yield an error for each attribute that differs."""
    for item in match.attributes:
        if item.cost > 0:
            is_small = item.cost < _SMALL_DIFFERENCE and match.tier != "expected"
            yield FindingError(
                "attribute_error",
                "minor" if is_small else match.tier,
                match.weight * item.cost,
                match.candidate,
                match.reference,
                item.attribute,
                match.reason,
            )
