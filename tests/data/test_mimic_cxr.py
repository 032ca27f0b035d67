from __future__ import annotations

import csv
import gzip
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from error_checks import raises
from mimic_files import (
    IMAGES,
    SPLIT,
    Image,
    write_images,
    write_reports,
    write_table,
    write_tables,
    zip_reports,
)

from maira.data.archive import Archive, ArchiveStudy
from maira.data.sources.mimic_cxr import Layout, read_mimic_cxr
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


def test_the_prior_report_is_the_complete_report(jpg: Path) -> None:
    report = study(read_mimic_cxr(jpg, "jpg"), "50414267").report
    assert report == (
        "INDICATION: ___F with cough. TECHNIQUE: PA and lateral. COMPARISON: ___. FINDINGS: Clear lungs. "
        "IMPRESSION: Normal."
    )


def test_times_without_leading_zeros_are_read(jpg: Path) -> None:
    when = {read.study_id: read.timestamp for read in read_mimic_cxr(jpg, "jpg").studies}
    assert when["50414267"] == datetime(2180, 5, 6, 21, 30, 14, 531000)
    assert when["53189527"] == datetime(2180, 6, 26, 5, 20, 0, 500000)
    assert when["51029426"] == datetime(2131, 1, 1, 0, 0, 15)
    assert when["52000000"] == datetime(2131, 2, 2)


def test_a_study_has_its_earliest_time(jpg: Path) -> None:
    images = [*IMAGES, ("a4", "10000032", "50414267", "PA", "21800506", "93000.0", "")]
    write_tables(jpg, images)
    assert study(read_mimic_cxr(jpg, "jpg"), "50414267").timestamp == datetime(2180, 5, 6, 9, 30)


def test_an_invalid_time_is_listed_and_the_study_remains(jpg: Path) -> None:
    write_tables(jpg, [("a1", "10000032", "50414267", "PA", "21801399", "99.0", "")])
    archive = read_mimic_cxr(jpg, "jpg")
    assert study(archive, "50414267").timestamp is None
    assert "'21801399'" in reasons(archive)["a1"]


def test_view_codes_replace_a_blank_view(jpg: Path) -> None:
    radiographs = study(read_mimic_cxr(jpg, "jpg"), "51029426").radiographs
    assert [(radiograph.key, radiograph.view) for radiograph in radiographs] == [
        ("b1", "frontal"),
        ("b2", "lateral"),
        ("b3", "lateral"),
    ]


def test_images_of_other_and_unknown_views_are_listed(jpg: Path) -> None:
    archive = read_mimic_cxr(jpg, "jpg")
    assert reasons(archive) == {
        "b4": "no ViewPosition, and view code 'Erect' is unknown",
        "b5": "neither ViewPosition nor a view code",
        "b6": "view 'AP AXIAL' is neither frontal nor lateral",
    }
    assert {failure.source: failure.stage for failure in archive.failures} == {
        "b4": "read",
        "b5": "read",
        "b6": "select",
    }


def test_an_image_listed_twice_is_one_radiograph(jpg: Path) -> None:
    write_tables(jpg, [*IMAGES, IMAGES[0]])
    archive = read_mimic_cxr(jpg, "jpg")
    assert [radiograph.key for radiograph in study(archive, "50414267").radiographs] == ["a1", "a2"]
    assert "duplicate" in reasons(archive)["a1"]


def test_a_missing_report_is_listed_and_the_study_remains(jpg: Path) -> None:
    (jpg / "mimic-cxr-reports.zip").unlink()
    write_reports(jpg)
    (jpg / "files/p10/p10000032/s50414267.txt").unlink()
    archive = read_mimic_cxr(jpg, "jpg")
    read = study(archive, "50414267")
    assert (read.findings, read.report, len(read.radiographs)) == (None, None, 2)
    assert reasons(archive)["files/p10/p10000032/s50414267.txt"] == "the study has no report"


def test_a_report_that_is_no_text_is_listed(jpg: Path) -> None:
    (jpg / "mimic-cxr-reports.zip").unlink()
    write_reports(jpg)
    (jpg / "files/p10/p10000032/s50414267.txt").write_bytes(b"FINDINGS: \xff\xfe")
    assert reasons(read_mimic_cxr(jpg, "jpg"))["files/p10/p10000032/s50414267.txt"] == "the report is not UTF-8 text"


def dicom_beside_tables(root: Path, jpg: Path) -> Path | None:
    shutil.copytree(jpg, root, ignore=shutil.ignore_patterns("files", "*.zip"))
    write_reports(root)
    return None


def dicom_with_tables_elsewhere(root: Path, jpg: Path) -> Path | None:
    zip_reports(root / "mimic-cxr-reports.zip")
    return jpg


def dicom_with_reports_in_a_folder(root: Path, jpg: Path) -> Path | None:
    write_reports(root / "mimic-cxr-reports")
    return jpg


@pytest.mark.parametrize("arrange", [dicom_beside_tables, dicom_with_tables_elsewhere, dicom_with_reports_in_a_folder])
def test_the_dicom_release_equals_the_jpeg_release(
    arrange: Callable[[Path, Path], Path | None], jpg: Path, tmp_path: Path
) -> None:
    root = tmp_path / "mimic-cxr"
    metadata = arrange(root, jpg)
    write_images(root, ".dcm")
    expected = read_mimic_cxr(jpg, "jpg")
    read = read_mimic_cxr(root, "dicom", metadata=metadata)
    assert read.failures == expected.failures
    for ours, theirs in zip(read.studies, expected.studies, strict=True):
        assert (ours.study_id, ours.timestamp, ours.split, ours.report) == (
            theirs.study_id,
            theirs.timestamp,
            theirs.split,
            theirs.report,
        )
        for radiograph, twin in zip(ours.radiographs, theirs.radiographs, strict=True):
            assert radiograph.path == root / twin.path.relative_to(jpg).with_suffix(".dcm")


@pytest.mark.parametrize("before", ["", "mimic-cxr-reports/"])
def test_reports_are_located_for_both_releases(before: str, jpg: Path, tmp_path: Path) -> None:
    (jpg / "mimic-cxr-reports.zip").unlink()
    zip_reports(tmp_path / "mimic-cxr" / "mimic-cxr-reports.zip", before)
    archive = read_mimic_cxr(jpg, "jpg", metadata=tmp_path / "mimic-cxr")
    assert all(read.findings == "Clear lungs." for read in archive.studies)


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


@pytest.mark.parametrize("missing", ["metadata", "split"])
@pytest.mark.parametrize("layout", ["jpg", "dicom"])
def test_a_missing_table_is_an_error_with_its_origin(jpg: Path, missing: str, layout: Layout) -> None:
    (jpg / f"mimic-cxr-2.0.0-{missing}.csv.gz").unlink()
    with raises("mimic-cxr-jpg: file-not-found") as caught:
        read_mimic_cxr(jpg, layout)
    assert missing in str(caught.value)


def test_missing_reports_are_an_error_with_their_origin(jpg: Path) -> None:
    (jpg / "mimic-cxr-reports.zip").unlink()
    with raises("mimic-cxr-jpg: file-not-found"):
        read_mimic_cxr(jpg, "jpg")


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
    write_tables(jpg)
    rows = [[image[0], *image[1:3], "", image[3], "1", "1", *image[4:6], "", image[6], ""]]
    with gzip.open(jpg / "mimic-cxr-2.0.0-metadata.csv.gz", "at", newline="") as handle:
        csv.writer(handle).writerows(rows)
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
