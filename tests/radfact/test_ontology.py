"""The ontology file: consistent as packaged, and every fault of an edited one named with its field."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from radfact.errors import ErrorCode, InputError
from radfact.reader.facts import parse_sentence
from radfact.reader.ontology import lemma
from radfact.reader.ontology_file import DEFAULT_PATH, default_ontology, load_ontology

DATA: dict[str, Any] = yaml.safe_load(DEFAULT_PATH.read_text("utf-8"))


def test_every_name_means_its_finding() -> None:
    ontology = default_ontology()
    wrong = [
        (finding, name)
        for finding, node in DATA["findings"].items()
        for name in node.get("names", [])
        if not any(ontology.is_a(fact.concept, finding) for fact in parse_sentence(f"There is {name}.").facts)
    ]
    assert wrong == []


def test_special_is_general_but_not_the_other_way_round() -> None:
    pairs = "consolidation opacity, nodule opacity, picc central_venous_catheter, interstitial_edema edema"
    for special, general in map(str.split, pairs.split(",")):
        assert default_ontology().is_a(special, general)
        assert not default_ontology().is_a(general, special)


def test_lemmas() -> None:
    words = "oedema haemothorax opacities masses pneumothoraces atelectasis apices is"
    lemmas = "edema hemothorax opacity mass pneumothorax atelectasis apex is"
    assert " ".join(map(lemma, words.split())) == lemmas


MISSING = object()


@pytest.mark.parametrize(
    ("edited", "value", "code", "field"),
    [
        (["findings"], MISSING, None, "findings"),
        (["findings", "nodule", "is_a"], ["nodul"], ErrorCode.UNKNOWN_NAME, "findings.nodule.is_a"),
        (["findings", "nodule", "when"], {"calcifid": "granuloma"}, ErrorCode.UNKNOWN_NAME, "findings.nodule.when"),
        (["findings", "nodule", "when"], {"calcified": "granulom"}, ErrorCode.UNKNOWN_NAME, "findings.nodule.when"),
        (["findings", "nodule", "usual_zone"], "middel", ErrorCode.UNKNOWN_NAME, "findings.nodule.usual_zone"),
        (["findings", "nodule", "denies"], ["nodule"], ErrorCode.INVALID_VALUE, "findings.nodule"),
        (["findings", "opacity", "is_a"], ["nodule"], ErrorCode.INVALID_VALUE, "findings.opacity"),
        (["findings", "mass", "names"], ["mass", "nodule"], ErrorCode.DUPLICATE, "findings.mass.names"),
        (["findings", "mass", "names"], "mass", ErrorCode.INVALID_VALUE, "findings.mass.names"),
        (["findings", "mass", "names"], ["–"], ErrorCode.INVALID_VALUE, "findings.mass.names[0]"),
        (["findings", "mass", "name"], ["x"], None, "findings.mass.name"),
        (["structures", "heart", "abnormal"], "big", ErrorCode.UNKNOWN_NAME, "structures.heart.abnormal"),
        (["descriptors", "patchy", "names"], MISSING, None, "descriptors.patchy.names"),
        (["descriptors", "dual_lead", "from"], ["atrium"], ErrorCode.UNKNOWN_NAME, "descriptors.dual_lead.from"),
        (["severity", "small", "levels"], MISSING, None, "severity.small.levels"),
        (["zones", "upper", "whole"], "apex", ErrorCode.INVALID_VALUE, "zones.upper"),
        (["places", 0, "zone"], "middel", ErrorCode.UNKNOWN_NAME, "places[0].zone"),
        (["cues", "negation"], [False], ErrorCode.INVALID_VALUE, "cues.negation[0]"),
        (["cues", "negaton"], ["nope"], ErrorCode.INVALID_VALUE, "cues.negaton"),
        (["sides"], None, ErrorCode.INVALID_VALUE, "sides"),
    ],
)
def test_a_wrong_field_is_named(
    tmp_path: Path, edited: list[Any], value: Any, code: ErrorCode | None, field: str
) -> None:
    data = yaml.safe_load(DEFAULT_PATH.read_text("utf-8"))
    node = reduce(lambda node, key: node[key], edited[:-1], data)
    if value is MISSING:
        del node[edited[-1]]
    else:
        node[edited[-1]] = value
    path = tmp_path / "ontology.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    with pytest.raises(InputError) as caught:
        load_ontology(path)
    assert (caught.value.file, caught.value.field) == (path, field)
    assert code is None or caught.value.code is code


def test_text_that_is_no_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "ontology.yaml"
    path.write_text("findings:\n  a: [\n")
    with pytest.raises(InputError) as caught:
        load_ontology(path)
    assert (caught.value.code, caught.value.line) == (ErrorCode.INVALID_FORMAT, 3)
