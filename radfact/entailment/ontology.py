"""The ontology of chest-radiograph findings: read from YAML, checked, and turned into a lexicon of phrases."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from radfact.errors import InputError
from radfact.jsonl import read_text

DEFAULT_PATH = Path(__file__).with_name("ontology.yaml")

Entry = tuple[str, str]
"""(kind, id): what a phrase means, for example ("finding", "nodule") or ("side", "left")."""

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
_FINDING_KEYS = {
    "names",
    "absence",
    "is_a",
    "denies",
    "excludes",
    "exhaustive",
    "when",
    "midline",
    "generic",
    "collective",
    "diffuse",
    "implied",
    "usual_zone",
    "good_position",
}
_SECTIONS = (
    "findings",
    "structures",
    "sides",
    "zones",
    "severity",
    "change",
    "descriptors",
    "positions",
    "cues",
    "filler",
)


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


def _key(phrase: str) -> tuple[str, ...]:
    return tuple(word for word, _, _ in lemmas(phrase))


class _Builder:
    """Collects the lexicon and reports the field of every fault."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.phrases: dict[tuple[str, ...], dict[str, str]] = {}

    def fault(self, field: str, message: str) -> InputError:
        return InputError(message, file=self.path, field=field)

    def names(self, value: Any, field: str) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.fault(field, "expected a list of phrases (put the words no and on in quotes)")
        return value

    def add(self, kind: str, identity: str, names: Any, field: str) -> None:
        for name in self.names(names, field):
            meanings = self.phrases.setdefault(_key(name), {})
            if meanings.setdefault(kind, identity) != identity and kind in ("finding", "structure"):
                raise self.fault(field, f"'{name}' already means '{meanings[kind]}'")

    def entries(self, data: Mapping[str, Any], section: str) -> Mapping[str, Any]:
        """The entries of a section of modifiers, each with its names."""
        entries = data[section]
        if not isinstance(entries, dict):
            raise self.fault(section, "expected a mapping of entries, each with names")
        for name, node in entries.items():
            if not isinstance(node, dict) or "names" not in node:
                raise self.fault(f"{section}.{name}", "expected a mapping with names")
            if section == "severity" and not node.get("levels"):
                raise self.fault(f"{section}.{name}", "expected levels, a list of numbers from 0 to 4")
        return entries

    def closure(self, parents: Mapping[str, list[str]], field: str) -> dict[str, frozenset[str]]:
        closed: dict[str, frozenset[str]] = {}

        def visit(node: str, path: tuple[str, ...]) -> frozenset[str]:
            if node not in parents:
                raise self.fault(f"{field}.{path[-1]}" if path else field, f"'{node}' is not defined")
            if node in path:
                raise self.fault(f"{field}.{node}", f"a circle: {' is a '.join((*path, node))}")
            if node not in closed:
                closed[node] = frozenset({node}).union(*(visit(parent, (*path, node)) for parent in parents[node]))
            return closed[node]

        for node in parents:
            visit(node, ())
        return closed


def _findings(build: _Builder, data: Mapping[str, Any]) -> dict[str, Finding]:
    for name, node in data.items():
        field = f"findings.{name}"
        if not isinstance(node, dict):
            raise build.fault(field, "expected a mapping with names, is_a, ...")
        if unknown := set(node) - _FINDING_KEYS:
            raise build.fault(field, f"unknown key '{min(unknown)}'")
        build.add("finding", name, node.get("names", []), f"{field}.names")
        build.add("absence", name, node.get("absence", []), f"{field}.absence")
        for key in ("denies", "excludes", "exhaustive"):
            for other in build.names(node.get(key, []), f"{field}.{key}"):
                if other not in data:
                    raise build.fault(f"{field}.{key}", f"'{other}' is not defined")
        for other in node.get("when", {}).values():
            if other not in data:
                raise build.fault(f"{field}.when", f"'{other}' is not defined")
    parents = {name: build.names(node.get("is_a", []), f"findings.{name}.is_a") for name, node in data.items()}
    return {
        name: Finding(
            name,
            ancestors,
            frozenset(data[name].get("denies", [])),
            frozenset(data[name].get("excludes", [])),
            tuple(data[name].get("exhaustive", [])),
            dict(data[name].get("when", {})),
            bool(data[name].get("midline", False)),
            bool(data[name].get("generic", False)),
            bool(data[name].get("collective", False)),
            bool(data[name].get("diffuse", False)),
            frozenset(data[name].get("implied", [])),
            data[name].get("usual_zone"),
            frozenset(data[name].get("good_position", [])),
        )
        for name, ancestors in build.closure(parents, "findings").items()
    }


