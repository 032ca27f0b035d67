"""`maira prepare SOURCE` as a user runs it."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from maira.data.manifest import read_failures, read_manifest

RunMaira = Callable[..., tuple[int, str, str]]

SOURCES = ("mimic-cxr", "mimic-cxr-jpg", "padchest", "padchest-gr", "iu-xray", "chexpert-plus", "rexgradient")
SOURCES += ("interpret-cxr", "coco", "table")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Four studies of two patients; one has no radiograph on the disk, one no findings."""
    folder = tmp_path / "export"
    folder.mkdir()
    rows = ["1,p,2020-01-01,Clear.", "2,p,2021-01-01,Mass.", "3,q,2020-01-01,Clear.", "4,q,2021-01-01,"]
    lines = [f"{row[0]},{row[0]}.png,{row[2:]}\n" for row in rows]
    (folder / "studies.csv").write_text("".join(["sample_id,frontal,patient_id,study_date,findings\n", *lines]))
    pixels = np.random.default_rng(0).integers(0, 255, (60, 50), np.uint8)
    for name in ("1.png", "2.png", "4.png"):
        Image.fromarray(pixels).save(folder / name)
    return folder


def test_a_table_becomes_a_manifest(table: Path, run_maira: RunMaira, tmp_path: Path) -> None:
    code, output, _ = run_maira("prepare", "table", "--root", table, "--out", "out", "--size", 32)
    assert (code, "no such file" in output) == (3, True)
    studies = read_manifest(tmp_path / "out/manifest.jsonl")
    assert [(s.sample_id, s.prior_report) for s in studies] == [("1", None), ("2", "Clear."), ("4", None)]
    stages = {failure.stage for failure in read_failures(tmp_path / "out/failures.jsonl")}
    assert stages == {"convert", "select"}


def test_samples_excluded_by_rule_are_no_failures(table: Path, run_maira: RunMaira, tmp_path: Path) -> None:
    images = [{"id": name, "file_name": f"{name}.png", "width": 50, "height": 60} for name in "12"]
    annotations = [{"image_id": "1", "category_id": 1, "bbox": [5, 6, 10, 12]}]
    coco = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "Nodule"}]}
    (table / "coco.json").write_text(json.dumps(coco))
    code, output, _ = run_maira("prepare", "coco", "--root", table / "coco.json", "--out", "out", "--size", 32)
    assert (code, "no findings section (1)" in output) == (0, True)
    (study,) = read_manifest(tmp_path / "out/manifest.jsonl")
    assert [s.text for s in study.grounded_findings or ()] == ["Nodule"]


def test_studies_without_a_patient_are_counted_if_splits_are_drawn(table: Path, run_maira: RunMaira) -> None:
    (table / "one.csv").write_text("sample_id,frontal,findings\n1,1.png,Clear.\n")
    options = ("--out", "out", "--size", 32, "--draw-splits", "test=1")
    code, output, _ = run_maira("prepare", "table", "--root", table / "one.csv", *options)
    assert (code, "assigned to splits by study: 1" in output) == (0, True)


def test_splits_can_be_drawn_and_chosen(table: Path, run_maira: RunMaira, tmp_path: Path) -> None:
    (table / "3.png").write_bytes((table / "1.png").read_bytes())
    options = ("--size", 32, "--draw-splits", "train=0.0,test=1", "--split", "test", "--priors", "none")
    code, output, _ = run_maira("prepare", "table", "--root", table / "studies.csv", "--out", "out", *options)
    assert (code, "samples without a report, for drafting only: 1" in output) == (0, True)
    studies = read_manifest(tmp_path / "out/manifest.jsonl")
    assert {(s.split, s.prior_frontal) for s in studies} == {("test", None)}


WRONG_SPLITS = {
    "train=x": "--draw-splits: ",
    "training=1": "--draw-splits: ",
    "train=0": "--draw-splits: ",
    "train=0.8,test=0.5": "--draw-splits: expected fractions with the sum 1, found the sum 1.3",
    "train=0.5,train=0.5": "--draw-splits: duplicate split 'train'",
    "validate=1 --split valid": "did you mean 'validate'?",
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *((f"table --root export --draw-splits {splits}", message) for splits, message in WRONG_SPLITS.items()),
        *((f"{source} --root .", "") for source in SOURCES),
        ("padchest --root export", "--language es"),
    ],
)
@pytest.mark.usefixtures("table")
def test_wrong_options_and_folders_without_the_archive_are_one_line_errors(
    arguments: str, message: str, run_maira: RunMaira
) -> None:
    code, _, error = run_maira("prepare", *arguments.split(), "--out", "out")
    assert (code, error.count("\n"), error[:7], message in error) == (2, 1, "maira: ", True)
    assert not Path("out").exists()
