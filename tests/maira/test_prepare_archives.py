"""`maira prepare` on complete archives in the layout of their release: manifest and PNG files."""

import csv
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
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

ROWS = (
    "a4,10000032,50414267,,AP,21800506,213014.0,",
    "d1,12000022,54000000,,PA,21310101,0.0,",
    "f1,13000033,55000000,,PA,21310101,0.0,",
)
"""Rows of the metadata in addition to those of the miniature of MIMIC-CXR."""


@pytest.fixture
def mimic(tmp_path: Path) -> Path:
    """Beside mimic-cxr, its tables are in mimic-cxr-jpg and MS-CXR in ms-cxr."""
    release = load_release("mimic_cxr")
    metadata, splits, reports = release["files"].values()
    metadata += "\n".join(ROWS)
    splits += "d1,54000000,12000022,train\nf1,55000000,13000033,test\n"
    reports |= dict.fromkeys(
        ("files/p12/p12000022/s54000000.txt", "files/p13/p13000033/s55000000.txt"), next(iter(reports.values()))
    )
    files = {
        "mimic-cxr-jpg/mimic-cxr-2.0.0-metadata.csv.gz": metadata,
        "mimic-cxr-jpg/mimic-cxr-2.0.0-split.csv.gz": splits,
        "mimic-cxr/mimic-cxr-reports.zip": reports,
        "ms-cxr/MS_CXR_Local_Alignment_v1.1.0.json": {
            "images": [{"id": 1, "path": "files/p12/p12000022/s54000000/d1.jpg", "width": 40, "height": 60}],
            "annotations": [
                {"image_id": 1, "category_id": 1, "label_text": "Opacity", "bbox": [4, 6, 8, 12], "split": "test"}
            ],
            "categories": [{"id": 1, "name": "Pneumonia"}],
        },
    }
    write_release(tmp_path, {"files": files})
    for image in csv.DictReader(metadata.splitlines()):
        patient = image["subject_id"]
        folder = tmp_path / f"mimic-cxr/files/p{patient[:2]}/p{patient}/s{image['study_id']}"
        folder.mkdir(parents=True, exist_ok=True)
        write_dicom(folder / f"{image['dicom_id']}.dcm", RAMP)
    broken = tmp_path / "mimic-cxr/files/p13/p13000033/s55000000/f1.dcm"
    broken.write_bytes(broken.read_bytes()[:-500])
    return tmp_path


MIMIC = "prepare mimic-cxr --out out --size 32 --root mimic-cxr --metadata mimic-cxr-jpg --ms-cxr ms-cxr"


def test_mimic_cxr_as_dicom(mimic: Path, run_maira: RunMaira) -> None:
    assert run_maira(*MIMIC.split())[0] == 3
    samples = read_manifest(mimic / "out" / "manifest.jsonl")
    # In training, every frontal radiograph of the prior study gives a sample.
    assert [(s.study_id, s.split, s.frontal.stem, s.prior_frontal and s.prior_frontal.stem) for s in samples] == [
        ("50414267", "train", "a1", None),
        ("50414267", "train", "a4", None),
        ("53189527", "train", "a3", "a1"),
        ("53189527", "train", "a3", "a4"),
        ("51029426", "test", "b1", None),
    ]
    assert (samples[0].findings, samples[0].indication) == ("Clear lungs.", "___F with cough.")
    assert samples[2].prior_report is not None
    assert samples[2].prior_report.endswith("FINDINGS: Clear lungs. IMPRESSION: Normal.")
    expected = dict.fromkeys(("b6", "52000000", "54000000", "55000000"), "select") | {"f1": "convert"}
    assert _skipped(mimic / "out") == expected | dict.fromkeys(("b4", "b5"), "read")
    assert all(_brightest_corner(s.frontal) == (True, True) for s in samples)


@pytest.mark.usefixtures("mimic")
def test_held_out_patients_require_the_official_split(run_maira: RunMaira) -> None:
    code, _, error = run_maira(*MIMIC.split(), "--draw-splits", "train=0.5,test=0.5")
    assert (code, error.count("\n")) == (2, 1)


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
    radiographs = {
        "0": {"a1.png": bright, "a2.png": bright},
        "1": {"b1.png": flipped, "c1.png": bright[:-200], "d1.png": bright, "e1.png": bright},
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