def _structures(build: _Builder, data: Mapping[str, Any], findings: Mapping[str, Finding]) -> dict[str, Structure]:
    structures = {}
    for name, node in data.items():
        if not isinstance(node, dict) or "abnormal" not in node:
            raise build.fault(f"structures.{name}", "expected a mapping with names, abnormal, ...")
    parts = {name: build.names(node.get("part_of", []), f"structures.{name}.part_of") for name, node in data.items()}
    wholes = build.closure(parts, "structures")
    for name, node in data.items():
        field = f"structures.{name}"
        build.add("structure", name, node.get("names", []), f"{field}.names")
        build.add("state", name, node.get("normal_words", []), f"{field}.normal_words")
        states: dict[tuple[str, ...], str] = {}
        for finding, words in node.get("states", {}).items():
            build.add("state", name, words, f"{field}.states.{finding}")
            states.update({_key(word): finding for word in words})
        targets = [node["abnormal"], node.get("clear", node["abnormal"]), node.get("acute", node["abnormal"])]
        here = dict(node.get("here", {}))
        for finding in (*targets, *states.values(), *here, *here.values()):
            if finding not in findings:
                raise build.fault(field, f"'{finding}' is not defined under findings")
        normal = frozenset(_key(word) for word in node.get("normal_words", []))
        structures[name] = Structure(name, wholes[name], targets[0], targets[1], targets[2], states, normal, here)
    return structures


def _check_modifiers(build: _Builder, data: Mapping[str, Any]) -> None:
    """That the modifiers which findings and descriptors refer to are defined."""
    details = {*data["descriptors"], *data["positions"]}
    known = {"when": details | {*data["change"]}, "implied": details, "good_position": details}
    for name, node in data["findings"].items():
        for key, allowed in known.items():
            for other in node.get(key, ()):
                if other not in allowed:
                    raise build.fault(f"findings.{name}.{key}", f"'{other}' is not defined")
        if node.get("usual_zone", next(iter(data["zones"]))) not in data["zones"]:
            raise build.fault(f"findings.{name}.usual_zone", f"'{node['usual_zone']}' is not defined under zones")
    for section in ("descriptors", "positions"):
        for name, node in data[section].items():
            for key, allowed in (("only", data["findings"]), ("from", details)):
                for other in node.get(key, ()):
                    if other not in allowed:
                        raise build.fault(f"{section}.{name}.{key}", f"'{other}' is not defined")


def _homes(structures: Mapping[str, Structure]) -> dict[str, frozenset[str]]:
    """The findings that are about each structure as a whole, not about a part of it."""
    return {
        name: frozenset({node.abnormal, *node.states.values()})
        - {part.abnormal for part in structures.values() if name in part.wholes and part.id != name}
        for name, node in structures.items()
    }


def _lengths(phrases: Iterable[tuple[str, ...]]) -> dict[str, tuple[int, ...]]:
    by_first: dict[str, set[int]] = {}
    for words in phrases:
        by_first.setdefault(words[0], set()).add(len(words))
    return {first: tuple(sorted(found, reverse=True)) for first, found in by_first.items()}


def load_ontology(path: Path | str = DEFAULT_PATH) -> Ontology:
    """Read an ontology file.

    Args:
        path: a YAML file in the layout that the head of the packaged `ontology.yaml` explains.

    Raises:
        InputError: the file cannot be read, or names the field that is wrong.
    """
    import yaml

    path, text = Path(path), read_text(path)
    try:
        data = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise InputError("not YAML", file=path, line=None if mark is None else mark.line + 1) from None
    build = _Builder(path)
    if not isinstance(data, dict):
        raise build.fault("findings", "expected a mapping of sections")
    for section in _SECTIONS:
        if section not in data:
            raise build.fault(section, "this section is missing")
    findings = _findings(build, data["findings"])
    structures = _structures(build, data["structures"], findings)
    for kind in ("normal", "clear", "abnormal"):
        build.add(kind, kind, data.get(f"{kind}_words", []), f"{kind}_words")
    for side, names in data["sides"].items():
        build.add("side", side, names, f"sides.{side}")
    places = _places(build, data.get("places", []))
    for section, kind in (
        ("zones", "zone"),
        ("severity", "severity"),
        ("change", "change"),
        ("descriptors", "detail"),
        ("positions", "detail"),
    ):
        for name, node in build.entries(data, section).items():
            build.add(kind, name, node["names"], f"{section}.{name}.names")
    _check_modifiers(build, data)
    build.add("dominance", "dominance", data.get("dominance_words", []), "dominance_words")
    for cue, names in data["cues"].items():
        build.add(cue, cue, names, f"cues.{cue}")
    build.add("filler", "filler", data["filler"], "filler")
    zone_whole = {name: node.get("whole") for name, node in data["zones"].items()}
    graph = {name: list(node.get("entails", [])) for name, node in data["change"].items()}
    graph |= {
        name: list(node.get("implies", []))
        for part in ("descriptors", "positions")
        for name, node in data[part].items()
    }
    return Ontology(
        version=str(data.get("version", "")),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        findings=findings,
        structures=structures,
        phrases=build.phrases,
        lengths=_lengths(build.phrases),
        places=places,
        zone_whole=zone_whole,
        levels={name: frozenset(node["levels"]) for name, node in data["severity"].items()},
        entails=build.closure(graph, "change"),
        homes=_homes(structures),
        derived={
            name: frozenset(node["from"])
            for part in ("descriptors", "positions")
            for name, node in data[part].items()
            if "from" in node
        },
        only={name: tuple(node["only"]) for name, node in data["descriptors"].items() if "only" in node},
    )


def _places(build: _Builder, data: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    places = {}
    for index, node in enumerate(data):
        name = f"place_{index}"
        build.add("place", name, node["names"], f"places[{index}].names")
        places[name] = (str(node["side"]), str(node["zone"]))
    return places


@cache
def default_ontology() -> Ontology:
    """The packaged ontology, read once."""
    return load_ontology()
