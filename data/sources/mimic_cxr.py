"""MIMIC-CXR, as DICOM (mimic-cxr) or JPEG (mimic-cxr-jpg): studies of patients in time, with reports and split.

What is known of the layouts is from their PhysioNet pages (mimic-cxr 2.0.0 and 2.1.0, mimic-cxr-jpg 2.0.0 and 2.1.0)
and public code that reads them; no credentialed file was at hand.

    mimic-cxr      files/p10/p10000032/s50414267/<dicom_id>.dcm
                   mimic-cxr-reports.zip, which holds files/p10/p10000032/s50414267.txt
    mimic-cxr-jpg  files/p10/p10000032/s50414267/<dicom_id>.jpg
                   mimic-cxr-2.0.0-metadata.csv.gz, mimic-cxr-2.0.0-split.csv.gz (so named in 2.1.0 too)

So either release lacks something of the other: the DICOM release has neither the table of views and times nor the
split, the JPEG release no reports. The labels that CheXpert and NegBio took from the reports are left alone: a `Label`
is what is known without reading the report. The metadata list every image, so that cxr-record-list.csv.gz is not
needed.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Literal

from data.archive import Archive, ArchiveStudy, Radiograph, View
from data.manifest import Failure
from data.sources.sections import split_sections
from radfact.errors import InputError
from radfact.io.csv_tables import find_csv, stream_columns

Layout = Literal["dicom", "jpg"]

SOURCE = "mimic-cxr"

_SUFFIXES: dict[Layout, str] = {"dicom": ".dcm", "jpg": ".jpg"}
_SPLITS = ("train", "validate", "test")
# The other values of ViewPosition (AP AXIAL, AP LLD, LAO, XTABLE LATERAL, SWIMMERS...) are neither.
_VIEW_POSITIONS: dict[str, View] = {"PA": "frontal", "AP": "frontal", "LATERAL": "lateral", "LL": "lateral"}
# Meanings of DICOM's view codes, for images without ViewPosition.
_VIEW_CODES: dict[str, View] = {
    "postero-anterior": "frontal",
    "antero-posterior": "frontal",
    "lateral": "lateral",
    "left lateral": "lateral",
    "right lateral": "lateral",
}
_DICOM_ID = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z.-]*")


@dataclass(slots=True)
class _Listed:
    """A study as the metadata table lists it."""

    patient_id: str
    when: datetime | None = None
    radiographs: list[Radiograph] = field(default_factory=list)


def read_mimic_cxr(root: Path, layout: Layout, *, metadata: Path | None = None) -> Archive:
    """Read MIMIC-CXR.

    Sections are those of `split_sections`: findings, indication, technique and comparison under their own headings, as
    paper 004 (B.1) takes them following Johnson et al. So a report whose only text is an impression, or a paragraph
    without heading, has no findings; and a heading HISTORY or CLINICAL INFORMATION is no indication. That the paper
    does the latter too is inferred: figures E.12 and E.14 have studies of MIMIC-CXR with "n/a" for it.

    The report shown as a later study's prior is the whole of it, without the preliminary reading above it: the paper's
    discussion speaks of the full report, and figures E.12 to E.14 show a prior's indication, comparison, findings and
    impression. That it stands under the headings as they were written is our choice.

    A study's time is StudyDate and StudyTime, the earliest where its images differ.

    Args:
        root: folder of the release, the one that has `files`.
        layout: which of the two releases it is.
        metadata: folder with what `root` lacks: the tables of mimic-cxr-jpg for the DICOM release, the reports of
            mimic-cxr (its zip, or unpacked) for the JPEG release. None where they lie in `root` as well.

    Raises:
        InputError: a table or all reports are missing, or a table cannot be used, with file, line and field.
    """
    places = [root] if metadata is None else [root, metadata]
    files = root / "files"
    if not files.is_dir():
        raise InputError("no folder 'files'; name the release's own folder, the one with 'files' in it", file=root)
    splits = _read_splits(_table(places, "split"))
    failures: list[Failure] = []
    listed = _read_metadata(_table(places, "metadata"), files, _SUFFIXES[layout], failures)
    listed = _on_disk(listed, files, failures)
    studies: list[ArchiveStudy] = []
    with _Reports(places) as reports:
        for study_id, study in listed.items():
            text = reports.read(study.patient_id, study_id, failures)
            if study_id not in splits:
                failures.append(
                    _failure(study_id, "the table of splits does not have it; the study is kept, in no split")
                )
            studies.append(_study(study_id, study, text, splits.get(study_id)))
        if studies and not reports.found:
            message = (
                "no report of any study: 'mimic-cxr-reports.zip' of mimic-cxr (or what is in it, unpacked) belongs "
                "here or in the folder named by --metadata"
            )
            raise InputError(message, file=root)
    return Archive(SOURCE, studies, failures)


def report_name(patient_id: str, study_id: str) -> str:
    """Path of a study's report in either release, below the release's folder."""
    return f"files/p{patient_id[:2]}/p{patient_id}/s{study_id}.txt"


def _study(study_id: str, listed: _Listed, text: str | None, split: str | None) -> ArchiveStudy:
    sections = split_sections(text or "")
    return ArchiveStudy(
        study_id=study_id,
        patient_id=listed.patient_id,
        when=listed.when,
        radiographs=tuple(listed.radiographs),
        findings=sections.findings,
        indication=sections.indication,
        technique=sections.technique,
        comparison=sections.comparison,
        report=sections.text,
        split=split,
    )


def _table(places: Sequence[Path], name: str) -> Path:
    table = f"mimic-cxr-2.0.0-{name}.csv"
    found = next((path for place in places if (path := find_csv(place, table)) is not None), None)
    if found is None:
        message = (
            f"no '{table}.gz' (nor .csv); it is part of mimic-cxr-jpg and belongs here or in the folder named by "
            "--metadata"
        )
        raise InputError(message, file=places[0])
    return found


def _read_splits(path: Path) -> dict[str, str]:
    splits: dict[str, str] = {}
    for line, (study_id, split) in stream_columns(path, ("study_id", "split")):
        if study_id is None:
            raise InputError("is empty", file=path, line=line, field="study_id")
        if split not in _SPLITS:
            raise InputError(f"'{split}' is none of {', '.join(_SPLITS)}", file=path, line=line, field="split")
        if splits.setdefault(study_id, split) != split:
            message = f"study {study_id} is in '{splits[study_id]}' above and in '{split}' here"
            raise InputError(message, file=path, line=line, field="split")
    return splits


def _read_metadata(path: Path, files: Path, suffix: str, failures: list[Failure]) -> dict[str, _Listed]:
    listed: dict[str, _Listed] = {}
    seen: set[str] = set()
    columns = ("dicom_id", "subject_id", "study_id", "ViewPosition", "StudyDate", "StudyTime")
    for line, cells in stream_columns(path, columns, optional=("ViewCodeSequence_CodeMeaning",)):
        dicom_id, patient_id, study_id = (cell or "" for cell in cells[:3])
        position, date, time, code = cells[3:]
        for column, value in (("subject_id", patient_id), ("study_id", study_id)):
            if not (value.isascii() and value.isdigit()):
                raise InputError(f"expected digits, found '{value}'", file=path, line=line, field=column)
        if not _DICOM_ID.fullmatch(dicom_id):
            raise InputError(f"'{dicom_id}' is no name of a file", file=path, line=line, field="dicom_id")
        study = listed.setdefault(study_id, _Listed(patient_id))
        if study.patient_id != patient_id:
            message = f"study {study_id} is of patient {study.patient_id} above and of {patient_id} here"
            raise InputError(message, file=path, line=line, field="subject_id")
        if dicom_id in seen:
            failures.append(_failure(dicom_id, f"listed twice, the second time in line {line} of {path.name}"))
            continue
        seen.add(dicom_id)
        try:
            when = _moment(date, time)
        except ValueError:
            failures.append(
                _failure(dicom_id, f"its StudyDate '{date}' and StudyTime '{time}' are no moment; the image is kept")
            )
            when = None
        if when is not None and (study.when is None or when < study.when):
            study.when = when
        view, reason = _view(position, code)
        if view is None:
            stage = "read" if position is None else "select"
            failures.append(Failure(source=dicom_id, stage=stage, reason=reason))
            continue
        image = files / f"p{patient_id[:2]}/p{patient_id}/s{study_id}/{dicom_id}{suffix}"
        study.radiographs.append(Radiograph(dicom_id, image, view))
    return listed


def _view(position: str | None, code: str | None) -> tuple[View | None, str]:
    """The view, or None and why."""
    if position is not None:
        return _VIEW_POSITIONS.get(position.upper()), f"its view '{position}' is neither frontal nor lateral"
    if code is not None:
        return _VIEW_CODES.get(code.lower()), f"it has no ViewPosition, and its view code '{code}' tells no view"
    return None, "it has neither ViewPosition nor a view code"


def _moment(date: str | None, time: str | None) -> datetime | None:
    """20800506 and 52000.5 are half a second past 5:20 in the morning: the table's times are numbers, so that leading
    zeros are lost.

    Raises:
        ValueError: it is no moment.
    """
    if date is None:
        return None
    whole, _, fraction = (time or "0").partition(".")
    clock, day = int(whole), int(date.partition(".")[0])
    return datetime(
        day // 10000,
        day // 100 % 100,
        day % 100,
        clock // 10000,
        clock // 100 % 100,
        clock % 100,
        int(f"{fraction:0<6.6}"),
    )


def _on_disk(listed: Mapping[str, _Listed], files: Path, failures: list[Failure]) -> dict[str, _Listed]:
    """The studies of patients that are on disk. People often have some of the ten parts of the archive, and a line for
    each of the missing studies would hide what is wrong with the others."""
    parts = {entry.name for entry in os.scandir(files) if entry.is_dir()}
    patients = {f"{part}/{entry.name}" for part in parts for entry in os.scandir(files / part)}
    there: dict[str, _Listed] = {}
    missing: list[tuple[str, str]] = []
    for study_id, study in listed.items():
        part = f"p{study.patient_id[:2]}"
        patient = f"{part}/p{study.patient_id}"
        if patient in patients:
            there[study_id] = study
        else:
            missing.append((patient if part in parts else part, study_id))
    for folder, group in groupby(sorted(missing), lambda pair: pair[0]):
        failures.append(_failure(f"files/{folder}", f"no such folder, for {len(list(group))} studies"))
    return there


class _Reports:
    """Free-text reports, zipped or unpacked, wherever they lie."""

    def __init__(self, places: Sequence[Path]) -> None:
        self.found = 0
        self._stack = ExitStack()
        self._zips: list[tuple[zipfile.ZipFile, str]] = []
        self._folders: list[Path] = []
        for place in places:
            if (path := place / "mimic-cxr-reports.zip").is_file():
                self._zips.append(self._open(path))
            unpacked = place / "mimic-cxr-reports"
            self._folders += [folder for folder in (unpacked, place) if (folder / "files").is_dir()]

    def __enter__(self) -> _Reports:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def read(self, patient_id: str, study_id: str, failures: list[Failure]) -> str | None:
        """A study's report; None where there is none, which is listed."""
        name = report_name(patient_id, study_id)
        try:
            raw = next(self._copies(name), None)
            if raw is None:
                failures.append(_failure(name, "the study has no report"))
                return None
            self.found += 1
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError:
            failures.append(_failure(name, "the report is not UTF-8 text"))
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            failures.append(_failure(name, f"the report cannot be read: {error}"))
        return None

    def _copies(self, name: str) -> Iterator[bytes]:
        for archive, below in self._zips:
            try:
                yield archive.read(below + name)
            except KeyError:
                continue
        for folder in self._folders:
            try:
                yield (folder / name).read_bytes()
            except FileNotFoundError:
                continue

    def _open(self, path: Path) -> tuple[zipfile.ZipFile, str]:
        """The zip, and what stands before "files/" in it: nothing, or a folder where somebody has packed it again."""
        try:
            archive = self._stack.enter_context(zipfile.ZipFile(path))
        except (zipfile.BadZipFile, OSError) as error:
            raise InputError(f"cannot be read as a zip: {error}", file=path) from None
        for name in archive.namelist():
            before, files, _ = name.partition("files/")
            if files and name.endswith(".txt"):
                return archive, before
        raise InputError("holds no files/p1x/p.../s....txt", file=path)


def _failure(source: str, reason: str) -> Failure:
    return Failure(source=source, stage="read", reason=reason)
