from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from error_checks import raises
from mimic_files import (
    IMAGES,
    SPLIT,
    SPLITS,
    Image,
    write_images,
    write_reports,
    write_table,
    write_tables,
    zip_reports,
)

from maira.data.archive import Archive, ArchiveStudy
from maira.data.sources.mimic_cxr import read_mimic_cxr
from radfact.errors import InputError


@pytest.fixture
def jpg(tmp_path: Path) -> Path:
    """A miniature of mimic-cxr-jpg, with the zip file of reports next to the tables."""
    root = tmp_path / "mimic-cxr-jpg"
    write_images(root)
    write_tables(root)
    zip_reports(root / "mimic-cxr-reports.zip")
    return root


def study(archive: Archive, study_id: str) -> ArchiveStudy:
    (found,) = (study for study in archive.studies if study.study_id == study_id)
    return found


def reasons(archive: Archive) -> dict[str | None, str]:
    return {failure.source: failure.reason for failure in archive.failures}


def test_studies_have_their_patient_radiographs_sections_and_split(jpg: Path) -> None:
    archive = read_mimic_cxr(jpg, "jpg")
    read = study(archive, "50414267")
    assert archive.source == "mimic-cxr"
    assert (read.patient_id, read.split) == ("10000032", "train")
    folder = jpg / "files/p10/p10000032/s50414267"
    assert [(radiograph.key, radiograph.path, radiograph.view) for radiograph in read.radiographs] == [
        ("a1", folder / "a1.jpg", "frontal"),
        ("a2", folder / "a2.jpg", "lateral"),
    ]
    assert (read.findings, read.indication) == ("Clear lungs.", "___F with cough.")
    assert (read.technique, read.comparison) == ("PA and lateral.", "___.")
    # The prior report of a later study is the complete report.
    assert read.report == (
        "INDICATION: ___F with cough. TECHNIQUE: PA and lateral. COMPARISON: ___. FINDINGS: Clear lungs. "
        "IMPRESSION: Normal."
    )


def test_times_without_leading_zeros_are_read(jpg: Path) -> None:
    when = {read.study_id: read.timestamp for read in read_mimic_cxr(jpg, "jpg").studies}
    assert when["50414267"] == datetime(2180, 5, 6, 21, 30, 14, 531000)
    assert when["53189527"] == datetime(2180, 6, 26, 5, 20, 0, 500000)
    assert when["51029426"] == datetime(2131, 1, 1, 0, 0, 15)
    assert when["52000000"] == datetime(2131, 2, 2)


@pytest.mark.parametrize(
    ("date", "time", "timestamp"),
    [
        ("21800506", "93000.0", datetime(2180, 5, 6, 9, 30)),
        ("21801399", "99.0", datetime(2180, 5, 6, 21, 30, 14, 531000)),
    ],
)
def test_a_study_has_its_earliest_valid_time(jpg: Path, date: str, time: str, timestamp: datetime) -> None:
    write_tables(jpg, [*IMAGES, ("a4", "10000032", "50414267", "PA", date, time, "")])
    archive = read_mimic_cxr(jpg, "jpg")
    assert study(archive, "50414267").timestamp == timestamp
    assert (f"'{date}'" in reasons(archive).get("50414267", "")) == (date == "21801399")


def test_view_codes_replace_a_blank_view_and_other_views_are_listed(jpg: Path) -> None:
    archive = read_mimic_cxr(jpg, "jpg")
    radiographs = study(archive, "51029426").radiographs
    views = {radiograph.key: radiograph.view for radiograph in radiographs}
    assert views == {"b1": "frontal", "b2": "lateral", "b3": "lateral"}
    stages = {failure.source: failure.stage for failure in archive.failures}
    assert stages == {"b4": "read", "b5": "read", "b6": "select"}
    assert "found 'Erect'" in reasons(archive)["b4"]


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "the study has no report"), (b"FINDINGS: \xff\xfe", "the report is not UTF-8 text")]
)
def test_a_study_without_a_readable_report_is_listed_and_remains(jpg: Path, content: bytes | None, reason: str) -> None:
    (jpg / "mimic-cxr-reports.zip").unlink()
    write_reports(jpg)
    report = jpg / "files/p10/p10000032/s50414267.txt"
    if content is None:
        report.unlink()
    else:
        report.write_bytes(content)
    archive = read_mimic_cxr(jpg, "jpg")
    read = study(archive, "50414267")
    assert (read.findings, read.report, len(read.radiographs)) == (None, None, 2)
    assert reasons(archive)["files/p10/p10000032/s50414267.txt"] == reason


