"""PadChest-GR: a miniature of the release, with and without PadChest."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from error_checks import raises
from record_files import touch, write_csv

from maira.data.archive import Archive, ArchiveStudy
from maira.data.pairing import Rules, make_samples
from maira.data.sources.padchest_gr import read_padchest_gr
from maira.data.study import Label
from radfact.records import Box, Sentence

REPORTS = "grounded_reports_20240819.json"
COLUMNS = ("StudyID", "ImageID", "label", "prior_study", "sentence_en", "split", "PatientID", "StudyDate_DICOM")
"""Of the columns of the release, also some that are not read."""
ABNORMAL: dict[str, Any] = {
    "sentence_en": "Minimal left  pleural thickening.",
    "sentence_es": "Mínimo engrosamiento pleural izquierdo.",
    "abnormal": True,
    "boxes": [[0.1, 0.2, 0.3, 0.4], [-0.001, 0.5, 0.6, 1.001]],
    "extra_boxes": [[0.0, 0.0, 1.0, 1.0]],
    "labels": ["pleural thickening"],
    "locations": ["pleural", "left"],
    "progression": None,
}
NORMAL = {"sentence_en": "No effusion.", "sentence_es": "Sin derrame.", "abnormal": False}


def _entry(study: str, *findings: dict[str, Any], previous: str | None = None) -> dict[str, Any]:
    return {
        "StudyID": study,
        "ImageID": f"{study}-f.png",
        "PreviousStudyID": previous,
        "PreviousImageID": previous and f"{previous}-f.png",
        "findings": list(findings or (NORMAL,)),
    }


def _row(study: str, **cells: str) -> dict[str, str]:
    usual = {"StudyID": study, "PatientID": "p1", "split": "train", "StudyDate_DICOM": "20140915", "label": "normal"}
    return usual | cells


def _write(root: Path, entries: Any, *rows: dict[str, str], images: bool = True) -> Path:
    root.mkdir(exist_ok=True)
    (root / REPORTS).write_text(json.dumps(entries), encoding="utf-8")
    write_csv(root / "master_table.csv", COLUMNS, rows)
    folder = root / "Padchest_GR_files" / "PadChest_GR"
    folder.mkdir(parents=True, exist_ok=True)
    touch(folder / f"{row['StudyID']}-f.png" for row in rows if images)
    return root


def _write_padchest(root: Path, *rows: tuple[str, str, str]) -> tuple[Path, Path]:
    """PadChest with rows of (study, image, projection), and English reports of all its studies."""
    columns = ("ImageID", "ImageDir", "StudyDate_DICOM", "StudyID", "PatientID", "Projection", "Pediatric", "Report")
    cells = ((f"{image}.png", "0", "20120101", study, "p1", view, "No", "sin cambi") for study, image, view in rows)
    table = root / "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv"
    write_csv(table, columns, (dict(zip(columns, row, strict=True)) for row in cells))
    touch(root / "0" / f"{image}.png" for _, image, _ in rows)
    reports = [{"StudyID": study, "findings": f"Report of {study}."} for study in {row[0]: None for row in rows}]
    return root, write_csv(root / "english.csv", ("StudyID", "findings", "impression"), reports)


def _only(archive: Archive) -> ArchiveStudy:
    (study,) = archive.studies
    return study


def test_sentences_and_boxes_are_the_grounded_report(tmp_path: Path) -> None:
    rows = (_row("s1", split="validation"), _row("s1", split="validation", label="a second row"))
    study = _only(read_padchest_gr(_write(tmp_path, [_entry("s1", ABNORMAL, NORMAL)], *rows)))
    boxes = (Box(x_min=0.1, y_min=0.2, x_max=0.3, y_max=0.4), Box(x_min=0, y_min=0.5, x_max=0.6, y_max=1))
    assert study.grounded_findings == (
        Sentence(text="Minimal left pleural thickening.", boxes=boxes),
        Sentence(text="No effusion."),
    )
    assert (study.findings, study.patient_id, study.split) == (None, "p1", "validate")


@pytest.mark.parametrize(
    ("locations", "side"),
    [(["left"], "left"), (["loc right"], "right"), (["left", "right"], "both"), (["bilateral"], "both"), ([], None)],
)
def test_labels_are_the_categories_of_abnormal_sentences(tmp_path: Path, locations: list[str], side: Any) -> None:
    finding = ABNORMAL | {"locations": locations, "boxes": [[0.0, 0.0, 1.0, 1.0]]}
    study = _only(read_padchest_gr(_write(tmp_path, [_entry("s1", finding, NORMAL)], _row("s1"))))
    whole_image = Box(x_min=0, y_min=0, x_max=1, y_max=1)
    assert study.labels == (Label(kind="pleural thickening", side=side, boxes=(whole_image,)),)


def test_the_choice_between_images_does_not_depend_on_creation_order(tmp_path: Path) -> None:
    _write(tmp_path, [_entry("s1")], _row("s1"), images=False)
    for folder in "cba":
        (tmp_path / folder).mkdir()
        if folder == "a":
            with zipfile.ZipFile(tmp_path / "a" / "images.zip", "w") as archive:
                archive.writestr("s1-f.png", b"")
        else:
            (tmp_path / folder / "s1-f.png").touch()
    (radiograph,) = _only(read_padchest_gr(tmp_path)).radiographs
    assert (radiograph.path, radiograph.member) == (tmp_path / "b" / "s1-f.png", None)


def test_a_split_zip_is_an_error_with_a_hint(tmp_path: Path) -> None:
    _write(tmp_path, [_entry("s1")], _row("s1"), images=False)
    (tmp_path / "Padchest_GR_files" / "PadChest_GR.zip.001").touch()
    with raises("PadChest_GR.zip.001: invalid-format"):
        read_padchest_gr(tmp_path)


def test_a_missing_image_excludes_its_radiograph(tmp_path: Path) -> None:
    root = _write(tmp_path, [_entry("s1"), _entry("s2")], _row("s1"), _row("s2"))
    (root / "Padchest_GR_files" / "PadChest_GR" / "s2-f.png").unlink()
    archive = read_padchest_gr(root)
    assert [len(study.radiographs) for study in archive.studies] == [1, 0]
    assert [failure.source for failure in archive.failures] == ["s2-f.png"]


def test_laterals_and_prior_reports_come_from_padchest(tmp_path: Path) -> None:
    root = _write(tmp_path / "gr", [_entry("s1", previous="s0")], _row("s1"))
    priors = root / "PadChest_GR_progression_prior_studies" / "PadChest_GR_progression_prior_studies"
    priors.mkdir(parents=True)
    (priors / "s0-f.png").touch()
    padchest, reports = _write_padchest(
        tmp_path / "padchest", ("s1", "s1-f", "PA"), ("s1", "s1-l", "L"), ("s0", "s0-f", "PA"), ("s9", "s9-f", "PA")
    )
    archive = read_padchest_gr(root, padchest=padchest, reports=reports)
    assert [study.study_id for study in archive.studies] == ["s1", "s0"]
    (sample,) = make_samples(archive, Rules()).studies
    assert [path and path.stem for path in (sample.frontal, sample.lateral, sample.prior_frontal)] == [
        "s1-f",
        "s1-l",
        "s0-f",
    ]
    assert sample.prior_report == "FINDINGS: Report of s0."
    assert archive.studies[1].radiographs[0].path == priors / "s0-f.png"


@pytest.mark.parametrize(("previous", "report"), [("s0", "FINDINGS: Report of s0."), ("s1", "FINDINGS: No effusion.")])
def test_the_named_study_of_padchest_or_the_release_is_the_prior(tmp_path: Path, previous: str, report: str) -> None:
    entries = [_entry("s2", previous=previous), _entry("s1")]
    root = _write(tmp_path / "gr", entries, _row("s2", StudyDate_DICOM="20150101"), _row("s1"))
    padchest, reports = _write_padchest(tmp_path / "padchest", ("s0", "s0-f", "PA"))
    archive = read_padchest_gr(root, padchest=padchest, reports=reports)
    assert {s.study_id: s.prior_report for s in make_samples(archive, Rules()).studies} == {"s2": report, "s1": None}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (_entry("s1", NORMAL, ABNORMAL | {"boxes": [[10, 20, 30, 40]]}), "findings[1].boxes[0][0]: "),
        (
            _entry("s1", NORMAL, ABNORMAL | {"boxes": [[0.5, 0.1, 0.2, 0.3]]}),
            "findings[1].boxes[0]: corners are swapped",
        ),
        (_entry("s1", NORMAL, ABNORMAL | {"boxes": [[0.5, 0.1, 0.2]]}), "findings[1].boxes[0][3]: "),
        (_entry("s1", NORMAL, ABNORMAL | {"labels": 7}), "findings[1].labels: "),
        (_entry("s1", NORMAL, NORMAL | {"sentence_en": None}), "findings[1].sentence_en: expected text"),
        (_entry("s1") | {"findings": []}, "findings: "),
        (_entry("good"), "duplicate study good"),
        (_entry("s3"), "not in master_table.csv"),
        ({"ImageID": "x"}, "StudyID: "),
        (7, "expected an object"),
    ],
)
def test_an_invalid_study_is_excluded_with_its_field(tmp_path: Path, entry: Any, message: str) -> None:
    archive = read_padchest_gr(_write(tmp_path, [_entry("good"), entry], _row("good"), _row("s1")))
    assert [study.study_id for study in archive.studies] == ["good"]
    (failure,) = archive.failures
    assert failure.stage == "read"
    assert message in failure.reason


def test_missing_and_invalid_files_are_one_line_errors(tmp_path: Path) -> None:
    with raises(f"{tmp_path.name}: file-not-found"):
        read_padchest_gr(tmp_path)
    _write(tmp_path, {"studies": []}, _row("s1"))
    with raises("grounded_reports_20240819.json: invalid-value"):
        read_padchest_gr(tmp_path)
    (tmp_path / REPORTS).unlink()
    with raises("grounded_reports_20240819.json: file-not-found"):
        read_padchest_gr(tmp_path)
    _write(tmp_path, [], _row("s1", PatientID=""))
    with raises("master_table.csv:2: PatientID: missing-field"):
        read_padchest_gr(tmp_path)
