"""`maira prepare` on complete archives in the layout of their release: manifest and PNG files."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from dicom_files import write_dicom
from mimic_files import Image as Listed
from mimic_files import write_tables, zip_reports
from PIL import Image

from maira.data.manifest import read_failures, read_manifest
from maira.data.study import Study

pytestmark = pytest.mark.slow


def _prepare(source: str, out: Path, *options: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "maira", "prepare", source, "--out", str(out), "--size", "32"]
    return subprocess.run([*command, *map(str, options)], capture_output=True, text=True, timeout=120)


def _samples(out: Path) -> dict[str, list[Study]]:
    """By study, in the manifest's order."""
    samples: dict[str, list[Study]] = {}
    for study in read_manifest(out / "manifest.jsonl"):
        samples.setdefault(study.study_id or "", []).append(study)
    return samples


def _left_out(out: Path) -> dict[str, tuple[str, str]]:
    """By the name of the radiograph or the study."""
    failures = read_failures(out / "failures.jsonl")
    return {Path(failure.source or "").stem: (failure.stage, failure.reason) for failure in failures}


def _brightest_corner(path: Path) -> tuple[bool, bool]:
    """Whether a radiograph is brightest at the bottom, and at the right."""
    with Image.open(path) as image:
        assert (image.mode, min(image.size), image.getextrema()) == ("L", 32, (0, 255))
        row, column = np.unravel_index(np.asarray(image).argmax(), (image.height, image.width))
        return bool(row > image.height / 2), bool(column > image.width / 2)


RAMP = np.add.outer(np.arange(60), 2 * np.arange(40)).astype(np.uint16)
"""Brighter to the right and down."""

# Patient, study, time; then the study's radiographs by name and view.
FIRST = ("10000032", "50000001", "21800101")
SECOND = ("10000032", "50000002", "21800201")
THIRD = ("10000032", "50000003", "21800301")
HELD_OUT = ("11000011", "51000001", "21310101")
SIDEWAYS = ("12000022", "52000001", "21310101")
BROKEN = ("12000022", "52000002", "21310201")
TEST = ("12000022", "52000003", "21310301")
RADIOGRAPHS = {
    FIRST: {"a1": "PA", "a2": "AP", "a3": "LATERAL", "a4": "LL"},
    SECOND: {"b1": "PA", "b2": "AP"},
    THIRD: {"c1": "AP", "c2": "AP AXIAL"},
    HELD_OUT: {"d1": "PA"},
    SIDEWAYS: {"e1": "LATERAL"},
    BROKEN: {"f1": "PA"},
    TEST: {"g1": "PA"},
}
SPLITS = {"10000032": "train", "11000011": "train", "12000022": "test"}


@pytest.fixture
def mimic(tmp_path: Path) -> Path:
    """Beside mimic-cxr, its tables are in mimic-cxr-jpg and MS-CXR in ms-cxr."""
    root = tmp_path / "mimic-cxr"
    listed: list[Listed] = []
    reports = {}
    for (patient, study, date), radiographs in RADIOGRAPHS.items():
        folder = f"files/p{patient[:2]}/p{patient}/s{study}"
        (root / folder).mkdir(parents=True)
        findings = "" if study == SECOND[1] else f" FINDINGS:\n\n Findings of\n {study}.\n\n"
        head = f" INDICATION: Cough.\n\n TECHNIQUE: Upright.\n\n COMPARISON: ___.\n\n{findings}"
        reports[f"{folder}.txt"] = f" FINAL REPORT\n{head} IMPRESSION: Impression of {study}.\n"
        for name, view in radiographs.items():
            listed.append((name, patient, study, view, date, "0.0", ""))
            write_dicom(root / folder / f"{name}.dcm", RAMP)
    broken = root / f"files/p12/p12000022/s{BROKEN[1]}/f1.dcm"
    broken.write_bytes(broken.read_bytes()[:-500])
    zip_reports(root / "mimic-cxr-reports.zip", reports=reports)
    write_tables(tmp_path / "mimic-cxr-jpg", listed, splits=SPLITS)
    image = {"id": 1, "path": f"files/p11/p11000011/s{HELD_OUT[1]}/d1.jpg", "width": 40, "height": 60}
    box = {"image_id": 1, "category_id": 1, "label_text": "Opacity", "bbox": [4, 6, 8, 12], "split": "test"}
    coco = {"images": [image], "annotations": [box], "categories": [{"id": 1, "name": "Pneumonia"}]}
    (tmp_path / "ms-cxr").mkdir()
    (tmp_path / "ms-cxr/MS_CXR_Local_Alignment_v1.1.0.json").write_text(json.dumps(coco))
    return tmp_path


