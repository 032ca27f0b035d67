"""Parse a sentence into facts: finding, presence, places, severity, change, details and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, zip_longest

from radfact.judges.offline.finding_mentions import Mention, MentionFinder
from radfact.judges.offline.ontology import Ontology
from radfact.judges.offline.ontology_file import default_ontology
from radfact.judges.offline.tokens import CERTAIN, POSSIBLE, tokenize

Place = tuple[str | None, str | None]
"""(side, zone): left, right, each (a plural: "at the bases") or None if unknown; a zone of the ontology or None."""

_MODIFIERS = ("side", "zone", "place", "severity", "change", "detail", "measure", "dominance")
_ARTICLES = frozenset({"the", "a", "an", "recent", "known"})
_COMPARISON_WORDS = frozenset({"compare", "compared", "comparison", "since", "interval", "prior", "previous"})
_FUNCTION_KINDS = frozenset({"filler", "joining", "copula", "locative", "boundary"})


@dataclass(frozen=True, slots=True)
class Fact:
    """A claim about the current image.

    Attributes:
        concept: a finding, or a structure whose change is stated.
        present: whether the finding is present or absent.
        places: where it is.
        severity: possible levels from 0 to 4.
        change: change over time, with all implied changes.
        details: character and position.
        measures: sizes in millimeters.
        doubt: CERTAIN, CONCLUDED, PROBABLE or POSSIBLE.
        exceptions: findings that a denial excepts ("clear except for atelectasis"; "*" in "otherwise clear").
    """

    concept: str
    present: bool
    places: tuple[Place, ...] = ()
    severity: frozenset[int] = frozenset()
    change: frozenset[str] = frozenset()
    details: frozenset[str] = frozenset()
    measures: tuple[float, ...] = ()
    doubt: int = CERTAIN
    exceptions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ParsedSentence:
    """Facts and words of a sentence.

    Attributes:
        groups: groups of alternative facts ("scarring or atelectasis"); one fact of each group holds.
        facts: facts of all groups.
        unread_words: words that are not in the ontology.
        words: content words, or all words if there are none.
        required_words: words that an entailing text must contain: numbers, and unread words for a place, a cause or an
            action.
    """

    groups: tuple[tuple[Fact, ...], ...]
    facts: tuple[Fact, ...]
    unread_words: frozenset[str]
    words: frozenset[str]
    required_words: frozenset[str]


class SentenceParser(MentionFinder):
    """Attaches modifiers to the finding mentions of one sentence and converts them into facts."""

    def attach_modifiers(self) -> None:
        """Attach each modifier to the mention that it describes, and share those of lists."""
        for m, token in enumerate(self.tokens):
            if token.meanings.keys() & _MODIFIERS:
                self._attach_modifier(m)
        self._share_trailing_modifiers()
        self._share_leading_modifiers()

    def _describes_the_past(self) -> bool:
        """Return whether it is about an earlier examination: "there was an effusion on the prior study"."""
        words = [token.words[0] for token in self.tokens if token.words[0] != "the"]
        if not {"was", "were"} & set(words) or any("change" in token.meanings for token in self.tokens):
            return False
        return "previously" in words or any(
            first == "on" and second in ("prior", "previous") for first, second in pairwise(words)
        )

    def _attach_modifier(self, m: int) -> None:
        anchored = [mention for mention in self.mentions if mention.anchor == m]
        if anchored or m in self.consumed:
            is_comparison = any(not _COMPARISON_WORDS.isdisjoint(token.words) for token in self.tokens)
            own_change = is_comparison or (m > 0 and self.tokens[m - 1].words[0] in ("has", "have", "had"))
            for mention in self.mentions:
                if m == mention.state == mention.anchor or (
                    mention.has_state and (m == mention.anchor or (m == mention.state and own_change))
                ):
                    mention.modifiers.append(m)
            return
        if self._is_degree_of_change(m):
            return
        stops = [i for i, token in enumerate(self.tokens) if token.words == (".",)]
        first = max((i for i in stops if i < m), default=-1)
        last = min((i for i in stops if i > m), default=len(self.tokens))
        before = [mention for mention in self.mentions if first < mention.anchor < m]
        after = [mention for mention in self.mentions if m < mention.anchor < last]
        if not before and not after:
            return
        if not before or not after:
            owner = after[0] if not before else self._subject_of_change(m, before)
        else:
            to_next = not self._are_separated(m, after[0].anchor, "of") and (
                self._are_separated(before[-1].anchor, m) or not before[-1].has_state
            )
            owner = after[0] if to_next else before[-1]
        owner.modifiers.append(m)

    def _subject_of_change(self, m: int, before: Sequence[Mention]) -> Mention:
        """Return the subject of a final verb: the opacity in "opacity, suggesting infection, is unchanged"."""
        has_verb = "copula" in self.tokens[m - 1].meanings or self.tokens[m - 1].words[0] in ("has", "have")
        if (
            "change" in self.tokens[m].meanings
            and has_verb
            and any(token.words[0] == "," for token in self.tokens[before[-1].anchor : m])
        ):
            for first, second in zip(reversed(before[:-1]), reversed(before[1:]), strict=True):
                if not self._are_linked(first.anchor, second.anchor):
                    return second
            return before[0]
        return before[-1]

    def _is_degree_of_change(self, m: int) -> bool:
        """Return whether a degree qualifies a change, not the finding: "slightly worse", "improved markedly"."""
        if "severity" not in self.tokens[m].meanings:
            return False
        before = self.tokens[m - 1].words[0] if m > 0 else ""
        if before in ("previously", "formerly", "from"):
            return True  # "decreased from moderate"
        graded = ("increased", "decreased")
        j = m + 2 if m + 1 < len(self.tokens) and self.tokens[m + 1].words == ("interval",) else m + 1
        following = self.tokens[j] if j < len(self.tokens) else None
        if following is not None and following.meanings.get("change") in graded and j not in self.consumed:
            return True
        j += following is not None and "side" in following.meanings
        following = self.tokens[j] if j < len(self.tokens) else None
        if following is not None and "detail" in following.meanings and following.words[-1].endswith(("tion", "ment")):
            return True  # "mild right loculation"
        adverb = self.tokens[m].words[-1].endswith("ly")
        return adverb and m > 0 and self.tokens[m - 1].meanings.get("change") in graded

    def _share_trailing_modifiers(self) -> None:
        """Share modifiers after a list with all of its findings: "atelectasis and effusion at the left base"."""
        for first, second in zip(reversed(self.mentions[:-1]), reversed(self.mentions[1:]), strict=True):
            between = self.tokens[first.anchor + 1 : second.anchor]
            if first.present != second.present or any(
                token.words == ("with",) or token.meanings.keys() & {"copula", "boundary", "link"} for token in between
            ):
                continue
            if any(m > first.anchor for m in first.modifiers):
                continue
            trailing = [m for m in second.modifiers if m > second.anchor]
            own = {kind for m in first.modifiers for kind in self._slots(m)}
            first.modifiers.extend(m for m in trailing if not own & self._slots(m))

    def _share_leading_modifiers(self) -> None:
        """Share modifiers before a list with all of its findings, and those of a finding with its interpretation."""
        for first, second in zip(self.mentions[:-1], self.mentions[1:], strict=True):
            between = self.tokens[first.anchor + 1 : second.anchor]
            own = {slot for m in second.modifiers for slot in self._slots(m)}
            if first.present != second.present or first.has_state or any(token.ends_clause for token in between):
                continue
            joined = bool(between) and all(token.joins and token.words != ("with",) for token in between)
            bound = any(token.meanings.keys() & {"link", "adjoining"} for token in between)
            slots = {"where", "change"} if joined or bound else set()
            leading = [m for m in first.modifiers if m < first.anchor or bound]
            second.modifiers.extend(m for m in leading if self._slots(m) & slots and not self._slots(m) & own)

    def _slots(self, m: int) -> set[str]:
        meanings = {kind for kind in _MODIFIERS if kind in self.tokens[m].meanings}
        return {"where"} if meanings & {"side", "zone", "place", "dominance"} else meanings

    def facts(self) -> tuple[tuple[Fact, ...], ...]:
        """Return the facts, with alternatives ("scarring or atelectasis") in one group."""
        groups: list[list[Fact]] = []
        for index, mention in enumerate(self.mentions):
            facts = [
                fact for modifiers in self._modifiers_by_side(mention) if (fact := self._to_fact(mention, modifiers))
            ]
            if len(facts) == 2 and all(fact.severity for fact in facts):
                # "moderate right and small left effusions" are greater on the right
                larger = max(facts, key=lambda fact: max(fact.severity))
                details = {f"{larger.places[0][0]}_dominant"} if larger.places else set()
                facts = [replace(fact, details=fact.details | details) for fact in facts]
            previous = self.mentions[index - 1] if index else None
            if not facts:
                continue
            if previous is not None and groups and facts[0].present and self._is_alternative(previous, mention):
                groups[-1] = [replace(fact, doubt=max(fact.doubt, POSSIBLE)) for fact in groups[-1]]
                groups[-1] += [replace(fact, doubt=POSSIBLE) for fact in facts]
            else:
                groups += [[fact] for fact in facts]
        return tuple(tuple(dict.fromkeys(group)) for group in dict.fromkeys(map(tuple, groups)))

    def _is_alternative(self, first: Mention, second: Mention) -> bool:
        if not first.present or min(first.doubt, second.doubt) > CERTAIN:
            return False  # "may be scarring or atelectasis": both may be
        if "unchanged" in self._changes(first.modifiers):
            return False  # "no change in pneumothorax or effusion" has both
        return any("or" in token.words for token in self.tokens[first.anchor + 1 : second.anchor])

    def _changes(self, modifiers: Sequence[int]) -> set[str]:
        tokens = (self.tokens[m] for m in modifiers)
        return {
            token.meanings["change"]
            for token in tokens
            if "change" in token.meanings and not (self.has_advice and "removal" in token.meanings)
        }

    def _modifiers_by_side(self, mention: Mention) -> Iterator[list[int]]:
        """Yield the modifiers, one list per side if the sides differ: "large right and small left effusions"."""
        modifiers = sorted(set(mention.modifiers))
        sides = [m for m in modifiers if self.tokens[m].meanings.get("side") in ("left", "right")]
        for kind in ("severity", "change"):
            graded = [m for m in modifiers if kind in self.tokens[m].meanings]
            is_different = len({self.tokens[m].meanings[kind] for m in graded}) > 1
            if (
                is_different
                and len(graded) == len(sides) == 2
                and len({self.tokens[m].meanings["side"] for m in sides}) == 2
            ):
                both = [m for m in modifiers if self.tokens[m].meanings.get("side") == "both"]
                rest = [m for m in modifiers if m not in (*graded, *sides, *both)]
                yield from (sorted([*rest, grade, side]) for grade, side in zip(graded, sides, strict=True))
                return
        yield modifiers

    def _to_fact(self, mention: Mention, modifiers: Sequence[int]) -> Fact | None:
        severity: frozenset[int] = frozenset()
        details: set[str] = set()
        change = self._changes(modifiers) | ({"previous"} if self._describes_the_past() else set())
        for m in modifiers:
            meanings = self.tokens[m].meanings
            if "severity" in meanings and "change" not in meanings:
                severity |= self.ontology.severity_levels[meanings["severity"]]
            if "detail" in meanings:
                details |= self.ontology.implications[meanings["detail"]]
        if mention.concept in self.ontology.structures and not change:
            return None  # a structure that is merely named
        concept = mention.concept
        node = self.ontology.findings.get(concept)
        for attribute, special in node.when.items() if node is not None else ():
            if attribute in details or attribute in change:
                concept = special
                details.discard(attribute)
        details = {detail for detail in details if self.ontology.detail_applies(detail, concept)}
        details |= {name for name, parts in self.ontology.derived_details.items() if parts <= details}
        node = self.ontology.findings.get(concept)
        details -= node.implied if node is not None else frozenset()
        present = mention.present and "resolved" not in change
        if not present:
            # The duration of an absence is no claim about the current image; "no NEW nodule" is.
            change &= {"new", "increased", "unchanged", "resolved", "previous"}
        if present and "chronic" in details:
            change = change | {"persistent"}
        if mention.present and not present:
            severity, details = frozenset(), set()  # a resolved finding has no degree
        changes = frozenset().union(*(self.ontology.implications[c] for c in change))
        places = () if node is not None and node.midline else self._places(modifiers)
        measures = tuple(self.tokens[m].measure or 0.0 for m in modifiers if "measure" in self.tokens[m].meanings)
        if self.ontology.is_well_positioned(concept, details, measures):
            details.add("good_position")
        return Fact(
            concept,
            present,
            places,
            severity,
            changes,
            frozenset(details),
            measures,
            mention.doubt if present else CERTAIN,
            mention.exceptions,
        )

    def _places(self, modifiers: Sequence[int]) -> tuple[Place, ...]:
        """Return the places; in "right upper and lower" both zones are on the right."""
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


@lru_cache(maxsize=200_000)
def parse_sentence(text: str, ontology: Ontology | None = None) -> ParsedSentence:
    """Parse one sentence; cached, since most reports share sentences.

    Args:
        text: the sentence.
        ontology: by default the packaged ontology.
    """
    ontology = ontology or default_ontology()
    parser = SentenceParser(tokenize(text, ontology), ontology)
    parser.find_mentions()
    parser.refine_mentions()
    parser.attach_modifiers()
    unread: set[str] = set()
    words: set[str] = set()
    required: set[str] = set()
    follows_preposition = False
    for token, following in zip_longest(parser.tokens, parser.tokens[1:]):
        word = token.words[0]
        if not token.is_known and len(word) > 1 and word.strip("x"):
            has_object = following is not None and following.words == ("the",)  # "invades the chest wall"
            (required if follows_preposition or has_object else unread).add(word)
        if not token.meanings and word.isdigit():
            required.add(word)
        follows_preposition = (
            bool(token.meanings.keys() & {"locative", "link"})
            or word in ("after", "been")
            or (follows_preposition and word in _ARTICLES)
        )
        if token.meanings.keys() - _FUNCTION_KINDS or not token.meanings:
            words.update(word for word in token.words if word[0].isalnum())
    if not words:
        words.update(word for token in parser.tokens for word in token.words if word[0].isalnum())
    groups = parser.facts()
    facts = tuple(fact for group in groups for fact in group)
    return ParsedSentence(groups, facts, frozenset(unread), frozenset(words), frozenset(required))
