"""Tokenize a sentence into the longest phrases of the ontology, each with all of its meanings."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from radfact.reader.ontology import Ontology, lemmatize

_MEASURE = re.compile(r"(\d+(?:\.\d+)?)(?:\s*(?:x|by|×|-|to)\s*(\d+(?:\.\d+)?))*[\s-]*(mm|cm)\b", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SIDE_LETTER = re.compile(
    # "L effusion", "R-sided", "R 5th rib": not "2 L of oxygen", "L spine", "r/o", "Dr. L Smith"
    r"(?<!\d )(?<![Tt]wo )(?<![Tt]hree )(?<![Ss]everal )(?<![\w./])[LR](?=[ -]"
    r"(?!spine|vertebra|(?:of|per|is|was|are|and|or|with|via|marker|fluid|removed|drained)\b)"
    r"(?:[a-z]{2}|[A-Z]{2}|\d+(?:st|nd|rd|th)\b|\d+(?:-\d+)? rib))"
    r"|(?<=\b[Tt]he )[LR]\b(?!-)|(?<=\bon )[LR]\b(?!-)"
    r"|\b[LR](?= ?[<>])|(?:(?<=[<>])|(?<=[<>] ))[LR]\b|(?<=[,(])[LR](?=\))|(?<=, )[LR](?=\.?$)"
    r"|\b[LR](?= (?:greater|larger|more|less|smaller) than [LR]\b)|(?<=\bthan )[LR]\b"
    r"|\b[LR](?= and [LR]\b)|(?<=\b[LR] and )[LR]\b"
)
"""A side abbreviated to one letter; "lt" and "rt" are in the lexicon."""
_ABBREVIATED = re.compile(r"[LR<>]|(?<![a-zA-Z])[lr][tT](?![a-zA-Z])")
_CONTINUED = re.compile(r"\s*(?:[a-z]|[A-Z]{2})")
"""What follows "Lt." within a sentence."""
_SIDES = frozenset({"left", "right", "lt", "rt"})
_STOPS = frozenset({";", ".", "(", ")", "?"})

_REMOVAL_VERBS = frozenset({"pulled", "withdrawn"})
_MOVE_WORDS = frozenset({"back", "by", "to", "into", "slightly", "approximately", "about", "partially"})
_PARTIAL_WORDS = frozenset({"partially", "partly", "slightly"})
"""Words before a removal verb for a device that was only moved, as `_MOVE_WORDS` after it: "PARTIALLY withdrawn"."""

MAX_CHARACTERS = 5_000
"""Maximum length of a sentence that is split and read. The longest of the 22,820 sentences of IU-Xray has 273."""
CERTAIN, CONCLUDED, PROBABLE, POSSIBLE = range(4)
"""Levels of doubt: "atelectasis", "consistent with atelectasis", "likely atelectasis", "may be atelectasis"."""
_DOUBTS = (("uncertain", POSSIBLE), ("probable", PROBABLE), ("concluded", CONCLUDED))


@dataclass(slots=True)
class Token:
    """A phrase of the lexicon in a sentence, or one unknown word.

    Attributes:
        words: lemmas of the phrase.
        meanings: entries of the ontology by kind (finding, structure, side, ...); empty for an unknown word.
        begin: first character in the text.
        end: character after the last.
        is_plural: whether the last word is a plural.
        measure: size in millimeters, if it is one.
        is_known: whether it is in the ontology, punctuation or a number.
        ends_clause: whether it separates claims: punctuation and words such as "but".
        joins: whether it separates the members of a list.
        doubt: level of doubt that it expresses.
    """

    words: tuple[str, ...]
    meanings: dict[str, str]
    begin: int
    end: int
    is_plural: bool = False
    measure: float | None = None
    is_known: bool = field(init=False)
    ends_clause: bool = field(init=False)
    joins: bool = field(init=False)
    doubt: int = field(init=False)

    def __post_init__(self) -> None:
        word, meanings = self.words[0], self.meanings
        self.is_known = bool(meanings) or not word.isalpha()
        self.ends_clause = word in _STOPS or ("boundary" in meanings and "filler" not in meanings)
        self.joins = word == "," or "joining" in meanings
        self.doubt = CERTAIN
        for kind, doubt in _DOUBTS:
            if kind in meanings:
                self.doubt = doubt
                break


def tokenize(text: str, ontology: Ontology) -> list[Token]:
    """Split `text` into the longest phrases of the lexicon, measures, punctuation and unknown words."""
    lemmas = lemmatize(text)
    if _ABBREVIATED.search(text):
        lemmas = _spell_out_sides(lemmas, text)
    words = [word for word, _, _ in lemmas]
    measures = {match.start(): match for match in _MEASURE.finditer(text)} if _NUMBER.search(text) else {}
    tokens: list[Token] = []
    i = 0
    while i < len(lemmas):
        begin = lemmas[i][1]
        if begin in measures:
            match = measures[begin]
            numbers = [float(number) for number in _NUMBER.findall(match[0])]
            measure = max(numbers) * (10.0 if match[3].lower() == "cm" else 1.0)
            tokens.append(Token(("measure",), {"measure": "measure"}, begin, match.end(), measure=measure))
            while i < len(lemmas) and lemmas[i][1] < match.end():
                i += 1
            continue
        length, meanings = 1, {}
        for size in ontology.phrase_lengths.get(words[i], ()):
            phrase = tuple(words[i : i + size])
            if phrase in ontology.phrases:
                length, meanings = len(phrase), ontology.phrases[phrase]
                break
        last, end = lemmas[i + length - 1][1:]
        is_plural = end - last != len(words[i + length - 1]) and text[end - 1] in "saeSAE"
        tokens.append(Token(tuple(words[i : i + length]), meanings, begin, end, is_plural))
        i += length
    if words[:1] == ["unlike"] or (words[:2] == ["in", "contrast"] and words[2:3] in (["to"], ["with"])):
        # The comma after "In contrast to the clear left lung," ends the clause, so that the rest has its own places.
        comma = next((token for token in tokens if token.words == (",",)), None)
        if comma is not None:
            comma.words, comma.ends_clause, comma.joins = (".",), True, False
    for i, token in enumerate(tokens):
        if token.words[-1] in _REMOVAL_VERBS:
            is_partial = i > 0 and tokens[i - 1].words[0] in _PARTIAL_WORDS
            following = tokens[i + 1 : i + 2]
            if is_partial or any(other.words[0] in _MOVE_WORDS or "measure" in other.meanings for other in following):
                token.meanings = {"filler": token.meanings.get("filler", "")}
    return tokens


def _spell_out_sides(lemmas: list[tuple[str, int, int]], text: str) -> list[tuple[str, int, int]]:
    """Replace "L", "Rt." and "R > L" by words in the lemmas of a text."""
    letters = {match.start() for match in _SIDE_LETTER.finditer(text)} if "L" in text or "R" in text else set()
    expanded: list[tuple[str, int, int]] = []
    for word, begin, end in lemmas:
        previous = expanded[-1] if expanded else ("", 0, 0)
        if word == "." and previous[0] in ("lt", "rt") and _CONTINUED.match(text, end):
            continue
        lemma = ("left" if word == "l" else "right") if begin in letters else word
        if lemma in _SIDES and previous[0] in _SIDES and text[previous[2] : begin].strip() in ("<", ">"):
            expanded += [
                ("greater" if ">" in text[previous[2] : begin] else "less", begin, begin),
                ("than", begin, begin),
            ]
        expanded.append((lemma, begin, end))
    return expanded
