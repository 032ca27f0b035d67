"""Read the ontology from YAML that a radiologist can edit, with every field checked."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_text
from radfact.io.yaml_files import read_yaml
from radfact.progress import COSTS
from radfact.reader.ontology import Detail, Finding, Node, Ontology, OntologyFile, phrase_lemmas
from radfact.records import validate_model

DEFAULT_PATH = Path(__file__).with_name("ontology.yaml")


def load_ontology(path: Path | str) -> Ontology:
    """Read an ontology file."""
    import yaml

    text, loader = read_text(path), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    # The parser in C is faster, but nesting in a file of unknown origin can crash it.
    data = yaml.load(text, Loader=loader) if Path(path) == DEFAULT_PATH else read_yaml(Path(path))
    file = validate_model(OntologyFile, data, file=path)
    details = {**file.descriptors, **file.positions}
    for field, names, section, known in _references(file, details):
        for name in names:
            if name not in known:
                message = f"'{name}' is not defined under {section}"
                raise InputError(message, code=ErrorCode.UNKNOWN_NAME, file=path, field=field)
    findings, structures = file.findings, file.structures
    # Lookups follow these relations, so they must be free of cycles.
    reach = partial(_transitive_closure, path)
    reach({name: [node.whole] if node.whole else [] for name, node in file.zones.items()}, "zones")
    reach({name: node.exhaustive for name, node in findings.items()}, "findings")
    denials = reach({name: node.denies for name, node in findings.items()}, "findings")
    ancestors = reach({name: node.is_a for name, node in findings.items()}, "findings")
    wholes = reach({name: node.part_of for name, node in structures.items()}, "structures")
    implied = {name: node.entails for name, node in file.change.items()}
    implied |= {name: node.implies for name, node in details.items()}
    # Besides findings, structures are concepts of facts: "the heart is unchanged".
    alone = {name: frozenset((name,)) for name in structures}
    special: dict[str, set[str]] = {name: set() for name in findings}
    for name, general in ancestors.items():
        for ancestor in general:
            special[ancestor].add(name)
    phrases = _build_lexicon(file, path)
    lengths: dict[str, set[int]] = {}
    for words in phrases:
        lengths.setdefault(words[0], set()).add(len(words))
    return Ontology(
        version=file.version,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        findings=findings,
        structures=structures,
        concepts=dict.fromkeys(structures, Finding()) | findings,
        ancestors=alone | ancestors,
        entailed={
            name: general.union(*(ancestors[entailed] for kind in general for entailed in findings[kind].entails))
            for name, general in ancestors.items()
        },
        denied=alone
        | {name: frozenset[str]().union(*(special[kind] for kind in denied)) for name, denied in denials.items()},
        excluded={
            name: frozenset[str]().union(*(special[kind] for kind in node.excludes)) for name, node in findings.items()
        },
        exhaustive={name: node.exhaustive for name, node in findings.items() if node.exhaustive},
        wholes=wholes,
        states={
            (name, phrase_lemmas(word)): finding
            for name, node in structures.items()
            for finding, words in node.states.items()
            for word in words
        },
        normal_states={(name, phrase_lemmas(word)) for name, node in structures.items() for word in node.normal_words},
        whole_findings={
            name: frozenset({node.abnormal, *node.states})
            - {part.abnormal for other, part in structures.items() if name in wholes[other] and other != name}
            for name, node in structures.items()
        },
        phrases=phrases,
        phrase_lengths={first: sorted(sizes, reverse=True) for first, sizes in lengths.items()},
        places={f"place_{index}": (place.side, place.zone) for index, place in enumerate(file.places)},
        zone_wholes={name: node.whole for name, node in file.zones.items()},
        severity_levels={name: frozenset(node.levels) for name, node in file.severity.items()},
        implications=reach(implied, "change"),
        derived_details={name: frozenset(node.parts) for name, node in details.items() if node.parts},
        detail_scopes={name: node.only for name, node in details.items() if node.only},
        positions=frozenset(file.positions),
        terms={
            name: node.display or name.replace("_", " ")
            for nodes in (findings, structures, file.zones, file.change, details)
            for name, node in nodes.items()
        },
        degree_terms={
            frozenset(node.levels): node.display or name.replace("_", " ")
            for name, node in reversed(file.severity.items())
        },
    )


default_ontology = cache(partial(load_ontology, DEFAULT_PATH))
"""Returns the packaged ontology, which is read once."""


class OntologyReader:
    """A reader of reports without a model: rules over an ontology, by default the packaged one."""

    name = "offline"
    version: str

    def __init__(self, ontology: Path | str | None = None) -> None:
        self.ontology: Ontology = default_ontology() if ontology is None else load_ontology(ontology)

    def describe(self) -> dict[str, Any]:
        """Return everything that changes a result."""
        versions = {"ontology_version": self.ontology.version, "ontology_sha256": self.ontology.sha256}
        return {"name": self.name, "version": self.version, **versions}

    def usage(self) -> dict[str, int]:
        """Return zero costs."""
        return dict.fromkeys(COSTS, 0)


def _references(
    file: OntologyFile, details: Mapping[str, Detail]
) -> Iterator[tuple[str, Iterable[str], str, Collection[str]]]:
    known: dict[str, Collection[str]] = {
        "findings": file.findings,
        "structures": file.structures,
        "zones": file.zones,
        "descriptors or positions": details,
        "change, descriptors or positions": {*file.change, *details},
    }
    nodes: dict[str, Node] = {f"places[{index}]": place for index, place in enumerate(file.places)}
    for section in ("findings", "structures", "zones", "change", "descriptors", "positions"):
        nodes |= {f"{section}.{name}": node for name, node in getattr(file, section).items()}
    for path, node in nodes.items():
        for field, info in type(node).model_fields.items():
            value = getattr(node, field)
            if not value or not info.metadata:
                continue
            sections = [section for section in info.metadata if section in known]
            listed = [value] if isinstance(value, str) else value
            names = (value, value.values()) if isinstance(value, dict) else (listed,)
            for section, named in zip(sections, names, strict=False):
                yield f"{path}.{info.alias or field}", named, section, known[section]


def _build_lexicon(file: OntologyFile, path: Path | str) -> dict[tuple[str, ...], dict[str, str]]:
    phrases: dict[tuple[str, ...], dict[str, str]] = {}
    for kind, entry, names, field in _named_entries(file):
        for index, name in enumerate(names):
            phrase = phrase_lemmas(name)
            if not phrase:
                raise InputError("expected a phrase with at least one word", file=path, field=f"{field}[{index}]")
            meanings = phrases.setdefault(phrase, {})
            if meanings.setdefault(kind, entry) != entry and kind in ("finding", "structure"):
                message = f"'{name}' already means '{meanings[kind]}'"
                raise InputError(message, code=ErrorCode.DUPLICATE, file=path, field=field)
    return phrases


def _named_entries(file: OntologyFile) -> Iterator[tuple[str, str, Sequence[str], str]]:
    for name, finding in file.findings.items():
        yield "finding", name, finding.names, f"findings.{name}.names"
        yield "absence", name, finding.absence, f"findings.{name}.absence"
    for name, structure in file.structures.items():
        yield "structure", name, structure.names, f"structures.{name}.names"
        yield "state", name, structure.normal_words, f"structures.{name}.normal_words"
        for state, words in structure.states.items():
            yield "state", name, words, f"structures.{name}.states.{state}"
    for kind in ("normal", "clear", "abnormal", "dominance"):
        yield kind, kind, getattr(file, f"{kind}_words"), f"{kind}_words"
    for side, names in file.sides.items():
        yield "side", side, names, f"sides.{side}"
    for index, place in enumerate(file.places):
        yield "place", f"place_{index}", place.names, f"places[{index}].names"
    kinds = {"zones": "zone", "descriptors": "detail", "positions": "detail"}
    for section in ("zones", "severity", "change", "descriptors", "positions"):
        for name, node in getattr(file, section).items():
            yield kinds.get(section, section), name, node.names, f"{section}.{name}.names"
    for cue, names in file.cues.items():
        yield cue, cue, names, f"cues.{cue}"
    yield "filler", "filler", file.filler, "filler"


def _transitive_closure(
    path: Path | str, parents: Mapping[str, Sequence[str]], field: str
) -> dict[str, frozenset[str]]:
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
