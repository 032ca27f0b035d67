"""Words, verbs and separators of a sentence to split, and its facts."""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import cached_property

from radfact.reader import vocabulary as vocab
from radfact.reader.facts import Fact, parse_sentence
from radfact.reader.ontology import Ontology, lemma
from radfact.reader.scope import read_scope
from radfact.reader.tokens import CERTAIN, CONCLUDED, tokenize

MODIFIERS = frozenset({"side", "zone", "place", "severity", "change", "detail"})


class FactReader:
    """Reads the facts of texts: it guides the grammar, and checks that a split loses nothing."""

    def __init__(self, ontology: Ontology) -> None:
        self.ontology = ontology

    def facts_in(self, text: str) -> frozenset[Fact]:
        """Return the facts about findings."""
        return parse_sentence(text, self.ontology).findings

    def named_findings(self, text: str) -> frozenset[str]:
        """Return all findings, whatever their certainty and presence."""
        return parse_sentence(text, self.ontology).named

    def stated_findings(self, text: str) -> frozenset[tuple[str, bool]]:
        """Return the certain findings, each with whether it is present."""
        return frozenset((fact.concept, fact.present) for fact in self.facts_in(text) if fact.doubt == CERTAIN)

    def are_kept_by(self, parts: Sequence[str], whole: str) -> bool:
        """Return whether the parts have all findings of the whole, with the same presence and certainty."""
        stated = frozenset().union(*map(self.stated_findings, parts))
        named = frozenset().union(*map(self.named_findings, parts))
        missing = {concept for concept, _ in self.stated_findings(whole) - stated}
        missing |= self.named_findings(whole) - named
        exhaustive = self.ontology.exhaustive
        is_implied = all(
            concept in exhaustive and stated.issuperset((part, False) for part in exhaustive[concept])
            for concept in missing
        )
        certain = {fact.concept for fact in self.facts_in(whole) if fact.doubt <= CONCLUDED}
        uncertain = self.named_findings(whole) - certain
        return is_implied and uncertain.isdisjoint(concept for concept, _ in stated)

    def names_only_unasserted(self, text: str) -> bool:
        """Return whether all findings that a text names are only looked for, or part of the history."""
        tokens = tokenize(text, self.ontology)
        named = {i for i, token in enumerate(tokens) if "finding" in token.meanings}
        if not named or self.facts_in(text):
            return False
        scope = read_scope(tokens)
        return named <= scope.unasserted | scope.historical

    def kinds(self, word: str) -> Set[str]:
        """Return the kinds of meaning that a word has by itself: structure, side, change, ..."""
        return self.ontology.phrases.get((lemma(word.lower()),), {}).keys()

    def is_modifier(self, word: str) -> bool:
        """Return whether a word is a side, zone, degree, change or character."""
        return not MODIFIERS.isdisjoint(self.kinds(word))

    def is_qualifier(self, word: str) -> bool:
        """Return whether a word is a modifier, or looks like an adjective or adverb."""
        return vocab.is_adjective(word) or word.endswith("ly") or self.is_modifier(word)


class Clause:
    """A sentence to split: its words, verbs and separators."""

    def __init__(self, sentence: str, reader: FactReader) -> None:
        self.text = sentence
        self.reader = reader
        self.words: list[vocab.Word] = vocab.split_words(sentence)
        self.start = self._find_start()
        places = range(max(self.start, 1), len(self.words))
        self.separators = [i for i in places if self.words[i].lower in vocab.SEPARATORS]

    @cached_property
    def verbs(self) -> list[int]:
        """Indices of the finite verbs outside relative clauses."""
        verbs: list[int] = []
        is_relative = False
        for i in range(self.start, len(self.words)):
            word, following = self.word(i), self.word(i + 1)
            if word in vocab.RELATIVES and i > self.start:
                is_relative = True
            elif word == "," or (word in vocab.SEPARATORS and following in vocab.DETERMINERS | {"there", "no"}):
                is_relative = False
            elif word in vocab.FINITE_VERBS and not is_relative and self.word(i - 1) not in vocab.DETERMINERS:
                verbs.append(i)
        return verbs

    def word(self, i: int) -> str:
        """Return word `i` in lower case, or an empty text beyond the end."""
        return self.words[i].lower if 0 <= i < len(self.words) else ""

    def span(self, first: int, last: int) -> str:
        """Return the text of a range of words."""
        return self.text[self.words[first].begin : self.words[last - 1].end] if first < last else ""

    def phrase(self, first: int, last: int) -> list[str]:
        """Return a range of words in lower case."""
        return [word.lower for word in self.words[first:last]]

    def is_transitive(self, verb: int) -> bool:
        """Return whether findings can follow the verb as its objects: "shows", or "has" where no participle follows."""
        if self.word(verb) not in ("has", "have", "had"):
            return self.word(verb) in vocab.TRANSITIVE_VERBS
        following = self.word(verb + 1)
        return not (following in vocab.ADVERBS | vocab.FINITE_VERBS or following.endswith(("ed", "wn", "ly")))

    def inflect_verb(self, first: int, last: int, plural: bool | None) -> str:
        """Return the text of a range of words with its first verb in the given number."""
        text = self.span(first, last)
        verb = next((i for i in range(first, last) if self.word(i) in vocab.FINITE_VERBS), None)
        if verb is None:
            return text
        begin = self.words[verb].begin - self.words[first].begin
        end = self.words[verb].end - self.words[first].begin
        return text[:begin] + vocab.inflect_verb(text[begin:end], plural) + text[end:]

    def _find_start(self) -> int:
        """Return where the clause begins after "Lungs: ..." or "Compared to the previous radiograph, ..."."""
        colon = next((i for i, word in enumerate(self.words) if word.lower == ":"), None)
        if colon is not None and colon + 1 < len(self.words):
            return colon + 1
        first = self.word(0)
        if self.word(1) == "," and (first in vocab.ADVERBS or first.endswith("ly")):
            return 2
        if first not in vocab.PREPOSITIONS | {"when", "as", "given", "allowing", "again"} or first in vocab.NEGATIONS:
            return 0
        for i, word in enumerate(self.words):
            if word.lower == "," and i + 1 < len(self.words):
                return i + 1
            if word.lower in vocab.FINITE_VERBS:
                return 0
        return 0
