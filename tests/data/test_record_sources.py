"""CheXpert Plus, ReXGradient-160K and interpret-cxr: their studies, and their faults with file, line and field."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from error_checks import raises
from record_files import (
    CHEXPERT_PLUS_COLUMNS,
    chexpert_plus_row,
    rexgradient_study,
    write_chexpert_plus,
    write_csv,
    write_interpret_cxr,
    write_rexgradient,
)

from maira.data.archive import Archive
from maira.data.pairing import Rules, make_samples
from maira.data.sources.chexpert_plus import read_chexpert_plus
from maira.data.sources.interpret_cxr import read_interpret_cxr
from maira.data.sources.rexgradient import read_rexgradient
from maira.data.sources.table_records import TableRecord


def _views(archive: Archive) -> dict[str, list[tuple[str, str]]]:
    """Return (file, view) of the radiographs by study."""
    return {study.study_id: [(r.path.name, r.view) for r in study.radiographs] for study in archive.studies}


def _failures(archive: Archive) -> list[tuple[str, str]]:
    """Return stage, and location and field of each failure."""
    found = []
    for failure in archive.failures:
        location = re.match(r"(?:.*/)?([^/:]+(?::\d+)?(?:: [^ :]+)?): ", failure.reason)
        found.append((failure.stage, location[1] if location else failure.reason))
    return found


def test_chexpert_plus_has_studies_of_several_images_with_priors_in_order(tmp_path: Path) -> None:
    rows = (
        chexpert_plus_row(1, 2, section_findings="Effusion."),
        chexpert_plus_row(1, 1, "view2_lateral"),
        chexpert_plus_row(1, 1, "view1_frontal", patient_report_date_order="1.0"),
        chexpert_plus_row(2, 1, split="valid", section_clinical_history="Dyspnea."),
    )
    archive = read_chexpert_plus(write_chexpert_plus(tmp_path, *rows))
    assert _views(archive) == {
        "patient00001_study2": [("view1_frontal.png", "frontal")],
        "patient00001_study1": [("view2_lateral.png", "lateral"), ("view1_frontal.png", "frontal")],
        "patient00002_study1": [("view1_frontal.png", "frontal")],
    }
    assert archive.failures == []
    late, early, other = make_samples(archive, Rules()).studies
    assert (late.prior_report, early.prior_report) == ("FINDINGS: No effusion. IMPRESSION: Normal.", None)
    assert (late.findings, late.indication, late.comparison) == ("Effusion.", "61 years of age, cough.", "8/8/2005.")
    assert (other.split, other.indication, other.source) == ("validate", "Dyspnea.", "chexpert-plus")


def test_chexpert_plus_prefers_dicom_and_the_report_with_findings(tmp_path: Path) -> None:
    empty = {"section_findings": "", "section_impression": "Unclear."}
    rows = (chexpert_plus_row(**empty), chexpert_plus_row(name="view2_frontal"), chexpert_plus_row(2, **empty))
    write_chexpert_plus(tmp_path / "png", *rows)
    write_chexpert_plus(tmp_path / "png", *rows, suffix=".dcm")
    (study, without) = read_chexpert_plus(tmp_path / "png").studies
    assert [radiograph.path.suffix for radiograph in study.radiographs] == [".dcm", ".dcm"]
    assert (study.findings, study.report) == ("No effusion.", "FINDINGS: No effusion. IMPRESSION: Normal.")
    assert (without.findings, without.report) == (None, "IMPRESSION: Unclear.")


@pytest.mark.parametrize(
    ("cells", "field"),
    [
        ({"path_to_image": "view1.jpg"}, "path_to_image"),
        ({"frontal_lateral": "Decubitus2"}, "frontal_lateral"),
        ({"deid_patient_id": "nan"}, "deid_patient_id"),
        ({"patient_report_date_order": "first"}, "patient_report_date_order"),
        ({"split": "holdout"}, "split"),
        ({"ImagePath": []}, "ImagePath"),
        ({"ImagePath": [3]}, "ImagePath"),
        ({"ImageViewPosition": ["PA", "PA"]}, "ImageViewPosition"),
        ({"ImageViewPosition": [None]}, "ImageViewPosition[0]"),
        ({"Findings": ["Clear."]}, "Findings"),
    ],
)
def test_an_invalid_cell_is_listed(tmp_path: Path, cells: dict[str, Any], field: str) -> None:
    if field[0].islower():
        write_chexpert_plus(tmp_path, chexpert_plus_row(2))
        rows = (chexpert_plus_row(2), chexpert_plus_row(1) | cells)
        write_csv(tmp_path / "df_chexpert_plus_240401.csv", CHEXPERT_PLUS_COLUMNS, rows)
        archive, location = read_chexpert_plus(tmp_path), f"df_chexpert_plus_240401.csv:3: {field}"
    else:
        archive = read_rexgradient(write_rexgradient(tmp_path, rexgradient_study(2), rexgradient_study(**cells)))
        location = f"test_metadata_view_position.json: pGRDNP_aGRDNA1_s1.2.1.{field}"
    assert _failures(archive) == [("read", location)]
    assert make_samples(archive, Rules()).studies


def test_records_of_a_study_that_contradict_each_other_are_listed(tmp_path: Path) -> None:
    rows = [chexpert_plus_row(section_findings="")]
    rows += [chexpert_plus_row(name="view2_frontal", deid_patient_id="patient00009"), chexpert_plus_row()]
    rows += [chexpert_plus_row(name="view3_frontal", split="valid"), chexpert_plus_row(frontal_lateral="LAO", study=2)]
    archive = read_chexpert_plus(write_chexpert_plus(tmp_path, *rows))
    table = "df_chexpert_plus_240401.csv"
    assert _failures(archive) == [
        ("read", f"{table}:3: deid_patient_id"),
        ("read", f"{table}:4: path_to_image"),
        ("read", f"{table}:5: split"),
        ("select", "view LAO is neither frontal nor lateral"),
    ]
    assert _views(archive)["patient00001_study1"] == [("view1_frontal.png", "frontal")]
    # The report of a second row of an image is used.
    assert archive.studies[0].findings == "No effusion."


def test_a_missing_image_is_left_to_the_conversion_but_not_all(tmp_path: Path) -> None:
    rows = (chexpert_plus_row(1), chexpert_plus_row(2))
    write_chexpert_plus(tmp_path, *rows)
    (tmp_path / rows[0]["path_to_image"]).with_suffix(".png").unlink()
    archive = read_chexpert_plus(tmp_path)
    assert (len(archive.studies), archive.failures) == (2, [])
    with raises("empty: file-not-found"):
        read_chexpert_plus(tmp_path, tmp_path / "empty")


@pytest.mark.parametrize("images", [None, "deid_png"])
def test_rexgradient_has_a_study_for_each_object(tmp_path: Path, images: str | None) -> None:
    write_rexgradient(tmp_path, rexgradient_study(2, "AP"), rexgradient_study(1, "LATERAL", "POSTERO_ANTERIOR"))
    write_rexgradient(tmp_path, rexgradient_study(3, PatientID="GRDNQ"), split="valid")
    archive = read_rexgradient(tmp_path, None if images is None else tmp_path / images)
    assert _views(archive) == {
        "pGRDNP_aGRDNA3_s1.2.3": [("3.0.png", "frontal")],
        "pGRDNP_aGRDNA2_s1.2.2": [("2.0.png", "frontal")],
        "pGRDNP_aGRDNA1_s1.2.1": [("1.0.png", "lateral"), ("1.1.png", "frontal")],
    }
    assert all(radiograph.path.is_file() for study in archive.studies for radiograph in study.radiographs)
    assert archive.failures == []
    other, late, early = make_samples(archive, Rules()).studies
    assert (late.prior_report, early.prior_report) == ("FINDINGS: Clear lungs 1.", None)
    assert (late.indication, late.comparison, late.split, other.split) == ("Cough.", None, "test", "validate")


@pytest.mark.parametrize(
    ("text", "fault"), [("[]", ": invalid-format"), ('{"a": {}, "a": {}}', ":1: a: duplicate"), ('{"a": []}', None)]
)
def test_metadata_without_studies_is_an_error(tmp_path: Path, text: str, fault: str | None) -> None:
    path = write_rexgradient(tmp_path, rexgradient_study()) / "metadata/test_metadata_view_position.json"
    path.write_text(text)
    if fault is None:
        assert [failure.stage for failure in read_rexgradient(tmp_path).failures] == ["read"]
        return
    with raises(path.name + fault):
        read_rexgradient(tmp_path)


def test_interpret_cxr_takes_views_from_names_and_tables(tmp_path: Path) -> None:
    write_interpret_cxr(tmp_path)
    openi = write_csv(
        tmp_path / "o.csv",
        ("filename", "projection"),
        [{"filename": "1_IM-0001-3001.dcm.png", "projection": "Frontal"}],
    )
    archive = read_interpret_cxr(tmp_path, views=[tmp_path / "views.csv", openi])
    assert [list(images) for images in _views(archive).values()] == [
        [("view1_frontal.png", "frontal"), ("view2_lateral.png", "lateral")],
        [("CXR1_1_IM-0001-3001.png", "frontal")],
        [("sub-S1_ses-E1_run-1_bp-chest_vp-ap_dx.png", "frontal")],
        [],
        [("aa-1.png", "frontal")],
    ]
    assert all(radiograph.path.is_file() for study in archive.studies for radiograph in study.radiographs)
    assert _failures(archive) == [("read", "train.csv:6: images_path[0]")]
    assert [study.split for study in archive.studies] == ["train"] * 4 + ["validate"]
    assert [study.findings for study in archive.studies][:2] == ["Clear.", "The ___ are clear."]
    assert {(study.patient_id, study.timestamp) for study in archive.studies} == {(None, None)}
    openi.write_text("filename,projection\n")
    with raises("o.csv: empty-input"):
        read_interpret_cxr(tmp_path, views=[openi])


@pytest.mark.parametrize("name", ["train.csv", "train.jsonl", "train.json"])
def test_an_invalid_row_of_interpret_cxr_is_listed(tmp_path: Path, name: str) -> None:
    rows = [{"findings": "Clear.", "images_path": "['view1_frontal.png']"}]
    rows += [{"findings": "Clear.", "images_path": cell} for cell in ("[a.png", "", "['view1_frontal.png']")]
    rows += [{"findings": "Clear.", "images_path": "view2_frontal.png", "split": "dev"}]
    (tmp_path / "view1_frontal.png").touch()
    path = tmp_path / name
    if name.endswith(".csv"):
        write_csv(path, ("findings", "images_path", "split"), rows)
    else:
        path.write_text(json.dumps(rows) if name.endswith(".json") else "\n".join(map(json.dumps, rows)))
    archive = read_interpret_cxr(path)
    place = {"train.csv": ":{}: ", "train.jsonl": ":{}: ", "train.json": ": [{}]."}[name]
    first = {"train.csv": 3, "train.jsonl": 2, "train.json": 1}[name]
    fields = ["images_path"] * 3 + ["split"]
    expected = [("read", name + place.format(first + number) + field) for number, field in enumerate(fields)]
    assert _failures(archive) == expected
    assert len(archive.studies) == 1


@pytest.mark.parametrize(
    ("cell", "texts"),
    [
        (["a.png", None], ["a.png", None]),
        ('["a.png", "b.png"]', ["a.png", "b.png"]),
        ("['a.png' 'b.png']", ["a.png", "b.png"]),
        ("['a.png'\n 'b.png',]", ["a.png", "b.png"]),
        ("a b.png", ["a b.png"]),
        ("[]", []),
        ("nan", []),
        ("['a.png'", None),
        ("a.png, b.png", None),
        ("['a'b']", None),
        (["a.png", 3], None),
        ({"path": "a.png"}, None),
        (True, None),
    ],
)
def test_lists_in_a_cell_have_three_notations(cell: Any, texts: list[str | None] | None) -> None:
    record = TableRecord(Path("t.csv"), {"images": cell}, line=4)
    if texts is None:
        with raises("t.csv:4: images: invalid-value"):
            record.texts("images")
    else:
        assert record.texts("images") == texts
