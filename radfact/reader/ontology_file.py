"""Read the ontology from YAML that a radiologist can edit, with every field checked."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_text
from radfact.reader.ontology import Finding, Ontology, Structure, phrase_lemmas
from radfact.records import validate_model

DEFAULT_PATH = Path(__file__).with_name("ontology.yaml")

_Cue = Literal[
    "negation",
    "not",
    "negation_after",
    "concluded",
    "probable",
    "uncertain",
    "uncertain_after",
    "link",
    "qualifying",
    "adjoining",
    "part",
    "removal",
    "advice",
    "seeing",
    "copula",
    "joining",
    "boundary",
    "locative",
    "except",
    "otherwise",
]


def _check_name(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a phrase (put the words no and on in quotes)")
    return value


_Name = Annotated[str, BeforeValidator(_check_name)]


class _Node(BaseModel):
    # A misspelled key is an error.
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Term(_Node):
    display: str | None = None


class _Finding(_Term):
    names: list[_Name] = []
    absence: list[_Name] = []
    is_a: list[str] = []
    entails: list[str] = []
    denies: list[str] = []
    excludes: list[str] = []
    exhaustive: list[str] = []
    when: dict[str, str] = {}
    midline: bool = False
    generic: bool = False
    collective: bool = False
    diffuse: bool = False
    directed: bool = False
    normal: bool = False
    implied: list[str] = []
    usual_zone: str | None = None
    good_position: list[str] = []


class _Structure(_Term):
    names: list[_Name] = []
    part_of: list[str] = []
    abnormal: str
    clear: str | None = None
    acute: str | None = None
    states: dict[str, list[_Name]] = {}
    normal_words: list[_Name] = []
    here: dict[str, str] = {}


class _Modifier(_Term):
    names: list[_Name]


class _Zone(_Modifier):
    whole: str | None = None


class _Place(_Node):
    names: list[_Name]
    side: Literal["left", "right", "both"]
    zone: str


class _Severity(_Modifier):
    levels: Annotated[list[Annotated[int, Field(ge=0, le=4)]], Field(min_length=1)]


class _Change(_Modifier):
    entails: list[str] = []


class _Detail(_Modifier):
    implies: list[str] = []
    only: list[str] = []
    parts: Annotated[list[str], Field(alias="from")] = []


class _File(_Node):
    version: Annotated[str, Field(coerce_numbers_to_str=True)] = ""
    findings: dict[str, _Finding]
    structures: dict[str, _Structure]
    normal_words: list[_Name] = []
    clear_words: list[_Name] = []
    abnormal_words: list[_Name] = []
    sides: dict[Literal["left", "right", "both"], list[_Name]]
    zones: dict[str, _Zone]
    places: list[_Place] = []
    severity: dict[str, _Severity]
    change: dict[str, _Change]
    descriptors: dict[str, _Detail]
    positions: dict[str, _Detail]
    dominance_words: list[_Name] = []
    cues: dict[_Cue, list[_Name]]
    filler: list[_Name]


def load_ontology(path: Path | str) -> Ontology:
    """Read an ontology file."""
    import yaml

    text = read_text(path)
    try:
        data = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        raise InputError("expected YAML", code=ErrorCode.INVALID_FORMAT, file=path, line=line) from None
    file = validate_model(_File, data, file=path)
    details = {**file.descriptors, **file.positions}
    for field, names, section, known in _references(file, details):
        for name in names:
            if name not in known:
                raise InputError(
                    f"'{name}' is not defined under {section}", code=ErrorCode.UNKNOWN_NAME, file=path, field=field
                )
    # Lookups follow these relations recursively, so they must be free of cycles.
    for section, relation in (
        ("zones", {name: [node.whole] if node.whole else [] for name, node in file.zones.items()}),
        ("findings", {name: node.denies for name, node in file.findings.items()}),
        ("findings", {name: node.exhaustive for name, node in file.findings.items()}),
    ):
        _transitive_closure(relation, path, section)
    implied = {name: node.entails for name, node in file.change.items()}
    implied |= {name: node.implies for name, node in details.items()}
    findings, structures = _build_nodes(file, path)
    phrases = _build_lexicon(file, path)
    lengths: dict[str, set[int]] = {}
    for words in phrases:
        lengths.setdefault(words[0], set()).add(len(words))
    return Ontology(
        version=file.version,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        findings=findings,
        exhaustive={name: node.exhaustive for name, node in findings.items() if node.exhaustive},
        structures=structures,
        phrases=phrases,
        phrase_lengths={first: tuple(sorted(sizes, reverse=True)) for first, sizes in lengths.items()},
        places={f"place_{index}": (place.side, place.zone) for index, place in enumerate(file.places)},
        zone_wholes={name: node.whole for name, node in file.zones.items()},
        severity_levels={name: frozenset(node.levels) for name, node in file.severity.items()},
        implications=_transitive_closure(implied, path, "change"),
        whole_findings={
            name: frozenset({node.abnormal, *node.states.values()})
            - {part.abnormal for part in structures.values() if name in part.wholes and part.id != name}
            for name, node in structures.items()
        },
        derived_details={name: frozenset(node.parts) for name, node in details.items() if node.parts},
        detail_scopes={name: tuple(node.only) for name, node in details.items() if node.only},
        positions=frozenset(file.positions),
        terms={
            name: node.display or name.replace("_", " ")
            for nodes in (file.findings, file.structures, file.zones, file.change, details)
            for name, node in nodes.items()
        },
        degree_terms={
            frozenset(node.levels): node.display or name.replace("_", " ")
            for name, node in reversed(file.severity.items())
        },
    )


default_ontology = cache(partial(load_ontology, DEFAULT_PATH))
"""Returns the packaged ontology, which is read once."""


_References = Iterator[tuple[str, Iterable[str], str, Collection[str]]]


def _references(file: _File, details: Mapping[str, _Detail]) -> _References:
    """Yield (field, referenced names, their section, names of that section) for every reference."""
    findings = ("findings", file.findings)
    zones, structures = ("zones", file.zones), ("structures", file.structures)
    known_details = ("descriptors or positions", details)
    attributes = ("change, descriptors or positions", {*file.change, *details})
    for name, node in file.findings.items():
        field = f"findings.{name}"
        yield f"{field}.is_a", node.is_a, *findings
        yield f"{field}.entails", node.entails, *findings
        yield f"{field}.denies", node.denies, *findings
        yield f"{field}.excludes", node.excludes, *findings
        yield f"{field}.exhaustive", node.exhaustive, *findings
        yield f"{field}.when", node.when, *attributes
        yield f"{field}.when", node.when.values(), *findings
        yield f"{field}.implied", node.implied, *known_details
        yield f"{field}.good_position", node.good_position, *known_details
        yield f"{field}.usual_zone", () if node.usual_zone is None else (node.usual_zone,), *zones
    for name, structure in file.structures.items():
        field = f"structures.{name}"
        yield f"{field}.part_of", structure.part_of, *structures
        for key in ("abnormal", "clear", "acute"):
            finding = getattr(structure, key)
            yield f"{field}.{key}", () if finding is None else (finding,), *findings
        yield f"{field}.states", structure.states, *findings
        yield f"{field}.here", (*structure.here, *structure.here.values()), *findings
    for name, zone in file.zones.items():
        yield f"zones.{name}.whole", () if zone.whole is None else (zone.whole,), *zones
    for index, place in enumerate(file.places):
        yield f"places[{index}].zone", (place.zone,), *zones
    for name, change in file.change.items():
        yield f"change.{name}.entails", change.entails, *attributes
    for section, nodes in (("descriptors", file.descriptors), ("positions", file.positions)):
        for name, detail in nodes.items():
            yield f"{section}.{name}.implies", detail.implies, *attributes
            yield f"{section}.{name}.only", detail.only, *findings
            yield f"{section}.{name}.from", detail.parts, *known_details


def _build_lexicon(file: _File, path: Path | str) -> dict[tuple[str, ...], dict[str, str]]:
    """Return every phrase with all of its meanings; it may be the name of one finding and of one structure."""
    phrases: dict[tuple[str, ...], dict[str, str]] = {}
    for kind, entry, names, field in _named_entries(file):
        for index, name in enumerate(names):
            phrase = phrase_lemmas(name)
            if not phrase:
                raise InputError("expected a phrase with at least one word", file=path, field=f"{field}[{index}]")
            meanings = phrases.setdefault(phrase, {})
            if meanings.setdefault(kind, entry) != entry and kind in ("finding", "structure"):
                raise InputError(
                    f"'{name}' already means '{meanings[kind]}'", code=ErrorCode.DUPLICATE, file=path, field=field
                )
    return phrases


def _named_entries(file: _File) -> Iterator[tuple[str, str, Sequence[str], str]]:
    """Yield (kind, entry, names, field); of two entries of one kind with the same name the first wins."""
    for name, finding in file.findings.items():
        yield "finding", name, finding.names, f"findings.{name}.names"
        yield "absence", name, finding.absence, f"findings.{name}.absence"
    for name, structure in file.structures.items():
        yield "structure", name, structure.names, f"structures.{name}.names"
        yield "state", name, structure.normal_words, f"structures.{name}.normal_words"
        for state, words in structure.states.items():
            yield "state", name, words, f"structures.{name}.states.{state}"
    yield "normal", "normal", file.normal_words, "normal_words"
    yield "clear", "clear", file.clear_words, "clear_words"
    yield "abnormal", "abnormal", file.abnormal_words, "abnormal_words"
    for side, names in file.sides.items():
        yield "side", side, names, f"sides.{side}"
    for index, place in enumerate(file.places):
        yield "place", f"place_{index}", place.names, f"places[{index}].names"
    sections: Sequence[tuple[str, str, Mapping[str, _Modifier]]] = (
        ("zones", "zone", file.zones),
        ("severity", "severity", file.severity),
        ("change", "change", file.change),
        ("descriptors", "detail", file.descriptors),
        ("positions", "detail", file.positions),
    )
    for section, kind, nodes in sections:
        for name, node in nodes.items():
            yield kind, name, node.names, f"{section}.{name}.names"
    yield "dominance", "dominance", file.dominance_words, "dominance_words"
    for cue, names in file.cues.items():
        yield cue, cue, names, f"cues.{cue}"
    yield "filler", "filler", file.filler, "filler"


def _transitive_closure(
    parents: Mapping[str, Sequence[str]], path: Path | str, field: str
) -> dict[str, frozenset[str]]:
    """Return each node with all nodes that can be reached from it, itself included."""
    try:
        order = list(TopologicalSorter(parents).static_order())
    except CycleError as error:
        cycle: list[str] = error.args[1]
        field = f"{field}.{cycle[0]}"
        raise InputError(f"expected no cycle, found {', '.join(cycle)}", file=path, field=field) from None
    reachable: dict[str, frozenset[str]] = {}
    for node in order:
        reachable[node] = frozenset({node}).union(*(reachable[parent] for parent in parents[node]))
    return reachable


def _build_nodes(file: _File, path: Path | str) -> tuple[dict[str, Finding], dict[str, Structure]]:
    ancestors = _transitive_closure({name: node.is_a for name, node in file.findings.items()}, path, "findings")
    findings = {
        name: Finding(
            id=name,
            ancestors=ancestors[name],
            entails=frozenset(entailed for ancestor in ancestors[name] for entailed in file.findings[ancestor].entails),
            denies=frozenset(node.denies),
            excludes=frozenset(node.excludes),
            exhaustive=tuple(node.exhaustive),
            when=node.when,
            midline=node.midline,
            generic=node.generic,
            collective=node.collective,
            diffuse=node.diffuse,
            directed=node.directed,
            normal=node.normal,
            implied=frozenset(node.implied),
            usual_zone=node.usual_zone,
            good_position=frozenset(node.good_position),
        )
        for name, node in file.findings.items()
    }
    wholes = _transitive_closure({name: node.part_of for name, node in file.structures.items()}, path, "structures")
    structures = {
        name: Structure(
            id=name,
            wholes=wholes[name],
            abnormal=node.abnormal,
            clear=node.clear or node.abnormal,
            acute=node.acute or node.abnormal,
            states={phrase_lemmas(word): finding for finding, words in node.states.items() for word in words},
            normal=frozenset(map(phrase_lemmas, node.normal_words)),
            here=node.here,
        )
        for name, node in file.structures.items()
    }
    return findings, structures
