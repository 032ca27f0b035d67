"""PadChest (Bustos et al. 2020): 160,868 radiographs of 67,000 patients in one table, with reports in Spanish.

Layout of the release:

    PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv[.gz]
    0/ ... 54/          16-bit PNGs, <ImageID> in the folder <ImageDir>; or as it is downloaded,
    0.zip ... 54.zip    the same, read without being unpacked

Columns, and the radiographs that are known to be missing, empty or cut off, are as in public code that reads the release. How
a zip's members are named was not seen; they are known by the last part of their names. A radiograph that is not there is
listed here; one that cannot be decoded is listed when it is converted.

The table's Labels are left alone: all were taken from the reports, 27 % by physicians and the others by a network, and
a `Label` is what is known without reading the report.
"""

from __future__ import annotations

import re
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from data.archive import Archive, ArchiveStudy, Radiograph, View
from data.manifest import Failure
from radfact.errors import InputError
from radfact.io.csv_tables import find_csv, stream_columns
from radfact.io.jsonl import read_jsonl

Language = Literal["en", "es"]

_NAME = "PADCHEST_chest_x_ray_images_labels_160K"
_COLUMNS = ("ImageID", "ImageDir", "StudyDate_DICOM", "StudyID", "PatientID", "Projection", "Pediatric", "Report")

_POLARITY = "PhotometricInterpretation_DICOM"

# AP_horizontal is a radiograph of a lying patient. A rib view (COSTAL) is exposed for bone, so it is no frontal chest radiograph;
# EXCLUDE was found to be no chest radiograph at all.
_VIEWS: dict[str, View | None] = {
    "PA": "frontal",
    "AP": "frontal",
    "AP_horizontal": "frontal",
    "L": "lateral",
    "COSTAL": None,
    "EXCLUDE": None,
}
_SPLITS = {"train": "train", "validation": "validate", "validate": "validate", "val": "validate", "test": "test"}
# Lists of images are written in JSON, as Python prints a list, or as numpy prints an array (without commas).
_IMAGE_NAME = re.compile(r"[^\s'\"\[\],/\\]+\.png")


def read_padchest(
    root: Path,
    *,
    reports: Path | None = None,
    splits: Path | None = None,
    language: Language = "en",
    pediatric: bool = False,
) -> Archive:
    """Read PadChest.

    The English findings are those of the Interpret-CXR collection (RRG24), which the paper uses (004, B.1); without
    them, and without `language="es"`, no study has findings. A later study is shown both sections as its prior report.
    The Spanish reports have no sections and are the findings as a whole.

    Pictures whose table says MONOCHROME1 are turned, dark for bright: they are taken to hold the values of the DICOM
    files as they were stored. That is how public code reads them; it was not seen on the radiographs themselves.

    Args:
        root: folder of the release.
        reports: the English reports, CSV (also `.gz`) or JSON Lines, with the columns `findings`, `impression`, and
            `StudyID`, `ImageID` or `images_path`. Rows of other sources are skipped where there is a column `source`.
            (The collection's Parquet files hold the images too: save their columns of text.)
        splits: a table (CSV) with the column `split` and `PatientID`, `StudyID` or `ImageID`: PadChest-GR's
            `master_table.csv`, or the official splits that are released with it. All studies of a patient whom it
            names are in that patient's split; the others are in none.
        language: of the findings.
        pediatric: keep pediatric studies. The paper's patients are adults (004, data), so they are left out and listed.

    Raises:
        InputError: a table cannot be read or does not belong to this archive, or there are no images.
    """
    if language == "es" and reports is not None:
        raise InputError("a table of English reports is no use where the findings are to be Spanish", file=reports)
    table = find_csv(root, f"{_NAME}_01.02.19.csv", f"{_NAME}.csv")
    if table is None:
        raise InputError(f"no such file; is this the folder of PadChest with {_NAME}_01.02.19.csv?", file=root)
    failures: list[Failure] = []
    rows, study_of = _read_studies(table, root, failures)
    english = _read_english(reports, rows, study_of) if reports else {}
    split_of = _read_splits(splits, rows, study_of) if splits else {}
    studies = []
    for name, row in rows.items():
        if row.pediatric and not pediatric:
            failures.append(
                Failure(source=name, stage="select", reason="a pediatric study; the paper's patients are adults")
            )
            continue
        spanish = prose(row.report) if language == "es" else None
        findings, impression = english.get(name, (spanish, None))
        studies.append(
            ArchiveStudy(
                study_id=name,
                patient_id=row.patient_id,
                when=row.when,
                radiographs=tuple(row.radiographs),
                findings=findings,
                report=spanish or whole_report(findings, impression),
                split=split_of.get(name),
            )
        )
    return Archive("padchest", studies, failures)


