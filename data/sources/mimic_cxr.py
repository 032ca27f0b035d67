"""MIMIC-CXR as DICOM (mimic-cxr) or JPEG (mimic-cxr-jpg): studies with time, reports and split.

The layouts are those of the PhysioNet pages (mimic-cxr 2.0.0 and 2.1.0, mimic-cxr-jpg 2.0.0 and 2.1.0) and of public
readers; credentialed files were not available.

    mimic-cxr      files/p10/p10000032/s50414267/<dicom_id>.dcm
                   mimic-cxr-reports.zip, which contains files/p10/p10000032/s50414267.txt
    mimic-cxr-jpg  files/p10/p10000032/s50414267/<dicom_id>.jpg
                   mimic-cxr-2.0.0-metadata.csv.gz, mimic-cxr-2.0.0-split.csv.gz (same names in 2.1.0)

The DICOM release has neither the table of views and times nor the split, the JPEG release has no reports. The labels
that CheXpert and NegBio extracted from the reports are not read: a `Label` does not come from reading the report. The
metadata table lists every image, so cxr-record-list.csv.gz is not needed.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Literal

from maira.data.archive import Archive, ArchiveStudy, Radiograph, View, read_failure
from maira.data.manifest import Failure
from maira.data.sources.ms_cxr import hold_out
from maira.data.sources.sections import split_sections
from maira.data.sources.table_records import parse_split
from radfact.errors import ErrorCode, InputError, describe_choice
from radfact.io.csv_tables import find_csv, stream_columns

Layout = Literal["dicom", "jpg"]

SOURCE = "mimic-cxr"

_SUFFIXES: dict[Layout, str] = {"dicom": ".dcm", "jpg": ".jpg"}
# The other values of ViewPosition (AP AXIAL, AP LLD, LAO, XTABLE LATERAL, SWIMMERS...) are neither.
_VIEW_POSITIONS: dict[str, View] = {"PA": "frontal", "AP": "frontal", "LATERAL": "lateral", "LL": "lateral"}
# Meanings of DICOM view codes, for images without ViewPosition.
_VIEW_CODES: dict[str, View] = {
    "postero-anterior": "frontal",
    "antero-posterior": "frontal",
    "lateral": "lateral",
    "left lateral": "lateral",
    "right lateral": "lateral",
}
_NUMBER = re.compile(r"[0-9]+")
_DICOM_ID = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z.-]*")


@dataclass(slots=True)
class _StudyEntry:
    """A study in the metadata table."""

    patient_id: str
    timestamp: datetime | None = None
    radiographs: list[Radiograph] = field(default_factory=list)


def read_mimic_cxr(root: Path, layout: Layout, metadata: Path | None = None, ms_cxr: Path | None = None) -> Archive:
    """Read MIMIC-CXR.

    Sections are those of `split_sections`: findings, indication, technique and comparison under their own headings
    (MAIRA-2, appendix B.1, following Johnson et al.). A report with only an impression, or a paragraph without heading,
    has no findings; a heading HISTORY or CLINICAL INFORMATION is not an indication. The latter is inferred from
    MAIRA-2, figures E.12 and E.14, where studies of MIMIC-CXR have the indication "n/a".

    The prior report of a later study is the whole report without the preliminary reading: MAIRA-2 mentions the full
    report, and figures E.12 to E.14 show indication, comparison, findings and impression of a prior. Keeping the
    original headings is our choice.

    The time of a study is StudyDate and StudyTime, the earliest if its images differ.

    `metadata` is a folder with the files missing in `root`: tables of mimic-cxr-jpg for the DICOM release, reports of
    mimic-cxr (zip or unpacked) for the JPEG release. With `ms_cxr`, patients of MS-CXR are held out of training.
    """
    folders = [root] if metadata is None else [root, metadata]
    files = root / "files"
    if not files.is_dir():
        message = "no folder 'files'; give the folder of the release, which contains 'files'"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=root)
    splits = _read_splits(_find_table(folders, "split"))
    failures: list[Failure] = []
    entries = _read_metadata(_find_table(folders, "metadata"), files, _SUFFIXES[layout], failures)
    entries = _present_on_disk(entries, files, failures)
    studies: list[ArchiveStudy] = []
    count = 0
    with ExitStack() as stack:
        readers = list(_report_readers(folders, stack))
        for study_id, entry in entries.items():
            name = f"files/p{entry.patient_id[:2]}/p{entry.patient_id}/s{study_id}.txt"
            text = ""
            try:
                text = _read_report(readers, name)
                count += 1
            except InputError as error:
                failures.append(read_failure(name, str(error)))
            if study_id not in splits:
                failures.append(read_failure(study_id, "not in the table of splits; the study has no split"))
            sections = split_sections(text)
            studies.append(
                ArchiveStudy(
                    study_id=study_id,
                    patient_id=entry.patient_id,
                    timestamp=entry.timestamp,
                    radiographs=tuple(entry.radiographs),
                    findings=sections.get("findings"),
                    indication=sections.get("indication"),
                    technique=sections.get("technique"),
                    comparison=sections.get("comparison"),
                    report=sections.get("text"),
                    split=splits.get(study_id),
                )
            )
    if studies and not count:
        message = "no reports; expected mimic-cxr-reports.zip of mimic-cxr (or its content) here or in --metadata"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=root)
    archive = Archive(SOURCE, studies, failures)
    return archive if ms_cxr is None else hold_out(archive, ms_cxr)


def _find_table(folders: Sequence[Path], name: str) -> Path:
    table = f"mimic-cxr-2.0.0-{name}.csv"
    path = next((path for folder in folders if (path := find_csv(folder, table)) is not None), None)
    if path is None:
        message = f"no '{table}.gz' (nor .csv) of mimic-cxr-jpg here or in --metadata"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=folders[0])
    return path


def _read_splits(path: Path) -> dict[str, str]:
    splits: dict[str, str] = {}
    for line, (study_id, name) in stream_columns(path, ("study_id", "split")):
        if study_id is None:
            message = "expected a study, found nothing"
            raise InputError(message, code=ErrorCode.MISSING_FIELD, file=path, line=line, field="study_id")
        split = parse_split(name, file=path, line=line)
        if splits.setdefault(study_id, split) != split:
            message = f"study {study_id} is in two splits, '{splits[study_id]}' and '{split}'"
            raise InputError(message, code=ErrorCode.MISMATCH, file=path, line=line, field="split")
    return splits


def _read_metadata(path: Path, files: Path, suffix: str, failures: list[Failure]) -> dict[str, _StudyEntry]:
    entries: dict[str, _StudyEntry] = {}
    seen: set[str] = set()
    columns = ("dicom_id", "subject_id", "study_id", "ViewPosition", "StudyDate", "StudyTime")
    for line, cells in stream_columns(path, columns, optional=("ViewCodeSequence_CodeMeaning",)):
        dicom_id, patient_id, study_id = (cell or "" for cell in cells[:3])
        position, date, time, code = cells[3:]
        for column, pattern, value, expected in (
            ("subject_id", _NUMBER, patient_id, "digits"),
            ("study_id", _NUMBER, study_id, "digits"),
            ("dicom_id", _DICOM_ID, dicom_id, "a file name"),
        ):
            if not pattern.fullmatch(value):
                message = f"expected {expected}, found {describe_choice(value)}"
                raise InputError(message, file=path, line=line, field=column)
        study = entries.setdefault(study_id, _StudyEntry(patient_id))
        if study.patient_id != patient_id:
            message = f"study {study_id} has two patients, {study.patient_id} and {patient_id}"
            raise InputError(message, code=ErrorCode.MISMATCH, file=path, line=line, field="subject_id")
        if dicom_id in seen:
            failures.append(read_failure(dicom_id, f"duplicate image in line {line} of {path.name}"))
            continue
        seen.add(dicom_id)
        try:
            timestamp = _timestamp(date, time)
        except ValueError:
            reason = f"StudyDate '{date}' and StudyTime '{time}' are not a valid time; the image is used without"
            failures.append(read_failure(dicom_id, reason))
            timestamp = None
        if timestamp is not None and (study.timestamp is None or timestamp < study.timestamp):
            study.timestamp = timestamp
        view, reason = _view(position, code)
        if view is None:
            stage = "read" if position is None else "select"
            failures.append(Failure(source=dicom_id, stage=stage, reason=reason))
            continue
        image = files / f"p{patient_id[:2]}/p{patient_id}/s{study_id}/{dicom_id}{suffix}"
        study.radiographs.append(Radiograph(dicom_id, image, view))
    return entries


def _view(position: str | None, code: str | None) -> tuple[View | None, str]:
    """Return the view, or None and the reason."""
    if position is not None:
        return _VIEW_POSITIONS.get(position.upper()), f"view '{position}' is neither frontal nor lateral"
    if code is not None:
        return _VIEW_CODES.get(code.lower()), f"no ViewPosition, and view code '{code}' is unknown"
    return None, "neither ViewPosition nor a view code"


def _timestamp(date: str | None, time: str | None) -> datetime | None:
    """Parse a date and a time such as 20800506 and 52000.5 (5:20:00.5); times are numbers without leading zeros."""
    if date is None:
        return None
    whole, _, fraction = (time or "0").partition(".")
    day = date.partition(".")[0]
    return datetime.strptime(f"{int(day):08}{int(whole):06}{fraction:0<6.6}", "%Y%m%d%H%M%S%f")


def _present_on_disk(
    entries: Mapping[str, _StudyEntry], files: Path, failures: list[Failure]
) -> dict[str, _StudyEntry]:
    """Return the studies of patients on disk and list missing folders.

    Users often have some of the ten parts of the archive; one failure per missing study would hide the others.
    """
    parts = {entry.name for entry in os.scandir(files) if entry.is_dir()}
    patients = {f"{part}/{entry.name}" for part in parts for entry in os.scandir(files / part)}
    present: dict[str, _StudyEntry] = {}
    missing: list[tuple[str, str]] = []
    for study_id, study in entries.items():
        part = f"p{study.patient_id[:2]}"
        patient = f"{part}/p{study.patient_id}"
        if patient in patients:
            present[study_id] = study
        else:
            missing.append((patient if part in parts else part, study_id))
    for folder, group in groupby(sorted(missing), lambda pair: pair[0]):
        failures.append(read_failure(f"files/{folder}", f"no such folder, for {len(list(group))} studies"))
    return present


def _report_readers(folders: Sequence[Path], stack: ExitStack) -> Iterator[Callable[[str], bytes]]:
    """Yield functions that read a report by its name, first those of zip files, then those of folders."""
    for path in (folder / "mimic-cxr-reports.zip" for folder in folders):
        if not path.is_file():
            continue
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
        yield partial(_read_member, archive, prefix)
    for unpacked in (path for folder in folders for path in (folder / "mimic-cxr-reports", folder)):
        if (unpacked / "files").is_dir():
            yield partial(_read_file, unpacked)


def _read_member(archive: zipfile.ZipFile, prefix: str, name: str) -> bytes:
    return archive.read(prefix + name)


def _read_file(folder: Path, name: str) -> bytes:
    return (folder / name).read_bytes()


def _read_report(readers: Sequence[Callable[[str], bytes]], name: str) -> str:
    """Return a report from the first place that has it."""
    for read in readers:
        try:
            return read(name).decode("utf-8-sig")
        except (KeyError, FileNotFoundError):
            continue
        except UnicodeDecodeError:
            raise InputError("the report is not UTF-8 text") from None
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise InputError(f"the report cannot be read: {error}") from None
    raise InputError("the study has no report")
