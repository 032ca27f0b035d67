"""Which premises prove a fact: the rules of entailment between facts, each giving its reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from radfact.judges.offline.clause_parser import CERTAIN, CONCLUDED
from radfact.judges.offline.facts import Fact, Place
from radfact.judges.offline.ontology import Ontology

_T = TypeVar("_T")

Proof = tuple[frozenset[int], str]
"""Indices of the premises that prove a fact (none: it is not proven), and the rule in words."""
Stated = Sequence[tuple[frozenset[int], Fact]]
"""Facts of the premises, each with the premises that say it."""

_EVERYWHERE: Place = (None, None)
_NARROWING = frozenset({"new", "increased"})
"""Changes that narrow a denial: "no new nodule" leaves room for old ones."""

_CHANGES_OF_ABSENCE = frozenset({"unchanged", "resolved"})
"""Changes that a denial may claim besides: "no effusion" does not say that one has resolved."""

_CHANGES_IMPLIED = frozenset({"changed", "not_decreased", "not_increased", "persistent", "previous"})
"""What a more telling word of change implies, and `why` need not repeat."""


class Prover:
    """Proves facts from facts by the relations of one ontology."""

    def __init__(self, ontology: Ontology) -> None:
        self.ontology = ontology

    def prove_group(self, group: Sequence[Fact], stated: Stated) -> Proof:
        """Prove "X or Y": one of them for certain, or each as possible."""
        if len(group) == 1:
            return self.prove(group[0], stated)
        for fact in group:
            proof = self.prove(replace(fact, doubt=CERTAIN), stated)
            if proof[0]:
                return proof
        proofs = [self.prove(fact, stated) for fact in group]
        failed = next((proof for proof in proofs if not proof[0]), None)
        return failed or (frozenset().union(*(found for found, _ in proofs)), "; ".join(why for _, why in proofs))

    def prove(self, fact: Fact, stated: Stated) -> Proof:
        """The premises that prove `fact`; none, and why, if it is not proven."""
        related = [(found, p) for found, p in stated if self._concept_fits(fact, p)]
        label = describe_fact(fact)
        if not related:
            if parts := self._prove_by_parts(fact, stated):
                return parts
            opposite = next((p for _, p in stated if self._contradicts(fact, p)), None)
            why = "not stated" if opposite is None else f"contradicted by {describe_fact(opposite)}"
            return frozenset(), f"{label}: {why}"
        if not fact.present and self._disputed(fact, stated):
            related = [(found, p) for found, p in related if p.concept == fact.concept]
            if not related:
                return frozenset(), f"{label}: a general denial, where the report says more of it"
        fitting = [(found, p) for found, p in related if not self._detail_missing(fact, p)]
        fitting = fitting or [
            (found, p) for found, p in self._resumed(related, stated) if not self._detail_missing(fact, p)
        ]
        fitting = fitting or [(found, p) for found, p in self._merged(related) if not self._detail_missing(fact, p)]
        if not fitting:
            other = related[0][1]
            return frozenset(), f"{label}: {self._detail_missing(fact, other)} in {describe_fact(other)}"
        covered: set[frozenset[int]] = set()
        for place in self._asked(fact):
            covering = self._covering(fact, place, fitting)
            if not covering:
                said = ", ".join(dict.fromkeys(describe_fact(p) for _, p in fitting))
                return frozenset(), f"{label}: place {_place_name(place)} not stated by {said}"
            covered |= covering
        special = {p.concept for found, p in fitting if found in covered and p.concept != fact.concept}
        how = f"follows from {', '.join(sorted(special)).replace('_', ' ')}" if special else "same finding"
        return frozenset().union(*covered), f"{label}: {how}"

    def _prove_by_parts(self, fact: Fact, stated: Stated) -> Proof | None:
        """The absence of a whole from the absence of all its parts (`exhaustive` in the ontology)."""
        node = self.ontology.findings.get(fact.concept)
        if fact.present or node is None or not node.exhaustive:
            return None
        evidence: set[int] = set()
        for part in node.exhaustive:
            found, _ = self.prove(Fact(part, False, fact.places), stated)
            if not found:
                return None
            evidence |= found
        return frozenset(evidence), f"{describe_fact(fact)}: all parts are normal ({', '.join(node.exhaustive)})"

    def _concept_fits(self, fact: Fact, premise: Fact) -> bool:
        ontology = self.ontology
        if "previous" in fact.change and "persistent" not in fact.change and fact.present:
            known = not {"persistent", "resolved", "previous"}.isdisjoint(premise.change)
            return known and ontology.is_a(premise.concept, fact.concept)
        if "previous" in premise.change and premise.change.isdisjoint(("persistent", "resolved")):
            return False  # what was seen before need not be there now
        if fact.concept in ontology.structures:
            return ontology.concerns(premise.concept, fact.concept) or premise.concept == "chest"
        if premise.concept in ontology.structures:
            return False
        if fact.present:
            node = ontology.findings.get(fact.concept)
            if node is not None and node.collective and (fact.change or fact.details):
                return premise.concept == fact.concept  # "all devices are in standard position"
            sure = premise.doubt <= max(fact.doubt, CONCLUDED)
            return sure and premise.present and ontology.is_a(premise.concept, fact.concept)
        if premise.present:
            if premise.doubt > CONCLUDED:
                return False
            return ontology.excluded_by(premise.concept, fact.concept) or _smaller(fact, premise)
        if "resolved" in fact.change & premise.change and self.ontology.is_a(premise.concept, fact.concept):
            return True  # "the opacity is gone" may speak of what was called a consolidation
        return self._not_excepted(fact, premise) and ontology.denied_by(premise.concept, fact.concept)

    def _not_excepted(self, fact: Fact, premise: Fact) -> bool:
        if premise.exceptions <= fact.exceptions or premise.places:
            return True
        is_a = self.ontology.is_a
        if "*" in premise.exceptions and fact.concept == premise.concept:
            return False
        return not any(is_a(fact.concept, other) or is_a(other, fact.concept) for other in premise.exceptions)

    def _contradicts(self, fact: Fact, premise: Fact) -> bool:
        if fact.present == premise.present:
            return False
        positive, negative = (fact, premise) if fact.present else (premise, fact)
        sides, denied = ({side for side, _ in one.places} & {"left", "right"} for one in (positive, negative))
        if sides and denied and sides.isdisjoint(denied):
            return False
        if negative.severity or negative.change & _NARROWING:
            return False  # "no new effusion" leaves room for an old one
        return self.ontology.denied_by(negative.concept, positive.concept)

    def _detail_missing(self, fact: Fact, premise: Fact) -> str | None:
        """What of the more demanding fact the other lacks; what is absent must be denied at least as broadly."""
        if fact.concept in self.ontology.structures:
            return _change_missing(fact.change - premise.change)
        if not fact.present:
            if premise.present:
                return None
            if missing := _change_missing((fact.change & _CHANGES_OF_ABSENCE) - premise.change):
                return missing
        strict, loose = (fact, premise) if fact.present else (premise, fact)
        degree = loose.severity or (self._degree_by_size(loose) if fact.present else frozenset())
        if strict.severity and not (degree and degree <= strict.severity):
            return "degree or size differs or is not stated"
        lacking = strict.change - loose.change
        if missing := _change_missing(lacking if fact.present else lacking & _NARROWING):
            return missing
        node = self.ontology.findings.get(loose.concept)
        if lacking := strict.details - loose.details - (node.implied if node is not None else frozenset()):
            return f"'{min(lacking)}' is not stated"
        if any(not any(_same_size(a, b) for b in loose.measures) for a in strict.measures):
            return "the measured size differs or is not stated"
        return None

    def _disputed(self, fact: Fact, stated: Stated) -> bool:
        """Whether the finding that a summary denies is stated, or denied in part: "no large effusion"."""
        return any(
            self.ontology.is_a(p.concept, fact.concept) and (p.severity or (p.present and p.doubt <= CONCLUDED))
            for _, p in stated
        )

    def _degree_by_size(self, fact: Fact) -> frozenset[int]:
        """A nodule of at most 10 mm is small, of at most 5 mm tiny."""
        if not fact.measures or not self.ontology.is_a(fact.concept, "nodule") or max(fact.measures) > 10:
            return frozenset()
        return frozenset({1 if max(fact.measures) <= 5 else 2})

    def _resumed(self, related: Stated, stated: Stated) -> Stated:
        """What a later sentence says of the same finding by a general name: "the opacities have worsened"."""
        return [
            (found | others, replace(p, change=p.change | q.change, details=p.details | q.details))
            for found, p in related
            for others, q in stated
            if p.present and q.present and q.change and not q.places and not p.change
            if others != found and q.concept != p.concept and self.ontology.is_a(p.concept, q.concept)
        ]

    def _merged(self, related: Stated) -> Stated:
        """What several premises say of the same finding at the same place, as one fact."""
        by_finding: dict[tuple[str, bool, tuple[Place, ...]], list[tuple[frozenset[int], Fact]]] = {}
        for found, p in related:
            by_finding.setdefault((p.concept, p.present, p.places), []).append((found, p))
        merged = []
        for same in by_finding.values():
            facts = [p for _, p in same]
            if len(same) > 1 and facts[0].present and len({p.severity for p in facts if p.severity}) <= 1:
                merged.append(
                    (
                        frozenset().union(*(found for found, _ in same)),
                        replace(
                            facts[0],
                            severity=_union(p.severity for p in facts),
                            change=_union(p.change for p in facts),
                            details=_union(p.details for p in facts),
                            measures=tuple(size for p in facts for size in p.measures),
                            doubt=max(p.doubt for p in facts),
                        ),
                    )
                )
        return merged

    def _asked(self, fact: Fact) -> tuple[Place, ...]:
        """The places of the hypothesis; the zone where a finding usually lies is no further claim."""
        node = self.ontology.findings.get(fact.concept)
        if not fact.present or node is None or node.usual_zone is None:
            return fact.places or (_EVERYWHERE,)
        return tuple((side, None if zone == node.usual_zone else zone) for side, zone in fact.places) or (_EVERYWHERE,)

    def _covering(self, fact: Fact, place: Place, fitting: Stated) -> set[frozenset[int]]:
        """The premises that say `fact` of one place; of the same finding if there are any."""
        found = [(indices, p) for indices, p in fitting if self._covers(fact, place, p)]
        if not found and not fact.present and place[0] in (None, "each"):
            halves = [
                [(indices, p) for indices, p in fitting if self._covers(fact, (side, place[1]), p)]
                for side in ("left", "right")
            ]
            found = halves[0] + halves[1] if all(halves) else []
        same = {indices for indices, p in found if p.concept == fact.concept}
        return same or {indices for indices, _ in found}

    def _covers(self, fact: Fact, place: Place, premise: Fact) -> bool:
        node = self.ontology.findings.get(premise.concept)
        if not premise.places:
            return place == _EVERYWHERE or not fact.present or (node is not None and node.diffuse and place[1] is None)
        whole = {side for side, zone in premise.places if zone in (None, "all")} >= {"left", "right"}
        if not fact.present and place[0] is None and whole:
            return True
        return any(self._covers_one(fact.present, place, other) for other in premise.places)

    def _covers_one(self, present: bool, place: Place, premise: Place) -> bool:
        (side, zone), (given_side, given_zone) = place, premise
        side = None if side == "each" else side
        if given_side == "each":
            given_side = side
        everywhere = given_zone == "all"
        if present:
            side_fits = side is None or side == given_side or (everywhere and given_side is None)
            return side_fits and (zone is None or everywhere or self._within(given_zone, zone))
        side_fits = given_side is None or given_side == side
        return side_fits and (given_zone is None or everywhere or self._within(zone, given_zone))

    def _within(self, zone: str | None, whole: str | None) -> bool:
        while zone is not None and zone != whole:
            zone = self.ontology.zone_whole[zone]
        return zone == whole


def _union(sets: Iterable[frozenset[_T]]) -> frozenset[_T]:
    return frozenset(member for members in sets for member in members)


def _smaller(fact: Fact, premise: Fact) -> bool:
    """Whether a degree is denied that the premise stays below: "no large effusion" where there is a small one."""
    degrees = fact.severity and premise.severity and max(premise.severity) < min(fact.severity)
    return bool(degrees) and fact.concept == premise.concept


def _change_missing(lacking: frozenset[str]) -> str | None:
    return f"change '{min(lacking)}' is not stated" if lacking else None


def _same_size(a: float, b: float) -> bool:
    """Equal within 2 mm or a tenth: less is no difference on a radiograph."""
    return abs(a - b) <= max(2.0, 0.1 * max(a, b))


def _place_name(place: Place) -> str:
    return " ".join(part for part in place if part) or "unspecified"


@lru_cache(maxsize=100_000)
def describe_fact(fact: Fact) -> str:
    """A fact in a few words, for `why`."""
    words = ["possible " if fact.possible else "", "" if fact.present else "no ", fact.concept.replace("_", " ")]
    more = [_place_name(place) for place in fact.places]
    more += [f"degree {'-'.join(map(str, sorted(fact.severity)))}"] if fact.severity else []
    more += [
        *sorted(fact.change - _CHANGES_IMPLIED or fact.change),
        *(detail.replace("_", " ") for detail in sorted(fact.details)),
    ]
    more += [f"{size:g} mm" for size in fact.measures]
    more += [f"except {other.replace('_', ' ')}" for other in sorted(fact.exceptions - {"*"})]
    return "".join(words) + (f" ({', '.join(more)})" if more else "")