def whole_report(findings: str | None, impression: str | None) -> str | None:
    """A report of two sections as a later study is shown it, with headings as in MIMIC-CXR's reports."""
    sections = (("FINDINGS", findings), ("IMPRESSION", impression))
    return " ".join(f"{heading}: {text}" for heading, text in sections if text) or None


def prose(text: str | None) -> str | None:
    """A text on one line; None where there is no word in it."""
    text = " ".join((text or "").split())
    return text if re.search(r"\w", text) else None


def split_name(value: str | None, *, file: Path, line: int) -> str:
    """A split by the project's name for it.

    Raises:
        InputError: there is no such split.
    """
    if value is None or value.lower() not in _SPLITS:
        raise InputError(f"expected train, validation or test, found {value!r}", file=file, line=line, field="split")
    return _SPLITS[value.lower()]


@dataclass(slots=True)
class _Study:
    """A study while its rows are read."""

    patient_id: str | None
    when: int | None
    pediatric: bool
    report: str | None
    radiographs: list[Radiograph] = field(default_factory=list)


def _read_studies(table: Path, root: Path, failures: list[Failure]) -> tuple[dict[str, _Study], dict[str, str]]:
    """Studies by name, and the name by image."""
    images = _Images(root)
    studies: dict[str, _Study] = {}
    study_of: dict[str, str] = {}

    def leave_out(source: str, line: int, reason: str) -> None:
        failures.append(_failure(source, f"{table.name}, line {line}: {reason}"))

    for line, cells in stream_columns(table, _COLUMNS, (_POLARITY,)):
        image, folder, date, name, patient, projection, pediatric, report, polarity = cells
        if image is None or name is None:
            leave_out(image or name or table.name, line, "a row needs ImageID and StudyID")
            continue
        if image in study_of:
            leave_out(image, line, "the image is in a line before")
            continue
        study = studies.get(name)
        if study is None:
            study = studies[name] = _Study(patient, day(date), False, report)
        elif study.patient_id != patient:
            leave_out(image, line, "PatientID is not that of the study's other images")
            continue
        study_of[image] = name
        study.pediatric |= pediatric is not None and pediatric.lower() != "no"
        study.report = study.report or report
        if projection not in _VIEWS:
            leave_out(image, line, f"Projection is {projection or 'missing'}, so the view is not known")
        elif (view := _VIEWS[projection]) is None:
            reason = f"its Projection {projection} is neither frontal nor lateral"
            failures.append(Failure(source=image, stage="select", reason=reason))
        elif radiograph := images.radiograph(image, folder or "", view):
            study.radiographs.append(replace(radiograph, is_inverted=polarity == "MONOCHROME1"))
    failures.extend(images.missing())
    return studies, study_of


