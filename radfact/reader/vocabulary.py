"""Word classes, number and agreement: what the grammar knows about the words of a report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from radfact.io.yaml_files import read_yaml

_FILE = read_yaml(Path(__file__).with_name("words.yaml"))


def word_set(name: str) -> frozenset[str]:
    """Return a list of words of `words.yaml`."""
    return frozenset(_FILE["words"][name])


def word_map(name: str) -> dict[str, str]:
    """Return a table of words of `words.yaml`."""
    return dict(_FILE["maps"][name])


def pattern(name: str, flags: re.RegexFlag = re.IGNORECASE) -> re.Pattern[str]:
    """Compile a pattern of `words.yaml`."""
    return re.compile(_expand(name), flags)


def _expand(name: str) -> str:
    parts = _FILE["patterns"][name]
    text = parts if isinstance(parts, str) else "".join(parts)
    return re.sub(r"\{([a-z_]+)\}", lambda match: _expand(match[1]), text)


_WORD = pattern("word")
REMARK_HEADING = re.compile(rf"{_expand('remark')} ?:", re.IGNORECASE)
"""Heading of a section without findings."""

ABBREVIATIONS = word_set("abbreviations")
NEGATIONS = frozenset({"no", "without", "neither"})
CONJUNCTIONS = frozenset({"and", "or", "nor", "and/or", "as well as", "along with", "together with"})
JOINT_CONJUNCTIONS = frozenset({"as well as", "along with", "together with"})
CLAUSE_CONJUNCTIONS = word_set("clause_conjunctions")
SEPARATORS = CONJUNCTIONS | CLAUSE_CONJUNCTIONS | {","}

DETERMINERS = frozenset({"the", "a", "an", "any", "this", "that", "these", "those", "its", "their", "his", "her"})
ANAPHORIC_WORDS = word_set("anaphoric_words")
DEVICE_PARTS = word_set("device_parts")
RELATIVES = frozenset({"which", "that", "who", "where", "whose"})
SUBORDINATORS = word_set("subordinators")

PREPOSITIONS = {"adjacent to"} | word_set("prepositions")
COPULAS = word_set("copulas")
TRANSITIVE_VERBS = word_set("transitive_verbs")
INTRANSITIVE_VERBS = word_set("intransitive_verbs")
FINITE_VERBS = COPULAS | TRANSITIVE_VERBS | INTRANSITIVE_VERBS
OBSERVATION_WORDS = word_set("observation_words")
NORMAL_STATES = frozenset({"normal", "unremarkable", "clear", "intact"})
ADVERBS = word_set("vocabulary_adverbs")
PROPERTY_NOUNS = word_set("property_nouns")
ANATOMICAL_ADJECTIVES = word_set("anatomical_adjectives")
ABSENCE_DEGREES = word_set("absence_degrees")

EVIDENCE_NOUNS = word_set("evidence_nouns")
REMARK_WORDS = word_set("remark_words") | word_set("interpretation_words")
CONTINUATION_WORDS = PREPOSITIONS | RELATIVES | ANAPHORIC_WORDS | SUBORDINATORS | FINITE_VERBS | REMARK_WORDS | {"not"}
"""Words that begin no member of a list."""
NOT_BEFORE_WITH = word_set("not_before_with")

_IRREGULAR_PLURALS = word_set("irregular_plurals")
_QUANTITIES = word_set("quantities")
_ADJECTIVE = pattern("adjective", re.NOFLAG)
_SINGULAR = {"are": "is", "were": "was", "have": "has", "appear": "appears", "remain": "remains", "show": "shows"}
_SINGULAR |= {"demonstrate": "demonstrates", "persist": "persists", "seem": "seems", "do": "does", "look": "looks"}
_PLURAL = {singular: plural for plural, singular in _SINGULAR.items()}


class Word(NamedTuple):
    """A word, a mark of punctuation or a whole parenthesis: `begin` and `end` are characters of the sentence."""

    lower: str
    begin: int
    end: int


def split_words(sentence: str) -> list[Word]:
    """Return the words of a sentence in order."""
    return [Word(match[0].lower(), *match.span()) for match in _WORD.finditer(sentence)]


def is_adjective(word: str) -> bool:
    """Return whether a word by itself looks like an adjective or a participle, not like a noun."""
    return word in ANATOMICAL_ADJECTIVES or bool(_ADJECTIVE.search(word))


def is_plural(phrase: Sequence[str]) -> bool | None:
    """Return whether the head of a noun phrase (its last word before a preposition) is plural; None if unclear."""
    head = ""
    for word in phrase:
        if head and head not in DETERMINERS and word in PREPOSITIONS | RELATIVES | OBSERVATION_WORDS | SEPARATORS:
            break
        if word[0].isalpha():
            head = word
    if not _QUANTITIES.isdisjoint(phrase[:2]):
        return True
    if re.fullmatch(r"x{2,}|_*", head):
        return None
    return head in _IRREGULAR_PLURALS or (
        len(head) > 2 and head.endswith("s") and not head.endswith(("ss", "us", "is", "gas", "eas"))
    )


def inflect_verb(verb: str, plural: bool | None) -> str:
    """Return a verb in singular or plural; unknown verbs stay unchanged."""
    return verb if plural is None else (_PLURAL if plural else _SINGULAR).get(verb.lower(), verb)


def singular_noun(noun: str) -> str:
    """Return the singular of a noun that several adjectives share: "cardiac and mediastinal silhouettes"."""
    return re.sub(r"\b(silhouette|size|shadow|border)s\b", r"\1", noun)