def test_mimic_cxr_as_dicom(mimic: Path) -> None:
    tables = ("--metadata", mimic / "mimic-cxr-jpg", "--ms-cxr", mimic / "ms-cxr")
    process = _prepare("mimic-cxr", mimic / "out", "--root", mimic / "mimic-cxr", *tables)
    assert process.returncode == 3, process.stderr
    assert "Traceback" not in process.stderr
    samples = _samples(mimic / "out")
    assert list(samples) == [FIRST[1], THIRD[1], TEST[1]]
    # Each frontal a sample, with one of the laterals; a first study has no prior.
    first = samples[FIRST[1]]
    assert [s.frontal.stem for s in first] == ["a1", "a2"]
    assert {s.lateral.stem for s in first if s.lateral} <= {"a3", "a4"}
    assert [(s.prior_frontal, s.prior_report, s.split) for s in first] == [(None, None, "train")] * 2
    assert (first[0].findings, first[0].indication) == (f"Findings of {FIRST[1]}.", "Cough.")
    assert (first[0].technique, first[0].comparison) == ("Upright.", "___.")
    # Without findings no sample, but a prior; in training each of its frontals.
    third = samples[THIRD[1]]
    assert [(s.frontal.stem, s.prior_frontal.stem if s.prior_frontal else None) for s in third] == [
        ("c1", "b1"),
        ("c1", "b2"),
    ]
    report = f"INDICATION: Cough. TECHNIQUE: Upright. COMPARISON: ___. IMPRESSION: Impression of {SECOND[1]}."
    assert {(s.prior_report, s.lateral) for s in third} == {(report, None)}
    # What has no usable frontal is no prior.
    assert [(s.split, s.prior_report) for s in samples[TEST[1]]] == [("test", None)]
    left_out = _left_out(mimic / "out")
    assert {source: stage for source, (stage, _) in left_out.items()} == {
        "c2": "select",
        "f1": "convert",
        SECOND[1]: "select",
        HELD_OUT[1]: "select",
        SIDEWAYS[1]: "select",
        BROKEN[1]: "select",
    }
    assert "MS-CXR's test fold" in left_out[HELD_OUT[1]][1]
    assert all(_brightest_corner(s.frontal) == (True, True) for studies in samples.values() for s in studies)


def test_held_out_patients_require_the_official_split(mimic: Path) -> None:
    tables = ("--metadata", mimic / "mimic-cxr-jpg", "--ms-cxr", mimic / "ms-cxr")
    options = ("--root", mimic / "mimic-cxr", "--draw-splits", "train=0.5,test=0.5", *tables)
    process = _prepare("mimic-cxr", mimic / "out", *options)
    assert process.returncode == 2
    assert process.stderr.count("\n") == 1


def test_ms_cxr_on_the_radiographs_of_mimic_cxr(mimic: Path) -> None:
    process = _prepare("ms-cxr", mimic / "out", "--root", mimic / "ms-cxr", "--images", mimic / "mimic-cxr")
    assert process.returncode == 0, process.stderr
    ((study,),) = _samples(mimic / "out").values()
    assert study.phrases is not None
    (box,) = study.phrases[0].boxes or ()
    assert (study.split, study.phrases[0].text) == ("test", "Opacity")
    assert (box.x_min, box.y_min, box.x_max, box.y_max) == pytest.approx((0.1, 0.1, 0.3, 0.3))


def _png(pixels: np.ndarray) -> bytes:
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "PNG")
    return written.getvalue()


def test_padchest_from_zips(tmp_path: Path) -> None:
    radiographs = {
        "0": {"a1.png": _png(RAMP * 500), "a2.png": _png(RAMP * 500)},
        "1": {
            "b1.png": _png(RAMP[::-1] * 500),
            "c1.png": _png(RAMP)[:-200],
            "d1.png": _png(RAMP),
            "e1.png": _png(RAMP),
        },
    }
    for folder, members in radiographs.items():
        with zipfile.ZipFile(tmp_path / f"{folder}.zip", "w") as packed:
            for name, content in members.items():
                packed.writestr(f"{folder}/{name}", content)
    head = "ImageID,ImageDir,StudyDate_DICOM,StudyID,PatientID,Projection,Pediatric,Report"
    rows = (
        "a1.png,0,20140101,first,p,PA,No,torax",
        "a2.png,0,20140101,first,p,L,No,torax",
        "b1.png,1,20150101,second,p,AP,No,torax",
        "c1.png,1,20150101,cut,q,PA,No,torax",
        "d1.png,1,20150101,child,r,PA,PED,torax",
        "e1.png,1,20150101,unread,s,PA,No,torax",
    )
    (tmp_path / "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv").write_text("\n".join([head, *rows]) + "\n")
    with (tmp_path / "english.csv").open("w", newline="") as handle:
        reports = [("first", "Clear.", "Normal."), ("second", "A mass.", ""), ("cut", "Clear.", "")]
        csv.writer(handle).writerows([("StudyID", "findings", "impression"), *reports])
    (tmp_path / "splits.csv").write_text("PatientID,split\np,validation\n")
    tables = ("--reports", tmp_path / "english.csv", "--splits", tmp_path / "splits.csv")
    process = _prepare("padchest", tmp_path / "out", "--root", tmp_path, *tables)
    assert process.returncode == 3, process.stderr
    samples = _samples(tmp_path / "out")
    assert list(samples) == ["first", "second"]
    ((first,), (second,)) = samples.values()
    assert (first.findings, first.split, first.prior_report) == ("Clear.", "validate", None)
    assert (second.findings, second.split, second.lateral) == ("A mass.", "validate", None)
    assert (second.prior_report, second.prior_frontal) == ("FINDINGS: Clear. IMPRESSION: Normal.", first.frontal)
    assert first.lateral is not None
    assert first.lateral.stem == "a2"
    assert (_brightest_corner(first.frontal), _brightest_corner(second.frontal)) == ((True, True), (False, True))
    stages = {source: stage for source, (stage, _) in _left_out(tmp_path / "out").items()}
    assert stages == {"c1": "convert", "cut": "select", "child": "select", "unread": "select"}
