"""Rules of entailment between facts: which premises entail a fact, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from radfact.reader.facts import Fact, ParsedSentence, Place
from radfact.reader.ontology import Ontology
from radfact.reader.reasons import (
    describe_changes,
    describe_degree,
    describe_fact,
    describe_facts,
    describe_places,
    enumerate_terms,
)
from radfact.reader.tokens import CERTAIN, CONCLUDED, PROBABLE

_T = TypeVar("_T")

Support = tuple[frozenset[int], str]
"""Indices of the premises that entail or contradict a fact (empty: none), and the reason as sentences."""
PremiseFacts = Sequence[tuple[frozenset[int], Fact]]
"""Facts of the premises, each with the indices of the premises that state it."""

_EVERYWHERE: Place = (None, None)
_NARROWING_CHANGES = frozenset({"new", "increased"})
"""Changes that narrow a denial: "no new nodule" allows old nodules."""
_CHANGES_OF_PERSISTENCE = frozenset({"unchanged", "not_increased", "not_decreased"})
_CHANGES_OF_ABSENCE = frozenset({"unchanged", "resolved"})
"""Changes that a denial may claim in addition: "no effusion" does not state that an effusion has resolved."""


@dataclass(frozen=True, slots=True)
class EntailmentChecker:
    """Decides which premises entail a fact by the relations of one ontology."""

    ontology: Ontology

    def check_alternatives(self, alternatives: Sequence[Fact], premises: PremiseFacts) -> Support:
        """Return the support of "X or Y": of one alternative as certain, or of each as possible."""
        if len(alternatives) == 1:
            return self.check(alternatives[0], premises)
        for fact in alternatives:
            support = self.check(replace(fact, doubt=CERTAIN), premises)
            if support[0]:
                return support
        supports = [self.check(fact, premises) for fact in alternatives]
        unsupported = next((support for support in supports if not support[0]), None)
        evidence = frozenset().union(*(indices for indices, _ in supports))
        return unsupported or (evidence, " ".join(reason for _, reason in supports))

    def check(self, fact: Fact, premises: PremiseFacts) -> Support:
        """Return the premises that entail `fact` with the rule, or none with the reason."""
        claim = describe_fact(fact, self.ontology)
        related = [(indices, premise) for indices, premise in premises if self._concept_entails(premise, fact)]
        if not related:
            if support := self._check_parts(fact, premises):
                return support
            return frozenset(), self._absence_reason(fact)
        if not fact.present and self._is_disputed(fact, premises):
            related = [(indices, premise) for indices, premise in related if premise.concept == fact.concept]
            if not related:
                finding = describe_fact(replace(fact, present=True), self.ontology)
                return (
                    frozenset(),
                    f"The other report denies {finding} only in general terms and mentions it elsewhere.",
                )
            if (
                not any(_have_same_scope(premise, fact) for _, premise in related)
                and (self.check(replace(fact, present=True), premises)[0])
            ):
                return frozenset(), self._absence_reason(fact)
        reason = ""
        for combined in self._combine(related, premises):
            fitting = [(indices, premise) for indices, premise in combined if not self._missing_detail(fact, premise)]
            coverings = {place: self._find_covering(fact, place, fitting) for place in self._claimed_places(fact)}
            if all(coverings.values()):
                break
            reason = reason or self._lack(fact, related, fitting, coverings)
        else:
            return frozenset(), reason
        evidence_sets = {indices for covering in coverings.values() for indices in covering}
        special = [
            premise for indices, premise in fitting if indices in evidence_sets and premise.concept != fact.concept
        ]
        if special:
            reason = f"The other report states {describe_facts(special, self.ontology)}, which implies {claim}."
        else:
            reason = f"The other report also states {claim}."
        return frozenset().union(*evidence_sets), reason

    def _lack(
        self, fact: Fact, related: PremiseFacts, fitting: PremiseFacts, coverings: Mapping[Place, set[frozenset[int]]]
    ) -> str:
        """Return what the premises lack: a detail, or a place of the fact."""
        if not fitting:
            premise = related[0][1]
            lack = "but not" if fact.present else "but limits this to"
            stated = describe_fact(premise, self.ontology)
            return f"The other report states {stated}, {lack} {self._missing_detail(fact, premise)}."
        stated = describe_facts((premise for _, premise in fitting), self.ontology)
        where = next(describe_places((place,), self.ontology) for place, covering in coverings.items() if not covering)
        return f"The other report states {stated}, but not {where}."

    def _absence_reason(self, fact: Fact) -> str:
        claim = describe_fact(replace(fact, present=True), self.ontology)
        return f"The other report does not {'state' if fact.present else 'deny'} {claim}."

    def _check_parts(self, fact: Fact, premises: PremiseFacts) -> Support | None:
        """Entail the absence of a whole from the absence of all its parts (`exhaustive` in the ontology)."""
        node = self.ontology.findings.get(fact.concept)
        if fact.present or node is None or not node.exhaustive or self._is_disputed(fact, premises):
            return None
        evidence: set[int] = set()
        for part in node.exhaustive:
            indices, _ = self.check(Fact(part, False, fact.places), premises)
            if not indices:
                return None
            evidence |= indices
        parts = enumerate_terms(node.exhaustive, self.ontology)
        claim = describe_fact(fact, self.ontology)
        implies = "which together implies" if len(node.exhaustive) > 1 else "which implies"
        return frozenset(evidence), f"The other report denies {parts}, {implies} {claim}."

    def _concept_entails(self, premise: Fact, fact: Fact) -> bool:
        """Return whether a premise entails the concept of a fact and its presence or absence, details aside."""
        ontology = self.ontology
        if "previous" in fact.change and "persistent" not in fact.change and fact.present:
            is_known = not {"persistent", "resolved", "previous"}.isdisjoint(premise.change)
            return is_known and ontology.is_a(premise.concept, fact.concept)
        if "previous" in premise.change and premise.change.isdisjoint(("persistent", "resolved")):
            return False  # A finding of an earlier examination may be gone.
        if fact.concept in ontology.structures:
            return ontology.concerns(premise.concept, fact.concept) or premise.concept == "chest"
        if premise.concept in ontology.structures:
            return False
        if fact.present:
            node = ontology.findings.get(fact.concept)
            if node is not None and node.collective and (fact.change or fact.details):
                return premise.concept == fact.concept  # "all devices are in standard position"
            is_sure = premise.doubt <= max(fact.doubt, CONCLUDED)
            return is_sure and premise.present and ontology.entails(premise.concept, fact.concept)
        if premise.present:
            if premise.doubt > CONCLUDED:
                return False
            if ontology.is_excluded_by(premise.concept, fact.concept):
                return True
            # "no large effusion" where there is a small one
            is_same_finding = fact.concept == premise.concept and fact.severity and premise.severity
            return bool(is_same_finding) and max(premise.severity) < min(fact.severity)
        if "resolved" in fact.change & premise.change and ontology.is_a(premise.concept, fact.concept):
            return True  # "the opacity is gone" may mean a consolidation of the earlier report
        return not self._is_excepted(fact, premise) and ontology.is_denied_by(premise.concept, fact.concept)

    def _is_excepted(self, fact: Fact, premise: Fact) -> bool:
        """Return whether a denial excepts the finding of a fact."""
        if premise.exceptions <= fact.exceptions or premise.places:
            return False
        if "*" in premise.exceptions and fact.concept == premise.concept:
            return True
        is_a = self.ontology.is_a
        return any(is_a(fact.concept, concept) or is_a(concept, fact.concept) for concept in premise.exceptions)

    def _combine(self, related: PremiseFacts, premises: PremiseFacts) -> Iterator[PremiseFacts]:
        """Yield the facts of single premises first, then facts that several premises state together."""
        yield related
        yield self._resume(related, premises)
        yield self._locate(related, premises)
        yield self._merge(related)

    def _missing_detail(self, fact: Fact, premise: Fact) -> str | None:
        """Return what the premise lacks to entail the fact; a denial must be at least as broad as the fact."""
        if fact.concept in self.ontology.structures:
            return self._missing_change(fact.change - premise.change)
        if not fact.present:
            if premise.present:
                return None
            if missing := self._missing_change((fact.change & _CHANGES_OF_ABSENCE) - premise.change):
                return missing
        strict, loose = (fact, premise) if fact.present else (premise, fact)
        severity = loose.severity
        if fact.present and not severity and loose.measures and self.ontology.is_a(loose.concept, "nodule"):
            # A measured nodule is tiny up to 5 mm and small up to 10 mm.
            size = max(loose.measures)
            severity = frozenset({1 if size <= 5 else 2} if size <= 10 else ())
        if strict.severity and not (severity and severity <= strict.severity):
            return f"the degree or size {describe_degree(strict.severity, self.ontology)}"
        changes = strict.change - loose.change
        if fact.present and "persistent" in loose.change and loose.change.isdisjoint(("increased", "decreased")):
            changes -= _CHANGES_OF_PERSISTENCE  # "remains enlarged" for "stable cardiomegaly"
        if missing := self._missing_change(changes if fact.present else changes & _NARROWING_CHANGES):
            return missing
        node = self.ontology.findings.get(loose.concept)
        if details := strict.details - loose.details - (node.implied if node is not None else frozenset()):
            return f"the detail {self.ontology.terms[min(details)]}"
        unmatched = [
            size for size in strict.measures if not any(_is_same_size(size, other) for other in loose.measures)
        ]
        return f"the size {unmatched[0]:g} mm" if unmatched else None

    def _missing_change(self, changes: frozenset[str]) -> str | None:
        return f"the change {describe_changes(changes, self.ontology)[0]}" if changes else None

    def _is_disputed(self, fact: Fact, premises: PremiseFacts) -> bool:
        """Return whether a denied finding is stated, or denied only in part: "no large effusion"."""
        return any(
            self.ontology.is_a(premise.concept, fact.concept)
            and (premise.severity or (premise.present and premise.doubt <= CONCLUDED))
            for _, premise in premises
        )

    def _resume(self, related: PremiseFacts, premises: PremiseFacts) -> PremiseFacts:
        """Add what a later sentence states about the same finding by a general name: "the opacities have worsened"."""
        return [
            (
                indices | later_indices,
                replace(premise, change=premise.change | later.change, details=premise.details | later.details),
            )
            for indices, premise in related
            for later_indices, later in premises
            if premise.present and later.present and later.change and not later.places and not premise.change
            if later_indices != indices
            and later.concept != premise.concept
            and self.ontology.is_a(premise.concept, later.concept)
        ]

    def _locate(self, related: PremiseFacts, premises: PremiseFacts) -> PremiseFacts:
        """Place a finding without a place where the only finding that it may interpret is: an opacity, atelectasis."""

        def is_focal(concept: str) -> bool:
            return self.ontology.is_a(concept, "focal_lesion")

        located = []
        for indices, premise in related:
            described = [
                (other_indices, other)
                for other_indices, other in premises
                if premise.present and not premise.places and premise.doubt <= CONCLUDED
                if other.present and other.places and other.doubt <= CONCLUDED and other.concept != premise.concept
                if self.ontology.is_a(premise.concept, other.concept)
                # A streak at the base is no granuloma elsewhere.
                and is_focal(premise.concept) == is_focal(other.concept)
            ]
            if len({other.places for _, other in described}) == 1:
                places = described[0][1].places
                located.append(
                    (_union([indices, *(indices for indices, _ in described)]), replace(premise, places=places))
                )
        return located

    def _merge(self, related: PremiseFacts) -> PremiseFacts:
        """Merge the facts of several premises about the same finding at the same place."""
        by_finding: dict[tuple[str, bool, tuple[Place, ...]], list[tuple[frozenset[int], Fact]]] = {}
        for indices, premise in related:
            by_finding.setdefault((premise.concept, premise.present, premise.places), []).append((indices, premise))
        merged = []
        for group in by_finding.values():
            facts = [fact for _, fact in group]
            if len(group) > 1 and facts[0].present and len({fact.severity for fact in facts if fact.severity}) <= 1:
                fact = replace(
                    facts[0],
                    severity=_union(fact.severity for fact in facts),
                    change=_union(fact.change for fact in facts),
                    details=_union(fact.details for fact in facts),
                    measures=tuple(size for fact in facts for size in fact.measures),
                    doubt=max(fact.doubt for fact in facts),
                )
                merged.append((_union(indices for indices, _ in group), fact))
        return merged

    def _claimed_places(self, fact: Fact) -> tuple[Place, ...]:
        """Return the places of a hypothesis; the usual zone of a finding is no additional claim."""
        node = self.ontology.findings.get(fact.concept)
        if not fact.present or node is None or node.usual_zone is None:
            return fact.places or (_EVERYWHERE,)
        return tuple((side, None if zone == node.usual_zone else zone) for side, zone in fact.places) or (_EVERYWHERE,)

    def _find_covering(self, fact: Fact, place: Place, fitting: PremiseFacts) -> set[frozenset[int]]:
        """Return the premises that state `fact` at one place; only those of the same finding if there are any."""
        covering = [(indices, premise) for indices, premise in fitting if self._covers(fact, place, premise)]
        if not covering and not fact.present and place[0] in (None, "each"):
            halves = [
                [(indices, premise) for indices, premise in fitting if self._covers(fact, (side, place[1]), premise)]
                for side in ("left", "right")
            ]
            covering = halves[0] + halves[1] if all(halves) else []
        same = {indices for indices, premise in covering if premise.concept == fact.concept}
        return same or {indices for indices, _ in covering}

    def _covers(self, fact: Fact, place: Place, premise: Fact) -> bool:
        """Return whether a premise states `fact` at one place: inside its own place, or around it if absent."""
        node = self.ontology.findings.get(premise.concept)
        if node is not None and node.midline and place == _EVERYWHERE:
            return True
        if not premise.places:
            is_diffuse = node is not None and node.diffuse and place[1] is None
            return place == _EVERYWHERE or not fact.present or is_diffuse
        whole_sides = {side for side, zone in premise.places if zone in (None, "all")}
        if not fact.present and place[0] is None and whole_sides >= {"left", "right"}:
            return True
        side, zone = None if place[0] == "each" else place[0], place[1]
        for premise_side, premise_zone in premise.places:
            is_everywhere = premise_zone == "all"
            is_same_side = premise_side in ("each", side)
            if fact.present:
                side_fits = side is None or is_same_side or (is_everywhere and premise_side is None)
                zone_fits = zone is None or is_everywhere or self.ontology.is_within(premise_zone, zone)
            else:
                side_fits = premise_side is None or is_same_side
                zone_fits = premise_zone is None or is_everywhere or self.ontology.is_within(zone, premise_zone)
            if side_fits and zone_fits:
                return True
        return False


def _union(sets: Iterable[frozenset[_T]]) -> frozenset[_T]:
    return frozenset(member for members in sets for member in members)


def _have_same_scope(premise: Fact, fact: Fact) -> bool:
    """Return whether a denial is as broad as another: in the same places, of the same degree and character."""
    places = [
        () if {("left", None), ("right", None)} <= set(claim.places) else claim.places for claim in (premise, fact)
    ]
    return places[0] == places[1] and (premise.severity, premise.details) == (fact.severity, fact.details)


def _is_same_size(first: float, second: float) -> bool:
    """Return whether two sizes are equal within 2 mm or a tenth, which no radiograph distinguishes."""
    return abs(first - second) <= max(2.0, 0.1 * max(first, second))


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
