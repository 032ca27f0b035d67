"""The offline judge: entailment by rules over an ontology, deterministic and with its reasons."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from radfact.entailment.facts import Fact, Parsed, Place, parse
from radfact.entailment.judge import Question, Verdict
from radfact.entailment.ontology import Ontology, default_ontology, load_ontology
from radfact.errors import Failure

VERSION = "1"
UNKNOWN_OVERLAP = 0.8
"""Share of the content lemmas of a sentence without any known finding that one premise must hold."""
UNREAD_ALLOWED = 3
"""Unknown words of an otherwise understood hypothesis that need no counterpart; beyond it half of them do."""

_NOTE = "The figures of the offline judge are not comparable with RadFact-Llama3."
_EVERYWHERE: Place = (None, None)

_Proof = tuple[frozenset[int], str]
"""Indices of the premises that prove a fact, and the rule in words."""


class OfflineJudge:
    """A judge that needs no model: sentences are read into facts and compared by documented rules.

    A hypothesis is entailed when each of its facts is: the same or a more special finding is present (or the same or a
    more general one absent), and every detail of the hypothesis (side, zone, degree, change, character, position,
    size) is stated too. An unstated side or degree does not entail a stated one (paper 004, caption of listing 4).
    Sentences without any known finding must share their words with one premise.
    """

    name = "offline"

    def __init__(self, ontology: Path | str | None = None) -> None:
        """Take the packaged ontology, or the YAML file given.

        Raises:
            InputError: the ontology file is wrong, with its field.
        """
        self.ontology: Ontology = default_ontology() if ontology is None else load_ontology(ontology)
        self._account = {"calls": 0, "tokens_in": 0, "tokens_out": 0, "repairs": 0, "failures": 0, "cached": 0}

    def judge(self, questions: Sequence[Question]) -> list[Verdict | Failure]:
        """One verdict a question, in the order of the questions."""
        return [self.answer(question) for question in questions]

    def answer(self, question: Question) -> Verdict:
        """The verdict on one question, with the rule and the terms behind it."""
        hypothesis = self._parse(question.hypothesis)
        premises = [self._parse(premise) for premise in question.premises]
        if not hypothesis.groups:
            return _by_words(hypothesis, premises)
        stated = [(index, fact) for index, premise in enumerate(premises) for fact in premise.facts]
        evidence: set[int] = set()
        reasons: list[str] = []
        for group in hypothesis.groups:
            proofs = [self._prove(fact, stated) for fact in group]
            proof = next((proof for proof in proofs if proof[0]), None)
            if proof is None:
                return Verdict("not_entailment", (), proofs[0][1])
            evidence |= proof[0]
            reasons.append(proof[1])
        unread = hypothesis.unread
        shared = unread & frozenset().union(*(premises[i].words for i in evidence))
        if len(unread) > UNREAD_ALLOWED and len(shared) * 2 < len(unread):
            return Verdict("not_entailment", (), f"words without counterpart: {', '.join(sorted(unread - shared))}")
        return Verdict("entailment", tuple(sorted(evidence)), "; ".join(dict.fromkeys(reasons)))

    def describe(self) -> dict[str, Any]:
        """Name, version, ontology hash and what the figures may be compared with."""
        return {
            "name": self.name,
            "version": VERSION,
            "ontology_version": self.ontology.version,
            "ontology_sha256": self.ontology.sha256,
            "note": _NOTE,
        }

    def account(self) -> dict[str, int]:
        """All zero: the answers cost no calls."""
        return dict(self._account)

    def _parse(self, text: str) -> Parsed:
        return parse(text, self.ontology)

    def _prove(self, fact: Fact, stated: Sequence[tuple[int, Fact]]) -> _Proof:
        """The premises that prove `fact`; none, and why, if it is not proven."""
        related = [(i, p) for i, p in stated if self._concept_fits(fact, p)]
        label = describe_fact(fact)
        if not related:
            if parts := self._prove_by_parts(fact, stated):
                return parts
            opposite = next((p for _, p in stated if self._contradicts(fact, p)), None)
            why = "not stated" if opposite is None else f"contradicted by {describe_fact(opposite)}"
            return frozenset(), f"{label}: {why}"
        fitting = [(i, p) for i, p in related if not self._detail_missing(fact, p)]
        if not fitting:
            other = related[0][1]
            return frozenset(), f"{label}: {self._detail_missing(fact, other)} in {describe_fact(other)}"
        covered: set[int] = set()
        for place in fact.places or (_EVERYWHERE,):
            covering = self._covering(fact, place, fitting)
            if not covering:
                found = ", ".join(dict.fromkeys(describe_fact(p) for _, p in fitting))
                return frozenset(), f"{label}: place {_place_name(place)} not stated by {found}"
            covered |= covering
        special = {p.concept for i, p in fitting if i in covered and p.concept != fact.concept}
        how = f"follows from {', '.join(sorted(special))}" if special else "same finding"
        return frozenset(covered), f"{label}: {how}"

    def _prove_by_parts(self, fact: Fact, stated: Sequence[tuple[int, Fact]]) -> _Proof | None:
        """The absence of a whole from the absence of all its parts (`exhaustive` in the ontology)."""
        node = self.ontology.findings.get(fact.concept)
        if fact.present or node is None or not node.exhaustive:
            return None
        evidence: set[int] = set()
        for part in node.exhaustive:
            proof, _ = self._prove(Fact(part, False, fact.places), stated)
            if not proof:
                return None
            evidence |= proof
        return frozenset(evidence), f"{describe_fact(fact)}: all parts are normal ({', '.join(node.exhaustive)})"

    def _concept_fits(self, fact: Fact, premise: Fact) -> bool:
        if fact.present != premise.present:
            return False
        if fact.present:
            return self.ontology.is_a(premise.concept, fact.concept) and (fact.possible or not premise.possible)
        return self.ontology.denied_by(premise.concept, fact.concept)

    def _contradicts(self, fact: Fact, premise: Fact) -> bool:
        if fact.present == premise.present:
            return False
        positive, negative = (fact, premise) if fact.present else (premise, fact)
        return self.ontology.denied_by(negative.concept, positive.concept)

    def _detail_missing(self, fact: Fact, premise: Fact) -> str | None:
        """What of the more demanding fact the other lacks; what is absent must be denied at least as broadly."""
        strict, loose = (fact, premise) if fact.present else (premise, fact)
        if strict.severity and not (loose.severity and loose.severity <= strict.severity):
            return "degree or size differs or is not stated"
        if missing := strict.change - loose.change:
            return f"change '{min(missing)}' is not stated"
        if missing := strict.details - loose.details:
            return f"'{min(missing)}' is not stated"
        if any(not any(_same_size(a, b) for b in loose.measures) for a in strict.measures):
            return "the measured size differs or is not stated"
        return None

    def _covering(self, fact: Fact, place: Place, fitting: Sequence[tuple[int, Fact]]) -> set[int]:
        """The premises that say `fact` of one place; of the same finding if there are any."""
        found = {(i, p) for i, p in fitting if self._covers(fact.present, place, p.places)}
        if not found and not fact.present and place[0] is None:
            halves = [
                {(i, p) for i, p in fitting if self._covers(False, (side, place[1]), p.places)}
                for side in ("left", "right")
            ]
            found = halves[0] | halves[1] if all(halves) else set()
        same = {i for i, p in found if p.concept == fact.concept}
        return same or {i for i, _ in found}

    def _covers(self, present: bool, place: Place, premise: tuple[Place, ...]) -> bool:
        if not premise:
            return place == _EVERYWHERE if present else True
        if (
            not present
            and place[0] is None
            and {side for side, zone in premise if zone in (None, "all")} >= {"left", "right"}
        ):
            return True
        return any(self._covers_one(present, place, other) for other in premise)

    def _covers_one(self, present: bool, place: Place, premise: Place) -> bool:
        (side, zone), (given_side, given_zone) = place, premise
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


def _same_size(a: float, b: float) -> bool:
    """Equal within 2 mm or a tenth: less is no difference on a radiograph."""
    return abs(a - b) <= max(2.0, 0.1 * max(a, b))


def _by_words(hypothesis: Parsed, premises: Sequence[Parsed]) -> Verdict:
    """For a sentence without a known finding: one premise must hold nearly all of its words."""
    if not hypothesis.words:
        return Verdict("not_entailment", (), "no words to compare")
    shares = [len(hypothesis.words & premise.words) / len(hypothesis.words) for premise in premises]
    best = max(range(len(shares)), key=shares.__getitem__, default=None)
    if best is None or shares[best] < UNKNOWN_OVERLAP or _negations(hypothesis) != _negations(premises[best]):
        return Verdict("not_entailment", (), "no known finding, and no premise with the same words")
    return Verdict("entailment", (best,), f"no known finding; {shares[best]:.0%} of its words in one premise")


def _negations(parsed: Parsed) -> bool:
    return not parsed.words.isdisjoint(("no", "not", "without", "never", "absent"))


def _place_name(place: Place) -> str:
    return " ".join(part for part in place if part) or "unspecified"


@lru_cache(maxsize=100_000)
def describe_fact(fact: Fact) -> str:
    """A fact in a few words, for `why`."""
    words = ["possible " if fact.possible else "", "" if fact.present else "no ", fact.concept.replace("_", " ")]
    more = [_place_name(place) for place in fact.places]
    more += [f"degree {'-'.join(map(str, sorted(fact.severity)))}"] if fact.severity else []
    more += [*sorted(fact.change), *(detail.replace("_", " ") for detail in sorted(fact.details))]
    more += [f"{size:g} mm" for size in fact.measures]
    return "".join(words) + (f" ({', '.join(more)})" if more else "")
