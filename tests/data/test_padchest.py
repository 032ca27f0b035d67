"""PadChest: a miniature of the release, with its columns, its two ways to hold images, and its known faults."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from error_checks import raises
from record_files import write_csv

from maira.data.archive import Archive, ArchiveStudy
from maira.data.pairing import Rules, make_samples
from maira.data.sources.padchest import read_padchest

TABLE = "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv"
# The first column is pandas' index and has no name.
HEADER = (
    ",ImageID,ImageDir,StudyDate_DICOM,StudyID,PatientID,PatientBirth,PatientSex_DICOM,ViewPosition_DICOM,Projection,"
    "MethodProjection,Pediatric,Modality_DICOM,Manufacturer_DICOM,PhotometricInterpretation_DICOM,"
    "PixelRepresentation_DICOM,PixelAspectRatio_DICOM,SpatialResolution_DICOM,BitsStored_DICOM,WindowCenter_DICOM,"
    "WindowWidth_DICOM,Rows_DICOM,Columns_DICOM,XRayTubeCurrent_DICOM,Exposure_DICOM,ExposureInuAs_DICOM,ExposureTime,"
    "RelativeXRayExposure_DICOM,ReportID,Report,MethodLabel,Labels,Localizations,LabelsLocalizationsBySentence,"
    "labelCUIS,LocalizationsCUIS"
)
Row = dict[str, str]


def _row(image: str, study: str = "s1", **cells: str) -> Row:
    usual = {
        "ImageID": f"{image}.png",
        "ImageDir": "0",
        "StudyDate_DICOM": "20140915",
        "StudyID": study,
        "PatientID": "p1",
        "PatientBirth": "1930.0",
        "ViewPosition_DICOM": "POSTEROANTERIOR",
        "Projection": "PA",
        "MethodProjection": "Manual review of DICOM fields",
        "Pediatric": "No",
        "ReportID": "4765777",
        "Report": "sin hallazg patolog edad pacient .",
        "MethodLabel": "Physician",
        "Labels": "['normal', 'pleural effusion']",
        "LabelsLocalizationsBySentence": "[['normal'], ['pleural effusion', 'loc right']]",
    }
    return usual | cells


def _write(root: Path, *rows: Row, images: bool = True) -> Path:
    """The release with these rows, and their images in folders."""
    write_csv(root / TABLE, HEADER.split(","), rows)
    for row in rows if images else ():
        (root / row["ImageDir"]).mkdir(exist_ok=True)
        (root / row["ImageDir"] / row["ImageID"]).touch()
    return root


def _english(root: Path, *rows: Row) -> Path:
    return write_csv(root / "english.csv", rows[0], rows)


def _only(archive: Archive) -> ArchiveStudy:
    (study,) = archive.studies
    return study


def _reasons(archive: Archive) -> list[tuple[str | None, str]]:
    return [(failure.source, failure.reason) for failure in archive.failures]


def test_radiographs_of_a_study_are_in_order(tmp_path: Path) -> None:
    archive = read_padchest(_write(tmp_path, _row("a"), _row("x", "s2"), _row("b", Projection="L")))
    assert [(f.key, f.view, f.path) for f in archive.studies[0].radiographs] == [
        ("a", "frontal", tmp_path / "0" / "a.png"),
        ("b", "lateral", tmp_path / "0" / "b.png"),
    ]
    assert [(study.study_id, study.patient_id, study.timestamp) for study in archive.studies] == [
        ("s1", "p1", 20140915),
        ("s2", "p1", 20140915),
    ]
    assert (archive.source, archive.failures) == ("padchest", [])


@pytest.mark.parametrize("projection", ["", "nan", "OBLICUA"])
def test_an_unknown_projection_is_listed(tmp_path: Path, projection: str) -> None:
    archive = read_padchest(_write(tmp_path, _row("b"), _row("a", Projection=projection)))
    assert [radiograph.key for radiograph in _only(archive).radiographs] == ["b"]
    ((source, reason),) = _reasons(archive)
    assert source == "a.png"
    assert f"{TABLE}:3: Projection: " in reason


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


def test_a_missing_image_excludes_only_itself(tmp_path: Path) -> None:
    name = "216840111366964012283393834152009033140208626_00-059-118"
    _write(tmp_path, _row("a"), _row(name))
    (tmp_path / "0" / f"{name}.png").unlink()
    archive = read_padchest(tmp_path)
    assert [radiograph.key for radiograph in _only(archive).radiographs] == ["a"]
    assert _reasons(archive) == [(f"{name}.png", "image not in 0")]


def test_a_folder_that_was_not_downloaded_is_listed_once(tmp_path: Path) -> None:
    _write(tmp_path, _row("a"), _row("b", "s2", ImageDir="54"), _row("c", "s3", ImageDir="54"))
    for path in (tmp_path / "54").iterdir():
        path.unlink()
    (tmp_path / "54").rmdir()
    archive = read_padchest(tmp_path)
    assert _reasons(archive) == [("54", "no such folder or zip file, for 2 images")]
    assert len(archive.studies) == 3


def test_no_image_at_all_is_an_error(tmp_path: Path) -> None:
    with raises(f"{tmp_path.name}: file-not-found"):
        read_padchest(_write(tmp_path, _row("a"), images=False))


def test_duplicate_rows_are_one_radiograph(tmp_path: Path) -> None:
    archive = read_padchest(_write(tmp_path, _row("a"), _row("a"), _row("a", "s2")))
    assert [radiograph.key for radiograph in _only(archive).radiographs] == ["a"]
    assert [
        f"{TABLE}:{line}: ImageID: duplicate image" in reason for line, (_, reason) in enumerate(_reasons(archive), 3)
    ]


def test_a_study_with_two_patients_keeps_the_first(tmp_path: Path) -> None:
    archive = read_padchest(_write(tmp_path, _row("a"), _row("b", PatientID="p2")))
    assert (_only(archive).patient_id, len(_only(archive).radiographs)) == ("p1", 1)
    ((source, reason),) = _reasons(archive)
    assert source == "b.png"
    assert f"{TABLE}:3: PatientID: " in reason


def test_pediatric_studies_are_excluded_by_default(tmp_path: Path) -> None:
    _write(tmp_path, _row("a"), _row("b", "child", Pediatric="PED"))
    archive = read_padchest(tmp_path)
    assert [study.study_id for study in archive.studies] == ["s1"]
    assert _reasons(archive) == [("child", "pediatric study")]
    assert len(read_padchest(tmp_path, pediatric=True).studies) == 2


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
def test_english_reports_are_joined_by_image(tmp_path: Path, images_path: str) -> None:
    _write(tmp_path, _row("a"), _row("b", Projection="L"), _row("c", "s2"))
    table = _english(
        tmp_path,
        {"source": "PadChest", "findings": "No\neffusion.", "impression": "Normal.", "images_path": images_path},
        {"source": "CheXpert", "findings": "Wrong.", "impression": "", "images_path": "c.png"},
    )
    first, second = read_padchest(tmp_path, reports=table).studies
    assert first.findings == "No effusion."
    assert first.report == "FINDINGS: No effusion. IMPRESSION: Normal."
    assert (second.findings, second.report) == (None, None)


def test_an_impression_is_a_prior_report_but_no_findings(tmp_path: Path) -> None:
    _write(tmp_path, _row("a"))
    table = _english(tmp_path, {"StudyID": "s1", "findings": "", "impression": "Normal."})
    study = _only(read_padchest(tmp_path, reports=table))
    assert (study.findings, study.report) == (None, "IMPRESSION: Normal.")


def test_the_prior_is_the_previous_study_in_time(tmp_path: Path) -> None:
    _write(
        tmp_path,
        _row("late", "s2", StudyDate_DICOM="20150101.0"),
        _row("early", "s1", StudyDate_DICOM="20091231"),
        _row("undated", "s3", StudyDate_DICOM=""),
    )
    table = _english(
        tmp_path, *({"StudyID": s, "findings": f"Seen {s}.", "impression": ""} for s in ("s1", "s2", "s3"))
    )
    samples = make_samples(read_padchest(tmp_path, reports=table), Rules()).studies
    assert {s.study_id: s.prior_report for s in samples} == {"s1": None, "s2": "FINDINGS: Seen s1.", "s3": None}


def test_a_study_with_two_reports_is_refused(tmp_path: Path) -> None:
    _write(tmp_path, _row("a"))
    reports = [{"StudyID": "s1", "findings": text} for text in ("Clear lungs.", "Clear lungs.", "Effusion.")]
    with raises("english.csv:4: findings: mismatch"):
        read_padchest(tmp_path, reports=_english(tmp_path, *reports))


@pytest.mark.parametrize("key", [{"PatientID": "p1"}, {"StudyID": "s1"}, {"ImageID": "a.png"}])
def test_a_patient_has_one_split(tmp_path: Path, key: Row) -> None:
    _write(tmp_path, _row("a"), _row("b", "s2"), _row("c", "s3", PatientID="p2"))
    table = _english(tmp_path, key | {"split": "validation"})
    assert [study.split for study in read_padchest(tmp_path, splits=table).studies] == ["validate", "validate", None]


def test_a_patient_in_two_splits_is_refused(tmp_path: Path) -> None:
    _write(tmp_path, _row("a"), _row("b", "s2"))
    table = _english(tmp_path, {"StudyID": "s1", "split": "train"}, {"StudyID": "s2", "split": "test"})
    with raises("english.csv:3: split: mismatch"):
        read_padchest(tmp_path, splits=table)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"StudyID": "s1", "split": "dev1"}, "english.csv:2: split: invalid-value"),
        ({"StudyID": "", "split": "train"}, "english.csv:2: PatientID: missing-field"),
        ({"StudyID": "other", "split": "train"}, "english.csv: mismatch"),
        ({"StudyID": "s1", "fold": "train"}, "english.csv:1: split: missing-field"),
    ],
)
def test_an_invalid_split_table_is_a_one_line_error(tmp_path: Path, rows: Row, message: str) -> None:
    _write(tmp_path, _row("a"))
    with raises(message):
        read_padchest(tmp_path, splits=_english(tmp_path, rows))


def test_inverted_values_are_corrected(tmp_path: Path) -> None:
    archive = read_padchest(_write(tmp_path, _row("a", PhotometricInterpretation_DICOM="MONOCHROME1"), _row("b", "s2")))
    assert [radiograph.is_inverted for study in archive.studies for radiograph in study.radiographs] == [True, False]


@pytest.mark.parametrize(
    ("projection", "views"),
    [("PA", ["frontal"]), ("AP", ["frontal"]), ("AP_horizontal", ["frontal"]), ("L", ["lateral"])],
)
def test_projections_map_to_views(tmp_path: Path, projection: str, views: list[str]) -> None:
    archive = read_padchest(_write(tmp_path, _row("a", Projection=projection)))
    assert [radiograph.view for radiograph in _only(archive).radiographs] == views
    assert archive.failures == []