class _Images:
    """Where the images lie: ImageDir's folder, its zip, or all in one folder, the root itself."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._listed: dict[str, tuple[Mapping[str, Path], Mapping[str, str]]] = {}
        self._missing: defaultdict[str, list[str]] = defaultdict(list)
        self._found = False

    def radiograph(self, image: str, folder: str, view: View) -> Radiograph | None:
        """The radiograph of an image; None where there is no file."""
        for name in (folder, ""):
            unpacked, packed = self._files(name)
            if image in unpacked or image in packed:
                self._found = True
                key = image.removesuffix(".png")
                if image in unpacked:
                    return Radiograph(key, unpacked[image], view)
                return Radiograph(key, self._root / f"{name}.zip", view, packed[image])
        self._missing[folder].append(image)
        return None

    def missing(self) -> Iterator[Failure]:
        """What was asked for and is not there: image by image, but a folder that is not there at all only once.

        Raises:
            InputError: nothing is there.
        """
        if self._missing and not self._found:
            raise InputError(
                "none of the table's images is here, neither in 0/ to 54/ nor 0.zip to 54.zip", file=self._root
            )
        for folder, images in self._missing.items():
            here = [name for name in (folder, f"{folder}.zip") if folder and (self._root / name).exists()]
            if here:
                yield from (_failure(image, f"the image is not in {' or '.join(here)}") for image in images)
            else:
                yield _failure(
                    folder or str(self._root), f"there is no such folder or zip; it has {len(images)} images"
                )

    def _files(self, folder: str) -> tuple[Mapping[str, Path], Mapping[str, str]]:
        """Images in a folder by name, and in its zip by the last part of their names there."""
        # One listing a folder: to ask for 160,868 files one by one takes minutes on a network disk.
        if folder not in self._listed:
            unpacked, packed = self._root / folder, self._root / f"{folder}.zip"
            files = {path.name: path for path in unpacked.iterdir()} if unpacked.is_dir() else {}
            members = {member.rpartition("/")[2]: member for member in png_members(packed)} if packed.is_file() else {}
            self._listed[folder] = files, members
        return self._listed[folder]


def png_members(packed: Path) -> list[str]:
    """Names of the images in a zip archive, as they are in it.

    Raises:
        InputError: it is no whole zip archive.
    """
    try:
        with zipfile.ZipFile(packed) as archive:
            return [name for name in archive.namelist() if name.endswith(".png") and not name.startswith("__MACOSX/")]
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"cannot be read: {error}; was it downloaded whole?", file=packed) from None


def _read_english(
    path: Path, studies: Mapping[str, _Study], study_of: Mapping[str, str]
) -> dict[str, tuple[str | None, str | None]]:
    """(findings, impression) by study."""
    english: dict[str, tuple[str | None, str | None]] = {}
    for line, row in _english_rows(path):
        if row["source"] is not None and row["source"].lower() != "padchest":
            continue
        names = _IMAGE_NAME.findall(f"{row['ImageID'] or ''} {row['images_path'] or ''}")
        if row["StudyID"] is None and not names:
            raise InputError("a row needs StudyID, ImageID or images_path", file=path, line=line, field="images_path")
        name = row["StudyID"] or next((study_of[image] for image in names if image in study_of), "")
        sections = prose(row["findings"]), prose(row["impression"])
        if name in studies and any(sections):
            english.setdefault(name, sections)
    if not english:
        raise InputError("has no report of any study of this archive", file=path)
    return english


_ENGLISH = ("findings", "impression", "source", "StudyID", "ImageID", "images_path")


def _english_rows(path: Path) -> Iterator[tuple[int, dict[str, str | None]]]:
    if path.suffix == ".jsonl":
        for line, row in read_jsonl(path):
            yield line, {name: None if row.get(name) is None else str(row[name]) for name in _ENGLISH}
    elif path.name.endswith((".csv", ".csv.gz", ".zip")):
        for line, cells in stream_columns(path, _ENGLISH[:1], _ENGLISH[1:]):
            yield line, dict(zip(_ENGLISH, cells, strict=True))
    else:
        raise InputError("expected a table of reports as .csv, .csv.gz or .jsonl", file=path)


def _read_splits(path: Path, studies: Mapping[str, _Study], study_of: Mapping[str, str]) -> dict[str, str]:
    """Split by study: that of its patient, or its own where the patient is not known."""
    split_of: dict[str, str] = {}
    for line, (split, patient, study, image) in stream_columns(path, ("split",), ("PatientID", "StudyID", "ImageID")):
        if patient is None and study is None and image is None:
            raise InputError("a row needs PatientID, StudyID or ImageID", file=path, line=line, field="PatientID")
        name = study or study_of.get(image or "", "")
        whose = studies[name].patient_id or name if name in studies else patient
        split = split_name(split, file=path, line=line)
        if whose is not None and split_of.setdefault(whose, split) != split:
            message = f"'{whose}' is in '{split_of[whose]}' in a line before; a split must be by patient"
            raise InputError(message, file=path, line=line, field="split")
    found = {name: split_of[whose] for name, row in studies.items() if (whose := row.patient_id or name) in split_of}
    if not found:
        raise InputError("names no patient or study of this archive", file=path)
    return found


def day(value: str | None) -> int | None:
    """A date (yyyymmdd, also as pandas writes a column of numbers with gaps) as a number."""
    match = re.fullmatch(r"(\d{8})(\.0)?", value or "", re.ASCII)
    return int(match[1]) if match else None


def _failure(source: str, reason: str) -> Failure:
    return Failure(source=source, stage="read", reason=reason)
