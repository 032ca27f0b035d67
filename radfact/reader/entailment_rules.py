"""Rules of entailment and contradiction between facts: which premises decide a fact, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from radfact.reader import reasons
from radfact.reader.facts import Fact, ParsedSentence, Place
from radfact.reader.ontology import Ontology
from radfact.reader.tokens import CERTAIN, CONCLUDED, PROBABLE

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
_OPPOSITE_CHANGES = (("increased", "not_increased"), ("decreased", "not_decreased"), ("new", "previous"))
_OPPOSITE_DETAILS = frozenset({"good_position", "malpositioned"})


@dataclass(frozen=True, slots=True)
class EntailmentChecker:
    """Decides which premises entail or contradict facts by the relations of one ontology."""

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
        ontology = self.ontology
        positive = reasons.describe_positive(fact, ontology)
        unstated = f"The other report does not {'state' if fact.present else 'deny'} {positive}."
        related = [(indices, premise) for indices, premise in premises if self._concept_entails(premise, fact)]
        if not related:
            return self._check_parts(fact, premises) or (frozenset(), unstated)
        if not fact.present and self._is_disputed(fact, premises):
            related = [(indices, premise) for indices, premise in related if premise.concept == fact.concept]
            if not related:
                why = f"The other report denies {positive} only in general terms and mentions it elsewhere."
                return frozenset(), why
            scope = (fact.places, fact.severity, fact.details)
            is_broad = any((premise.places, premise.severity, premise.details) == scope for _, premise in related)
            if not is_broad and self.check(replace(fact, present=True), premises)[0]:
                return frozenset(), unstated
        claimed = fact.places
        if fact.present and (usual_zone := ontology.concepts[fact.concept].usual_zone) is not None:
            # The usual zone of a finding is no additional claim.
            claimed = tuple((side, None if zone == usual_zone else zone) for side, zone in claimed)
        why = ""
        for combined in self._combinations(related, premises):
            fitting = [(indices, premise) for indices, premise in combined if not self._missing_detail(fact, premise)]
            coverings = {place: self._find_covering(fact, place, fitting) for place in claimed or (_EVERYWHERE,)}
            if all(coverings.values()):
                break
            if not why and fitting:
                uncovered = next(place for place, covering in coverings.items() if not covering)
                stated = reasons.describe_facts((premise for _, premise in fitting), ontology)
                why = f"The other report states {stated}, but not {reasons.describe_places((uncovered,), ontology)}."
            elif not why:
                premise = related[0][1]
                lack = f"but {'not' if fact.present else 'limits this to'} {self._missing_detail(fact, premise)}"
                why = f"The other report states {reasons.describe_fact(premise, ontology)}, {lack}."
        else:
            return frozenset(), why
        evidence_sets = {indices for covering in coverings.values() for indices in covering}
        used = (premise for indices, premise in fitting if indices in evidence_sets)
        special = [premise for premise in used if premise.concept != fact.concept]
        claim = reasons.describe_fact(fact, ontology)
        if special:
            why = f"The other report states {reasons.describe_facts(special, ontology)}, which implies {claim}."
        else:
            why = f"The other report also states {claim}."
        return frozenset().union(*evidence_sets), why

    def _check_parts(self, fact: Fact, premises: PremiseFacts) -> Support | None:
        parts = self.ontology.exhaustive.get(fact.concept)
        if fact.present or parts is None or self._is_disputed(fact, premises):
            return None
        evidence: set[int] = set()
        for part in parts:
            indices, _ = self.check(Fact(part, False, fact.places), premises)
            if not indices:
                return None
            evidence |= indices
        stated, claim = reasons.enumerate_terms(parts, self.ontology), reasons.describe_fact(fact, self.ontology)
        implies = "which together implies" if len(parts) > 1 else "which implies"
        return frozenset(evidence), f"The other report denies {stated}, {implies} {claim}."

    def _concept_entails(self, premise: Fact, fact: Fact) -> bool:
        ontology = self.ontology
        if "previous" in fact.change and "persistent" not in fact.change and fact.present:
            is_known = not {"persistent", "resolved", "previous"}.isdisjoint(premise.change)
            return is_known and ontology.is_a(premise.concept, fact.concept)
        if _is_only_previous(premise):
            return False  # A finding of an earlier examination may be gone.
        if fact.concept in ontology.structures:
            return ontology.concerns(premise.concept, fact.concept) or premise.concept == "chest"
        if premise.concept in ontology.structures:
            return False
        if fact.present:
            if (fact.change or fact.details) and ontology.concepts[fact.concept].collective:
                return premise.concept == fact.concept  # "all devices are in standard position"
            is_sure = premise.doubt <= max(fact.doubt, CONCLUDED)
            return premise.present and is_sure and fact.concept in ontology.entailed[premise.concept]
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
        return ontology.is_denied_by(premise.concept, fact.concept) and not self._is_excepted(fact, premise)

    def _is_excepted(self, fact: Fact, premise: Fact) -> bool:
        if premise.exceptions <= fact.exceptions or premise.places:
            return False
        if "*" in premise.exceptions and fact.concept == premise.concept:
            return True
        is_a = self.ontology.is_a
        return any(is_a(fact.concept, concept) or is_a(concept, fact.concept) for concept in premise.exceptions)

    def _missing_detail(self, fact: Fact, premise: Fact) -> str | None:
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
            return f"the degree or size {reasons.describe_degree(strict.severity, self.ontology)}"
        changes = strict.change - loose.change
        if fact.present and "persistent" in loose.change and loose.change.isdisjoint(("increased", "decreased")):
            changes -= _CHANGES_OF_PERSISTENCE  # "remains enlarged" for "stable cardiomegaly"
        if missing := self._missing_change(changes if fact.present else changes & _NARROWING_CHANGES):
            return missing
        if details := strict.details - loose.details - self.ontology.concepts[loose.concept].implied:
            return f"the detail {self.ontology.terms[min(details)]}"
        for size in strict.measures:
            # No radiograph distinguishes sizes within 2 mm or a tenth.
            if not any(abs(size - other) <= max(2.0, 0.1 * max(size, other)) for other in loose.measures):
                return f"the size {size:g} mm"
        return None

    def _missing_change(self, changes: frozenset[str]) -> str | None:
        return f"the change {reasons.describe_changes(changes, self.ontology)[0]}" if changes else None

    def _is_disputed(self, fact: Fact, premises: PremiseFacts) -> bool:
        """Return whether a denied finding is stated, or denied only in part: "no large effusion"."""
        return any(
            (premise.severity or premise.present) and self.ontology.is_a(premise.concept, fact.concept)
            for _, premise in premises
        )

    def _combinations(self, related: PremiseFacts, premises: PremiseFacts) -> Iterator[PremiseFacts]:
        is_a = self.ontology.is_a
        yield related
        # A later sentence states more about the same finding by a general name: "the opacities have worsened".
        yield [
            (
                indices | later_indices,
                replace(premise, change=premise.change | later.change, details=premise.details | later.details),
            )
            for indices, premise in related
            for later_indices, later in premises
            if premise.present and later.present and later.change and not later.places and not premise.change
            if later_indices != indices and later.concept != premise.concept and is_a(premise.concept, later.concept)
        ]
        # A finding without a place is where the only finding is that it may interpret: an opacity, atelectasis.
        located = []
        for indices, premise in related:
            described = [
                (other_indices, other.places)
                for other_indices, other in premises
                if premise.present and not premise.places and premise.doubt <= CONCLUDED
                if other.present and other.places and other.doubt <= CONCLUDED and other.concept != premise.concept
                if is_a(premise.concept, other.concept)
                # A streak at the base is no granuloma elsewhere.
                and is_a(premise.concept, "focal_lesion") == is_a(other.concept, "focal_lesion")
            ]
            if len({places for _, places in described}) == 1:
                together = indices.union(*(other_indices for other_indices, _ in described))
                located.append((together, replace(premise, places=described[0][1])))
        yield located
        # Several premises describe the same finding at the same place.
        by_finding: dict[tuple[str, bool, tuple[Place, ...]], list[tuple[frozenset[int], Fact]]] = {}
        for indices, premise in related:
            by_finding.setdefault((premise.concept, premise.present, premise.places), []).append((indices, premise))
        merged = []
        for (_, present, _), group in by_finding.items():
            facts = [fact for _, fact in group]
            if len(group) > 1 and present and len({fact.severity for fact in facts if fact.severity}) <= 1:
                fact = replace(
                    facts[0],
                    severity=frozenset[int]().union(*(fact.severity for fact in facts)),
                    change=frozenset[str]().union(*(fact.change for fact in facts)),
                    details=frozenset[str]().union(*(fact.details for fact in facts)),
                    measures=tuple(size for fact in facts for size in fact.measures),
                    doubt=max(fact.doubt for fact in facts),
                )
                merged.append((frozenset[int]().union(*(indices for indices, _ in group)), fact))
        yield merged

    def _find_covering(self, fact: Fact, place: Place, fitting: PremiseFacts) -> set[frozenset[int]]:
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
        node = self.ontology.concepts[premise.concept]
        if place == _EVERYWHERE and (node.midline or not premise.places):
            return True
        if not premise.places:
            return not fact.present or (node.diffuse and place[1] is None)
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

    def contradict(self, hypothesis: ParsedSentence, premises: Sequence[ParsedSentence]) -> Support:
        """Return the premises that contradict a claim of a hypothesis at the same place, and the reason."""
        for alternatives in hypothesis.groups:
            opposing = [
                (index, group)
                for index, premise in enumerate(premises)
                for group in premise.groups
                if alternatives[0].present or group[0].present
                if all(self._contradicts(fact, group) for fact in alternatives)
            ]
            if opposing:
                stated = reasons.describe_facts((fact for _, group in opposing for fact in group), self.ontology)
                claim = " or ".join(dict.fromkeys(reasons.describe_fact(fact, self.ontology) for fact in alternatives))
                why = f"The other report states {stated}, which contradicts {claim}."
                return frozenset(index for index, _ in opposing), why
        return frozenset(), ""

    def _contradicts(self, fact: Fact, group: Sequence[Fact]) -> bool:
        if len(group) == 1:
            return group[0].doubt <= PROBABLE and self.excludes(fact, group[0])
        return all(self.excludes(fact, replace(premise, doubt=CERTAIN)) for premise in group)

    def excludes(self, fact: Fact, premise: Fact) -> bool:
        """Return whether two claims of different reports cannot both be true."""
        ontology, concept, other = self.ontology, fact.concept, premise.concept
        if not (fact.present or premise.present) or _is_only_previous(fact) != _is_only_previous(premise):
            return False
        if fact.present and premise.present:
            if concept == other:
                return self._have_opposite_attributes(fact, premise)
            return ontology.is_excluded_by(other, concept) or ontology.is_excluded_by(concept, other)
        positive, negative = (fact, premise) if fact.present else (premise, fact)
        if not ontology.is_denied_by(negative.concept, positive.concept):
            return False
        if negative.change & _NARROWING_CHANGES - positive.change:
            return False  # "no new effusion" allows an old one
        if "chronic" in positive.details and ontology.denies_only_acute(negative.concept):
            return False  # "intact bones" allow a healed fracture
        denied = replace(positive, present=False, doubt=CERTAIN, change=positive.change & _NARROWING_CHANGES)
        return bool(self.check(denied, [(frozenset({0}), negative)])[0])

    def _have_opposite_attributes(self, fact: Fact, premise: Fact) -> bool:
        """Return whether two mentions of a finding differ in an attribute that has only one value at a place."""
        claims = (fact, premise)
        if self.ontology.concepts[fact.concept].directed:
            sides = [{side for side, _ in claim.places} & {"left", "right"} for claim in claims]
            return all(sides) and sides[0].isdisjoint(sides[1])
        is_within = self.ontology.is_within
        overlap = fact.places == premise.places or any(
            side == other_side and (None in (zone, other) or is_within(zone, other) or is_within(other, zone))
            for side, zone in fact.places
            for other_side, other in premise.places
        )
        if not overlap:
            return False
        if fact.severity and premise.severity and fact.severity.isdisjoint(premise.severity):
            return True
        details = [claim.details & _OPPOSITE_DETAILS for claim in claims]
        if all(details) and details[0].isdisjoint(details[1]):
            return True
        return any(
            (first in fact.change and second in premise.change) or (first in premise.change and second in fact.change)
            for first, second in _OPPOSITE_CHANGES
        )


def _is_only_previous(fact: Fact) -> bool:
    return "previous" in fact.change and fact.change.isdisjoint(("persistent", "resolved"))
