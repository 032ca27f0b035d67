"""Rules of entailment between facts: which premises entail a fact, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from radfact.judges.offline.facts import Fact, Place
from radfact.judges.offline.ontology import Ontology
from radfact.judges.offline.tokens import CERTAIN, CONCLUDED

_T = TypeVar("_T")

Support = tuple[frozenset[int], str]
"""Indices of the premises that entail a fact (empty: not entailed), and the reason."""
PremiseFacts = Sequence[tuple[frozenset[int], Fact]]
"""Facts of the premises, each with the indices of the premises that state it."""

_EVERYWHERE: Place = (None, None)
_NARROWING_CHANGES = frozenset({"new", "increased"})
"""Changes that narrow a denial: "no new nodule" allows old nodules."""
_CHANGES_OF_ABSENCE = frozenset({"unchanged", "resolved"})
"""Changes that a denial may claim in addition: "no effusion" does not state that an effusion has resolved."""
_IMPLIED_CHANGES = frozenset({"changed", "not_decreased", "not_increased", "persistent", "previous"})
"""Changes that more specific changes imply; reasons omit them."""


@dataclass(frozen=True, slots=True)
class EntailmentChecker:
    """Decides which premises entail a fact by the relations of one ontology."""

    ontology: Ontology

    def check_alternatives(self, alternatives: Sequence[Fact], premises: PremiseFacts) -> Support:
        """Return the support of "X or Y": of one alternative as certain, or of each as possible.

        Args:
            alternatives: the facts of a hypothesis, one of which is claimed.
            premises: facts of the premises, each with the indices of its premises.
        """
        if len(alternatives) == 1:
            return self.check(alternatives[0], premises)
        for fact in alternatives:
            support = self.check(replace(fact, doubt=CERTAIN), premises)
            if support[0]:
                return support
        supports = [self.check(fact, premises) for fact in alternatives]
        unsupported = next((support for support in supports if not support[0]), None)
        evidence = frozenset().union(*(indices for indices, _ in supports))
        return unsupported or (evidence, "; ".join(reason for _, reason in supports))

    def check(self, fact: Fact, premises: PremiseFacts) -> Support:
        """Return the premises that entail `fact` with the rule, or none with the reason.

        Args:
            fact: a fact of the hypothesis.
            premises: facts of the premises, each with the indices of its premises.
        """
        label = describe_fact(fact)
        related = [(indices, premise) for indices, premise in premises if self._concept_entails(premise, fact)]
        if not related:
            if support := self._check_parts(fact, premises):
                return support
            opposite = next((premise for _, premise in premises if self._contradicts(fact, premise)), None)
            reason = "not stated" if opposite is None else f"contradicted by {describe_fact(opposite)}"
            return frozenset(), f"{label}: {reason}"
        if not fact.present and self._is_disputed(fact, premises):
            related = [(indices, premise) for indices, premise in related if premise.concept == fact.concept]
            if not related:
                return frozenset(), f"{label}: a general denial, where the report says more of it"
        for combined in self._combine(related, premises):
            fitting = [(indices, premise) for indices, premise in combined if not self._missing_detail(fact, premise)]
            if fitting:
                break
        else:
            premise = related[0][1]
            return frozenset(), f"{label}: {self._missing_detail(fact, premise)} in {describe_fact(premise)}"
        evidence_sets: set[frozenset[int]] = set()
        for place in self._claimed_places(fact):
            covering = self._find_covering(fact, place, fitting)
            if not covering:
                stated = ", ".join(dict.fromkeys(describe_fact(premise) for _, premise in fitting))
                return frozenset(), f"{label}: place {_place_name(place)} not stated by {stated}"
            evidence_sets |= covering
        special = {
            premise.concept
            for indices, premise in fitting
            if indices in evidence_sets and premise.concept != fact.concept
        }
        rule = f"follows from {', '.join(sorted(special)).replace('_', ' ')}" if special else "same finding"
        return frozenset().union(*evidence_sets), f"{label}: {rule}"

    def _check_parts(self, fact: Fact, premises: PremiseFacts) -> Support | None:
        """Entail the absence of a whole from the absence of all its parts (`exhaustive` in the ontology)."""
        node = self.ontology.findings.get(fact.concept)
        if fact.present or node is None or not node.exhaustive:
            return None
        evidence: set[int] = set()
        for part in node.exhaustive:
            indices, _ = self.check(Fact(part, False, fact.places), premises)
            if not indices:
                return None
            evidence |= indices
        return frozenset(evidence), f"{describe_fact(fact)}: all parts are normal ({', '.join(node.exhaustive)})"

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
            return is_sure and premise.present and ontology.is_a(premise.concept, fact.concept)
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

    def _contradicts(self, fact: Fact, premise: Fact) -> bool:
        if fact.present == premise.present:
            return False
        positive, negative = (fact, premise) if fact.present else (premise, fact)
        positive_sides, negative_sides = (
            {side for side, _ in claim.places} & {"left", "right"} for claim in (positive, negative)
        )
        if positive_sides and negative_sides and positive_sides.isdisjoint(negative_sides):
            return False
        if negative.severity or negative.change & _NARROWING_CHANGES:
            return False  # "no new effusion" allows an old one
        return self.ontology.is_denied_by(negative.concept, positive.concept)

    def _combine(self, related: PremiseFacts, premises: PremiseFacts) -> Iterator[PremiseFacts]:
        """Yield the facts of single premises first, then facts that several premises state together."""
        yield related
        yield self._resume(related, premises)
        yield self._merge(related)

    def _missing_detail(self, fact: Fact, premise: Fact) -> str | None:
        """Return what the premise lacks to entail the fact; a denial must be at least as broad as the fact."""
        if fact.concept in self.ontology.structures:
            return _missing_change(fact.change - premise.change)
        if not fact.present:
            if premise.present:
                return None
            if missing := _missing_change((fact.change & _CHANGES_OF_ABSENCE) - premise.change):
                return missing
        strict, loose = (fact, premise) if fact.present else (premise, fact)
        severity = loose.severity
        if fact.present and not severity and loose.measures and self.ontology.is_a(loose.concept, "nodule"):
            # A measured nodule is tiny up to 5 mm and small up to 10 mm.
            size = max(loose.measures)
            severity = frozenset({1 if size <= 5 else 2} if size <= 10 else ())
        if strict.severity and not (severity and severity <= strict.severity):
            return "degree or size differs or is not stated"
        changes = strict.change - loose.change
        if missing := _missing_change(changes if fact.present else changes & _NARROWING_CHANGES):
            return missing
        node = self.ontology.findings.get(loose.concept)
        if details := strict.details - loose.details - (node.implied if node is not None else frozenset()):
            return f"'{min(details)}' is not stated"
        if any(not any(_is_same_size(size, other) for other in loose.measures) for size in strict.measures):
            return "the measured size differs or is not stated"
        return None

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


def _missing_change(changes: frozenset[str]) -> str | None:
    return f"change '{min(changes)}' is not stated" if changes else None


def _is_same_size(first: float, second: float) -> bool:
    """Return whether two sizes are equal within 2 mm or a tenth, which no radiograph distinguishes."""
    return abs(first - second) <= max(2.0, 0.1 * max(first, second))


def _place_name(place: Place) -> str:
    return " ".join(part for part in place if part) or "unspecified"


@lru_cache(maxsize=100_000)
def describe_fact(fact: Fact) -> str:
    """Describe a fact in a few words, for `Verdict.why`."""
    certainty = "possible " if fact.doubt > CERTAIN else ""
    attributes = [_place_name(place) for place in fact.places]
    if fact.severity:
        attributes.append(f"degree {'-'.join(map(str, sorted(fact.severity)))}")
    attributes += sorted(fact.change - _IMPLIED_CHANGES or fact.change)
    attributes += [detail.replace("_", " ") for detail in sorted(fact.details)]
    attributes += [f"{size:g} mm" for size in fact.measures]
    attributes += [f"except {concept.replace('_', ' ')}" for concept in sorted(fact.exceptions - {"*"})]
    text = f"{certainty}{'' if fact.present else 'no '}{fact.concept.replace('_', ' ')}"
    return f"{text} ({', '.join(attributes)})" if attributes else text
