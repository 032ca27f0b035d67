"""`maira prepare SOURCE` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from maira.data.manifest import read_failures, read_manifest

SOURCES = ("mimic-cxr", "mimic-cxr-jpg", "padchest", "padchest-gr", "iu-xray", "chexpert-plus", "rexgradient")
SOURCES += ("interpret-cxr", "coco", "table")


def _run(*arguments: str | Path | int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "maira", "prepare", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def _radiographs(folder: Path, *names: str) -> None:
    draw = np.random.default_rng(0)
    for name in names:
        Image.fromarray(draw.integers(0, 255, (60, 50), np.uint8)).save(folder / name)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Four studies of two patients; one has no radiograph on the disk, one no findings."""
    folder = tmp_path / "export"
    folder.mkdir()
    _radiographs(folder, "1.png", "2.png", "4.png")
    rows = ["1,p,2020-01-01,Clear.", "2,p,2021-01-01,Mass.", "3,q,2020-01-01,Clear.", "4,q,2021-01-01,"]
    lines = [f"{row.split(',')[0]},{row.split(',')[0]}.png,{row.split(',', 1)[1]}" for row in rows]
    (folder / "studies.csv").write_text("sample_id,frontal,patient_id,study_date,findings\n" + "\n".join(lines) + "\n")
    return folder


def test_a_table_becomes_a_manifest(table: Path, tmp_path: Path) -> None:
    process = _run("table", "--root", table, "--out", tmp_path / "out", "--size", 32)
    assert process.returncode == 3, process.stderr
    studies = read_manifest(tmp_path / "out/manifest.jsonl")
    assert [(s.sample_id, s.prior_report) for s in studies] == [("1", None), ("2", "Clear."), ("4", None)]
    stages = {failure.stage for failure in read_failures(tmp_path / "out/failures.jsonl")}
    assert stages == {"convert", "select"}
    assert "no such file" in process.stdout
    assert "Traceback" not in process.stderr


def test_samples_excluded_by_rule_are_no_failures(tmp_path: Path) -> None:
    _radiographs(tmp_path, "a.png", "b.png")
    images = [{"id": name, "file_name": f"{name}.png", "width": 50, "height": 60} for name in "ab"]
    annotations = [{"image_id": "a", "category_id": 1, "bbox": [5, 6, 10, 12]}]
    coco = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "Nodule"}]}
    (tmp_path / "coco.json").write_text(json.dumps(coco))
    process = _run("coco", "--root", tmp_path / "coco.json", "--out", tmp_path / "out", "--size", 32)
    assert process.returncode == 0, process.stderr
    assert "no findings section (1)" in process.stdout
    (study,) = read_manifest(tmp_path / "out/manifest.jsonl")
    assert [s.text for s in study.grounded_findings or ()] == ["Nodule"]


def test_studies_without_a_patient_are_counted_if_splits_are_drawn(tmp_path: Path) -> None:
    _radiographs(tmp_path, "1.png")
    (tmp_path / "studies.csv").write_text("sample_id,frontal,findings\n1,1.png,Clear.\n")
    options = ("--size", 32, "--draw-splits", "test=1")
    process = _run("table", "--root", tmp_path / "studies.csv", "--out", tmp_path / "out", *options)
    assert process.returncode == 0, process.stderr
    assert "assigned to splits by study: 1" in process.stdout


def test_padchest_without_any_findings_is_refused(tmp_path: Path) -> None:
    process = _run("padchest", "--root", tmp_path, "--out", tmp_path / "out")
    assert (process.returncode, process.stderr.count("\n")) == (2, 1)
    assert "--language es" in process.stderr


def test_splits_can_be_drawn_and_chosen(table: Path, tmp_path: Path) -> None:
    _radiographs(table, "3.png")
    options = ("--size", 32, "--draw-splits", "train=0.0,test=1", "--split", "test", "--priors", "none")
    process = _run("table", "--root", table / "studies.csv", "--out", tmp_path / "out", *options)
    assert process.returncode == 0, process.stderr
    assert "samples without a report, for drafting only: 1" in process.stdout
    studies = read_manifest(tmp_path / "out/manifest.jsonl")
    assert {(s.split, s.prior_frontal) for s in studies} == {("test", None)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--draw-splits", "train=x"), "--draw-splits: "),
        (("--draw-splits", "training=1"), "--draw-splits: "),
        (("--draw-splits", "train=0"), "--draw-splits: "),
        (
            ("--draw-splits", "train=0.8,test=0.5"),
            "--draw-splits: expected fractions with the sum 1, found the sum 1.3",
        ),
        (("--draw-splits", "train=0.5,train=0.5"), "--draw-splits: duplicate split 'train'"),
        (("--draw-splits", "validate=1", "--split", "valid"), "did you mean 'validate'?"),
    ],
)
def test_wrong_options_are_one_line_errors(table: Path, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    process = _run("table", "--root", table, "--out", tmp_path / "out", *options)
    assert process.returncode == 2
    assert message in process.stderr
    assert process.stderr.count("\n") == 1


@pytest.mark.parametrize("source", SOURCES)
def test_a_folder_without_the_archive_is_a_one_line_error(source: str, tmp_path: Path) -> None:
    process = _run(source, "--root", tmp_path, "--out", tmp_path / "out")
    assert process.returncode == 2
    assert process.stderr.startswith("maira: ")
    assert process.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
