"""The ontology file: consistent as packaged, and every fault of an edited one named with its field."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from radfact.errors import ErrorCode, InputError
from radfact.reader.facts import parse_sentence
from radfact.reader.ontology import lemma
from radfact.reader.ontology_file import DEFAULT_PATH, default_ontology, load_ontology

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
    concepts = {fact.concept for fact in parse_sentence(f"There is {name}.").facts}
    assert any(default_ontology().is_a(concept, finding) for concept in concepts), concepts


@pytest.mark.parametrize(
    "pair",
    [
        *("consolidation opacity", "atelectasis opacity", "nodule opacity", "picc central_venous_catheter"),
        *("rib_fracture fracture", "interstitial_edema edema"),
    ],
)
def test_special_is_general_but_not_the_other_way_round(pair: str) -> None:
    special, general = pair.split()
    assert default_ontology().is_a(special, general)
    assert not default_ontology().is_a(general, special)


def test_lemmas() -> None:
    words = "oedema haemothorax opacities masses pneumothoraces atelectasis apices is"
    lemmas = "edema hemothorax opacity mass pneumothorax atelectasis apex is"
    assert " ".join(map(lemma, words.split())) == lemmas


def test_an_edited_ontology_is_used_and_has_another_hash(tmp_path: Path) -> None:
    ontology = load_ontology(write(tmp_path, lambda d: d["findings"]["nodule"]["names"].append("wotsit")))
    assert parse_sentence("A wotsit.", ontology).facts[0].concept == "nodule"
    assert ontology.sha256 != default_ontology().sha256


@pytest.mark.parametrize(
    ("edit", "code", "field"),
    [
        (lambda d: d.pop("findings"), None, "findings"),
        (lambda d: d["findings"]["nodule"].update(is_a=["nodul"]), ErrorCode.UNKNOWN_NAME, "findings.nodule.is_a"),
        (lambda d: d["findings"]["opacity"].update(is_a=["nodule"]), ErrorCode.INVALID_VALUE, "findings.opacity"),
        (lambda d: d["findings"]["mass"]["names"].append("nodule"), ErrorCode.DUPLICATE, "findings.mass.names"),
        (lambda d: d["findings"]["mass"].update(name=["x"]), None, "findings.mass.name"),
        (lambda d: d["findings"]["mass"].update(names="mass"), ErrorCode.INVALID_VALUE, "findings.mass.names"),
        (lambda d: d["findings"]["mass"].update(names=["–"]), ErrorCode.INVALID_VALUE, "findings.mass.names[0]"),
        (lambda d: d["cues"].update(negation=[False]), ErrorCode.INVALID_VALUE, "cues.negation[0]"),
        (
            lambda d: d["findings"]["nodule"].update(when={"calcifid": "granuloma"}),
            ErrorCode.UNKNOWN_NAME,
            "findings.nodule.when",
        ),
        (
            lambda d: d["findings"]["nodule"].update(usual_zone="middel"),
            ErrorCode.UNKNOWN_NAME,
            "findings.nodule.usual_zone",
        ),
        (lambda d: d["descriptors"]["patchy"].pop("names"), None, "descriptors.patchy.names"),
        (lambda d: d["severity"]["small"].pop("levels"), None, "severity.small.levels"),
        (
            lambda d: d["descriptors"]["dual_lead"].update({"from": ["atrium"]}),
            ErrorCode.UNKNOWN_NAME,
            "descriptors.dual_lead.from",
        ),
        (
            lambda d: d["structures"]["heart"].update(abnormal="big"),
            ErrorCode.UNKNOWN_NAME,
            "structures.heart.abnormal",
        ),
        (lambda d: d["findings"]["nodule"].update(denies=["nodule"]), ErrorCode.INVALID_VALUE, "findings.nodule"),
        (lambda d: d["zones"]["upper"].update(whole="apex"), ErrorCode.INVALID_VALUE, "zones.upper"),
        (lambda d: d["places"][0].update(zone="middel"), ErrorCode.UNKNOWN_NAME, "places[0].zone"),
        (lambda d: d["cues"].update(negaton=["nope"]), ErrorCode.INVALID_VALUE, "cues.negaton"),
        (lambda d: d.update(sides=None), ErrorCode.INVALID_VALUE, "sides"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, edit: Any, code: ErrorCode | None, field: str) -> None:
    path = write(tmp_path, edit)
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
