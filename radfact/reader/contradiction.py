"""Rules of contradiction between facts: which premises contradict a hypothesis, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from radfact.reader.entailment_rules import EntailmentChecker, Support
from radfact.reader.facts import Fact, ParsedSentence
from radfact.reader.ontology import Ontology
from radfact.reader.reasons import describe_fact, describe_facts
from radfact.reader.tokens import CERTAIN, PROBABLE

_OPPOSITE_CHANGES = (("increased", "not_increased"), ("decreased", "not_decreased"), ("new", "previous"))
_OPPOSITE_DETAILS = frozenset({"good_position", "malpositioned"})
_NARROWING_CHANGES = frozenset({"new", "increased"})


@dataclass(frozen=True, slots=True)
class ContradictionChecker:
    """Decides which premises contradict a hypothesis. A finding that no premise mentions is not contradicted.

    A finding and its denial at the same place contradict each other, and so do opposite changes, degrees and directions
    of a finding at the same place. A finding on the other side is no contradiction, since both sides may have it.
    """

    entailment: EntailmentChecker

    def check(self, hypothesis: ParsedSentence, premises: Sequence[ParsedSentence]) -> Support:
        """Return the premises that contradict one of the claims of a hypothesis, and the reason."""
        ontology = self.entailment.ontology
        for alternatives in hypothesis.groups:
            opposing: dict[int, list[Fact]] = {}
            first = alternatives[0]
            for index, premise in enumerate(premises):
                for group in premise.groups:
                    other = group[0]
                    if _may_exclude(first.concept, first.present, other.concept, other.present, ontology) and all(
                        self._contradict(fact, group) for fact in alternatives
                    ):
                        opposing.setdefault(index, []).extend(group)
            if opposing:
                stated = describe_facts((fact for facts in opposing.values() for fact in facts), ontology)
                claim = " or ".join(dict.fromkeys(describe_fact(fact, ontology) for fact in alternatives))
                return frozenset(opposing), f"The other report states {stated}, which contradicts {claim}."
        return frozenset(), ""

    def _contradict(self, fact: Fact, group: Sequence[Fact]) -> bool:
        """Return whether a fact contradicts a group of alternatives, at least one of which is true."""
        if len(group) == 1:
            return group[0].doubt <= PROBABLE and self._exclude(fact, group[0])
        return all(self._exclude(fact, replace(premise, doubt=CERTAIN)) for premise in group)

    def _exclude(self, fact: Fact, premise: Fact) -> bool:
        """Return whether a fact of the hypothesis and a fact of a premise cannot both be true."""
        if not _may_exclude(fact.concept, fact.present, premise.concept, premise.present, self.entailment.ontology):
            return False
        if "previous" in (fact.change | premise.change) and _is_only_previous(fact) != _is_only_previous(premise):
            return False
        if fact.present and premise.present:
            return self._have_opposite_attributes(fact, premise)
        positive, negative = (fact, premise) if fact.present else (premise, fact)
        if negative.change & _NARROWING_CHANGES - positive.change:
            return False  # "no new effusion" allows an old one
        if "chronic" in positive.details and self.entailment.ontology.denies_only_acute(negative.concept):
            return False  # "intact bones" allow a healed fracture
        denied = replace(positive, present=False, doubt=CERTAIN, change=positive.change & _NARROWING_CHANGES)
        return bool(self.entailment.check(denied, [(frozenset({0}), negative)])[0])

    def _have_opposite_attributes(self, fact: Fact, premise: Fact) -> bool:
        """Return whether two present findings differ in an attribute that has only one value at a place."""
        if fact.concept != premise.concept:
            return True  # `_may_exclude` has compared them
        ontology = self.entailment.ontology
        node = ontology.findings.get(fact.concept)
        if node is not None and node.directed:
            sides = (_sides(fact), _sides(premise))
            return all(sides) and sides[0].isdisjoint(sides[1])
        if not self._overlap(fact, premise):
            return False
        if fact.severity and premise.severity and fact.severity.isdisjoint(premise.severity):
            return True
        details = (fact.details & _OPPOSITE_DETAILS, premise.details & _OPPOSITE_DETAILS)
        if all(details) and details[0].isdisjoint(details[1]):
            return True
        return any(
            (first in fact.change and second in premise.change) or (first in premise.change and second in fact.change)
            for first, second in _OPPOSITE_CHANGES
        )

    def _overlap(self, fact: Fact, premise: Fact) -> bool:
        """Return whether the places of two findings overlap, or neither has a place."""
        if not fact.places or not premise.places:
            return fact.places == premise.places
        is_within = self.entailment.ontology.is_within
        return any(
            side == other_side and (None in (zone, other) or is_within(zone, other) or is_within(other, zone))
            for side, zone in fact.places
            for other_side, other in premise.places
        )


@lru_cache(maxsize=100_000)
def _may_exclude(concept: str, present: bool, other: str, other_present: bool, ontology: Ontology) -> bool:
    """Return whether the presence or absence of two findings may exclude each other, ignoring their attributes."""
    if present and other_present:
        return concept == other or ontology.is_excluded_by(other, concept) or ontology.is_excluded_by(concept, other)
    if present == other_present:
        return False
    return ontology.is_denied_by(*((other, concept) if present else (concept, other)))


def _is_only_previous(fact: Fact) -> bool:
    """Return whether a fact is only about an earlier examination."""
    return "previous" in fact.change and fact.change.isdisjoint(("persistent", "resolved"))


def _sides(fact: Fact) -> set[str | None]:
    return {side for side, _ in fact.places} & {"left", "right"}
