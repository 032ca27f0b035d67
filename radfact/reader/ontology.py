"""The ontology of chest-radiograph findings: hierarchy, denials, exclusions and the lexicon."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache

_TOKEN = re.compile(r"\d+(?:\.\d+)?(?:(?:st|nd|rd|th)\b)?|[a-z]+(?:'[a-z]+)?|[,;:.()?]")
_ORDINALS = [
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
]
_AMERICAN = (("oedema", "edema"), ("haem", "hem"), ("oesoph", "esoph"), ("tumour", "tumor"), ("centre", "center"))
_ISE = re.compile(r"alis(ation|ed|ing|e)$")
_IRREGULAR = {
    "apices": "apex",
    "bronchi": "bronchus",
    "bullae": "bulla",
    "cannulae": "cannula",
    "goitre": "goiter",
    "hemithoraces": "hemithorax",
    "hila": "hilum",
    "metastases": "metastasis",
    "prostheses": "prosthesis",
    "sulci": "sulcus",
    "pneumothoraces": "pneumothorax",
    "vertebrae": "vertebra",
    # Synonyms in all phrases, such as "not completely subsided".
    "dissipated": "resolved",
    "subsided": "resolved",
    "visualised": "visualized",
    **{word: str(number) for number, word in enumerate(("two", "three", "four", "five", "six"), start=2)},
    **{word: str(number) for number, word in enumerate(_ORDINALS, start=1)},
}


@lru_cache(maxsize=50_000)
def lemma(word: str) -> str:
    """Return the dictionary form of a lower-case word: American spelling, singular; ordinals as plain numbers."""
    if word[0].isdigit():
        return word.rstrip("stndrh")
    for british, american in _AMERICAN:
        word = word.replace(british, american)
    word = _ISE.sub(r"aliz\1", word)
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("sses", "ches", "shes", "xes")):
        return word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def lemmatize(text: str) -> list[tuple[str, int, int]]:
    """Return the words, numbers and punctuation of `text` as (lemma, first character, end)."""
    return [(lemma(match[0]), match.start(), match.end()) for match in _TOKEN.finditer(text.lower())]


def phrase_lemmas(phrase: str) -> tuple[str, ...]:
    """Return the lemmas of a phrase."""
    return tuple(lemma(word) for word in _TOKEN.findall(phrase.lower()))


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of the ontology; the comments at the top of `ontology.yaml` explain the fields.

    Attributes:
        ancestors: the finding itself and all more general findings.
        entails: further findings that it and its ancestors entail.
    """

    id: str
    ancestors: frozenset[str]
    entails: frozenset[str]
    denies: frozenset[str]
    excludes: frozenset[str]
    exhaustive: tuple[str, ...]
    when: Mapping[str, str]
    midline: bool
    generic: bool
    collective: bool
    diffuse: bool
    directed: bool
    normal: bool
    implied: frozenset[str]
    usual_zone: str | None
    good_position: frozenset[str]


