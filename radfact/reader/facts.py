"""Parse a sentence into facts: finding, presence, places, severity, change, details and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

from radfact.languages import normalize_characters
from radfact.reader.finding_mentions import Mention
from radfact.reader.modifiers import ALTERNATIVE, ModifierAttacher
from radfact.reader.ontology import Ontology
from radfact.reader.ontology_file import default_ontology
from radfact.reader.tokens import CERTAIN, CONCLUDED, MAX_CHARACTERS, POSSIBLE, PROBABLE, tokenize

Place = tuple[str | None, str | None]
"""(side, zone): left, right, each (a plural: "at the bases") or None if unknown; a zone of the ontology or None."""
Polarity = Literal["positive", "negative"]
Attribute = tuple[str, str | float]
"""Kind (side, zone, severity, change, detail, measure, number) and value."""

_ATTRIBUTES = ("side", "zone", "severity", "change", "detail")
_NEGATIONS = frozenset({"no", "not", "without", "never", "absent"})
_ARTICLES = frozenset({"the", "a", "an", "recent", "known"})
_FUNCTION_KINDS = frozenset({"filler", "joining", "copula", "locative", "boundary"})


@dataclass(frozen=True, slots=True)
class Fact:
    """A claim about the current image."""

    concept: str  # a finding, or a structure whose change is stated
    present: bool  # whether the finding is present or absent
    places: tuple[Place, ...] = ()  # where it is
    severity: frozenset[int] = frozenset()  # possible levels from 0 to 4
    change: frozenset[str] = frozenset()  # change over time, with all implied changes
    details: frozenset[str] = frozenset()  # character and position
    measures: tuple[float, ...] = ()  # sizes in millimeters
    doubt: int = CERTAIN  # CERTAIN, CONCLUDED, PROBABLE or POSSIBLE
    # Findings that a denial excepts ("clear except for atelectasis"; "*" in "otherwise clear").
    exceptions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ParsedSentence:
    """Facts and words of a sentence."""

    # Groups of alternative facts ("scarring or atelectasis"); one fact of each group holds.
    groups: tuple[tuple[Fact, ...], ...]
    facts: tuple[Fact, ...]  # facts of all groups
    findings: frozenset[Fact]  # those of findings, not of structures
    named: frozenset[str]  # names of the findings, whatever their certainty and presence
    unread_words: frozenset[str]  # words that are not in the ontology
    words: frozenset[str]  # content words, or all words if there are none
    # Words that an entailing text must contain: numbers, and unread words for a place, a cause or an action.
    required_words: frozenset[str]
    attributes: frozenset[Attribute]  # sides, zones, degrees, changes, details, sizes and numbers, each with its kind
    is_negated: bool  # whether it has a negation other than of visibility or of an earlier examination


class SentenceParser(ModifierAttacher):
    """Converts the finding mentions of one sentence and their modifiers into facts."""

    def _is_about_the_past(self) -> bool:
        """Return whether it is about an earlier examination: "there was an effusion on the prior study"."""
        if self.heads.isdisjoint(("was", "were")) or self.not_before or self.kinds["change"]:
            return False
        words = [token.words[0] for token in self.tokens if token.words[0] not in ("the", "a", "an")]
        return "previously" in words or any(
            first in ("on", "in", "at", "by")
            and second.startswith(("prior", "previous", "earlier", "yesterday", "last"))
            for first, second in pairwise(words)
        )

    def facts(self) -> tuple[tuple[Fact, ...], ...]:
        """Return the facts, with alternatives ("scarring or atelectasis") in one group."""
        groups: list[list[Fact]] = []
        self._is_past = self._is_about_the_past()
        doubted_modifiers = self.find_doubted_modifiers() if self.doubting else set()
        for index, mention in enumerate(self.mentions):
            stated = [m for m in mention.modifiers if m not in doubted_modifiers]
            by_side = (self._to_fact(mention, modifiers) for modifiers in self._modifiers_by_side(stated))
            facts = [fact for fact in by_side if fact is not None]
            if len(facts) == 1 and facts[0].present and len(stated) < len(mention.modifiers):
                # "in the right lung, probably in the upper lobe": the finding is certain, its place is not.
                doubted = doubted_modifiers.intersection(mention.modifiers)
                slots = {slot for m in doubted for slot in self._slots(m)}
                modifiers = sorted([*doubted, *(m for m in stated if slots.isdisjoint(self._slots(m)))])
                if fact := self._to_fact(mention, modifiers):
                    groups.insert(0, [replace(fact, doubt=max(fact.doubt, PROBABLE))])
            if len(facts) == 2 and all(fact.severity for fact in facts):
                # "moderate right and small left effusions" are greater on the right
                larger = max(facts, key=lambda fact: max(fact.severity))
                details = {f"{larger.places[0][0]}_dominant"} if larger.places else set()
                facts = [replace(fact, details=fact.details | details) for fact in facts]
            if not facts:
                continue
            doubt = self._doubt_of_alternatives(self.mentions[index - 1], mention) if index else CERTAIN
            if groups and facts[0].present and doubt > CERTAIN:
                groups[-1] = [replace(fact, doubt=max(fact.doubt, doubt)) for fact in (*groups[-1], *facts)]
            else:
                groups += [[fact] for fact in facts]
        return tuple(tuple(dict.fromkeys(group)) for group in dict.fromkeys(map(tuple, groups)))

    def _doubt_of_alternatives(self, first: Mention, second: Mention) -> int:
        """How doubtful each of "X or Y" is, since only one need be there; of "X and/or Y", each counts as stated."""
        # "May be scarring or atelectasis": both may be; "no change in pneumothorax or effusion" has both.
        are_doubtful = min(first.doubt, second.doubt) > CONCLUDED
        if not first.present or are_doubtful or "unchanged" in self._changes(first.modifiers):
            return CERTAIN
        joints = [i for i in range(first.anchor + 1, second.anchor) if not ALTERNATIVE.isdisjoint(self.tokens[i].words)]
        is_and_or = all(self.tokens[i - 1].words == ("and",) for i in joints)
        return CERTAIN if not joints else CONCLUDED if is_and_or else POSSIBLE

    def _changes(self, modifiers: Sequence[int]) -> set[str]:
        meanings = (self.tokens[m].meanings for m in modifiers)
        return {
            kinds["change"] for kinds in meanings if "change" in kinds and not (self.has_advice and "removal" in kinds)
        }

    def _modifiers_by_side(self, modifiers: Sequence[int]) -> Iterator[list[int]]:
        modifiers = sorted(set(modifiers))
        sides = [m for m in modifiers if self.tokens[m].meanings.get("side") in ("left", "right")]
        for kind in ("severity", "change"):
            graded = [m for m in modifiers if kind in self.tokens[m].meanings]
            pairs = ((kind, graded), ("side", sides))
            # Two degrees or changes that differ, and two sides.
            if all(len(pair) == len({self.tokens[m].meanings[name] for m in pair}) == 2 for name, pair in pairs):
                both = [m for m in modifiers if self.tokens[m].meanings.get("side") == "both"]
                rest = [m for m in modifiers if m not in (*graded, *sides, *both)]
                yield from (sorted([*rest, grade, side]) for grade, side in zip(graded, sides, strict=True))
                return
        yield modifiers

    def _to_fact(self, mention: Mention, modifiers: Sequence[int]) -> Fact | None:
        severity: frozenset[int] = frozenset()
        details: set[str] = set()
        change = self._changes(modifiers) | ({"previous"} if self._is_past else set())
        if mention.present and any(mention.anchor < i for i in self.not_before):
            change.add("new")  # "was not seen on the prior"
        for m in modifiers:
            meanings = self.tokens[m].meanings
            if "severity" in meanings and "change" not in meanings:
                severity |= self.ontology.severity_levels[meanings["severity"]]
            if "detail" in meanings:
                details |= self.ontology.implications[meanings["detail"]]
        if mention.concept in self.ontology.structures and not change:
            return None  # a structure that is merely named
        concept = mention.concept
        for attribute, special in self.ontology.concepts[concept].when.items():
            if attribute in details or attribute in change:
                concept = special
                details.discard(attribute)
        if mention.has_state:
            details -= self.ontology.positions  # "enlarged azygos vein, heart size normal"
        node, kinds = self.ontology.concepts[concept], self.ontology.ancestors[concept]
        # "Acute" is a claim for bones only.
        scopes = self.ontology.detail_scopes
        details = {detail for detail in details if detail not in scopes or not kinds.isdisjoint(scopes[detail])}
        details |= {name for name, parts in self.ontology.derived_details.items() if parts <= details}
        details -= node.implied
        present = mention.present and "resolved" not in change
        if not present:
            # The duration of an absence is no claim about the current image; "no NEW nodule" is.
            change &= {"new", "increased", "unchanged", "resolved", "previous"}
        if present and "chronic" in details:
            change = change | {"persistent"}
        if mention.present and not present:
            severity, details = frozenset(), set()  # a resolved finding has no degree
        changes = frozenset().union(*(self.ontology.implications[c] for c in change))
        places = self._places(modifiers)
        if node.midline:
            places = tuple(dict.fromkeys((side, None) for side, _ in places if side in ("left", "right")))
        measures = tuple(size for m in modifiers if (size := self.tokens[m].measure) is not None)
        # A device is in good position at its target, or 20 to 70 mm above the carina.
        is_fitting = "above_carina" not in details or (measures and all(20 <= size <= 70 for size in measures))
        if is_fitting and "malpositioned" not in details and not node.good_position.isdisjoint(details):
            details.add("good_position")
        doubt = mention.doubt if present else CERTAIN
        claims = (places, severity, changes, frozenset(details), measures)
        return Fact(concept, present, *claims, doubt, mention.exceptions)

    def _places(self, modifiers: Sequence[int]) -> tuple[Place, ...]:
        places: list[Place] = []
        sides: list[str] = []
        is_pending = False  # whether a side still waits for its zone
        for m in modifiers:
            token = self.tokens[m]
            meanings = token.meanings
            if "place" in meanings:
                side, zone = self.ontology.places[meanings["place"]]
                places += [(s, zone) for s in (("left", "right") if side == "both" else (side,))]
                continue
            if "side" in meanings or "dominance" in meanings:
                new_sides = [meanings["side"]] if meanings.get("side", "both") != "both" else ["left", "right"]
                sides = sides + new_sides if is_pending else new_sides
                is_pending = True
            if "zone" in meanings:
                zone_sides: list[str | None] = [*sides] or ["each" if token.is_plural else None]
                places += [(side, meanings["zone"]) for side in zone_sides]
                is_pending = False
        if is_pending:
            unsided = [zone for side, zone in places if side in (None, "each") or len(sides) == 2]
            places = [place for place in places if place[0] not in (None, "each")]
            places += [(side, zone) for side in sides for zone in (dict.fromkeys(unsided) or [None])]
        if any(zone not in (None, "all") for _, zone in places):
            places = [place for place in places if place[1] != "all"]  # "complete collapse of the upper lobe"
        return tuple(sorted(set(places), key=str))


def common_facts(sentence: ParsedSentence, ontology: Ontology) -> Iterator[Fact]:
    """Yield facts that all alternatives imply: an opacity for "scarring or atelectasis at the left base"."""
    for group in sentence.groups:
        if len(group) > 1 and (kind := ontology.common_ancestor(fact.concept for fact in group)) is not None:
            places = set(group[0].places).intersection(*(fact.places for fact in group))
            change = group[0].change.intersection(*(fact.change for fact in group))
            yield Fact(kind, True, tuple(sorted(places, key=str)), change=change)


_NONE = frozenset[Any]()
_UNREAD = ParsedSentence((), (), _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, is_negated=False)


@lru_cache(maxsize=1 << 16)
def parse_sentence(text: str, ontology: Ontology | None = None) -> ParsedSentence:
    """Parse one sentence, whether it stands alone or within another one, which change neither facts nor words."""
    if len(text := normalize_characters(text)) > MAX_CHARACTERS:
        return _UNREAD
    if text[1:2].islower():
        text = text[0].lower() + text[1:]
    if text[-1:] == "." and len(end := text[-5:-1]) == 4 and end.isalpha() and end.islower():  # no abbreviation
        text = text[:-1]
    return parse_text(text, ontology or default_ontology())


@lru_cache(maxsize=1 << 16)
def parse_text(text: str, ontology: Ontology) -> ParsedSentence:
    """Parse a sentence in the form that `parse_sentence` gives it; cached, since most reports share sentences."""
    parser = SentenceParser(tokenize(text, ontology), ontology)
    parser.find_mentions()
    parser.refine_mentions()
    parser.attach_modifiers()
    groups = parser.facts()
    tokens, attributes = parser.tokens, set[Attribute]()
    attributes.update((kind, tokens[i].meanings[kind]) for kind in _ATTRIBUTES for i in parser.kinds[kind])
    for i in parser.kinds["place"]:
        side, zone = ontology.places[tokens[i].meanings["place"]]
        attributes |= {("side", side), ("zone", zone)}
    unread, words, required = set[str](), set[str](), set[str]()
    is_negated = follows_preposition = False
    for i, token in enumerate(tokens):
        word, kinds = token.words[0], token.meanings.keys()
        if not token.is_known and len(word) > 1 and word.strip("x"):
            has_object = [other.words for other in tokens[i + 1 : i + 2]] == [("the",)]
            # An unread word after a preposition, or with an object ("invades the chest wall"), is no mere adjective.
            (required if follows_preposition or has_object else unread).add(word)
        if token.measure is not None:
            attributes.add(("measure", token.measure))
        if not kinds and word[0].isdigit():
            required.add(word)
            attributes.add(("number", word))
        if len(token.words) > 1 and kinds & {"structure", "detail"}:
            required.update({"left", "right"}.intersection(token.words))  # "left atrium" is one name
        if word in ("no", "not") and parser.is_unused_negation(i):
            required.add(word)
        if not is_negated and i not in parser.limited and i not in parser.not_before:
            is_negated = not _NEGATIONS.isdisjoint(token.words)
        follows_preposition = (
            not kinds.isdisjoint(("locative", "link"))
            or word in ("after", "been")
            or (follows_preposition and word in _ARTICLES)
        )
        if not kinds or not kinds <= _FUNCTION_KINDS:
            words.update(word for word in token.words if word[0].isalnum())
    if not words:
        words.update(word for token in tokens for word in token.words if word[0].isalnum())
    facts = tuple(fact for group in groups for fact in group)
    findings = frozenset(fact for fact in facts if fact.concept in ontology.findings)
    named = frozenset(fact.concept for fact in findings)
    word_sets = (frozenset(unread), frozenset(words), frozenset(required))
    return ParsedSentence(groups, facts, findings, named, *word_sets, frozenset(attributes), is_negated)


def read_polarity(sentence: str) -> Polarity | None:
    """Classify a sentence: positive if it states a finding or device, even in doubt; negative if it only denies."""
    ontology = default_ontology()
    facts = parse_sentence(sentence, ontology).findings
    if not facts:
        return None
    is_positive = any(fact.present and not ontology.findings[fact.concept].normal for fact in facts)
    return "positive" if is_positive else "negative"
