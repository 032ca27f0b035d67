"""The ontology of chest-radiograph findings: hierarchy, denials, exclusions and the lexicon."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from radfact.reader.vocabulary import word_map, word_set

_TOKEN = re.compile(r"\d+(?:\.\d+)?(?:(?:st|nd|rd|th)\b)?|[a-z]+(?:'[a-z]+)?|[,;:.()?]")
_AMERICAN = word_map("american_spelling")
_BRITISH = re.compile(r"oedema|haem|oesoph|tumour|centre|alis(?=(?:ation|ed|ing|e)$)")
_LEMMAS = word_map("lemmas")
_CUES = word_set("cues")


@lru_cache(maxsize=50_000)
def lemma(word: str) -> str:
    """Return the dictionary form of a lower-case word: American spelling, singular; ordinals as plain numbers."""
    if word[0].isdigit():
        return word.rstrip("stndrh")
    word = _BRITISH.sub(lambda match: _AMERICAN[match[0]], word)
    if word in _LEMMAS:
        return _LEMMAS[word]
    if not word.endswith("s"):
        return word
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("sses", "ches", "shes", "xes")):
        return word[:-2]
    return word if len(word) <= 3 or word.endswith(("ss", "us", "is")) else word[:-1]


def lemmatize(text: str) -> list[tuple[str, int, int]]:
    """Return the words, numbers and punctuation of `text` as (lemma, first character, end)."""
    lemmas = [(lemma(match[0]), *match.span()) for match in _TOKEN.finditer(text.lower())]
    if "n't" not in text and "N'T" not in text:
        return lemmas
    # "isn't" is read as "is not".
    return [
        part
        for word, begin, end in lemmas
        for part in (
            [(word[:-3] or "can", begin, end - 3), ("not", end - 3, end)]
            if word.endswith("n't")
            else [(word, begin, end)]
        )
    ]


def phrase_lemmas(phrase: str) -> tuple[str, ...]:
    """Return the lemmas of a phrase."""
    return tuple(map(lemma, _TOKEN.findall(phrase.lower())))


def _check_name(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a phrase (put the words no and on in quotes)")
    return value


def _check_cue(name: str) -> str:
    if name not in _CUES:
        raise ValueError(f"expected one of {', '.join(sorted(_CUES))}, found '{name}'")
    return name


Name = Annotated[str, BeforeValidator(_check_name)]
"""A phrase of the lexicon."""


class Node(BaseModel):
    """An entry of the ontology file. A field annotated with a section of the file has names of that section."""

    # A misspelled key is an error.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Term(Node):
    """An entry with a name of its own in explanations."""

    display: str | None = None


class Finding(Term):
    """A finding; the comments at the top of `ontology.yaml` explain the fields."""

    names: list[Name] = []
    absence: list[Name] = []
    is_a: Annotated[list[str], "findings"] = []
    entails: Annotated[list[str], "findings"] = []
    denies: Annotated[list[str], "findings"] = []
    excludes: Annotated[list[str], "findings"] = []
    exhaustive: Annotated[list[str], "findings"] = []
    when: Annotated[dict[str, str], "change, descriptors or positions", "findings"] = {}
    midline: bool = False
    generic: bool = False
    collective: bool = False
    diffuse: bool = False
    directed: bool = False
    normal: bool = False
    implied: Annotated[frozenset[str], "descriptors or positions"] = frozenset()
    usual_zone: Annotated[str | None, "zones"] = None
    good_position: Annotated[frozenset[str], "descriptors or positions"] = frozenset()


class Structure(Term):
    """A part of the anatomy."""

    names: list[Name] = []
    part_of: Annotated[list[str], "structures"] = []
    abnormal: Annotated[str, "findings"]
    clear: Annotated[str | None, "findings"] = None
    acute: Annotated[str | None, "findings"] = None
    states: Annotated[dict[str, list[Name]], "findings"] = {}
    normal_words: list[Name] = []
    here: Annotated[dict[str, str], "findings", "findings"] = {}


class Modifier(Term):
    names: list[Name]


class Zone(Modifier):
    whole: Annotated[str | None, "zones"] = None


class Place(Node):
    names: list[Name]
    side: Literal["left", "right", "both"]
    zone: Annotated[str, "zones"]


class Severity(Modifier):
    levels: Annotated[list[Annotated[int, Field(ge=0, le=4)]], Field(min_length=1)]


class Change(Modifier):
    entails: Annotated[list[str], "change, descriptors or positions"] = []


class Detail(Modifier):
    implies: Annotated[list[str], "change, descriptors or positions"] = []
    only: Annotated[list[str], "findings"] = []
    parts: Annotated[list[str], "descriptors or positions", Field(alias="from")] = []


class OntologyFile(Node):
    version: Annotated[str, Field(coerce_numbers_to_str=True)] = ""
    findings: dict[str, Finding]
    structures: dict[str, Structure]
    normal_words: list[Name] = []
    clear_words: list[Name] = []
    abnormal_words: list[Name] = []
    sides: dict[Literal["left", "right", "both"], list[Name]]
    zones: dict[str, Zone]
    places: list[Place] = []
    severity: dict[str, Severity]
    change: dict[str, Change]
    descriptors: dict[str, Detail]
    positions: dict[str, Detail]
    dominance_words: list[Name] = []
    cues: dict[Annotated[str, AfterValidator(_check_cue)], list[Name]]
    filler: list[Name]


@dataclass(frozen=True, eq=False)
class Ontology:
    """Findings, structures and the lexicon."""

    version: str
    sha256: str
    findings: Mapping[str, Finding]
    structures: Mapping[str, Structure]
    # Findings by name, and a finding without attributes for each structure, whose change may be stated.
    concepts: Mapping[str, Finding]
    ancestors: Mapping[str, frozenset[str]]  # each concept with all more general findings
    entailed: Mapping[str, frozenset[str]]  # what the presence of each finding entails
    denied: Mapping[str, frozenset[str]]  # findings that the absence of each concept rules out
    excluded: Mapping[str, frozenset[str]]  # findings that the presence of each concept rules out
    exhaustive: Mapping[str, Sequence[str]]  # parts by the name of each finding whose parts, all denied, deny it
    wholes: Mapping[str, frozenset[str]]  # each structure with all structures that it is a part of
    # Findings by structure and by the lemmas of its states, as in "enlarged".
    states: Mapping[tuple[str, tuple[str, ...]], str]
    normal_states: Set[tuple[str, tuple[str, ...]]]  # structures with lemmas that say that they are normal
    whole_findings: Mapping[str, frozenset[str]]  # findings about each structure as a whole, not about a part of it
    phrases: Mapping[tuple[str, ...], dict[str, str]]  # meanings (entries by kind) of phrases, by their lemmas
    phrase_lengths: Mapping[str, Sequence[int]]  # lengths of the phrases by their first lemma, longest first
    places: Mapping[str, tuple[str, str]]  # (side, zone) by place
    zone_wholes: Mapping[str, str | None]  # the zone that contains a zone, if any
    severity_levels: Mapping[str, frozenset[int]]  # levels (0 to 4) by severity
    # Changes and details by the changes and details that imply them, themselves included.
    implications: Mapping[str, frozenset[str]]
    derived_details: Mapping[str, frozenset[str]]  # details by the details that together imply them
    # Findings for which a detail is a claim; other details apply to all findings.
    detail_scopes: Mapping[str, Sequence[str]]
    positions: frozenset[str]  # details that are positions of devices or operations, not the character of a finding
    terms: Mapping[str, str]  # display names of findings, structures, zones, changes and details by id
    degree_terms: Mapping[frozenset[int], str]  # display names of degrees by their severity levels

    def is_a(self, special: str, general: str) -> bool:
        """Return whether every `special` is also a `general`."""
        return special == general or general in self.ancestors.get(special, ())

    def common_ancestor(self, findings: Iterable[str]) -> str | None:
        """Return the most specific common ancestor of findings, such as "opacity" for scarring and atelectasis."""
        ancestors = [self.ancestors[finding] for finding in findings if finding in self.findings]
        common = ancestors[0].intersection(*ancestors[1:]) if ancestors else ()
        return max(sorted(common), key=lambda kind: len(self.ancestors[kind]), default=None)

    def concerns(self, finding: str, structure: str) -> bool:
        """Return whether a finding (or a structure of that name) is about `structure`."""
        return any(finding == whole or finding in self.whole_findings[whole] for whole in self.wholes[structure])

    def is_denied_by(self, absent: str, finding: str) -> bool:
        """Return whether the absence of `absent` rules out `finding`."""
        return absent == finding or finding in self.denied.get(absent, ())

    def denies_only_acute(self, absent: str) -> bool:
        """Return whether the absence of a finding leaves room for old findings: "no acute osseous abnormality"."""
        return absent in self.concepts and "acute" in self.concepts[absent].implied

    def is_excluded_by(self, present: str, finding: str) -> bool:
        """Return whether the presence of `present` rules out `finding`."""
        return finding in self.excluded.get(present, ())

    def is_within(self, zone: str | None, whole: str | None) -> bool:
        """Return whether a zone is another zone or a part of it."""
        while zone is not None and zone != whole:
            zone = self.zone_wholes[zone]
        return zone == whole
