"""Word classes, number and agreement: what the grammar knows about the words of a report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_WORD = re.compile(
    r"\([^()]*\)|\b(?:as well as|along with|together with|adjacent to)\b|\w+(?:['’./-]\w+)*%?|[^\w\s]", re.IGNORECASE
)


def word_set(words: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(words.split())


ABBREVIATIONS = word_set("dr mr mrs ms prof approx vs e.g i.e cf fig st no nos resp incl ca a.m p.m m.d")
"""Words whose full stop does not end a sentence."""
NEGATIONS = frozenset({"no", "without", "neither"})
CONJUNCTIONS = frozenset({"and", "or", "nor", "and/or", "as well as", "along with", "together with"})
JOINT_CONJUNCTIONS = frozenset({"as well as", "along with", "together with"})
CLAUSE_CONJUNCTIONS = frozenset({"but", "while", "whereas", "although", "though", ";", "however", "yet"})
"""Words before a clause of its own."""
SEPARATORS = CONJUNCTIONS | CLAUSE_CONJUNCTIONS | {","}

DETERMINERS = frozenset({"the", "a", "an", "any", "this", "that", "these", "those", "its", "their", "his", "her"})
ANAPHORIC_WORDS = frozenset(
    {"it", "its", "their", "they", "this", "that", "these", "those", "which", "who", "such", "there's"}
)
"""Subjects that cannot be understood without the clause before them."""
DEVICE_PARTS = frozenset(
    {"tip", "tips", "electrode", "electrodes", "end", "sidehole", "port", "lead", "leads", "terminus"}
)
RELATIVES = frozenset({"which", "that", "who", "where", "whose"})
SUBORDINATORS = frozenset(
    {"as", "because", "since", "if", "unless", "when", "due", "given", "likely", "so", "than", "until"}
)

PREPOSITIONS = {"adjacent to"} | word_set(
    "of in at on within over overlying along from near to into onto for by with through throughout above below"
    " between beneath under about around across behind involving since after before during inside outside"
    " against per compared relative superimposed projecting measuring via"
)
COPULAS = word_set(
    "is are was were be has have had appears appear appeared remains remain remained seems seem looks look may"
    " might can could cannot should would will does do did"
)
TRANSITIVE_VERBS = word_set(
    "shows show showed demonstrates demonstrate reveals reveal revealed contains contain exhibits exhibit"
)
INTRANSITIVE_VERBS = word_set(
    "persists persist continues continue measures measure terminates terminate ends lies lie overlies overlie"
    " projects project extends extend suggests suggest represents represent indicates indicate reflects reflect"
    " obscures obscure courses crosses enters passes occupies involves involve improves worsens increases"
    " decreases predominates"
)
FINITE_VERBS = COPULAS | TRANSITIVE_VERBS | INTRANSITIVE_VERBS
OBSERVATION_WORDS = word_set(
    "seen noted identified present visualized visualised demonstrated appreciated observed detected evident found"
    " visible apparent shown suspected"
)
"""Words that only state that a finding is present."""
NORMAL_STATES = frozenset({"normal", "unremarkable", "clear", "intact"})
ADVERBS = word_set("again also still now otherwise currently likewise grossly essentially been not only")
INTERPRETATION_WORDS = word_set(
    "indicating suggesting representing reflecting consistent compatible likely possibly probably presumably"
    " perhaps suggestive indicative due secondary related"
)
"""Words that begin an interpretation."""
PROPERTY_NOUNS = word_set(
    "size contour contours shape configuration caliber calibre appearance position location morphology course"
    " extent number degree distribution density outline alignment height volume severity conspicuity texture"
    " technique expansion"
)
ANATOMICAL_ADJECTIVES = word_set(
    "cardiac mediastinal hilar cardiomediastinal pulmonary pleural osseous bony skeletal vascular aortic tracheal"
    " diaphragmatic thoracic pericardial parenchymal cardiopulmonary interstitial alveolar costophrenic"
    " cardiophrenic airspace lung heart rib spinal vertebral"
)
"""Adjectives, and nouns used as such, that each name a thing with a shared noun: "cardiac and hilar contours"."""
ABSENCE_DEGREES = word_set(
    "definite significant obvious gross convincing visible evident appreciable radiographic clear new suspicious"
)
"""Words before a list of absent findings that apply to all of it, unlike "large"."""

EVIDENCE_NOUNS = word_set("evidence sign signs suggestion finding findings indication indications")
REMARK_WORDS = word_set(
    "greater worse more less larger largest smaller causing resulting obscuring demonstrating containing compressing"
    " producing limiting accentuating extending terminating"
)
"""Words that begin a remark on the previous words."""
CONTINUATION_WORDS = (
    PREPOSITIONS | RELATIVES | ANAPHORIC_WORDS | SUBORDINATORS | FINITE_VERBS | INTERPRETATION_WORDS | REMARK_WORDS
)
"""Words that begin no member of a list."""
NOT_BEFORE_WITH = word_set(
    "consistent compatible compared comparison keeping concordant continuous patient patients correlated correlation"
    " contiguous concern with or"
)
"""Words before a "with" that introduces no finding."""

_IRREGULAR_PLURALS = word_set(
    "hila bronchi vertebrae apices bullae metastases pneumothoraces hemithoraces sulci foci loci data media"
    " fistulae granulomata diverticula emboli alveoli hili pleurae"
)
_QUANTITIES = word_set("multiple several numerous many few both two three four")
_ADJECTIVE = re.compile(
    r"(?:al|ar|ic|ous|ary|ive|able|ible|ed|ular|less|ish)$|^(?:patchy|hazy|streaky|bony|wavy|linear|monitoring"
    r"|support)$"
)
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
