"""The ontology file: consistent as packaged, and every fault of an edited one named with its field."""

import copy
import json
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml
from error_checks import raises

from radfact.reader.facts import parse_sentence
from radfact.reader.ontology import lemma
from radfact.reader.ontology_file import DEFAULT_PATH, default_ontology, load_ontology

DATA: dict[str, Any] = yaml.safe_load(DEFAULT_PATH.read_text("utf-8"))
INVALID: list[list[Any]] = yaml.safe_load(Path(__file__).with_name("invalid_ontology.yaml").read_text("utf-8"))


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


@pytest.mark.parametrize(("edited", "error", "value"), [(edited, error, value) for edited, error, *value in INVALID])
def test_a_wrong_field_is_named(tmp_path: Path, edited: list[Any], error: str, value: list[Any]) -> None:
    data = copy.deepcopy(DATA)
    *path, key = edited
    node = reduce(lambda node, key: node[key], path, data)
    if value:
        [node[key]] = value
    else:
        del node[key]
    file = tmp_path / "ontology.yaml"
    file.write_text(json.dumps(data))  # Written faster than as YAML, of which it is a part.
    with raises(f"ontology.yaml: {error}"):
        load_ontology(file)


def test_a_file_that_is_missing_or_no_yaml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ontology.yaml"
    with raises("ontology.yaml: file-not-found"):
        load_ontology(path)
    path.write_text("findings:\n  a: [\n")
    with raises("ontology.yaml:3: invalid-format"):
        load_ontology(path)
