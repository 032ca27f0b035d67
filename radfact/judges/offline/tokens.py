"""The words of a sentence as phrases of the ontology: the longest that fits, each with everything that it can mean."""

from __future__ import annotations

import re
from dataclasses import dataclass

from radfact.judges.offline.ontology import Ontology, lemmas

_MEASURE = re.compile(r"(\d+(?:\.\d+)?)(?:\s*(?:x|by|×|-|to)\s*(\d+(?:\.\d+)?))*[\s-]*(mm|cm)\b", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_STOPS = frozenset({";", ".", "(", ")", "?"})


@dataclass(slots=True)
class Item:
    """A phrase of the lexicon in a sentence (or one unknown word): `begin` and `end` are characters of the text."""

    words: tuple[str, ...]
    kinds: dict[str, str]
    begin: int
    end: int
    plural: bool = False
    measure: float | None = None

    def has(self, *kinds: str) -> bool:
        """Whether the phrase can mean one of `kinds`."""
        return not self.kinds.keys().isdisjoint(kinds)

    @property
    def known(self) -> bool:
        """Whether the ontology has the phrase, or it is punctuation or a number."""
        return bool(self.kinds) or not self.words[0].isalpha()

    @property
    def ends_clause(self) -> bool:
        """Whether nothing said before it reaches past it: punctuation and words such as "but"."""
        return self.words[0] in _STOPS or ("boundary" in self.kinds and "filler" not in self.kinds)

    @property
    def joins(self) -> bool:
        """Whether it stands between the members of a list."""
        return self.words[0] == "," or "joining" in self.kinds


def read_items(text: str, ontology: Ontology) -> list[Item]:
    """Cut `text` into the longest phrases of the lexicon, measures, punctuation and unknown words."""
    tokens = lemmas(text)
    words = [word for word, _, _ in tokens]
    measures = {m.start(): m for m in _MEASURE.finditer(text)} if _NUMBER.search(text) else {}
    items: list[Item] = []
    i = 0
    while i < len(tokens):
        begin = tokens[i][1]
        if begin in measures:
            match = measures[begin]
            numbers = [float(n) for n in _NUMBER.findall(match[0])]
            measure = max(numbers) * (10.0 if match[3].lower() == "cm" else 1.0)
            items.append(Item(("measure",), {"measure": "measure"}, begin, match.end(), measure=measure))
            while i < len(tokens) and tokens[i][1] < match.end():
                i += 1
            continue
        length, meanings = 1, {}
        for size in ontology.lengths.get(words[i], ()):
            phrase = tuple(words[i : i + size])
            if phrase in ontology.phrases:
                length, meanings = len(phrase), ontology.phrases[phrase]
                break
        last, end = tokens[i + length - 1][1:]
        plural = end - last != len(words[i + length - 1]) and text[end - 1] in "saeSAE"
        items.append(Item(tuple(words[i : i + length]), meanings, begin, end, plural))
        i += length
    return items
