"""Tokenize a sentence into the longest phrases of the ontology, each with all of its meanings."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

from radfact.reader.ontology import Ontology, lemmatize
from radfact.reader.vocabulary import pattern, word_set

_DECIMAL = r"\d+(?:\.\d+|,\d{1,2}(?!\d))?"
_MEASURE = re.compile(rf"(?<!\d)({_DECIMAL})(?:\s*(?:x|by|×|-|to)\s*({_DECIMAL})){{0,3}}[\s-]*(mm|cm)\b", re.IGNORECASE)
_NUMBER = re.compile(_DECIMAL)
_SIDE_LETTER = pattern("side_letter", re.NOFLAG)
_ABBREVIATED = re.compile(r"[LR<>]|(?<![a-zA-Z])[lr][tT](?![a-zA-Z])")
_CONTINUED = re.compile(r"\s*(?:[a-z]|[A-Z]{2})")  # what follows "Lt." within a sentence
_SIDES = frozenset({"left", "right", "lt", "rt"})
_STOPS = frozenset({";", ".", "(", ")", "?"})

_REMOVAL_VERBS = frozenset({"pulled", "withdrawn"})
_MOVE_WORDS = frozenset({"at", "back", "by", "to", "into", "slightly", "approximately", "about", "partially"})
_PARTIAL_WORDS = word_set("partial_words")

_UNDECIDED = word_set("undecided")
_DENYING = _REMOVAL_VERBS | {"not", "no", "without", "absent"}
_OPEN = frozenset({"may", "might", "need"})
_SHADOWS = word_set("shadows")
_UNRESOLVED = word_set("unresolved")
_HEDGES = word_set("hedges")
_SURE = frozenset({"sure", "certain", "say"})
_LEADING = word_set("leading")
_ADDITIVE = word_set("additive")
_HARDLY = word_set("hardly")
_BEFORE_INFINITIVE = word_set("before_infinitive")
_OBLIGATIONS = _HARDLY | word_set("obligations")

MAX_CHARACTERS = 5_000
"""Maximum length of a sentence that is split and read. The longest of the 22,820 sentences of IU-Xray has 273."""
CERTAIN, CONCLUDED, PROBABLE, POSSIBLE = range(4)
"""Levels of doubt: "atelectasis", "consistent with atelectasis", "likely atelectasis", "may be atelectasis"."""
_DOUBTS = (("uncertain", POSSIBLE), ("probable", PROBABLE), ("concluded", CONCLUDED))


@dataclass(slots=True)
class Token:
    """A phrase of the lexicon in a sentence, or one unknown word."""

    words: tuple[str, ...]  # lemmas of the phrase
    # Entries of the ontology by kind (finding, structure, side, ...); empty for an unknown word.
    meanings: dict[str, str]
    begin: int  # first character in the text
    end: int  # character after the last
    is_plural: bool = False  # whether the last word is a plural
    measure: float | None = None  # size in millimeters, if it is one
    is_known: bool = field(init=False)  # whether it is in the ontology, punctuation or a number
    ends_clause: bool = field(init=False)  # whether it separates claims: punctuation and words such as "but"
    joins: bool = field(init=False)  # whether it separates the members of a list
    doubt: int = field(init=False)  # level of doubt that it expresses

    def __post_init__(self) -> None:
        word, meanings = self.words[0], self.meanings
        self.is_known = bool(meanings) or not word.isalpha()
        self.ends_clause = word in _STOPS or ("boundary" in meanings and "filler" not in meanings)
        self.joins = word == "," or "joining" in meanings
        self.doubt = next((doubt for kind, doubt in _DOUBTS if kind in meanings), CERTAIN)

    def reinterpret(self, *kinds: str) -> None:
        """Replace the meanings."""
        self.meanings = {kind: kind for kind in kinds}
        self.__post_init__()


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
            numbers = [float(number.replace(",", ".")) for number in _NUMBER.findall(match[0])]
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
    if words[:1] and (words[0] in _LEADING or words[:2] in (["in", "contrast"], ["even", "though"])):
        # The comma after "In contrast to the clear left lung," ends the clause, so that the rest has its own claims.
        verbs = [i for i, token in enumerate(tokens) if token.meanings.keys() & {"copula", "seeing"}]
        commas = [i for i, token in enumerate(tokens) if token.words == (",",)]
        if words[0] not in ("unlike", "in"):
            is_without = words[0] == "without"
            commas = [i for i in commas if verbs and (i < verbs[-1] if is_without else verbs[0] < i)]
        for i in commas[:1]:
            tokens[i].words, tokens[i].ends_clause, tokens[i].joins = (".",), True, False
    _weaken_denials(tokens)
    return tokens


def _weaken_denials(tokens: list[Token]) -> None:
    """Reinterpret words that deny no finding here: "cannot be excluded", "not diagnostic of", "partially withdrawn"."""
    for i, token in enumerate(tokens):
        is_resolved = token.meanings.get("change") == "resolved" or token.words == ("cleared",)
        if token.words[0] not in _DENYING and "exclusion" not in token.meanings and not is_resolved:
            continue
        before, following = tokens[i - 1] if i else Token((".",), {}, 0, 0), tokens[i + 1 : i + 4]
        recent = {word for other in tokens[max(i - 7, 0) : i] for word in other.words}
        words = [word for other in following for word in other.words]
        if is_resolved and not _UNRESOLVED.isdisjoint(recent):
            token.meanings = {"change": "persistent"}
            for other in tokens[max(i - 5, 0) : i]:
                if other.meanings.keys() & {"not", "negation"}:
                    other.reinterpret("filler")
        elif is_resolved and not _HEDGES.isdisjoint(recent):
            token.reinterpret("uncertain_after")
        elif token.words[-1] in _REMOVAL_VERBS:
            is_moved = any(other.words[0] in _MOVE_WORDS or "measure" in other.meanings for other in following[:1])
            if is_moved or before.words[0] in _PARTIAL_WORDS:
                token.reinterpret("filler")
        elif token.words == ("not",) and (before.words[-1] in _OPEN or not _UNDECIDED.isdisjoint(words)):
            token.reinterpret("uncertain")
            for change in following:
                if "change" in change.meanings:
                    change.reinterpret("filler")  # "not necessarily WORSENED"
        elif token.words == ("not",) and not _ADDITIVE.isdisjoint(words[:1]):
            token.reinterpret("filler")
        elif token.words[0] == "no" and _SURE & recent and _HARDLY & recent:
            token.reinterpret("uncertain")  # "we cannot be certain that there is NO pneumothorax"
        elif token.words in (("no",), ("without",)):
            for change, other in pairwise(following):
                is_denied = change.meanings.get("change") in ("resolved", "decreased")
                if is_denied and not {"of", "in"}.isdisjoint((change.words[-1], other.words[0])):
                    token.reinterpret("filler")  # "no interval RESOLUTION of the effusion"
                    change.meanings = {"change": "persistent"}
        elif token.words == ("absent",) and "copula" not in before.meanings:
            noun = next((other for other in following if other.meanings.keys().isdisjoint(("side", "zone"))), token)
            if "finding" in noun.meanings:
                token.reinterpret("negation")
            elif "structure" in noun.meanings or noun.words[0] in _SHADOWS or not noun.is_known:
                token.reinterpret("filler")  # "hyperexpansion and ABSENT vascularity"
        elif "exclusion" in token.meanings:
            _weaken_exclusion(token, tokens[:i])


def _weaken_exclusion(token: Token, before: list[Token]) -> None:
    """Read "cannot be excluded" and "must be excluded" as doubt, and "the film excludes" as denial."""
    is_passive = "negation_after" in token.meanings
    if not is_passive and (not before or before[-1].words[-1] not in _BEFORE_INFINITIVE):
        token.meanings = {**token.meanings, "negation": "negation"}
    words = {word for other in before for word in other.words}
    is_inverted = not words.isdisjoint(("neither", "nor", "think", "say", "said")) or ("no" in words and "can" in words)
    for other in reversed(before[-8:] if not is_inverted else before):
        if other.ends_clause or ("finding" in other.meanings and not is_inverted):
            break
        if is_inverted and other.words[0] in ("neither", "nor", "no"):
            other.words = ("or",)
            other.reinterpret("joining")
            token.reinterpret("uncertain_after")
        if not (_OBLIGATIONS if is_passive else _HARDLY).isdisjoint(other.words):
            other.reinterpret("filler")
            token.reinterpret(*(("uncertain_after",) if is_passive else ("uncertain", "exclusion")))


def _spell_out_sides(lemmas: list[tuple[str, int, int]], text: str) -> list[tuple[str, int, int]]:
    """Replace "L", "Rt." and "R > L" by words in the lemmas of a text."""
    letters = {match.start() for match in _SIDE_LETTER.finditer(text)} if "L" in text or "R" in text else set()
    expanded: list[tuple[str, int, int]] = []
    for word, begin, end in lemmas:
        previous = expanded[-1] if expanded else ("", 0, 0)
        if word == "." and previous[0] in ("lt", "rt") and _CONTINUED.match(text, end):
            continue
        lemma = ("left" if word == "l" else "right") if begin in letters else word
        sign = text[previous[2] : begin].strip()
        if lemma in _SIDES and previous[0] in _SIDES and sign in ("<", ">"):
            expanded += [("greater" if sign == ">" else "less", begin, begin), ("than", begin, begin)]
        expanded.append((lemma, begin, end))
    return expanded
