"""The ontology file: consistent as packaged, and every fault of an edited one named with its field."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from radfact.errors import InputError
from radfact.judges.offline.facts import parse
from radfact.judges.offline.ontology import lemma
from radfact.judges.offline.ontology_file import DEFAULT_PATH, default_ontology, load_ontology

DATA: dict[str, Any] = yaml.safe_load(DEFAULT_PATH.read_text("utf-8"))
NAMES = [(finding, name) for finding, node in DATA["findings"].items() for name in node.get("names", [])]


def write(folder: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    data = yaml.safe_load(DEFAULT_PATH.read_text("utf-8"))
    edit(data)
    path = folder / "ontology.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


@pytest.mark.parametrize(("finding", "name"), NAMES)
def test_every_name_means_its_finding(finding: str, name: str) -> None:
    concepts = {fact.concept for fact in parse(f"There is {name}.").facts}
    assert any(default_ontology().is_a(concept, finding) for concept in concepts), concepts


@pytest.mark.parametrize(
    ("special", "general"),
    [
        ("consolidation", "opacity"),
        ("atelectasis", "opacity"),
        ("nodule", "opacity"),
        ("picc", "central_venous_catheter"),
        ("rib_fracture", "fracture"),
        ("interstitial_edema", "edema"),
    ],
)
def test_special_is_general_but_not_the_other_way_round(special: str, general: str) -> None:
    ontology = default_ontology()
    assert ontology.is_a(special, general)
    assert not ontology.is_a(general, special)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("oedema", "edema"),
        ("haemothorax", "hemothorax"),
        ("opacities", "opacity"),
        ("masses", "mass"),
        ("pneumothoraces", "pneumothorax"),
        ("atelectasis", "atelectasis"),
        ("apices", "apex"),
        ("is", "is"),
    ],
)
def test_lemmas(word: str, expected: str) -> None:
    assert lemma(word) == expected


def test_an_edited_ontology_is_used(tmp_path: Path) -> None:
    path = write(tmp_path, lambda d: d["findings"]["nodule"]["names"].append("wotsit"))
    assert parse("A wotsit.", load_ontology(path)).facts[0].concept == "nodule"


def test_an_edit_changes_the_hash(tmp_path: Path) -> None:
    path = write(tmp_path, lambda d: d["findings"]["nodule"]["names"].append("wotsit"))
    assert load_ontology(path).sha256 != default_ontology().sha256


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d.pop("findings"), "findings: field required"),
        (lambda d: d["findings"]["nodule"].update(is_a=["nodul"]), "'nodul' is not defined"),
        (lambda d: d["findings"]["opacity"].update(is_a=["nodule"]), "a circle"),
        (
            lambda d: d["findings"]["mass"]["names"].append("nodule"),
            "findings.mass.names: 'nodule' already means",
        ),
        (lambda d: d["findings"]["mass"].update(name=["x"]), "findings.mass.name: unknown field"),
        (lambda d: d["findings"]["mass"].update(names="mass"), "findings.mass.names: expected a list"),
        (lambda d: d["cues"].update(negation=[False]), "in quotes"),
        (lambda d: d["findings"]["nodule"].update(when={"calcifid": "granuloma"}), "'calcifid' is not defined"),
        (lambda d: d["findings"]["nodule"].update(usual_zone="middel"), "'middel' is not defined under zones"),
        (
            lambda d: d["descriptors"]["patchy"].pop("names"),
            "descriptors.patchy.names: field required",
        ),
        (lambda d: d["severity"]["small"].pop("levels"), "severity.small.levels: field required"),
        (lambda d: d["descriptors"]["dual_lead"].update({"from": ["atrium"]}), "'atrium' is not defined"),
        (
            lambda d: d["structures"]["heart"].update(abnormal="big"),
            "structures.heart.abnormal: 'big' is not defined",
        ),
        (lambda d: d["findings"]["mass"].update(names=["–"]), "a phrase with at least one word"),
        (lambda d: d["findings"]["nodule"].update(denies=["nodule"]), "a circle"),
        (lambda d: d["zones"]["upper"].update(whole="apex"), "a circle"),
        (lambda d: d["places"][0].update(zone="middel"), "places[0].zone: 'middel' is not defined under zones"),
        (lambda d: d["cues"].update(negaton=["nope"]), "field 'cues.negaton"),
        (lambda d: d.update(sides=None), "field 'sides'"),
    ],
)
def test_faults_are_named_with_their_field(tmp_path: Path, edit: Any, message: str) -> None:
    path = write(tmp_path, edit)
    with pytest.raises(InputError) as caught:
        load_ontology(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_text_that_is_no_yaml_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "ontology.yaml"
    path.write_text("findings:\n  a: [\n")
    with pytest.raises(InputError, match=r"line \d+: not YAML"):
        load_ontology(path)
