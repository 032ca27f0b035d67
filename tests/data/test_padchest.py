"""PadChest: a miniature of the release, with its columns, its two ways to hold images, and its known faults."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from error_checks import raises
from record_files import touch, write_csv

from maira.data.archive import Archive, ArchiveStudy
from maira.data.sources.padchest import read_padchest

TABLE = "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv"
# The first column is pandas' index and has no name; further columns of the release are not read.
COLUMNS = ["", "ImageID", "ImageDir", "StudyDate_DICOM", "StudyID", "PatientID", "ViewPosition_DICOM", "Projection"]
COLUMNS += ["Pediatric", "PhotometricInterpretation_DICOM", "Report", "MethodLabel", "Labels"]
Row = dict[str, str]


def _row(image: str, study: str = "s1", **cells: str) -> Row:
    usual = {
        "ImageID": f"{image}.png",
        "ImageDir": "0",
        "StudyDate_DICOM": "20140915",
        "StudyID": study,
        "PatientID": "p1",
        "ViewPosition_DICOM": "POSTEROANTERIOR",
        "Projection": "PA",
        "Pediatric": "No",
        "Report": "sin hallazg patolog edad pacient .",
        "MethodLabel": "Physician",
        "Labels": "['normal', 'pleural effusion']",
    }
    return usual | cells


def _write(root: Path, *rows: Row, images: bool = True) -> Path:
    """The release with these rows, and their images in folders."""
    write_csv(root / TABLE, COLUMNS, rows)
    touch(root / row["ImageDir"] / row["ImageID"] for row in rows if images)
    return root


def _english(root: Path, *rows: Row) -> Path:
    return write_csv(root / "english.csv", rows[0], rows)


def _only(archive: Archive) -> ArchiveStudy:
    (study,) = archive.studies
    return study


def _reasons(archive: Archive) -> list[tuple[str | None, str]]:
    return [
        (failure.source, failure.reason.partition(f"/{TABLE}:")[2] or failure.reason) for failure in archive.failures
    ]


def test_radiographs_of_a_study_are_in_order(tmp_path: Path) -> None:
    rows = [_row("a", PhotometricInterpretation_DICOM="MONOCHROME1"), _row("x", "s2"), _row("b", Projection="L")]
    rows[1] |= {"Projection": "AP_horizontal", "StudyDate_DICOM": "20150101.0"}
    rows.append(_row("undated", "s3", StudyDate_DICOM=""))
    archive = read_padchest(_write(tmp_path, *rows))
    assert [(f.key, f.view, f.path, f.is_inverted) for f in archive.studies[0].radiographs] == [
        ("a", "frontal", tmp_path / "0" / "a.png", True),
        ("b", "lateral", tmp_path / "0" / "b.png", False),
    ]
    assert [(study.study_id, study.patient_id, study.timestamp) for study in archive.studies] == [
        ("s1", "p1", 20140915),
        ("s2", "p1", 20150101),
        ("s3", "p1", None),
    ]
    assert archive.studies[1].radiographs[0].view == "frontal"
    assert (archive.source, archive.failures) == ("padchest", [])


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (_row("b", Projection=""), "3: Projection: expected a view"),
        (_row("b", Projection="OBLICUA"), "3: Projection: expected a view"),
        (_row("b", Projection="EXCLUDE"), "view EXCLUDE is neither frontal nor lateral"),
        (_row("a", "s2"), "3: ImageID: duplicate image"),
        (_row("b", PatientID="p2"), "3: PatientID: expected 'p1'"),
        (_row("b", StudyID=""), "3: StudyID: expected a value"),
        (_row("b", "child", Pediatric="PED"), "pediatric study"),
    ],
)
def test_a_row_that_is_not_used_is_listed(tmp_path: Path, row: Row, fault: str) -> None:
    archive = read_padchest(_write(tmp_path, _row("a"), row))
    assert (_only(archive).patient_id, [radiograph.key for radiograph in _only(archive).radiographs]) == ("p1", ["a"])
    ((source, reason),) = _reasons(archive)
    assert source == ("child" if row["StudyID"] == "child" else row["ImageID"])
    assert reason.startswith(fault)
    assert len(read_padchest(tmp_path, pediatric=True).studies) == (2 if source == "child" else 1)


@pytest.mark.parametrize("prefix", ["", "0/"])
def test_images_are_read_from_zips(tmp_path: Path, prefix: str) -> None:
    _write(tmp_path, _row("a"), images=False)
    with zipfile.ZipFile(tmp_path / "0.zip", "w") as packed:
        packed.writestr(f"{prefix}a.png", b"")
        packed.writestr(f"__MACOSX/{prefix}._a.png", b"")
    (radiograph,) = _only(read_padchest(tmp_path)).radiographs
    assert (radiograph.path, radiograph.member) == (tmp_path / "0.zip", f"{prefix}a.png")


def test_only_the_folders_of_the_table_are_searched(tmp_path: Path) -> None:
    """Others may hold copies of another size, or what an earlier preparation wrote."""
    _write(tmp_path, _row("a", ImageDir="1"), images=False)
    for folder in ("0", "224px", "1/prepared/images"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.png").touch()
    (tmp_path / "1/prepared/prepare.run.json").touch()
    (tmp_path / "notes.zip").write_text("no zip file")
    with raises(f"{tmp_path.name}: file-not-found"):
        read_padchest(tmp_path)
    (tmp_path / "1" / "b").mkdir()
    (tmp_path / "1" / "b" / "a.png").touch()
    (radiograph,) = _only(read_padchest(tmp_path)).radiographs
    assert radiograph.path == tmp_path / "1" / "b" / "a.png"


def test_a_missing_image_is_listed_and_a_missing_folder_once(tmp_path: Path) -> None:
    name = "216840111366964012283393834152009033140208626_00-059-118"
    elsewhere = [_row(image, image, ImageDir="54") for image in "bc"]
    _write(tmp_path, _row("a"), _row(name))
    (tmp_path / "0" / f"{name}.png").unlink()
    write_csv(tmp_path / TABLE, COLUMNS, [_row("a"), _row(name), *elsewhere])
    archive = read_padchest(tmp_path)
    assert [[radiograph.key for radiograph in study.radiographs] for study in archive.studies] == [["a"], [], []]
    assert _reasons(archive) == [(f"{name}.png", "image not in 0"), ("54", "no such folder or zip file, for 2 images")]


def test_no_image_at_all_is_an_error(tmp_path: Path) -> None:
    with raises(f"{tmp_path.name}: file-not-found"):
        read_padchest(_write(tmp_path, _row("a"), images=False))


def test_spanish_reports_are_findings_only_on_request(tmp_path: Path) -> None:
    _write(tmp_path, _row("a"), _row("b", "s2", Report=" . "), _row("c", "s3", Report=""))
    assert {(study.findings, study.report) for study in read_padchest(tmp_path).studies} == {(None, None)}
    spanish = read_padchest(tmp_path, language="es").studies
    assert [study.findings for study in spanish] == ["sin hallazg patolog edad pacient .", None, None]
    assert [study.report for study in spanish] == ["sin hallazg patolog edad pacient .", None, None]


@pytest.mark.parametrize(
    "images_path",
    ["b.png", "['b.png']", "['a.png' 'b.png']", '["images/0/a.png", "images/0/b.png"]', "['gone.png', 'b.png']"],
)
def test_english_reports_are_joined_by_image_or_study(tmp_path: Path, images_path: str) -> None:
    _write(tmp_path, _row("a"), _row("b", Projection="L"), _row("c", "s2"), _row("d", "s3"))
    table = _english(
        tmp_path,
        {"source": "PadChest", "findings": "No\neffusion.", "impression": "Normal.", "images_path": images_path},
        {"source": "CheXpert", "findings": "Wrong.", "impression": "", "images_path": "c.png"},
        {"source": "PadChest", "findings": "", "impression": "Normal.", "images_path": "d.png"},
    )
    assert [(study.findings, study.report) for study in read_padchest(tmp_path, reports=table).studies] == [
        ("No effusion.", "FINDINGS: No effusion. IMPRESSION: Normal."),
        (None, None),
        (None, "IMPRESSION: Normal."),
    ]


def test_a_study_with_two_reports_is_refused(tmp_path: Path) -> None:
    _write(tmp_path, _row("a"))
    reports = [{"StudyID": "s1", "findings": text} for text in ("Clear lungs.", "Clear lungs.", "Effusion.")]
    with raises("english.csv:4: findings: mismatch"):
        read_padchest(tmp_path, reports=_english(tmp_path, *reports))


def test_a_study_of_an_unknown_patient_is_used(tmp_path: Path) -> None:
    _write(tmp_path, _row("a", PatientID=""))
    archive = read_padchest(tmp_path)
    assert (_only(archive).patient_id, archive.failures) == (None, [])


@pytest.mark.parametrize("key", [{"PatientID": "p1"}, {"StudyID": "s1"}, {"ImageID": "a.png"}])
def test_a_patient_has_one_split(tmp_path: Path, key: Row) -> None:
    _write(tmp_path, _row("a"), _row("b", "s2"), _row("c", "s3", PatientID="p2"))
    table = _english(tmp_path, key | {"split": "validation"})
    assert [study.split for study in read_padchest(tmp_path, splits=table).studies] == ["validate", "validate", None]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"StudyID": "s1", "split": "dev1"}], "english.csv:2: split: invalid-value"),
        ([{"StudyID": "", "split": "train"}], "english.csv:2: PatientID: missing-field"),
        ([{"StudyID": "other", "split": "train"}], "english.csv: mismatch"),
        ([{"StudyID": "s1", "fold": "train"}], "english.csv:1: split: missing-field"),
        ([{"StudyID": "s1", "split": "train"}, {"StudyID": "s2", "split": "test"}], "english.csv:3: split: mismatch"),
    ],
)
def test_an_invalid_split_table_is_a_one_line_error(tmp_path: Path, rows: list[Row], message: str) -> None:
    _write(tmp_path, _row("a"), _row("b", "s2"))
    with raises(message):
        read_padchest(tmp_path, splits=_english(tmp_path, *rows))
