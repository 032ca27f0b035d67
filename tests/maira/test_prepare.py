"""`maira prepare` on tables and on complete archives in the layout of their release: manifest and PNG files."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from dicom_files import write_dicom
from PIL import Image
from releases import load_release, write_release

from maira.data.manifest import read_failures, read_manifest

RunMaira = Callable[..., tuple[int, str, str]]


def _skipped(out: Path) -> dict[str, str]:
    """Return the stages by the name of the radiograph or the study."""
    failures = read_failures(out / "failures.jsonl")
    return {Path(failure.source or "").stem: failure.stage for failure in failures}


def _brightest_corner(path: Path) -> tuple[bool, bool]:
    """Whether a radiograph is brightest at the bottom, and at the right."""
    with Image.open(path) as image:
        assert (image.mode, min(image.size), image.getextrema()) == ("L", 32, (0, 255))
        row, column = np.unravel_index(np.asarray(image).argmax(), (image.height, image.width))
        return bool(row > image.height / 2), bool(column > image.width / 2)


RAMP = np.add.outer(np.arange(60), 2 * np.arange(40)).astype(np.uint16)
"""Brighter to the right and down."""

ARCHIVES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("prepare.yaml").read_text("utf-8"))
COMMANDS: dict[str, Any] = ARCHIVES["commands"]


@pytest.fixture
def mimic(tmp_path: Path) -> Path:
    metadata, splits, reports = load_release("mimic_cxr")["files"].values()
    more = ARCHIVES["mimic-cxr"]
    files = {
        "mimic-cxr-jpg/mimic-cxr-2.0.0-metadata.csv.gz": metadata + more["metadata"],
        "mimic-cxr-jpg/mimic-cxr-2.0.0-split.csv.gz": splits + more["splits"],
        "mimic-cxr/mimic-cxr-reports.zip": reports | dict.fromkeys(more["reports"], next(iter(reports.values()))),
        "ms-cxr/MS_CXR_Local_Alignment_v1.1.0.json": more["ms-cxr"],
    }
    write_release(tmp_path, {"files": files})
    for image in csv.DictReader((metadata + more["metadata"]).splitlines()):
        patient = image["subject_id"]
        folder = tmp_path / f"mimic-cxr/files/p{patient[:2]}/p{patient}/s{image['study_id']}"
        folder.mkdir(parents=True, exist_ok=True)
        write_dicom(folder / f"{image['dicom_id']}.dcm", RAMP)
    broken = tmp_path / "mimic-cxr/files/p13/p13000033/s55000000/f1.dcm"
    broken.write_bytes(broken.read_bytes()[:-500])
    return tmp_path


MIMIC = "prepare mimic-cxr --out out --size 32 --root mimic-cxr --metadata mimic-cxr-jpg --ms-cxr ms-cxr"


def test_mimic_cxr_as_dicom(mimic: Path, run_maira: RunMaira) -> None:
    # Held-out patients require the official split.
    code, _, error = run_maira(*MIMIC.split(), "--draw-splits", "train=0.5,test=0.5")
    assert (code, error.count("\n")) == (2, 1)
    assert run_maira(*MIMIC.split())[0] == 3
    samples = read_manifest(mimic / "out" / "manifest.jsonl")
    # In training, every frontal radiograph of the prior study gives a sample.
    rows = [[s.study_id, s.split, s.frontal.stem, s.prior_frontal and s.prior_frontal.stem] for s in samples]
    assert rows == ARCHIVES["mimic-cxr"]["samples"]
    assert (samples[0].findings, samples[0].indication) == ("Clear lungs.", "___F with cough.")
    assert samples[2].prior_report is not None
    assert samples[2].prior_report.endswith("FINDINGS: Clear lungs. IMPRESSION: Normal.")
    expected = dict.fromkeys(("b6", "52000000", "54000000", "55000000"), "select") | {"f1": "convert"}
    assert _skipped(mimic / "out") == expected | dict.fromkeys(("b4", "b5"), "read")
    assert all(_brightest_corner(s.frontal) == (True, True) for s in samples)


def test_ms_cxr_on_the_radiographs_of_mimic_cxr(mimic: Path, run_maira: RunMaira) -> None:
    assert run_maira("prepare", "ms-cxr", "--out", "out", "--root", "ms-cxr", "--images", "mimic-cxr")[0] == 0
    (study,) = read_manifest(mimic / "out" / "manifest.jsonl")
    assert study.phrases is not None
    (box,) = study.phrases[0].boxes or ()
    assert (study.split, study.phrases[0].text) == ("test", "Opacity")
    assert (box.x_min, box.y_min, box.x_max, box.y_max) == pytest.approx((0.1, 0.1, 0.3, 0.3))


def _png(pixels: np.ndarray) -> bytes:
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "PNG")
    return written.getvalue()


def test_padchest_from_zips(tmp_path: Path, run_maira: RunMaira) -> None:
    bright, flipped = _png(RAMP * 500), _png(RAMP[::-1] * 500)
    second = {"1/b1.png": flipped, "1/c1.png": bright[:-200], "1/d1.png": bright, "1/e1.png": bright}
    write_release(tmp_path, {"files": {"0.zip": {"0/a1.png": bright, "0/a2.png": bright}, "1.zip": second}})
    write_release(tmp_path, {"files": ARCHIVES["padchest"]})
    command = "prepare padchest --root . --out out --size 32 --reports english.csv --splits splits.csv"
    assert run_maira(*command.split())[0] == 3
    first, second = read_manifest(tmp_path / "out" / "manifest.jsonl")
    assert (first.study_id, first.findings, first.split, first.prior_report) == ("first", "Clear.", "validate", None)
    assert (second.study_id, second.findings, second.lateral) == ("second", "A mass.", None)
    assert (second.prior_report, second.prior_frontal) == ("FINDINGS: Clear. IMPRESSION: Normal.", first.frontal)
    assert first.lateral is not None
    assert first.lateral.stem == "a2"
    assert (_brightest_corner(first.frontal), _brightest_corner(second.frontal)) == ((True, True), (False, True))
    assert _skipped(tmp_path / "out") == {"c1": "convert", "cut": "select", "child": "select", "unread": "select"}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Four studies of two patients; one has no radiograph on the disk, one no findings."""
    folder = write_release(tmp_path, {"files": ARCHIVES["table"]}) / "export"
    pixels = np.random.default_rng(0).integers(0, 255, (60, 50), np.uint8)
    for name in ("1.png", "2.png", "4.png"):
        Image.fromarray(pixels).save(folder / name)
    return folder


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("case", COMMANDS.values(), ids=COMMANDS)
def test_a_table_becomes_a_manifest(case: dict[str, Any], run_maira: RunMaira, tmp_path: Path) -> None:
    code, output, _ = run_maira(*f"prepare {case['command']} --out out --size 32".split())
    assert (code, case["output"] in output) == (case.get("code", 0), True)
    studies = {s.sample_id: s.model_dump(mode="json") for s in read_manifest(tmp_path / "out/manifest.jsonl")}
    assert {s: {name: studies[s][name] for name in fields} for s, fields in case["samples"].items()} == case["samples"]
    stages = {failure.stage for failure in read_failures(tmp_path / "out/failures.jsonl")}
    assert (list(studies), stages) == (list(case["samples"]), {*case.get("failures", ())})


