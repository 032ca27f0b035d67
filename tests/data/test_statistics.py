"""Table 1 of a manifest."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from maira.cli.manifest import stats
from maira.data.manifest import write_manifest
from maira.data.statistics import COLUMNS, manifest_statistics
from maira.data.study import Study
from radfact.io.jsonl import read_json
from radfact.records import Box, Mask, Sentence

BOX = Box(x_min=0.1, y_min=0.1, x_max=0.2, y_max=0.2)
FRONTAL = Path("f.png")
PRIOR = {"prior_frontal": FRONTAL, "prior_report": "Clear."}


def _study(sample_id: str, **fields: Any) -> Study:
    return Study.model_validate({"sample_id": sample_id, "frontal": FRONTAL, **fields})


def _write(folder: Path, *studies: Study) -> Path:
    write_manifest(folder / "manifest.jsonl", studies)
    return folder / "manifest.jsonl"


def _clear(count: int, **fields: Any) -> list[Study]:
    return [_study(f"s{number}", findings="Clear.", **fields) for number in range(count)]


PHRASES = [Sentence(text="Left effusion.", boxes=(BOX,)), Sentence(text="Mass.", boxes=(BOX, BOX))]
REPORT = [
    Sentence(text="Clear lungs."),
    Sentence(text="Mass.", boxes=(BOX, BOX)),
    Sentence(text="Tube.", masks=(Mask(size=(2, 2), counts=[0, 4]),)),
    Sentence(text="Gone.", prior_boxes=(BOX,)),
]
NARRATIVE = "1. Heart size is 5.3 cm, seen by Dr. Who.\n2. No effusion\n   or pneumothorax."


@pytest.mark.parametrize(
    ("studies", "figures"),
    [
        # Studies stand in for unknown patients.
        (
            [_study("a", findings="Clear.", patient_id="p"), *_clear(2, study_id="x"), _study("b", findings="Clear.")],
            {"patients": 1, "studies_of_unknown_patients": 2},
        ),
        # A prior is an image and a report.
        (
            [*_clear(1, **PRIOR), _study("image", findings="Clear.", prior_frontal=FRONTAL),
             _study("report", findings="Clear.", prior_report="Clear."), _study("none", findings="Clear.")],
            {"has_prior": 0.25},
        ),
        # Each phrase is a sample with the frontal image alone.
        (
            [_study("a", phrases=PHRASES, lateral=FRONTAL, patient_id="p", **PRIOR)],
            {"samples": 2, "patients": 1, "has_lateral": 0, "has_prior": 0, "words_a_report": 1.5,
             "boxes_a_located_sentence": 1.5},
        ),
        (
            [_study("a", grounded_findings=REPORT)],
            {"sentences_a_report": 4, "sentences_with_boxes": 0.5, "boxes_a_located_sentence": 1.5},
        ),
        ([_study("a", findings=NARRATIVE)], {"sentences_a_report": 2, "words_a_report": 15}),
    ],
)  # fmt: skip
def test_samples_are_counted_as_in_table_1(tmp_path: Path, studies: list[Study], figures: dict[str, float]) -> None:
    (group,) = manifest_statistics(_write(tmp_path, *studies))["groups"]
    assert group | figures == group


def test_parts_of_an_archive_share_its_patients(tmp_path: Path) -> None:
    studies = [
        _study("a", findings="Clear.", source="mimic-cxr", patient_id="10"),
        _study("b", phrases=[Sentence(text="Mass.")], source="ms-cxr", patient_id="10"),
        _study("c", findings="Clear.", source="padchest", patient_id="10"),
    ]
    assert manifest_statistics(_write(tmp_path, *studies))["total"]["patients"] == 2


def test_shares_are_relative_to_the_split(tmp_path: Path) -> None:
    splits = ["test", "train", "train", "train", "train"]
    studies = [_study(f"{n}", findings="Clear.", source=f"s{n % 2}", split=s) for n, s in enumerate(splits)]
    rows = manifest_statistics(_write(tmp_path, *studies), ["source", "split"])["groups"]
    shares = [(row["source"], row["split"], row["share"]) for row in rows]
    assert shares == [("s0", "train", 0.5), ("s0", "test", 1), ("s1", "train", 0.5)]
    for columns in combinations(COLUMNS, 2):
        counted = manifest_statistics(tmp_path / "manifest.jsonl", columns)
        assert sum(row["samples"] for row in counted["groups"]) == counted["total"]["samples"] == len(studies)


def test_the_command_prints_a_row_per_group_and_writes_json(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(stats)
    studies = [_study("a", findings="Clear lungs.", source="iu-xray", split="test", lateral=FRONTAL)]
    path, out = _write(tmp_path, *studies), tmp_path / "stats.json"
    output = CliRunner().invoke(app, [str(path)], env={"COLUMNS": "80"}).output
    assert "iu-xray test FindGen 1* 1 100.0 100.0 0.0" in " ".join(output.split())
    assert "* studies whose patient is unknown" in output
    assert CliRunner().invoke(app, [str(path), "--by", "split", "--out", str(out)]).exit_code == 0
    assert read_json(out) == json.loads(json.dumps(manifest_statistics(path, ["split"])))
