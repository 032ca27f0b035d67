"""Lists of findings: where a clause holds one, its members, and what all of them share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from radfact.judges.offline import vocabulary as w
from radfact.judges.offline.clause import Clause

_ABSENT_STATES = frozenset({"without", "free", "clear", "negative", "devoid"})


def lists(c: Clause) -> Iterator[list[str]]:
    """The ways to divide a clause along its list of findings, the most likely first."""
    if (joined := _joined_afterwards(c)) is not None:
        yield joined
    listed = _find(c)
    if listed is not None:
        yield from listed.divisions()


def _joined_afterwards(c: Clause) -> list[str] | None:
    """B takes the predicate of A in "A has increased, along with B"."""
    verb = c.verbs[0] if c.verbs else None
    if verb is None or verb == c.start or c.lower(verb - 1) in w.OBSERVED | {"there"} or c.is_transitive(verb):
        return None
    for i in c.separators:
        if i > verb + 1 and c.lower(i) in w.TOGETHER and i + 1 < len(c.words):
            end = i - 1 if c.lower(i - 1) == "," else i
            rest = c.span(i + 1, len(c.words))
            predicate = c.agreeing(verb, end, plural=w.is_plural(c.phrase(i + 1, len(c.words))) or " and " in rest)
            return [c.span(0, end), f"{rest} {predicate}"]
    return None


def _find(c: Clause) -> _List | None:
    """The list of a clause: what is absent, what there is or is shown, or the subjects of its verb."""
    verb = c.verbs[0] if c.verbs else None
    first = c.lower(c.start)
    end = len(c.words)
    if first in ("no", "without"):
        lead = _after_negation(c, c.start + 1)
        return _List(c, lead, _tail(c, lead), negative=True)
    if first == "negative" and c.lower(c.start + 1) == "for":
        return _List(c, c.start + 2, _tail(c, c.start + 2), negative=True)
    if verb is None:
        after = 1 if first in w.STATES else 2 if c.phrase(c.start, c.start + 2) == ["status", "post"] else 0
        lead = c.start + after
        return _List(c, lead, _tail(c, lead), negative=False, fragment=True)
    if any(c.start < s < verb for s in c.separators):
        return _List(c, c.start, verb, negative=False)
    lead = verb + 1
    while c.lower(lead) in w.ADVERBS:
        lead += 1
    if c.lower(lead) in _ABSENT_STATES and (c.lower(lead) == "without" or c.lower(lead + 1) in ("of", "for", "from")):
        lead = _after_negation(c, lead + (1 if c.lower(lead) == "without" else 2))
        return _List(c, lead, end, negative=True)
    if c.phrase(lead, lead + 2) == ["status", "post"]:
        return _List(c, lead + 2, end, negative=False)
    if first == "there" or c.is_transitive(verb):
        if c.lower(lead) in ("no", "not"):
            lead = _after_negation(c, lead + 1)
            return _List(c, lead, _tail(c, lead), negative=True)
        return _List(c, lead, _tail(c, lead), negative=False)
    return None


def _after_negation(c: Clause, i: int) -> int:
    """Where the list begins after "no", "no evidence of", "no large"."""

    def degrees(i: int) -> int:
        j = i
        while c.lower(j) in w.DEGREES_OF_ABSENCE:
            j += 1
        return i if c.lower(j) in w.SEPARATORS else j

    i = degrees(i + 1 if c.lower(i) in ("any", "a", "an") else i)
    if c.lower(i) in w.EVIDENCE and c.lower(i + 1) in ("of", "for", "to"):
        i += 3 if c.lower(i + 2) == "suggest" else 2
        i = degrees(i + 1 if c.lower(i) in ("any", "a", "an") else i)
    return i


def _tail(c: Clause, lead: int) -> int:
    """Where the members end: at the verb, "seen" or "normal" after the last of them."""
    last = max((s for s in c.separators if s >= lead), default=lead)
    if not w.STATES.isdisjoint(c.phrase(lead + 1, last)):
        return len(c.words)  # Each member has a state of its own.
    for i in range(last + 2, len(c.words)):
        word, following = c.lower(i), c.lower(i + 1)
        closes = not following or following in w.PREPOSITIONS | w.ADVERBS
        if i in c.verbs or (word in w.OBSERVED | w.STATES and closes) or c.phrase(i, i + 2) == ["within", "normal"]:
            return i
    return len(c.words)


@dataclass(slots=True)
class _List:
    """Words `lead` to `tail` of a clause hold the members; what stands outside is shared."""

    clause: Clause
    lead: int
    tail: int
    negative: bool
    fragment: bool = False
    """A sentence without a verb, where only known findings tell a list from other remarks."""

    def divisions(self) -> Iterator[list[str]]:
        """Ways to write each member as a sentence: those that say the same as the whole come first."""
        members = self._members()
        phrases = self._phrases(members) if len(members) > 1 else None
        if phrases is None:
            return
        ways = [phrases]
        if place := self._trailing_place(members):
            shared = [*(f"{phrase} {place}" for phrase in phrases[:-1]), phrases[-1]]
            ways.insert(0 if self.negative else 1, shared)
        c = self.clause
        divided = [[self._sentence(i, phrase) for i, phrase in enumerate(way)] for way in ways]
        yield from sorted(divided, key=lambda parts: len(divided) > 1 and not c.facts.same(parts, c.text))

    def _members(self) -> list[tuple[int, int]]:
        """The members as ranges of words; what belongs to its neighbour stays with it. Fewer than two: no list."""
        c = self.clause
        cuts = [s for s in c.separators if self.lead <= s < self.tail]
        joins = {c.lower(s) for s in cuts} - {","}
        if joins & w.TURNS or any(self.lead < v < self.tail for v in c.verbs):
            return []
        if not self.negative and joins & {"or", "and/or", "nor"}:
            return []  # "Scarring or atelectasis": one finding of unknown nature.
        members = self._with_nouns(self._ranges())
        return members if all(self._stands_alone(i, members) for i in range(len(members))) else []

    def _ranges(self) -> list[tuple[int, int]]:
        """The words between separators, what continues the member before it with that member."""
        c = self.clause
        cuts = [s for s in c.separators if self.lead <= s < self.tail]
        ranges: list[tuple[int, int]] = []
        first = self.lead
        for cut in [*cuts, self.tail]:
            if cut > first and ranges and self._continues(ranges[-1], first, cut):
                ranges[-1] = (ranges[-1][0], cut)
            elif cut > first:
                ranges.append((first, cut))
            first = cut + 1
        return ranges

    def _stands_alone(self, index: int, members: Sequence[tuple[int, int]]) -> bool:
        """Whether a member is a thing of its own, and not half of a compound: "5th and 6th rib fractures"."""
        c = self.clause
        first, last = members[index]
        stated = f"{c.span(c.start, self.lead)} {c.span(first, last)} {c.span(self.tail, len(c.words))}"
        if self._names_finding(first, last) or (not self.negative and c.facts.named(stated)):
            return True
        if self.fragment:
            closing = first == members[-1][0] and c.lower(first - 1) in w.CONJUNCTIONS
            return closing and last - first > 1 and not c.facts.is_modifier(c.lower(last - 1))
        if not any(self._names_finding(*later) for later in members[index + 1 :]):
            return True
        if self.negative:
            noun = c.lower(self._place(first, last) - 1)
            return self._names_by_adjective(first, last) or not c.facts.is_structure(noun)
        return c.lower(first) in w.DETERMINERS or w.is_plural(c.phrase(first, last)) is not False

    def _names_finding(self, first: int, last: int) -> bool:
        return bool(self.clause.facts.named(self.clause.span(first, last)))

    def _continues(self, previous: tuple[int, int], first: int, last: int) -> bool:
        """Whether the words go on with the member before them: a place, a property, a remark."""
        c = self.clause
        phrase = c.phrase(first, last)
        start = phrase[0]
        if start in w.CONTINUATIONS or phrase[1:2] == ["for"] or phrase[-1] in w.PARTS_OF_DEVICES:
            return True
        if phrase[1:2] and phrase[1] in w.GOING_ON | w.INTERPRETING:
            return True
        if start in w.DETERMINERS | {"distal", "proximal"} and not w.PARTS_OF_DEVICES.isdisjoint(phrase[1:3]):
            return True
        qualifying = w.PREPOSITIONS | w.PROPERTIES | w.DETERMINERS
        if c.lower(first - 1) == "," and all(word in qualifying or c.facts.is_modifier(word) for word in phrase):
            return self._names_finding(*previous)
        if all(word in w.PROPERTIES | w.DETERMINERS or not word[0].isalpha() for word in phrase):
            return True
        if start[0].isdigit() and not {"mm", "cm"}.isdisjoint(phrase):
            return True
        if c.facts.named(c.span(first, last)):
            return False
        if start.endswith(("ly", "ing")):
            return True
        return self._place(*previous) < previous[1] and not (self.negative and start in w.NEGATIONS)

    def _place(self, first: int, last: int) -> int:
        """Where the prepositional phrase of a member begins; `last` where it has none."""
        return next((i for i in range(first + 1, last) if self.clause.lower(i) in w.PREPOSITIONS), last)

    def _with_nouns(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
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
        """Whether the words only qualify a noun that follows later: "hilar", "right", "upper lobe"."""
        c = self.clause
        last = self._place(first, last)
        phrase = c.phrase(first, last)
        if c.facts.named(c.span(first, last)):
            return False
        if phrase[-1] == "heart" and not self.negative:
            return False
        if self.negative and self.tail > last and c.facts.is_place(c.span(first, last)):
            return True
        return all(
            w.is_adjective(word) or word.endswith("ly") or word in w.DETERMINERS or c.facts.is_modifier(word)
            for word in phrase
        ) or phrase[-2:] == ["soft", "tissue"]

    def _names_by_adjective(self, first: int, last: int) -> bool:
        return self.clause.lower(last - 1) in w.ANATOMICAL or self.clause.phrase(first, last)[-2:] == ["soft", "tissue"]

    def _phrases(self, members: Sequence[tuple[int, int]]) -> list[str] | None:
        """Each member as a noun phrase of its own; none where the noun that adjectives share cannot be told."""
        c = self.clause
        article = "" if self.negative or c.lower(self.lead) != "the" else "the "
        phrases: list[str] = []
        waiting: list[str] = []
        shared = ""
        for first, last in members:
            text = c.span(first, last)
            if self._lacks_noun(first, last):
                shared = shared if waiting else self._shared_modifiers(first, last)
                waiting.append(text)
                continue
            if waiting:
                noun = self._shared_noun(first, last)
                if noun is None:
                    return None
                text = shared + text[: len(text) - len(noun)] + w.of_one(noun)
                phrases += [
                    f"{adjective if i == 0 else shared + adjective} {w.of_one(noun)}"
                    for i, adjective in enumerate(waiting)
                ]
                waiting = []
            phrases.append(text)
        if waiting:
            return None
        return [
            phrase if phrase.split()[0].lower() in w.DETERMINERS | w.NEGATIONS else article + phrase
            for phrase in phrases
        ]

    def _shared_modifiers(self, first: int, last: int) -> str:
        """What holds for all adjectives of a list: "no ACUTE bony or soft tissue abnormality"."""
        c = self.clause
        end = last - 2 if c.phrase(first, last)[-2:] == ["soft", "tissue"] else last
        while end > first and c.lower(end - 1) in w.ANATOMICAL:
            end -= 1
        return "".join(f"{c.span(i, i + 1)} " for i in range(first, end) if c.lower(i) not in w.DETERMINERS)

    def _shared_noun(self, first: int, last: int) -> str | None:
        """What follows the adjective of the last member: "mediastinal SILHOUETTES"."""
        c = self.clause
        while first < last and (c.lower(first) in w.DETERMINERS or c.facts.is_modifier(c.lower(first))):
            first += 1
        if c.phrase(first, first + 2) == ["soft", "tissue"]:
            first += 2
        elif c.lower(first) in w.ANATOMICAL or c.facts.is_structure(c.lower(first)):
            first += 1
        else:
            return None
        return c.span(first, last) or None

    def _trailing_place(self, members: Sequence[tuple[int, int]]) -> str:
        """The place after the last member, where no member before it has one of its own."""
        c = self.clause
        begin = self._place(*members[-1])
        if begin == members[-1][1] or c.lower(begin) == "of":
            return ""
        return "" if any(self._place(*member) < member[1] for member in members[:-1]) else c.span(begin, members[-1][1])

    def _sentence(self, index: int, phrase: str) -> str:
        """The member with what the list shares, the verbs in its number."""
        c = self.clause
        first, _, rest = phrase.partition(" ")
        own = first.lower() if index and rest else ""
        if own == "no" and not self.negative:
            return phrase  # "There is a nodule, no mass": a statement of its own.
        if self.negative and own in ("no", "a", "an", "any"):
            phrase = rest
        if self.negative and index and any(not fact.present for fact in c.facts.of(phrase)):
            return phrase  # "No effusion, heart normal" likewise.
        number = w.is_plural([word.lower for word in w.words_of(phrase)])
        if c.lower(c.start) != "there":
            return self._joined(c.span(0, self.lead), phrase, c.agreeing(self.tail, len(c.words), number))
        counted = w.EVIDENCE.isdisjoint(c.phrase(0, self.lead))  # "There is no evidence of effusions."
        before = c.agreeing(0, self.lead, number) if counted else c.span(0, self.lead)
        return self._joined(before, phrase, c.span(self.tail, len(c.words)))

    @staticmethod
    def _joined(*parts: str) -> str:
        return " ".join(part for part in parts if part)