EXPORT = "prepare table --root export/hospital.csv --size 32 --columns sample_id=Accession,frontal=Image,report=Text"


def test_a_table_of_whole_reports(table: Path, run_maira: RunMaira, tmp_path: Path) -> None:
    code, output, _ = run_maira(*EXPORT.split(), "--out", "out", "--preview")
    assert (code, "findings: Clear." in output, (tmp_path / "out").exists()) == (0, True, False)
    assert "2 rows; sections of 2 reports: findings 1, indication 1, technique 0, comparison 0" in output
    assert "columns that are not used: Age" in output
    judge = ("--judge", "mock:m", "--judge-arg", 'responses=```\n{"findings": "The lungs are clear."}\n```')
    code, output, _ = run_maira(*EXPORT.split(), "--out", "out", *judge)
    assert (code, "findings 2" in output) == (0, True)
    first, second = read_manifest(tmp_path / "out/manifest.jsonl")
    assert (first.findings, first.indication, second.findings) == ("Clear.", "Cough.", "The lungs are clear.")
    code, output, _ = run_maira(*EXPORT.split(), "--out", "other")
    assert (code, "reports without a findings section: 1" in output) == (0, True)
    assert table.is_dir()


def test_a_table_is_proposed_for_a_folder_of_images(tmp_path: Path, run_maira: RunMaira) -> None:
    (tmp_path / "images" / "p1").mkdir(parents=True)
    for name in ("p1/s1_frontal.png", "p1/s1_lateral.png", "00000001_000.png", "00000001_001.png", "p1/oblique.png"):
        Image.fromarray(RAMP.astype(np.uint8)).save(tmp_path / "images" / name)
    tags = {"AccessionNumber": "A7", "PatientID": "7", "StudyDate": "20240301", "StudyTime": "101500.000"}
    write_dicom(tmp_path / "images" / "x", RAMP, **tags, ViewPosition="LL")
    write_dicom(tmp_path / "images" / "y.dcm", RAMP, **tags, ViewPosition="PA")
    command = "prepare table --root images --out own"
    code, output, _ = run_maira(*command.split())
    assert (code, "images neither frontal nor lateral, left out: 1" in output) == (0, True)
    assert not (tmp_path / "own").exists()
    with (tmp_path / "own.csv").open(newline="") as file:
        rows = {row["sample_id"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["00000001_000", "00000001_001", "p1-s1", "A7"]
    assert (rows["p1-s1"]["frontal"], rows["p1-s1"]["lateral"]) == ("p1/s1_frontal.png", "p1/s1_lateral.png")
    dicom = {"study_id": "A7", "patient_id": "7", "study_date": "20240301T1015", "frontal": "y.dcm", "lateral": "x"}
    assert rows["A7"] == {"sample_id": "A7", "report": "", **dicom}
    assert run_maira(*command.split())[0] == 2
    command = "prepare table --root own.csv --images images --out own"
    assert output.endswith(f"maira {command}\n")
    assert run_maira(*command.split(), "--size", 32)[0] == 0
    assert len(read_manifest(tmp_path / "own/manifest.jsonl")) == 4
