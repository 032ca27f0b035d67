"""PadChest (Bustos et al. 2020): 160,868 radiographs of 67,000 patients in one table, with reports in Spanish."""

from __future__ import annotations

import os
import re
import zipfile
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from maira.data.archive import Archive, Radiograph, View, prose, read_failure
from maira.data.manifest import PREPARATION_RECORD, Failure
from maira.data.sources.table_records import (
    Layout,
    TableRecord,
    find_table,
    join_sections,
    parse_date,
    read_studies,
    table_records,
)
from radfact.errors import ErrorCode, InputError

Language = Literal["en", "es"]

_NAME = "PADCHEST_chest_x_ray_images_labels_160K"
_COLUMNS = ("ImageID", "ImageDir", "StudyDate_DICOM", "StudyID", "PatientID", "Projection", "Pediatric", "Report")

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
    """Read PadChest."""
    if language == "es" and reports is not None:
        message = "English reports cannot be combined with Spanish findings; omit one"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, file=reports)
    table = find_table([root], f"{_NAME}_01.02.19.csv", f"{_NAME}.csv")
    # Other folders below the root may hold copies, of another size or already prepared.
    folders = {folder for record in table_records(table) if (folder := record.text("ImageDir"))}
    images, missing = find_images(root, _NAME, folders), defaultdict[str, list[str]](list)
    study_of: dict[str, str] = {}
    children: set[str] = set()

    def study(record: TableRecord, paths: Sequence[str]) -> str:
        name = record.require("StudyID")
        study_of.setdefault(paths[0], name)
        if (record.text("Pediatric") or "no").lower() != "no":
            children.add(name)
        return name

    def find(record: TableRecord, _folder: Path, image: str, view: View) -> Radiograph | None:
        if image not in images:
            missing[record.text("ImageDir") or ""].append(image)
            return None
        is_inverted = record.text("PhotometricInterpretation_DICOM") == "MONOCHROME1"
        return replace(images[image], view=view, is_inverted=is_inverted)

    layout = Layout(
        source="padchest",
        images="ImageID",
        study=study,
        view=lambda record, _index, _path: (record.text("Projection"), "Projection"),
        find=find,
        sections={"findings": ("Report",)} if language == "es" else {},
        patient="PatientID",
        requires_patient=False,
        order=lambda record: parse_date(record.text("StudyDate_DICOM")),
    )
    archive = read_studies(layout, table_records(table, _COLUMNS), root)
    if missing and not any(study.radiographs for study in archive.studies):
        message = "expected the table's images in 0/ to 54/ or 0.zip to 54.zip, found none"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=root)
    # One failure for a missing folder; users often have some of them.
    for folder, names in missing.items():
        if existing := [name for name in (folder, f"{folder}.zip") if folder and (root / name).exists()]:
            archive.failures.extend(read_failure(name, f"image not in {' or '.join(existing)}") for name in names)
        else:
            reason = f"no such folder or zip file, for {len(names)} images"
            archive.failures.append(read_failure(folder or str(root), reason))
    patient_of = {study.study_id: study.patient_id or study.study_id for study in archive.studies}
    english = _read_english(reports, patient_of, study_of) if reports else {}
    split_of = _read_splits(splits, patient_of, study_of) if splits else {}
    studies = []
    for read in archive.studies:
        if read.study_id in children and not pediatric:
            archive.failures.append(Failure(source=read.study_id, stage="select", reason="pediatric study"))
            continue
        findings, impression = english.get(read.study_id, (read.findings, None))
        report = read.findings or join_sections(findings, impression)
        split = split_of.get(patient_of[read.study_id])
        studies.append(replace(read, findings=findings, report=report, split=split))
    return replace(archive, studies=studies)


def find_images(root: Path, ignored: str, folders: Collection[str] | None = None) -> dict[str, Radiograph]:
    """Return the PNG files below a folder by name, as frontal radiographs; unpacked ones before those in zip files."""
    images: dict[str, Radiograph] = {}
    parts: list[Path] = []
    # Listed at once: testing 160,868 files one by one takes minutes on a network disk.
    for folder, below, names in os.walk(root, followlinks=True):
        below.sort()
        if PREPARATION_RECORD in names:
            below.clear()
            continue
        if folders is not None and Path(folder) == root:
            below[:] = [name for name in below if name in folders]
            names = [name for name in names if not name.endswith(".zip") or name.removesuffix(".zip") in folders]
        for path in (Path(folder, name) for name in sorted(names)):
            if path.suffix == ".png":
                if path.name not in images or images[path.name].member is not None:
                    images[path.name] = Radiograph(path.stem, path, "frontal")
            elif path.suffix == ".zip" and not path.name.startswith(ignored):
                for member in _png_members(path):
                    name = member.rpartition("/")[2]
                    images.setdefault(name, Radiograph(name.removesuffix(".png"), path, "frontal", member))
            elif path.name.endswith(".zip.001"):
                parts.append(path)
    if parts and not images:
        name = parts[0].name.removesuffix(".001")
        message = f"first part of a split zip file; join the parts: cat {name}.* > {name}"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=parts[0])
    return images


def _png_members(packed: Path) -> list[str]:
    try:
        with zipfile.ZipFile(packed) as archive:
            return [name for name in archive.namelist() if name.endswith(".png") and not name.startswith("__MACOSX/")]
    except (OSError, zipfile.BadZipFile) as error:
        message = f"cannot be read: {error}; is the download complete?"
        raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=packed) from None


def _read_english(
    path: Path, studies: Collection[str], study_of: Mapping[str, str]
) -> dict[str, tuple[str | None, str | None]]:
    """Return (findings, impression) by study."""
    english: dict[str, tuple[str | None, str | None]] = {}
    for row in table_records(path, ("findings",)):
        if (row.text("source") or "padchest").lower() != "padchest":
            continue
        names = _IMAGE_NAME.findall(f"{row.value('ImageID') or ''} {row.value('images_path') or ''}")
        study = row.text("StudyID")
        if study is None and not names:
            message = "expected StudyID, ImageID or images_path, found none"
            raise row.error("images_path", message, ErrorCode.MISSING_FIELD)
        name = study or next((study_of[image] for image in names if image in study_of), "")
        sections = prose(row.text("findings")), prose(row.text("impression"))
        if name in studies and any(sections) and english.setdefault(name, sections) != sections:
            raise row.error("findings", f"expected one report of study '{name}', found another", ErrorCode.MISMATCH)
    if not english:
        raise InputError("expected reports of this archive, found none", code=ErrorCode.MISMATCH, file=path)
    return english


def _read_splits(path: Path, patient_of: Mapping[str, str], study_of: Mapping[str, str]) -> dict[str, str]:
    """Return the split by patient, or by study if its patient is unknown."""
    split_of: dict[str, str] = {}
    for row in table_records(path, ("split",)):
        patient, study, image = (row.text(column) for column in ("PatientID", "StudyID", "ImageID"))
        if patient is None and study is None and image is None:
            message = "expected PatientID, StudyID or ImageID, found none"
            raise row.error("PatientID", message, ErrorCode.MISSING_FIELD)
        unit = patient_of.get(study or study_of.get(image or "", ""), patient)
        split = row.split(row.text("split"))
        if unit is not None and split_of.setdefault(unit, split) != split:
            message = f"'{unit}' is in two splits, '{split_of[unit]}' and '{split}'; split by patient"
            raise row.error("split", message, ErrorCode.MISMATCH)
    if split_of.keys().isdisjoint(patient_of.values()):
        message = "expected patients or studies of this archive, found none"
        raise InputError(message, code=ErrorCode.MISMATCH, file=path)
    return split_of
