"""The ontology of chest-radiograph findings: what is a case of what, what rules out what, the lexicon."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache

_TOKEN = re.compile(r"\d+(?:\.\d+)?(?:(?:st|nd|rd|th)\b)?|[a-z]+(?:'[a-z]+)?|[,;:.()?]")
_ORDINALS = (
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
)
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
    "visualised": "visualized",
    **{word: str(number) for number, word in enumerate(("two", "three", "four", "five", "six"), start=2)},
    **{word: str(number) for number, word in enumerate(_ORDINALS, start=1)},
}


@lru_cache(maxsize=50_000)
def lemma(token: str) -> str:
    """The dictionary form of a lower-case word: American spelling, singular; ordinals as plain numbers."""
    if token[0].isdigit():
        return token.rstrip("stndrh")
    for british, american in _AMERICAN:
        token = token.replace(british, american)
    token = _ISE.sub(r"aliz\1", token)
    if token in _IRREGULAR:
        return _IRREGULAR[token]
    if len(token) > 4 and token.endswith("ies"):
        return token[:-3] + "y"
    if token.endswith(("sses", "ches", "shes", "xes")):
        return token[:-2]
    if len(token) > 3 and token.endswith("s") and not token.endswith(("ss", "us", "is")):
        return token[:-1]
    return token


def lemmas(text: str) -> list[tuple[str, int, int]]:
    """Words, numbers and punctuation of `text` as (lemma, first character, end)."""
    return [(lemma(m[0]), m.start(), m.end()) for m in _TOKEN.finditer(text.lower())]


@dataclass(frozen=True, slots=True)
class Finding:
    """A node of the ontology; `ancestors` holds itself and everything it is a case of."""

    id: str
    ancestors: frozenset[str]
    denies: frozenset[str]
    excludes: frozenset[str]
    exhaustive: tuple[str, ...]
    when: Mapping[str, str]
    midline: bool
    generic: bool
    collective: bool
    diffuse: bool
    implied: frozenset[str]
    usual_zone: str | None
    good_position: frozenset[str]


@dataclass(frozen=True, slots=True)
class Structure:
    """A part of the anatomy, the findings that its being normal, clear or acutely normal denies, and its states.

    `wholes`: itself and the structures that it is a part of.
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

    `phrases`: lemmas of a phrase to everything that it can mean; `lengths`: first lemma to the lengths of its phrases,
    longest first.
    """

    version: str
    sha256: str
    findings: Mapping[str, Finding]
    structures: Mapping[str, Structure]
    phrases: Mapping[tuple[str, ...], dict[str, str]]
    lengths: Mapping[str, tuple[int, ...]]
    places: Mapping[str, tuple[str, str]]
    zone_whole: Mapping[str, str | None]
    levels: Mapping[str, frozenset[int]]
    entails: Mapping[str, frozenset[str]]
    homes: Mapping[str, frozenset[str]]
    derived: Mapping[str, frozenset[str]]
    only: Mapping[str, tuple[str, ...]]

    def is_a(self, special: str, general: str) -> bool:
        """Whether every `special` is also a `general`."""
        finding = self.findings.get(special)
        return special == general if finding is None else general in finding.ancestors

    def is_generic(self, finding: str) -> bool:
        """Whether the name stands for any device ("the tube")."""
        node = self.findings.get(finding)
        return node is not None and node.generic

    def standard_position(self, finding: str, details: Set[str], measures: Sequence[float]) -> frozenset[str]:
        """ "good_position" where the device ends where it should, or 20 to 70 mm above the carina."""
        node = self.findings.get(finding)
        if node is None or "malpositioned" in details or not node.good_position & details:
            return frozenset()
        if "above_carina" in details and not (measures and all(20 <= size <= 70 for size in measures)):
            return frozenset()
        return frozenset({"good_position"})

    def applies(self, detail: str, finding: str) -> bool:
        """Whether the detail is a claim of its own for the finding ("acute" is one for bones only)."""
        return detail not in self.only or any(self.is_a(finding, other) for other in self.only[detail])

    def concerns(self, finding: str, structure: str) -> bool:
        """Whether what is said of `finding` (or of a structure of that name) is said of `structure`."""
        return any(finding == whole or finding in self.homes[whole] for whole in self.structures[structure].wholes)

    def denied_by(self, absent: str, finding: str) -> bool:
        """Whether the absence of `absent` rules `finding` out."""
        if self.is_a(finding, absent):
            return True
        node = self.findings.get(absent)
        return node is not None and any(self.denied_by(other, finding) for other in node.denies)

    def excluded_by(self, present: str, finding: str) -> bool:
        """Whether the presence of `present` rules `finding` out."""
        node = self.findings.get(present)
        return node is not None and any(self.is_a(finding, other) for other in node.excludes)
