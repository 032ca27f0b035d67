"""The ontology's file: YAML that a radiologist can edit, checked field by field and turned into an `Ontology`."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from radfact.errors import InputError
from radfact.io.jsonl import read_text
from radfact.judges.offline.ontology import Finding, Ontology, Structure, lemmas
from radfact.records import validated

DEFAULT_PATH = Path(__file__).with_name("ontology.yaml")

Phrase = tuple[str, ...]
"""The lemmas of a name."""

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


def _phrase(name: str) -> Phrase:
    return tuple(word for word, _, _ in lemmas(name))


def _named(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a phrase (put the words no and on in quotes)")
    if isinstance(value, str) and not _phrase(value):
        raise ValueError("expected a phrase with at least one word")
    return value


_Name = Annotated[str, BeforeValidator(_named)]


class _Node(BaseModel):
    """A misspelt key is an error instead of being dropped."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Finding(_Node):
    names: list[_Name] = []
    absence: list[_Name] = []
    is_a: list[str] = []
    denies: list[str] = []
    excludes: list[str] = []
    exhaustive: list[str] = []
    when: dict[str, str] = {}
    midline: bool = False
    generic: bool = False
    collective: bool = False
    diffuse: bool = False
    implied: list[str] = []
    usual_zone: str | None = None
    good_position: list[str] = []


class _Structure(_Node):
    names: list[_Name] = []
    part_of: list[str] = []
    abnormal: str
    clear: str | None = None
    acute: str | None = None
    states: dict[str, list[_Name]] = {}
    normal_words: list[_Name] = []
    here: dict[str, str] = {}


class _Modifier(_Node):
    names: list[_Name]


class _Zone(_Modifier):
    whole: str | None = None


class _Place(_Modifier):
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

    @property
    def details(self) -> dict[str, _Detail]:
        """Descriptors and positions: what a finding may be said to be like."""
        return {**self.descriptors, **self.positions}


def load_ontology(path: Path | str = DEFAULT_PATH) -> Ontology:
    """Read an ontology file.

    Args:
        path: a YAML file in the layout that the head of the packaged `ontology.yaml` explains.

    Raises:
        InputError: the file cannot be read, or names the field that is wrong.
    """
    import yaml

    text = read_text(path)
    try:
        data = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise InputError("not YAML", file=path, line=None if mark is None else mark.line + 1) from None
    file = validated(_File, data, file=path)
    for field, names, section, known in _references(file):
        if unknown := next((name for name in names if name not in known), None):
            raise InputError(f"'{unknown}' is not defined under {section}", file=path, field=field)
    phrases = _lexicon(file, path)
    structures = _structures(file, path)
    implied = {name: node.entails for name, node in file.change.items()}
    implied |= {name: node.implies for name, node in file.details.items()}
    # Whoever follows these has to come to an end.
    _closure({name: [node.whole] if node.whole else [] for name, node in file.zones.items()}, path, "zones")
    _closure({name: node.denies for name, node in file.findings.items()}, path, "findings")
    _closure({name: node.exhaustive for name, node in file.findings.items()}, path, "findings")
    return Ontology(
        version=file.version,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        findings=_findings(file, path),
        structures=structures,
        phrases=phrases,
        lengths=_lengths(phrases),
        places={_place_id(index): (place.side, place.zone) for index, place in enumerate(file.places)},
        zone_whole={name: node.whole for name, node in file.zones.items()},
        levels={name: frozenset(node.levels) for name, node in file.severity.items()},
        entails=_closure(implied, path, "change"),
        homes=_homes(structures),
        derived={name: frozenset(node.parts) for name, node in file.details.items() if node.parts},
        only={name: tuple(node.only) for name, node in file.details.items() if node.only},
    )


@cache
def default_ontology() -> Ontology:
    """The packaged ontology, read once."""
    return load_ontology()