@pytest.mark.parametrize("place", ["unpacked", "zip", "zip with a prefix", "folder"])
def test_the_dicom_release_equals_the_jpeg_release(place: str, jpg: Path, tmp_path: Path) -> None:
    root = tmp_path / "mimic-cxr"
    write_images(root, ".dcm")
    if place.startswith("zip"):
        zip_reports(root / "mimic-cxr-reports.zip", "mimic-cxr-reports/" if "prefix" in place else "")
    else:
        write_reports(root if place == "unpacked" else root / "mimic-cxr-reports")
    expected = read_mimic_cxr(jpg, "jpg")
    # Each release has what the other lacks.
    (jpg / "mimic-cxr-reports.zip").unlink()
    assert read_mimic_cxr(jpg, "jpg", metadata=root) == expected
    read = read_mimic_cxr(root, "dicom", metadata=jpg)
    assert read.failures == expected.failures
    for ours, theirs in zip(read.studies, expected.studies, strict=True):
        twins = [
            replace(image, path=root / image.path.relative_to(jpg).with_suffix(".dcm")) for image in theirs.radiographs
        ]
        assert ours == replace(theirs, radiographs=tuple(twins))


def test_a_missing_part_of_the_archive_is_listed_once(jpg: Path) -> None:
    shutil.rmtree(jpg / "files/p11")
    archive = read_mimic_cxr(jpg, "jpg")
    assert {read.patient_id for read in archive.studies} == {"10000032"}
    assert reasons(archive)["files/p11"] == "no such folder, for 2 studies"


def test_an_image_outside_the_split_table_has_no_split(jpg: Path) -> None:
    write_table(jpg / "mimic-cxr-2.0.0-split.csv.gz", SPLIT, [["a1", "50414267", "10000032", "validate"]])
    archive = read_mimic_cxr(jpg, "jpg")
    assert study(archive, "50414267").split == "validate"
    assert study(archive, "53189527").split is None


@pytest.mark.parametrize(
    "missing", ["mimic-cxr-2.0.0-metadata.csv.gz", "mimic-cxr-2.0.0-split.csv.gz", "mimic-cxr-reports.zip"]
)
def test_a_missing_file_is_an_error_with_its_name(jpg: Path, missing: str) -> None:
    (jpg / missing).unlink()
    with raises("mimic-cxr-jpg: file-not-found") as caught:
        read_mimic_cxr(jpg, "jpg")
    assert missing.removesuffix(".gz") in str(caught.value)


@pytest.mark.parametrize(
    ("image", "field"),
    [
        (("../a9", "10000032", "50414267", "PA", "21800506", "1.0", ""), "dicom_id"),
        (("a9", "", "50414267", "PA", "21800506", "1.0", ""), "subject_id"),
        (("a9", "10000032", "s5", "PA", "21800506", "1.0", ""), "study_id"),
        (("a9", "11000011", "50414267", "PA", "21800506", "1.0", ""), "subject_id"),
    ],
)
def test_a_contradictory_row_is_an_error(jpg: Path, image: Image, field: str) -> None:
    write_tables(jpg, [*IMAGES, image], splits=dict.fromkeys((*SPLITS, ""), "train"))
    with pytest.raises(InputError) as caught:
        read_mimic_cxr(jpg, "jpg")
    assert (caught.value.line, caught.value.field) == (len(IMAGES) + 2, field)


@pytest.mark.parametrize("splits", [["train", "dev"], ["train", "test"]])
def test_invalid_or_conflicting_splits_are_errors(jpg: Path, splits: list[str]) -> None:
    rows = [[f"a{number}", "50414267", "10000032", split] for number, split in enumerate(splits)]
    write_table(jpg / "mimic-cxr-2.0.0-split.csv.gz", SPLIT, rows)
    with pytest.raises(InputError) as caught:
        read_mimic_cxr(jpg, "jpg")
    assert (caught.value.line, caught.value.field) == (3, "split")


def test_a_damaged_report_in_the_zip_is_listed(jpg: Path) -> None:
    path = jpg / "mimic-cxr-reports.zip"
    path.write_bytes(path.read_bytes().replace(b"Clear", b"Clean", 1))
    archive = read_mimic_cxr(jpg, "jpg")
    assert "cannot be read" in reasons(archive)["files/p10/p10000032/s50414267.txt"]
    assert study(archive, "53189527").findings == "Clear lungs."
