"""MIMIC-CXR as DICOM (mimic-cxr) or JPEG (mimic-cxr-jpg): studies with time, reports and split."""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from maira.data.archive import Archive, ArchiveStudy, Radiograph, View, read_failure
from maira.data.sources.ms_cxr import hold_out
from maira.data.sources.sections import split_sections
from maira.data.sources.table_records import Layout, TableRecord, find_table, read_studies, table_records
from radfact.errors import ErrorCode, InputError, describe_choice

SOURCE = "mimic-cxr"

_NAMES = {"subject_id": r"[0-9]+", "study_id": r"[0-9]+", "dicom_id": r"[0-9a-zA-Z][0-9a-zA-Z.-]*"}
"""Names in the metadata table, which are part of the paths of files."""


def read_mimic_cxr(
    root: Path, release: Literal["dicom", "jpg"], metadata: Path | None = None, ms_cxr: Path | None = None
) -> Archive:
    """Read MIMIC-CXR."""
    folders = [root] if metadata is None else [root, metadata]
    files = root / "files"
    if not files.is_dir():
        message = "no folder 'files'; give the folder of the release, which contains 'files'"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=root)
    find_here = partial(find_table, folders, hint="of mimic-cxr-jpg here or in --metadata")
    splits = _read_splits(find_here("mimic-cxr-2.0.0-split.csv"))
    missing: dict[str, set[str]] = {}
    records = _present_records(find_here("mimic-cxr-2.0.0-metadata.csv"), files, missing)

    def find(record: TableRecord, _folder: Path, image: str, view: View) -> Radiograph:
        folder = files / _patient_folder(record.require("subject_id")) / f"s{record.require('study_id')}"
        return Radiograph(image, folder / f"{image}.{'dcm' if release == 'dicom' else 'jpg'}", view)

    layout = Layout(
        source=SOURCE,
        images="dicom_id",
        study=lambda record, _paths: record.require("study_id"),
        view=_view,
        find=find,
        split=lambda record: splits.get(record.require("study_id")),
        patient="subject_id",
        order=_time,
    )
    archive = read_studies(layout, records, files)
    failures = archive.failures
    for folder, names in sorted(missing.items()):
        failures.append(read_failure(f"files/{folder}", f"no such folder, for {len(names)} studies"))
    studies: list[ArchiveStudy] = []
    count = 0
    with ExitStack() as stack:
        places = list(_reports(folders, stack))
        for study in archive.studies:
            name = f"files/{_patient_folder(study.patient_id or '')}/s{study.study_id}.txt"
            text = ""
            try:
                text = _read_report(places, name)
                count += 1
            except InputError as error:
                failures.append(read_failure(name, str(error)))
            if study.split is None:
                failures.append(read_failure(study.study_id, "not in the table of splits; the study has no split"))
            parts = split_sections(text)
            named: Any = {name: parts.get(name) for name in ("findings", "indication", "technique", "comparison")}
            studies.append(replace(study, report=parts.get("text"), **named))
    if studies and not count:
        message = "no reports; expected mimic-cxr-reports.zip of mimic-cxr (or its content) here or in --metadata"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=root)
    archive = replace(archive, studies=studies)
    return archive if ms_cxr is None else hold_out(archive, ms_cxr)


def _read_splits(path: Path) -> dict[str, str]:
    splits: dict[str, str] = {}
    for record in table_records(path, ("study_id", "split")):
        study_id, split = record.require("study_id"), record.split(record.text("split"))
        if splits.setdefault(study_id, split) != split:
            message = f"study {study_id} is in two splits, '{splits[study_id]}' and '{split}'"
            raise record.error("split", message, ErrorCode.MISMATCH)
    return splits


def _present_records(table: Path, files: Path, missing: dict[str, set[str]]) -> Iterator[TableRecord]:
    """Yield the rows of patients on disk, and collect other studies by missing folder: users often have some parts."""
    parts = {entry.name for entry in os.scandir(files) if entry.is_dir()}
    patients = {f"{part}/{entry.name}" for part in parts for entry in os.scandir(files / part)}
    patient_of: dict[str, str] = {}
    for record in table_records(table, (*_NAMES, "ViewPosition", "StudyDate", "StudyTime")):
        for column, pattern in _NAMES.items():
            if not re.fullmatch(pattern, name := record.text(column) or ""):
                raise record.error(column, f"expected a name as in the release, found {describe_choice(name)}")
        patient, study = record.require("subject_id"), record.require("study_id")
        if (first := patient_of.setdefault(study, patient)) != patient:
            message = f"study {study} has two patients, {first} and {patient}"
            raise record.error("subject_id", message, ErrorCode.MISMATCH)
        folder = _patient_folder(patient)
        if folder in patients:
            yield record
        else:
            part = folder.partition("/")[0]
            missing.setdefault(folder if part in parts else part, set()).add(study)


def _patient_folder(patient: str) -> str:
    return f"p{patient[:2]}/p{patient}"


def _view(record: TableRecord, _index: int, _path: str) -> tuple[str | None, str]:
    """Return ViewPosition, or else the meaning of the DICOM view code."""
    names = ((record.text(column), column) for column in ("ViewPosition", "ViewCodeSequence_CodeMeaning"))
    return next((named for named in names if named[0] is not None), (None, "ViewPosition"))


def _time(record: TableRecord) -> datetime | None:
    """Parse a date and a time such as 20800506 and 52000.5 (5:20:00.5); times are numbers without leading zeros."""
    date, time = record.text("StudyDate"), record.text("StudyTime") or "0"
    if date is None:
        return None
    whole, _, fraction = time.partition(".")
    try:
        day = int(date.partition(".")[0])
        return datetime.strptime(f"{day:08}{int(whole):06}{fraction:0<6.6}", "%Y%m%d%H%M%S%f")
    except ValueError:
        message = f"'{date}' and StudyTime '{time}' are not a valid time; the image is used without"
        raise record.error("StudyDate", message) from None


def _reports(folders: Sequence[Path], stack: ExitStack) -> Iterator[Path | zipfile.Path]:
    """Yield the places with the folder `files` of reports, first zip files, then folders."""
    for path in (path for folder in folders if (path := folder / "mimic-cxr-reports.zip").is_file()):
        try:
            archive = stack.enter_context(zipfile.ZipFile(path))
        except (zipfile.BadZipFile, OSError) as error:
            message = f"cannot be read as a zip file: {error}"
            raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=path) from None
        # Repacked files have a prefix before "files/".
        names = [name.partition("files/") for name in archive.namelist() if name.endswith(".txt")]
        prefix = next((before for before, files, _ in names if files), None)
        if prefix is None:
            raise InputError("expected reports files/p1x/p.../s....txt, found none", file=path)
        yield zipfile.Path(archive, prefix)
    for unpacked in (path for folder in folders for path in (folder / "mimic-cxr-reports", folder)):
        if (unpacked / "files").is_dir():
            yield unpacked


def _read_report(places: Sequence[Path | zipfile.Path], name: str) -> str:
    """Return a report from the first place that has it."""
    for place in places:
        try:
            return (place / name).read_bytes().decode("utf-8-sig")
        except FileNotFoundError:
            continue
        except UnicodeDecodeError:
            raise InputError("the report is not UTF-8 text") from None
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise InputError(f"the report cannot be read: {error}") from None
    raise InputError("the study has no report")
