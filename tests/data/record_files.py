"""Miniatures of CheXpert Plus, ReXGradient-160K and interpret-cxr, with the columns of their public schemas."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CHEXPERT_PLUS_COLUMNS = (
    *("path_to_image", "path_to_dcm", "frontal_lateral", "ap_pa", "deid_patient_id", "patient_report_date_order"),
    *("report", "section_clinical_history", "section_history", "section_comparison", "section_technique"),
    *("section_findings", "section_impression", "section_accession_number", "split"),
)
Row = dict[str, Any]


def touch(paths: Iterable[Path]) -> None:
    """Create empty images: a reader opens none."""
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def chexpert_plus_row(patient: int = 1, study: int = 1, name: str = "view1_frontal", **cells: str) -> Row:
    """Return the row of an image."""
    folder = f"train/patient{patient:05}/study{study}/{name}"
    return {
        "path_to_image": f"{folder}.jpg",
        "path_to_dcm": f"{folder}.dcm",
        "frontal_lateral": "Frontal" if "frontal" in name else "Lateral",
        "deid_patient_id": f"patient{patient:05}",
        "patient_report_date_order": str(study),
        "section_history": "61 years of age, cough.",
        "section_comparison": "8/8/2005.",
        "section_findings": "No effusion.",
        "section_impression": "Normal.",
        "split": "train",
    } | cells


def write_chexpert_plus(root: Path, *rows: Row, suffix: str = ".png") -> Path:
    """Write the table and its images."""
    write_csv(root / "df_chexpert_plus_240401.csv", CHEXPERT_PLUS_COLUMNS, rows)
    touch((root / row["path_to_image"]).with_suffix(suffix) for row in rows)
    return root


def rexgradient_study(study: int = 1, *views: str | None, **cells: Any) -> Row:
    """Return the object of a study."""
    views = views or ("PA",)
    folder = f"GRDNP/GRDNA{study}/studies/1.2.{study}/series"
    return {
        "id": f"pGRDNP_aGRDNA{study}_s1.2.{study}",
        "StudyInstanceUid": f"1.2.{study}",
        "PatientID": "GRDNP",
        "PatientAge": "036Y",
        "StudyDate": 20130100 + study,
        "Indication": "Cough.",
        "Comparison": "None",
        "Findings": f"Clear lungs {study}.",
        "Impression": float("nan"),
        "ImagePath": [f"../deid_png/{folder}/{n}/instances/{study}.{n}.png" for n in range(len(views))],
        "ImageViewPosition": list(views),
    } | cells


def write_rexgradient(root: Path, *studies: Row, split: str = "test", folder: str = "metadata") -> Path:
    """Write the metadata of a split and its images."""
    path = root / folder / f"{split}_metadata_view_position.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({study["id"]: study for study in studies}))
    paths = [image for study in studies for image in study["ImagePath"] if isinstance(image, str)]
    touch(root / image.removeprefix("../") for image in paths)
    return root


def write_interpret_cxr(root: Path) -> Path:
    """Write tables with a study of each source, a table of views, and the images."""
    chexpert = "['CheXpert/train/patient00001/study1/view1_frontal.png'\n 'b/view2_lateral.png']"
    rows = [
        ("CheXpert", "Clear.", "Normal.", chexpert),
        ("OpenI", "The XXXX are clear.", "", "['images/CXR1_1_IM-0001-3001.png']"),
        ("BIMCV-COVID19", "Opacity.", "", '["sub-S1_ses-E1_run-1_bp-chest_vp-ap_dx.png"]'),
        ("PadChest", "Stable.", "", "padchest/2168.png"),
    ]
    columns = ("source", "findings", "impression", "images_path")
    write_csv(root / "train.csv", columns, (dict(zip(columns, row, strict=True)) for row in rows))
    mimic = {"source": "MIMIC-CXR", "findings": "Edema.", "impression": None, "images_path": ["files/p10/s5/aa-1.png"]}
    (root / "val_mimic.json").write_text(json.dumps([mimic]))
    write_csv(root / "views.csv", ("dicom_id", "ViewPosition"), [{"dicom_id": "aa-1", "ViewPosition": "AP"}])
    names = ("train/patient00001/study1/view1_frontal", "b/view2_lateral", "CXR1_1_IM-0001-3001", "2168")
    touch(root / f"{name}.png" for name in (*names, "sub-S1_ses-E1_run-1_bp-chest_vp-ap_dx", "files/p10/s5/aa-1"))
    return root


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[Row]) -> Path:
    """Write a table; missing cells are empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as handle:
        table = csv.DictWriter(handle, list(columns), restval="")
        table.writeheader()
        table.writerows(rows)
    return path
