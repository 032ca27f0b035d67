"""A sentence under division, and what the ontology reads in it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from radfact.judges.offline import vocabulary as w
from radfact.judges.offline.facts import Fact, parse
from radfact.judges.offline.ontology import Ontology, lemma
from radfact.judges.offline.vocabulary import Word

_MODIFIERS = frozenset({"side", "zone", "place", "severity", "change", "detail"})


class Facts:
    """What the ontology reads in a text: a guide for grammar, and the proof that a division lost nothing."""

    def __init__(self, ontology: Ontology) -> None:
        self.ontology = ontology

    def of(self, text: str) -> frozenset[Fact]:
        """Facts about findings; a structure merely named states nothing."""
        known = self.ontology.findings
        return frozenset(fact for fact in parse(text, self.ontology).facts if fact.concept in known)

    def stated(self, text: str) -> frozenset[tuple[str, bool]]:
        """Findings stated for certain, each with whether it is present."""
        return frozenset((fact.concept, fact.present) for fact in self.of(text) if not fact.possible)

    def named(self, text: str) -> frozenset[str]:
        """Findings named, however sure and whether present or not."""
        return frozenset(fact.concept for fact in self.of(text))

    def kept_by(self, parts: Sequence[str], whole: str) -> bool:
        """Whether `parts` state and name whatever `whole` does."""
        stated = frozenset().union(*map(self.stated, parts))
        named = frozenset().union(*map(self.named, parts))
        implied = {
            concept
            for concept, node in self.ontology.findings.items()
            if node.exhaustive and stated.issuperset((part, False) for part in node.exhaustive)
        }
        missing = {concept for concept, _ in self.stated(whole) - stated} | (self.named(whole) - named)
        return missing <= implied

    def same(self, parts: Sequence[str], whole: str) -> bool:
        """Whether `parts` say exactly the facts of `whole`, places and degrees included."""
        return frozenset().union(*map(self.of, parts)) == self.of(whole)

    def is_modifier(self, word: str) -> bool:
        """Whether the ontology knows `word` as a side, a zone, a degree, a change or a character."""
        return bool(self._kinds(word) & _MODIFIERS)

    def is_change(self, word: str) -> bool:
        """Whether the ontology knows `word` as a change over time."""
        return "change" in self._kinds(word)

    def is_structure(self, word: str) -> bool:
        """Whether the ontology knows `word` as a part of the anatomy."""
        return "structure" in self._kinds(word)

    def is_place(self, phrase: str) -> bool:
        """Whether `phrase` names a zone, and nothing in it."""
        kinds = [self._kinds(word) for word in phrase.lower().split()]
        return any(found & {"zone", "place"} for found in kinds) and all(
            found & (_MODIFIERS | {"filler"}) for found in kinds
        )

    def _kinds(self, word: str) -> frozenset[str]:
        return frozenset(self.ontology.phrases.get((lemma(word.lower()),), {}))


class Clause:
    """A sentence under division: its words, its verbs and where it may be cut."""

    def __init__(self, sentence: str, facts: Facts) -> None:
        self.text = sentence
        self.facts = facts
        self.words: list[Word] = w.words_of(sentence)
        self.start = self._after_introduction()
        self.separators = [
            i for i, word in enumerate(self.words) if word.lower in w.SEPARATORS and self.start <= i and i > 0
        ]

    @cached_property
    def lowers(self) -> frozenset[str]:
        """The words of the sentence in lower case."""
        return frozenset(word.lower for word in self.words)

    @cached_property
    def verbs(self) -> list[int]:
        """Finite verbs outside relative clauses."""
        found: list[int] = []
        relative = False
        for i in range(self.start, len(self.words)):
            word, following = self.lower(i), self.lower(i + 1)
            if word in w.RELATIVES and i > self.start:
                relative = True
            elif word == "," or (word in w.SEPARATORS and following in w.DETERMINERS | {"there", "no"}):
                relative = False
            elif word in w.FINITE and not relative and self.lower(i - 1) not in w.DETERMINERS:
                found.append(i)
        return found

    def lower(self, i: int) -> str:
        """Word `i` in lower case, or nothing beyond the end."""
        return self.words[i].lower if 0 <= i < len(self.words) else ""

    def span(self, first: int, last: int) -> str:
        """The text from word `first` up to word `last`, which is left out."""
        return self.text[self.words[first].begin : self.words[last - 1].end] if first < last else ""

    def phrase(self, first: int, last: int) -> list[str]:
        """The words from `first` up to `last` in lower case."""
        return [word.lower for word in self.words[first:last]]

    def is_transitive(self, verb: int) -> bool:
        """Whether findings can follow the verb as its objects: "shows", or "has" where no participle follows."""
        if self.lower(verb) not in ("has", "have", "had"):
            return self.lower(verb) in w.TRANSITIVE
        following = self.lower(verb + 1)
        return not (following in w.ADVERBS | w.FINITE or following.endswith(("ed", "wn", "ly")))

    def agreeing(self, first: int, last: int, plural: bool | None) -> str:
        """The text of a range of words, its first verb in the number asked for."""
        text = self.span(first, last)
        verb = next((i for i in range(first, last) if self.lower(i) in w.FINITE), None)
        if verb is None:
            return text
        begin = self.words[verb].begin - self.words[first].begin
        end = self.words[verb].end - self.words[first].begin
        return text[:begin] + w.agreeing(text[begin:end], plural) + text[end:]

    def _after_introduction(self) -> int:
        """Where the clause begins after "Lungs: ..." or "Compared to the previous film, ..."."""
        colon = next((i for i, word in enumerate(self.words) if word.lower == ":"), None)
        if colon is not None and colon + 1 < len(self.words):
            return colon + 1
        first = self.lower(0)
        if self.lower(1) == "," and (first in w.ADVERBS or first.endswith("ly")):
            return 2
        if first not in w.PREPOSITIONS | {"when", "as", "given", "allowing", "again"} or first in w.NEGATIONS:
            return 0
        for i, word in enumerate(self.words):
            if word.lower == "," and i + 1 < len(self.words):
                return i + 1
            if word.lower in w.FINITE:
                return 0
        return 0
