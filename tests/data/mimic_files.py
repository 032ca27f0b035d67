"""A miniature of MIMIC-CXR: its tables, images and reports, named and laid out as in the releases."""

from __future__ import annotations

import csv
import gzip
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

# Of the columns of mimic-cxr-jpg 2.0.0, as public code lists them, also some that are not read.
METADATA = ("dicom_id", "subject_id", "study_id", "PerformedProcedureStepDescription", "ViewPosition", "StudyDate")
METADATA += ("StudyTime", "ProcedureCodeSequence_CodeMeaning", "ViewCodeSequence_CodeMeaning")
SPLIT = ("dicom_id", "study_id", "subject_id", "split")
REPORT = """\
                                 FINAL REPORT
 INDICATION:  ___F with cough.

 TECHNIQUE:  PA and lateral.

 COMPARISON:  ___.

 FINDINGS:

 Clear
 lungs.

 IMPRESSION:

 Normal.
"""

# (image, patient, study, ViewPosition, StudyDate, StudyTime, ViewCodeSequence_CodeMeaning)
Image = tuple[str, str, str, str, str, str, str]
IMAGES: list[Image] = [
    ("a1", "10000032", "50414267", "PA", "21800506", "213014.53100000002", "postero-anterior"),
    ("a2", "10000032", "50414267", "LATERAL", "21800506", "213014.53100000002", "lateral"),
    ("a3", "10000032", "53189527", "AP", "21800626", "52000.5", "antero-posterior"),
    ("b1", "11000011", "51029426", "", "21310101", "15.0", "antero-posterior"),
    ("b2", "11000011", "51029426", "", "21310101", "15.0", "left lateral"),
    ("b3", "11000011", "51029426", "LL", "21310101", "15.0", ""),
    ("b4", "11000011", "51029426", "", "21310101", "15.0", "Erect"),
    ("b5", "11000011", "51029426", "", "21310101", "15.0", ""),
    ("b6", "11000011", "51029426", "AP AXIAL", "21310101", "15.0", ""),
    ("b7", "11000011", "52000000", "LATERAL", "21310202", "0.0", "lateral"),
]
SPLITS = {"10000032": "train", "11000011": "test"}
STUDIES = dict.fromkeys((patient, study) for _, patient, study, *_ in IMAGES)


def write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with gzip.open(path, "wt", newline="") if path.suffix == ".gz" else path.open("w", newline="") as handle:
        csv.writer(handle).writerows([header, *rows])


def write_tables(
    folder: Path, images: Sequence[Image] = IMAGES, suffix: str = ".csv.gz", splits: Mapping[str, str] = SPLITS
) -> None:
    """The tables of mimic-cxr-jpg; splits are those of patients."""
    folder.mkdir(parents=True, exist_ok=True)
    chest = "CHEST (PA AND LAT)"
    rows = [[*names, chest, view, date, time, chest, code] for *names, view, date, time, code in images]
    write_table(folder / f"mimic-cxr-2.0.0-metadata{suffix}", METADATA, rows)
    rows = [[dicom, study, patient, splits[patient]] for dicom, patient, study, *_ in images]
    write_table(folder / f"mimic-cxr-2.0.0-split{suffix}", SPLIT, rows)


def write_images(root: Path, suffix: str = ".jpg") -> None:
    for dicom, patient, study, *_ in IMAGES:
        image = root / "files" / f"p{patient[:2]}" / f"p{patient}" / f"s{study}" / f"{dicom}{suffix}"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(b"never opened")


def write_reports(folder: Path, text: str = REPORT) -> None:
    for patient, study in STUDIES:
        report = folder / "files" / f"p{patient[:2]}" / f"p{patient}" / f"s{study}.txt"
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(text)


def zip_reports(path: Path, before: str = "", reports: Mapping[str, str] | None = None) -> None:
    """The reports' zip, all alike or by the names of their files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        alike = {f"files/p{patient[:2]}/p{patient}/s{study}.txt": REPORT for patient, study in STUDIES}
        for name, text in (reports or alike).items():
            archive.writestr(before + name, text)
