"""Words of a report sentence and what grammar needs to know of them: closed classes, number and agreement."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_WORD = re.compile(
    r"\([^()]*\)|\b(?:as well as|along with|together with|adjacent to)\b|\w+(?:['’./-]\w+)*%?|[^\w\s]", re.IGNORECASE
)


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


ABBREVIATIONS = _set("dr mr mrs ms prof approx vs e.g i.e cf fig st no nos resp incl ca a.m p.m m.d")
"""Words whose full stop ends no sentence."""
NEGATIONS = frozenset({"no", "without", "neither"})
CONJUNCTIONS = frozenset({"and", "or", "nor", "and/or", "as well as", "along with", "together with"})
TOGETHER = frozenset({"as well as", "along with", "together with"})
TURNS = frozenset({"but", "while", "whereas", "although", "though", ";", "however", "yet"})
"""Words that a clause of its own follows."""
SEPARATORS = CONJUNCTIONS | TURNS | {","}

DETERMINERS = frozenset({"the", "a", "an", "any", "this", "that", "these", "those", "its", "their", "his", "her"})
LINKS = frozenset({"it", "its", "their", "they", "this", "that", "these", "those", "which", "who", "such", "there's"})
"""Subjects that cannot be understood without the clause before them."""
PARTS_OF_DEVICES = frozenset(
    {"tip", "tips", "electrode", "electrodes", "end", "sidehole", "port", "lead", "leads", "terminus"}
)
RELATIVES = frozenset({"which", "that", "who", "where", "whose"})
SUBORDINATORS = frozenset(
    {"as", "because", "since", "if", "unless", "when", "due", "given", "likely", "so", "than", "until"}
)

PREPOSITIONS = {"adjacent to"} | _set(
    "of in at on within over overlying along from near to into onto for by with through throughout above below"
    " between beneath under about around across behind involving since after before during inside outside"
    " against per compared relative superimposed projecting measuring via"
)
COPULAS = _set(
    "is are was were be has have had appears appear appeared remains remain remained seems seem looks look may"
    " might can could cannot should would will does do did"
)
TRANSITIVE = _set(
    "shows show showed demonstrates demonstrate reveals reveal revealed contains contain exhibits exhibit"
)
INTRANSITIVE = _set(
    "persists persist continues continue measures measure terminates terminate ends lies lie overlies overlie"
    " projects project extends extend suggests suggest represents represent indicates indicate reflects reflect"
    " obscures obscure courses crosses enters passes occupies involves involve improves worsens increases"
    " decreases predominates"
)
FINITE = COPULAS | TRANSITIVE | INTRANSITIVE
OBSERVED = _set(
    "seen noted identified present visualized visualised demonstrated appreciated observed detected evident found"
    " visible apparent shown suspected"
)
"""What a report says of a finding to say no more than that it is there."""
STATES = frozenset({"normal", "unremarkable", "clear", "intact"})
ADVERBS = _set("again also still now otherwise currently likewise grossly essentially been not only")
INTERPRETING = _set(
    "indicating suggesting representing reflecting consistent compatible likely possibly probably presumably"
    " perhaps suggestive indicative due secondary related"
)
"""Words that begin what the reader makes of a finding."""
PROPERTIES = _set(
    "size contour contours shape configuration caliber calibre appearance position location morphology course"
    " extent number degree distribution density outline alignment height volume severity conspicuity texture"
    " technique expansion"
)
ANATOMICAL = _set(
    "cardiac mediastinal hilar cardiomediastinal pulmonary pleural osseous bony skeletal vascular aortic tracheal"
    " diaphragmatic thoracic pericardial parenchymal cardiopulmonary interstitial alveolar costophrenic"
    " cardiophrenic airspace lung heart rib spinal vertebral"
)
"""Adjectives, and nouns used so, that name a thing each with the noun they share: "cardiac and hilar contours"."""
DEGREES_OF_ABSENCE = _set(
    "definite significant obvious gross convincing visible evident appreciable radiographic clear new suspicious"
)
"""Said once before a list of what is absent, and meant of all of it; "large" is meant of its own noun alone."""

EVIDENCE = _set("evidence sign signs suggestion finding findings indication indications")
GOING_ON = _set(
    "greater worse more less larger largest smaller causing resulting obscuring demonstrating containing compressing"
    " producing limiting accentuating extending terminating"
)
"""Words that begin a remark on what stands before them."""
CONTINUATIONS = PREPOSITIONS | RELATIVES | LINKS | SUBORDINATORS | FINITE | INTERPRETING | GOING_ON
"""Words that no member of a list begins with."""
NOT_ATTACHED = _set(
    "consistent compatible compared comparison keeping concordant continuous patient patients correlated correlation"
    " contiguous concern with or"
)
"""Words whose "with" adds nothing to the sentence."""

_IRREGULAR_PLURALS = _set(
    "hila bronchi vertebrae apices bullae metastases pneumothoraces hemithoraces sulci foci loci data media"
    " fistulae granulomata diverticula emboli alveoli hili pleurae"
)
_QUANTITIES = _set("multiple several numerous many few both two three four")
_ADJECTIVE = re.compile(
    r"(?:al|ar|ic|ous|ary|ive|able|ible|ed|ular|less|ish)$|^(?:patchy|hazy|streaky|bony|wavy|linear|monitoring|support)$"
)
_SINGULAR = {"are": "is", "were": "was", "have": "has", "appear": "appears", "remain": "remains", "show": "shows"}
_SINGULAR |= {"demonstrate": "demonstrates", "persist": "persists", "seem": "seems", "do": "does", "look": "looks"}
_PLURAL = {singular: plural for plural, singular in _SINGULAR.items()}


@dataclass(frozen=True, slots=True)
class Word:
    """A word, a mark of punctuation or a whole parenthesis: `begin` and `end` are characters of the sentence."""

    lower: str
    begin: int
    end: int


def words_of(sentence: str) -> list[Word]:
    """The words of `sentence` in order."""
    return [Word(" ".join(m[0].lower().split()), m.start(), m.end()) for m in _WORD.finditer(sentence)]


def is_adjective(word: str) -> bool:
    """Whether a word by itself looks like an adjective or a participle, not like a noun."""
    return word in ANATOMICAL or bool(_ADJECTIVE.search(word))


def is_plural(phrase: Sequence[str]) -> bool | None:
    """Whether the head of a noun phrase (its last word before a preposition) is in the plural; None: cannot be told."""
    head = ""
    for word in phrase:
        if head and head not in DETERMINERS and word in PREPOSITIONS | RELATIVES | OBSERVED | SEPARATORS:
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


def agreeing(verb: str, plural: bool | None) -> str:
    """`verb` in the number asked for; other verbs, and all where the number cannot be told, as they are."""
    return verb if plural is None else (_PLURAL if plural else _SINGULAR).get(verb.lower(), verb)


def of_one(noun: str) -> str:
    """A noun that several adjectives share, as one of them takes it: "cardiac and mediastinal silhouettes"."""
    return re.sub(r"\b(silhouette|size|shadow|border)s\b", r"\1", noun)