def _references(file: _File) -> Iterator[tuple[str, Iterable[str], str, Collection[str]]]:
    """(field, the entries that it names, their section, the entries of that section) for every reference."""
    findings, details = ("findings", file.findings), ("descriptors or positions", file.details)
    zones, structures = ("zones", file.zones), ("structures", file.structures)
    said = ("change, descriptors or positions", {*file.change, *file.details})
    for name, node in file.findings.items():
        field = f"findings.{name}"
        yield f"{field}.is_a", node.is_a, *findings
        yield f"{field}.denies", node.denies, *findings
        yield f"{field}.excludes", node.excludes, *findings
        yield f"{field}.exhaustive", node.exhaustive, *findings
        yield f"{field}.when", node.when, *said
        yield f"{field}.when", node.when.values(), *findings
        yield f"{field}.implied", node.implied, *details
        yield f"{field}.good_position", node.good_position, *details
        yield f"{field}.usual_zone", () if node.usual_zone is None else (node.usual_zone,), *zones
    for name, part in file.structures.items():
        field = f"structures.{name}"
        yield f"{field}.part_of", part.part_of, *structures
        for key, target in (("abnormal", part.abnormal), ("clear", part.clear), ("acute", part.acute)):
            yield f"{field}.{key}", () if target is None else (target,), *findings
        yield f"{field}.states", part.states, *findings
        yield f"{field}.here", (*part.here, *part.here.values()), *findings
    for name, zone in file.zones.items():
        yield f"zones.{name}.whole", () if zone.whole is None else (zone.whole,), *zones
    for index, place in enumerate(file.places):
        yield f"places[{index}].zone", (place.zone,), *zones
    for name, change in file.change.items():
        yield f"change.{name}.entails", change.entails, *said
    for section, nodes in (("descriptors", file.descriptors), ("positions", file.positions)):
        for name, detail in nodes.items():
            yield f"{section}.{name}.implies", detail.implies, *said
            yield f"{section}.{name}.only", detail.only, *findings
            yield f"{section}.{name}.from", detail.parts, *details


def _lexicon(file: _File, path: Path | str) -> dict[Phrase, dict[str, str]]:
    """Every phrase with all that it can mean; it may be the name of one finding and of one structure."""
    phrases: dict[Phrase, dict[str, str]] = {}
    for kind, identity, names, field in _meanings(file):
        for name in names:
            meanings = phrases.setdefault(_phrase(name), {})
            if meanings.setdefault(kind, identity) != identity and kind in ("finding", "structure"):
                raise InputError(f"'{name}' already means '{meanings[kind]}'", file=path, field=field)
    return phrases


def _meanings(file: _File) -> Iterator[tuple[str, str, Sequence[str], str]]:
    """(kind, entry, its names, their field); of two entries of a kind with the same name the first keeps it."""
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
        yield "place", _place_id(index), place.names, f"places[{index}].names"
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


def _place_id(index: int) -> str:
    return f"place_{index}"


def _closure(parents: Mapping[str, Sequence[str]], path: Path | str, field: str) -> dict[str, frozenset[str]]:
    """Each node with all that can be reached from it, itself included."""
    closed: dict[str, frozenset[str]] = {}

    def visit(node: str, way: tuple[str, ...]) -> frozenset[str]:
        if node in way:
            raise InputError(f"a circle: {', '.join((*way, node))}", file=path, field=f"{field}.{node}")
        if node not in closed:
            closed[node] = frozenset({node}).union(*(visit(parent, (*way, node)) for parent in parents[node]))
        return closed[node]

    for node in parents:
        visit(node, ())
    return closed


def _findings(file: _File, path: Path | str) -> dict[str, Finding]:
    ancestors = _closure({name: node.is_a for name, node in file.findings.items()}, path, "findings")
    return {
        name: Finding(
            id=name,
            ancestors=ancestors[name],
            denies=frozenset(node.denies),
            excludes=frozenset(node.excludes),
            exhaustive=tuple(node.exhaustive),
            when=node.when,
            midline=node.midline,
            generic=node.generic,
            collective=node.collective,
            diffuse=node.diffuse,
            implied=frozenset(node.implied),
            usual_zone=node.usual_zone,
            good_position=frozenset(node.good_position),
        )
        for name, node in file.findings.items()
    }


def _structures(file: _File, path: Path | str) -> dict[str, Structure]:
    wholes = _closure({name: node.part_of for name, node in file.structures.items()}, path, "structures")
    return {
        name: Structure(
            id=name,
            wholes=wholes[name],
            abnormal=node.abnormal,
            clear=node.clear or node.abnormal,
            acute=node.acute or node.abnormal,
            states={_phrase(word): finding for finding, words in node.states.items() for word in words},
            normal=frozenset(map(_phrase, node.normal_words)),
            here=node.here,
        )
        for name, node in file.structures.items()
    }


def _homes(structures: Mapping[str, Structure]) -> dict[str, frozenset[str]]:
    """The findings that are about each structure as a whole, not about a part of it."""
    return {
        name: frozenset({node.abnormal, *node.states.values()})
        - {part.abnormal for part in structures.values() if name in part.wholes and part.id != name}
        for name, node in structures.items()
    }


def _lengths(phrases: Iterable[Phrase]) -> dict[str, tuple[int, ...]]:
    by_first: dict[str, set[int]] = {}
    for words in phrases:
        by_first.setdefault(words[0], set()).add(len(words))
    return {first: tuple(sorted(found, reverse=True)) for first, found in by_first.items()}
