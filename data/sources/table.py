"""Tables of studies, such as a hospital's own export, with the columns of the Study record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from maira.data.archive import Archive, ArchiveStudy, Radiograph, View, radiograph_below
from maira.data.manifest import Failure
from maira.data.pairing import SHARED_FIELDS, UNREADABLE, Rules, Samples, check_patient_splits, make_samples, png_path
from maira.data.sources.table_records import TableRecord, table_records
from maira.data.study import IMAGE_COLUMNS, Study
from radfact.errors import ErrorCode, InputError, describe_choice, field_name, suggest_name
from radfact.io.jsonl import parse_json
from radfact.records import validate_model

DATE = "study_date"
"""Additional column: with it and without columns of priors, priors are selected by the rules of MAIRA-2."""
_PRIOR = ("prior_frontal", "prior_report")
_FILES = ("studies.csv", "studies.jsonl")
_MISSING = frozenset({"", "nan", "n/a", "<na>", "null"})
_NESTED = ("grounded_findings", "phrases", "labels")
_STUDY_COLUMNS = [name for name in Study.model_fields if name not in ("sample_id", *IMAGE_COLUMNS)]
_VIEWS: dict[str, View] = {"frontal": "frontal", "prior_frontal": "frontal", "lateral": "lateral"}


@dataclass(frozen=True)
class _Row:
    """A row with its radiographs by column, and its date if the table has one."""

    study: Study
    radiographs: Mapping[str, Radiograph]
    date: datetime | None


@dataclass(frozen=True)
class Table:
    """Rows of a table, or the archive of their studies if they have dates; and rows that cannot be used."""

    rows: list[_Row]
    archive: Archive | None
    failures: list[Failure]
    source: str = "table"

    def make(self, rules: Rules, without: frozenset[str] = frozenset()) -> Samples:
        """Make samples, see `maira.data.pairing.SampleMaker`; also of studies without a report."""
        if self.archive is not None:
            return make_samples(self.archive, replace(rules, include_unreported=True), without)
        studies = []
        for study in (row.study for row in self.rows):
            split = rules.split_of(study.split, study.patient_id or study.study_id or study.sample_id)
            studies.append(study.model_copy(update={"split": split}))
        check_patient_splits(studies)
        rules.check_requested_splits(study.split for study in studies)
        samples = Samples([], {})
        for study, row in zip(studies, self.rows, strict=True):
            if not rules.includes(study.split):
                continue
            shown = {column: image for column, image in row.radiographs.items() if image.key not in without}
            if "frontal" not in shown:
                samples.skipped.append(Failure(sample_id=study.sample_id, stage="select", reason=UNREADABLE))
                continue
            images = dict.fromkeys(IMAGE_COLUMNS) | {column: png_path(image) for column, image in shown.items()}
            # The prompt includes a prior report only with its image.
            lost = {"prior_report": None} if study.prior_frontal and images["prior_frontal"] is None else {}
            samples.radiographs.update({png_path(image): image for image in shown.values()})
            samples.studies.append(study.model_copy(update=images | lost))
        return samples


def read_table(root: Path, images: Path | None = None) -> Table:
    """Read a table of studies (CSV with a header, or JSON Lines); images are PNG, JPEG or DICOM files.

    The columns are those of `Study`; `sample_id` and `frontal` are required. In a CSV file, nested columns
    (`grounded_findings`, `phrases`, `labels`) are JSON. Each row is a sample with its own prior columns.

    A table with a column `study_date` (2024-03-01, 20240301, or 2024-03-01T10:30) has no columns of priors instead:
    rows with the same `study_id` are frontal radiographs of one study, and samples are made by the rules of MAIRA-2
    (appendix B.1) with the earlier study's findings as prior report. Each frontal gives a sample named by the row's
    `sample_id`, numbered if there are several prior radiographs.

    A row without `findings`, `grounded_findings` and `phrases` is a sample to draft a report for. Empty cells, NaN, N/A
    and null (in any case) are missing values.
    """
    path, failures = root, list[Failure]()
    if root.is_dir():
        path = next((path for name in _FILES if (path := root / name).is_file()), root)
        if path == root:
            message = f"expected {' or '.join(_FILES)} in this folder"
            raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=root)
    rows = list(_rows(path, (images or path.parent).absolute(), failures))
    if all(row.date is None for row in rows):
        return Table(rows, None, failures)
    if any(row.study.prior_frontal or row.study.prior_report for row in rows):
        message = f"expected either this column or {' and '.join(_PRIOR)}, found both"
        raise InputError(message, code=ErrorCode.MISMATCH, file=path, field=DATE)
    return Table(rows, Archive("table", list(_studies(rows, path, failures))), failures)


def _rows(path: Path, folder: Path, failures: list[Failure]) -> Iterator[_Row]:
    location_of: dict[str, str] = {}
    for record in table_records(path, ("sample_id", "frontal")):
        record.value("sample_id")  # refuses an item that is no object
        cells = {
            column: None if isinstance(value, str) and value.strip().casefold() in _MISSING else value
            for column, value in record.cells.items()
        }
        date, place = cells.pop(DATE, None), f"{record.key}." if record.key else ""
        for column in cells:
            if column not in Study.model_fields:
                known = (*Study.model_fields, DATE)
                hint = suggest_name(column, known, f"known columns: {', '.join(known)}")
                raise record.error(field_name(column), f"unknown column; {hint}", ErrorCode.UNKNOWN_FIELD)
            if column in _NESTED and isinstance(text := cells[column], str):
                cells[column] = parse_json(text, path, first_line=record.line or 1, field=place + column)
        if not cells.get("frontal") and isinstance(name := cells.get("sample_id"), str):
            failures.append(
                Failure(sample_id=name, stage="read", reason=f"{record.key or f'line {record.line}'}: no frontal image")
            )
            continue
        study = validate_model(Study, {"source": "table", **cells}, file=path, line=record.line, field=record.key)
        if (first := location_of.setdefault(study.sample_id, record.location)) != record.location:
            message = f"duplicate id '{study.sample_id}', first at {first}"
            raise record.error("sample_id", message, ErrorCode.DUPLICATE)
        radiographs = {
            column: radiograph_below(folder, image, _VIEWS[column])
            for column in IMAGE_COLUMNS
            if (image := getattr(study, column)) is not None
        }
        yield _Row(study, radiographs, _date(record, date))


def _date(record: TableRecord, value: Any) -> datetime | None:
    """Parse an ISO date or time; other notations are ambiguous."""
    if value is None:
        return None
    try:
        date = datetime.fromisoformat(str(value).strip())
    except ValueError:
        choice = describe_choice(str(value))
        message = f"expected a date such as 2024-03-01, 20240301 or 2024-03-01T10:30, found {choice}"
        raise record.error(DATE, message) from None
    return date if date.tzinfo is None else date.astimezone(UTC).replace(tzinfo=None)


def _studies(rows: Iterable[_Row], path: Path, failures: list[Failure]) -> Iterator[ArchiveStudy]:
    """Group rows to studies, with frontal and lateral radiographs in the table's order."""
    groups: dict[str, list[_Row]] = {}
    for row in rows:
        groups.setdefault(row.study.study_id or row.study.sample_id, []).append(row)
    for name, group in groups.items():
        first = group[0].study
        for row in group[1:]:
            is_equal = {column: getattr(row.study, column) == getattr(first, column) for column in _STUDY_COLUMNS}
            is_equal[DATE] = row.date == group[0].date
            if column := next((column for column, equal in is_equal.items() if not equal), None):
                message = f"samples '{first.sample_id}' and '{row.study.sample_id}' of study '{name}' differ"
                raise InputError(message, code=ErrorCode.MISMATCH, file=path, field=column)
        radiographs = {radiograph.key: radiograph for row in group for radiograph in row.radiographs.values()}
        sample_ids: dict[str, str] = {}
        for row in group:
            sample_id = row.study.sample_id
            if (previous := sample_ids.setdefault(row.radiographs["frontal"].key, sample_id)) != sample_id:
                reason = f"same frontal radiograph as sample '{previous}' of the study"
                failures.append(Failure(sample_id=sample_id, stage="read", reason=reason))
        shared: dict[str, Any] = {column: getattr(first, column) for column in SHARED_FIELDS} | {"study_id": name}
        yield ArchiveStudy(
            timestamp=group[0].date,
            radiographs=tuple(radiographs.values()),
            report=first.findings,
            sample_ids=sample_ids,
            **shared,
        )
