"""Split lists of findings: the members of a list, and the words that all of them share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from radfact.reader import vocabulary as vocab
from radfact.reader.clause import MODIFIERS, Clause

_ABSENT_STATES = frozenset({"without", "free", "clear", "negative", "devoid"})


def split_list(clause: Clause) -> Iterator[list[str]]:
    """Yield the splits of a clause at its list of findings, the most likely first."""
    end = len(clause.words)
    verb = clause.verbs[0] if clause.verbs else end
    joints = [i for i in clause.separators if verb + 1 < i < end - 1 and clause.word(i) in vocab.JOINT_CONJUNCTIONS]
    is_subject = verb > clause.start and clause.word(verb - 1) not in vocab.OBSERVATION_WORDS | {"there"}
    if joints and is_subject and not clause.is_transitive(verb):
        # "A has increased, along with B", where B shares the predicate of A.
        before = joints[0] - 1 if clause.word(joints[0] - 1) == "," else joints[0]
        rest = clause.span(joints[0] + 1, end)
        plural = vocab.is_plural(clause.phrase(joints[0] + 1, end)) or " and " in rest
        yield [clause.span(0, before), f"{rest} {clause.inflect_verb(verb, before, plural)}"]
    listed = _find_list(clause)
    if listed is not None:
        yield from listed.divisions()


def _find_list(clause: Clause) -> FindingList | None:
    verb = clause.verbs[0] if clause.verbs else None
    first = clause.word(clause.start)
    end = len(clause.words)
    if first in ("no", "without"):
        lead = _skip_negation(clause, clause.start + 1)
        return FindingList(clause, lead, _find_tail(clause, lead), negative=True)
    if clause.phrase(clause.start, clause.start + 2) == ["negative", "for"]:
        return FindingList(clause, clause.start + 2, _find_tail(clause, clause.start + 2), negative=True)
    if verb is None:
        lead = clause.start
        if first in vocab.NORMAL_STATES:
            lead += 1
        elif clause.phrase(lead, lead + 2) == ["status", "post"]:
            lead += 2
        return FindingList(clause, lead, _find_tail(clause, lead), negative=False, fragment=True)
    if any(clause.start < s < verb for s in clause.separators):
        return FindingList(clause, clause.start, verb, negative=False)
    lead = verb + 1
    while clause.word(lead) in vocab.ADVERBS:
        lead += 1
    if clause.word(lead) in _ABSENT_STATES and (
        clause.word(lead) == "without" or clause.word(lead + 1) in ("of", "for", "from")
    ):
        lead = _skip_negation(clause, lead + (1 if clause.word(lead) == "without" else 2))
        return FindingList(clause, lead, end, negative=True)
    if clause.phrase(lead, lead + 2) == ["status", "post"]:
        return FindingList(clause, lead + 2, end, negative=False)
    if first == "there" or clause.is_transitive(verb):
        negative = clause.word(lead) in ("no", "not")
        lead = _skip_negation(clause, lead + 1) if negative else lead
        return FindingList(clause, lead, _find_tail(clause, lead), negative)
    return None


def _skip_negation(clause: Clause, i: int) -> int:
    """Return where the list begins after "no", "no evidence of", "no large"."""

    def degrees(i: int) -> int:
        j = i
        while clause.word(j) in vocab.ABSENCE_DEGREES:
            j += 1
        return i if clause.word(j) in vocab.SEPARATORS else j

    i = degrees(i + 1 if clause.word(i) in ("any", "a", "an") else i)
    if clause.word(i) in vocab.EVIDENCE_NOUNS and clause.word(i + 1) in ("of", "for", "to"):
        i += 3 if clause.word(i + 2) == "suggest" else 2
        i = degrees(i + 1 if clause.word(i) in ("any", "a", "an") else i)
    return i


def _find_tail(clause: Clause, lead: int) -> int:
    last = max((s for s in clause.separators if s >= lead), default=lead)
    if not vocab.NORMAL_STATES.isdisjoint(clause.phrase(lead + 1, last)):
        return len(clause.words)  # Each member has a state of its own.
    for i in range(last + 2, len(clause.words)):
        word, following = clause.word(i), clause.word(i + 1)
        closes = not following or following in vocab.PREPOSITIONS | vocab.ADVERBS
        is_last = closes and word in vocab.OBSERVATION_WORDS | vocab.NORMAL_STATES
        if is_last or i in clause.verbs or clause.phrase(i, i + 2) == ["within", "normal"]:
            return i
    return len(clause.words)


@dataclass(slots=True)
class FindingList:
    """A list of findings in a clause."""

    clause: Clause
    lead: int  # first word of the first member; the words before it are shared
    tail: int  # word after the last member; the words from it on are shared
    negative: bool  # whether the members are absent
    # Whether the sentence has no verb, so that only known findings distinguish a list from other remarks.
    fragment: bool = False

    def divisions(self) -> Iterator[list[str]]:
        """Yield the members as sentences, splits with the same facts as the whole first."""
        members = self._members()
        phrases = self._member_phrases(members) if len(members) > 1 else None
        if phrases is None:
            return
        ways = [phrases]
        if place := self._trailing_place(members):
            shared = [*(f"{phrase} {place}" for phrase in phrases[:-1]), phrases[-1]]
            ways.insert(0 if self.negative else 1, shared)
        facts_in = self.clause.reader.facts_in
        divided = [[self._member_sentence(i, phrase) for i, phrase in enumerate(way)] for way in ways]
        if len(divided) > 1:
            divided.sort(key=lambda parts: frozenset().union(*map(facts_in, parts)) != facts_in(self.clause.text))
        yield from divided

    def _members(self) -> list[tuple[int, int]]:
        clause = self.clause
        cuts = [s for s in clause.separators if self.lead <= s < self.tail]
        joins = {clause.word(s) for s in cuts} - {","}
        if joins & vocab.CLAUSE_CONJUNCTIONS or any(self.lead < v < self.tail for v in clause.verbs):
            return []
        if not self.negative and joins & {"or", "and/or", "nor"}:
            return []  # "Scarring or atelectasis": one finding of unknown nature.
        members = self._join_without_noun(self._member_ranges(cuts))
        return members if all(self._is_independent(i, members) for i in range(len(members))) else []

    def _member_ranges(self, cuts: Sequence[int]) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        first = self.lead
        for cut in [*cuts, self.tail]:
            if cut > first and ranges and self._continues_previous(ranges[-1], first, cut):
                ranges[-1] = (ranges[-1][0], cut)
            elif cut > first:
                ranges.append((first, cut))
            first = cut + 1
        return ranges

    def _is_independent(self, index: int, members: Sequence[tuple[int, int]]) -> bool:
        clause = self.clause
        first, last = members[index]
        before, after = clause.span(clause.start, self.lead), clause.span(self.tail, len(clause.words))
        statement = f"{before} {clause.span(first, last)} {after}"
        if self._names_finding(first, last) or (not self.negative and clause.reader.named_findings(statement)):
            return True
        if self.fragment:
            closing = first == members[-1][0] and clause.word(first - 1) in vocab.CONJUNCTIONS
            return closing and last - first > 1 and not clause.reader.is_modifier(clause.word(last - 1))
        if not any(self._names_finding(*later) for later in members[index + 1 :]):
            return True
        if self.negative:
            noun = clause.word(self._place_start(first, last) - 1)
            return self._names_by_adjective(first, last) or "structure" not in clause.reader.kinds(noun)
        return clause.word(first) in vocab.DETERMINERS or vocab.is_plural(clause.phrase(first, last)) is not False

    def _names_finding(self, first: int, last: int) -> bool:
        return bool(self.clause.reader.named_findings(self.clause.span(first, last)))

    def _continues_previous(self, previous: tuple[int, int], first: int, last: int) -> bool:
        """Return whether the words continue the previous member: a place, a property, a remark."""
        clause = self.clause
        phrase = clause.phrase(first, last)
        start = phrase[0]
        if start in vocab.CONTINUATION_WORDS or phrase[1:2] == ["for"] or phrase[-1] in vocab.DEVICE_PARTS:
            return True
        if not vocab.REMARK_WORDS.isdisjoint(phrase[1:2]):
            return True
        if start in vocab.DETERMINERS | {"distal", "proximal"} and not vocab.DEVICE_PARTS.isdisjoint(phrase[1:3]):
            return True
        qualifying = vocab.PREPOSITIONS | vocab.PROPERTY_NOUNS | vocab.DETERMINERS
        is_qualifying = all(word in qualifying or clause.reader.is_modifier(word) for word in phrase)
        if is_qualifying and clause.word(first - 1) == ",":
            return self._names_finding(*previous)
        if all(word in vocab.PROPERTY_NOUNS | vocab.DETERMINERS or not word[0].isalpha() for word in phrase):
            return True
        if start[0].isdigit() and not {"mm", "cm"}.isdisjoint(phrase):
            return True
        if clause.reader.named_findings(clause.span(first, last)):
            return False
        if start.endswith(("ly", "ing")):
            return True
        return self._place_start(*previous) < previous[1] and not (self.negative and start in vocab.NEGATIONS)

    def _place_start(self, first: int, last: int) -> int:
        return next((i for i in range(first + 1, last) if self.clause.word(i) in vocab.PREPOSITIONS), last)

    def _join_without_noun(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Join members without a noun to the one that has it: "patchy and linear opacities"."""
        joined: list[tuple[int, int]] = []
        begin: int | None = None
        for first, last in ranges:
            begin = first if begin is None else begin
            if not self._lacks_noun(first, last) or self._names_by_adjective(first, last):
                joined.append((begin, last))
                begin = None
        if begin is not None:
            joined.append((begin, ranges[-1][1]))
        return joined

    def _lacks_noun(self, first: int, last: int) -> bool:
        """Return whether the words only qualify a later noun: "hilar", "right", "upper lobe"."""
        clause = self.clause
        last = self._place_start(first, last)
        phrase = clause.phrase(first, last)
        if clause.reader.named_findings(clause.span(first, last)):
            return False
        if phrase[-1] == "heart" and not self.negative:
            return False
        if self.negative and self.tail > last:
            kinds = [clause.reader.kinds(word) for word in clause.span(first, last).split()]
            is_zone = any(kind & {"zone", "place"} for kind in kinds)
            if is_zone and all(kind & (MODIFIERS | {"filler"}) for kind in kinds):
                return True
        only_qualifies = all(word in vocab.DETERMINERS or clause.reader.is_qualifier(word) for word in phrase)
        return only_qualifies or phrase[-2:] == ["soft", "tissue"]

    def _names_by_adjective(self, first: int, last: int) -> bool:
        phrase = self.clause.phrase(first, last)
        return phrase[-1] in vocab.ANATOMICAL_ADJECTIVES or phrase[-2:] == ["soft", "tissue"]

    def _member_phrases(self, members: Sequence[tuple[int, int]]) -> list[str] | None:
        clause = self.clause
        article = "" if self.negative or clause.word(self.lead) != "the" else "the "
        phrases: list[str] = []
        waiting: list[str] = []
        shared = ""
        for first, last in members:
            text = clause.span(first, last)
            if self._lacks_noun(first, last):
                shared = shared if waiting else self._shared_modifiers(first, last)
                waiting.append(text)
                continue
            if waiting:
                noun = self._shared_noun(first, last)
                if noun is None:
                    return None
                text = shared + text[: len(text) - len(noun)] + vocab.singular_noun(noun)
                phrases += [
                    f"{adjective if i == 0 else shared + adjective} {vocab.singular_noun(noun)}"
                    for i, adjective in enumerate(waiting)
                ]
                waiting = []
            phrases.append(text)
        if waiting:
            return None
        return [
            phrase if phrase.split()[0].lower() in vocab.DETERMINERS | vocab.NEGATIONS else article + phrase
            for phrase in phrases
        ]

    def _shared_modifiers(self, first: int, last: int) -> str:
        """Return the modifiers of all adjectives of a list: "no ACUTE bony or soft tissue abnormality"."""
        clause = self.clause
        end = last - 2 if clause.phrase(first, last)[-2:] == ["soft", "tissue"] else last
        while end > first and clause.word(end - 1) in vocab.ANATOMICAL_ADJECTIVES:
            end -= 1
        return "".join(
            f"{clause.span(i, i + 1)} " for i in range(first, end) if clause.word(i) not in vocab.DETERMINERS
        )

    def _shared_noun(self, first: int, last: int) -> str | None:
        """Return the noun after the adjective of the last member: "mediastinal SILHOUETTES"."""
        clause = self.clause
        while first < last and ((word := clause.word(first)) in vocab.DETERMINERS or clause.reader.is_modifier(word)):
            first += 1
        adjective = clause.word(first)
        if clause.phrase(first, first + 2) == ["soft", "tissue"]:
            return clause.span(first + 2, last) or None
        if adjective in vocab.ANATOMICAL_ADJECTIVES or "structure" in clause.reader.kinds(adjective):
            return clause.span(first + 1, last) or None
        return None

    def _trailing_place(self, members: Sequence[tuple[int, int]]) -> str:
        """Return the place after the last member if no other member has a place of its own."""
        clause = self.clause
        begin, end = self._place_start(*members[-1]), members[-1][1]
        others_have_one = any(self._place_start(*member) < member[1] for member in members[:-1])
        return "" if clause.word(begin) == "of" or others_have_one else clause.span(begin, end)

    def _member_sentence(self, index: int, phrase: str) -> str:
        clause = self.clause
        first, _, rest = phrase.partition(" ")
        own = first.lower() if index and rest else ""
        if own == "no" and not self.negative:
            return phrase  # "There is a nodule, no mass": a statement of its own.
        if self.negative and own in ("no", "a", "an", "any"):
            phrase = rest
        if self.negative and index and any(not fact.present for fact in clause.reader.facts_in(phrase)):
            return phrase  # "No effusion, heart normal" likewise.
        is_normal_lead = self.fragment and clause.word(clause.start) in vocab.NORMAL_STATES
        if index and is_normal_lead and any(fact.present for fact in clause.reader.facts_in(phrase)):
            return phrase  # "Normal heart size, tortuous aorta" likewise.
        number = vocab.is_plural([word.lower for word in vocab.split_words(phrase)])
        before, after = clause.span(0, self.lead), clause.span(self.tail, len(clause.words))
        if clause.word(clause.start) != "there":
            after = clause.inflect_verb(self.tail, len(clause.words), number)
        elif vocab.EVIDENCE_NOUNS.isdisjoint(clause.phrase(0, self.lead)):  # not "There is no evidence of effusions."
            before = clause.inflect_verb(0, self.lead, number)
        return " ".join(filter(None, (before, phrase, after)))
