"""Table 1 of a manifest."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer
from error_checks import raises
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from maira.cli.manifest import stats
from maira.data.manifest import write_manifest
from maira.data.statistics import Group, Statistics, manifest_statistics
from maira.data.study import Study
from radfact.io.jsonl import read_json
from radfact.records import Box, Mask, Sentence

BOX = Box(x_min=0.1, y_min=0.1, x_max=0.2, y_max=0.2)
FRONTAL = Path("f.png")


def _study(sample_id: str, **fields: Any) -> Study:
    return Study.model_validate({"sample_id": sample_id, "frontal": FRONTAL, **fields})


def _write(folder: Path, *studies: Study) -> Path:
    write_manifest(folder / "manifest.jsonl", studies)
    return folder / "manifest.jsonl"


def _only(folder: Path, *studies: Study) -> dict[str, Any]:
    """Figures of a manifest with one group."""
    (figures,) = manifest_statistics(_write(folder, *studies)).rows()
    return figures


def test_studies_stand_in_for_unknown_patients(tmp_path: Path) -> None:
    known = _study("a", findings="Clear.", patient_id="p")
    unknown = [_study(f"s{n}", findings="Clear.", study_id=f"{n // 2}") for n in range(4)]
    figures = _only(tmp_path, known, *unknown)
    assert (figures["patients"], figures["studies_of_unknown_patients"]) == (1, 2)


def test_a_prior_is_an_image_and_a_report(tmp_path: Path) -> None:
    studies = [
        _study("both", findings="Clear.", prior_frontal=FRONTAL, prior_report="Clear."),
        _study("image", findings="Clear.", prior_frontal=FRONTAL),
        _study("report", findings="Clear.", prior_report="Clear."),
        _study("none", findings="Clear."),
    ]
    assert _only(tmp_path, *studies)["has_prior"] == 0.25


def test_each_phrase_is_a_frontal_only_sample(tmp_path: Path) -> None:
    phrases = [Sentence(text="Left effusion.", boxes=(BOX,)), Sentence(text="Mass.", boxes=(BOX, BOX))]
    study = _study("a", phrases=phrases, lateral=FRONTAL, prior_frontal=FRONTAL, prior_report="Clear.", patient_id="p")
    figures = _only(tmp_path, study)
    assert (figures["samples"], figures["patients"], figures["has_lateral"], figures["has_prior"]) == (2, 1, 0, 0)
    assert (figures["words_a_report"], figures["boxes_a_located_sentence"]) == (1.5, 1.5)


def test_boxes_and_masks_are_counted_per_grounded_sentence(tmp_path: Path) -> None:
    mask = Mask(size=(2, 2), counts=[0, 4])
    report = [
        Sentence(text="Clear lungs."),
        Sentence(text="Mass.", boxes=(BOX, BOX)),
        Sentence(text="Tube.", masks=(mask,)),
        Sentence(text="Gone.", prior_boxes=(BOX,)),
    ]
    figures = _only(tmp_path, _study("a", grounded_findings=report))
    assert (figures["sentences_a_report"], figures["sentences_with_boxes"]) == (4, 0.5)
    assert figures["boxes_a_located_sentence"] == 1.5


def test_narrative_sentences_are_counted_as_written(tmp_path: Path) -> None:
    text = "1. Heart size is 5.3 cm, seen by Dr. Who.\n2. No effusion\n   or pneumothorax."
    figures = _only(tmp_path, _study("a", findings=text))
    assert (figures["sentences_a_report"], figures["words_a_report"]) == (2, 15)


def test_parts_of_an_archive_share_its_patients(tmp_path: Path) -> None:
    studies = [
        _study("a", findings="Clear.", source="mimic-cxr", patient_id="10"),
        _study("b", phrases=[Sentence(text="Mass.")], source="ms-cxr", patient_id="10"),
        _study("c", findings="Clear.", source="padchest", patient_id="10"),
    ]
    assert len(manifest_statistics(_write(tmp_path, *studies)).total().patients) == 2


def test_shares_are_relative_to_the_split(tmp_path: Path) -> None:
    splits = ["test", "train", "train", "train", "train"]
    studies = [_study(f"{n}", findings="Clear.", source=f"s{n % 2}", split=s) for n, s in enumerate(splits)]
    counted = manifest_statistics(_write(tmp_path, *studies))
    rows = counted.as_json(["source", "split"])["groups"]
    shares = [(row["source"], row["split"], row["share"]) for row in rows]
    assert shares == [("s0", "train", 0.5), ("s0", "test", 1), ("s1", "train", 0.5)]


def test_counts_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    studies = [_study(f"{n}", findings="Clear.", split=f"{n % 3}", patient_id=f"{n % 7}") for n in range(9000)]
    path = _write(tmp_path, *studies)
    assert manifest_statistics(path, workers=2) == manifest_statistics(path, workers=1)


def test_an_invalid_line_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = _write(tmp_path, *(_study(f"{n}", findings="Clear.") for n in range(5000)))
    with path.open("a") as handle:
        handle.write('{"sample_id": "x", "frontal": "f.png", "findigns": "Clear."}\n')
    with raises("manifest.jsonl:5001: findigns: unknown-field"):
        manifest_statistics(path, workers=2)


_GROUPS = st.builds(
    Group,
    key=st.tuples(*[st.sampled_from([None, "a", "train"])] * 3),
    patients=st.sets(st.tuples(st.none(), st.sampled_from("pqr"))),
    counts=st.builds(Counter, samples=st.integers(1, 9), words=st.integers(1, 9)),
)


@given(
    st.lists(_GROUPS, unique_by=lambda g: g.key),
    st.lists(st.sampled_from(["source", "split", "task"]), unique=True, min_size=1),
)
def test_totals_do_not_depend_on_grouping(groups: list[Group], columns: list[Any]) -> None:
    counted = Statistics(0, groups)
    total, again = counted.total(), Group()
    for group in counted.group_by(columns):
        again.add(group)
    assert again == total


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(stats)
    return app


def test_the_command_prints_a_row_per_group(app: typer.Typer, tmp_path: Path) -> None:
    studies = [_study("a", findings="Clear lungs.", source="iu-xray", split="test", lateral=FRONTAL)]
    output = CliRunner().invoke(app, [str(_write(tmp_path, *studies))], env={"COLUMNS": "80"}).output
    assert "iu-xray test FindGen 1* 1 100.0 100.0 0.0" in " ".join(output.split())
    assert "* studies whose patient is unknown" in output


def test_the_command_writes_json(app: typer.Typer, tmp_path: Path) -> None:
    path = _write(tmp_path, *(_study(f"{n}", findings="Clear.", split="test") for n in range(3)))
    out = tmp_path / "stats.json"
    assert CliRunner().invoke(app, [str(path), "--by", "split", "--out", str(out)]).exit_code == 0
    assert read_json(out) == json.loads(json.dumps(manifest_statistics(path).as_json(["split"])))