@dataclass(frozen=True, slots=True)
class Structure:
    """A part of the anatomy.

    Attributes:
        id: name in the ontology.
        wholes: the structure itself and all structures that it is a part of.
        abnormal: finding that "normal" denies.
        clear: finding that "clear" denies.
        acute: finding that "no acute" denies.
        states: findings by the lemmas of states of the structure, as in "enlarged".
        normal: lemmas of states that deny `abnormal`.
        here: specific findings by general findings in this structure.
    """

    id: str
    wholes: frozenset[str]
    abnormal: str
    clear: str
    acute: str
    states: Mapping[tuple[str, ...], str]
    normal: frozenset[tuple[str, ...]]
    here: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Ontology:
    """Findings, structures and the lexicon.

    Attributes:
        version: version of the file.
        sha256: hash of the file.
        findings: findings by name.
        exhaustive: parts by the name of each finding whose parts, all denied, deny it.
        structures: structures by name.
        phrases: meanings (entries by kind) of phrases, by their lemmas.
        phrase_lengths: lengths of the phrases by their first lemma, longest first.
        places: (side, zone) by place.
        zone_wholes: the zone that contains a zone, if any.
        severity_levels: levels (0 to 4) by severity.
        implications: changes and details by the changes and details that imply them, themselves included.
        whole_findings: findings about each structure as a whole, not about a part of it.
        derived_details: details by the details that together imply them.
        detail_scopes: findings for which a detail is a claim; other details apply to all findings.
        positions: details that are positions of devices or operations, not the character of a finding.
        terms: display names of findings, structures, zones, changes and details by id.
        degree_terms: display names of degrees by their severity levels.
    """

    version: str
    sha256: str
    findings: Mapping[str, Finding]
    exhaustive: Mapping[str, tuple[str, ...]]
    structures: Mapping[str, Structure]
    phrases: Mapping[tuple[str, ...], dict[str, str]]
    phrase_lengths: Mapping[str, tuple[int, ...]]
    places: Mapping[str, tuple[str, str]]
    zone_wholes: Mapping[str, str | None]
    severity_levels: Mapping[str, frozenset[int]]
    implications: Mapping[str, frozenset[str]]
    whole_findings: Mapping[str, frozenset[str]]
    derived_details: Mapping[str, frozenset[str]]
    detail_scopes: Mapping[str, tuple[str, ...]]
    positions: frozenset[str]
    terms: Mapping[str, str]
    degree_terms: Mapping[frozenset[int], str]

    def is_a(self, special: str, general: str) -> bool:
        """Return whether every `special` is also a `general`."""
        finding = self.findings.get(special)
        return special == general if finding is None else general in finding.ancestors

    def entails(self, stated: str, finding: str) -> bool:
        """Return whether the presence of `stated` entails the presence of `finding`."""
        node = self.findings.get(stated)
        return self.is_a(stated, finding) or (
            node is not None and any(self.is_a(entailed, finding) for entailed in node.entails)
        )

    def common_ancestor(self, findings: Iterable[str]) -> str | None:
        """Return the most specific common ancestor of findings, such as "opacity" for scarring and atelectasis."""
        nodes = [self.findings[finding] for finding in findings if finding in self.findings]
        common = frozenset[str]().union(*(node.ancestors for node in nodes))
        for node in nodes:
            common &= node.ancestors
        return max(sorted(common), key=lambda kind: len(self.findings[kind].ancestors), default=None)

    def is_generic(self, finding: str) -> bool:
        """Return whether the finding is a general name of devices ("the tube")."""
        node = self.findings.get(finding)
        return node is not None and node.generic

    def is_well_positioned(self, finding: str, details: Set[str], measures: Sequence[float]) -> bool:
        """Return whether a device is in good position: at its target, or 20 to 70 mm above the carina."""
        node = self.findings.get(finding)
        if node is None or "malpositioned" in details or not node.good_position & details:
            return False
        return "above_carina" not in details or (bool(measures) and all(20 <= size <= 70 for size in measures))

    def detail_applies(self, detail: str, finding: str) -> bool:
        """Return whether a detail is a claim for a finding ("acute" is a claim for bones only)."""
        scope = self.detail_scopes.get(detail)
        return scope is None or any(self.is_a(finding, general) for general in scope)

    def concerns(self, finding: str, structure: str) -> bool:
        """Return whether a finding (or a structure of that name) is about `structure`."""
        wholes = self.structures[structure].wholes
        return any(finding == whole or finding in self.whole_findings[whole] for whole in wholes)

    def is_denied_by(self, absent: str, finding: str) -> bool:
        """Return whether the absence of `absent` rules out `finding`."""
        if self.is_a(finding, absent):
            return True
        node = self.findings.get(absent)
        return node is not None and any(self.is_denied_by(denied, finding) for denied in node.denies)

    def denies_only_acute(self, absent: str) -> bool:
        """Return whether the absence of a finding leaves room for old findings: "no acute osseous abnormality"."""
        node = self.findings.get(absent)
        return node is not None and "acute" in node.implied

    def is_excluded_by(self, present: str, finding: str) -> bool:
        """Return whether the presence of `present` rules out `finding`."""
        node = self.findings.get(present)
        return node is not None and any(self.is_a(finding, excluded) for excluded in node.excludes)

    def is_within(self, zone: str | None, whole: str | None) -> bool:
        """Return whether a zone is another zone or a part of it."""
        while zone is not None and zone != whole:
            zone = self.zone_wholes[zone]
        return zone == whole
