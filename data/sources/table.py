"""Tables of studies, such as a hospital's own export, with the columns of the Study record."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from maira.data.archive import Archive, ArchiveStudy, Radiograph, View, radiograph_below
from maira.data.manifest import Failure
from maira.data.pairing import SHARED_FIELDS, UNREADABLE, Rules, Samples, check_patient_splits, make_samples, png_path
from maira.data.sources.sections import split_report
from maira.data.sources.table_records import TableRecord, table_records
from maira.data.study import IMAGE_COLUMNS, Study
from radfact.errors import ErrorCode, InputError, describe, describe_choice, field_name, list_columns
from radfact.errors import Failure as QueryFailure
from radfact.io.jsonl import parse_json
from radfact.records import validate_model

DATE = "study_date"
"""Additional column: with it and without columns of priors, priors are selected by the rules of MAIRA-2."""
REPORT = "report"
"""Additional column: the whole report, whose sections become the fields that the table does not have."""
FIELDS = (*Study.model_fields, DATE, REPORT)
NO_FINDINGS = "report without a findings section"
Extract = Callable[[Sequence[str]], Sequence[Mapping[str, str] | QueryFailure]]
"""Returns the sections of reports that have no findings by their headings."""
SECTIONS = ("findings", "indication", "technique", "comparison")
_PRIOR = ("prior_frontal", "prior_report")
_FILES = ("studies.csv", "studies.jsonl")
_MISSING = frozenset({"", "nan", "n/a", "<na>", "null"})
_WHOLE = ("sample_id", "study_id", "patient_id", DATE)
_NESTED = ("grounded_findings", "phrases", "labels")
_STUDY_COLUMNS = [name for name in Study.model_fields if name not in ("sample_id", *IMAGE_COLUMNS)]
_VIEWS: dict[str, View] = {"frontal": "frontal", "prior_frontal": "frontal", "lateral": "lateral"}


@dataclass(frozen=True)
class TableRow:
    """A row with its radiographs by column, and its date and sections if the table has dates and whole reports."""

    study: Study
    radiographs: Mapping[str, Radiograph]
    date: datetime | None
    sections: Mapping[str, str] | None  # of its whole report, with the `text`

    @property
    def report(self) -> str | None:
        """The whole report; "" if it has no text but a preliminary reading."""
        return None if self.sections is None else self.sections.get("text", "")


@dataclass(frozen=True)
class Table:
    """Rows of a table, or the archive of their studies if they have dates; rows that cannot be used; unused columns."""

    rows: list[TableRow]
    archive: Archive | None
    failures: list[Failure]
    unused: Collection[str] = ()
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


def read_table(
    root: Path, images: Path | None = None, columns: Mapping[str, str] | None = None, extract: Extract | None = None
) -> Table:
    """Read a table of studies (CSV with a header, or JSON Lines); images are PNG, JPEG or DICOM files."""
    path, failures = find_studies(root) if root.is_dir() else root, list[Failure]()
    if path is None:
        message = f"expected {' or '.join(_FILES)} in this folder"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=root)
    unused: dict[str, None] = {}
    rows = list(_rows(path, (images or path.parent).absolute(), columns or {}, failures, unused))
    rows = _with_findings(rows, extract, failures)
    if all(row.date is None for row in rows):
        return Table(rows, None, failures, unused)
    if any(row.study.prior_frontal or row.study.prior_report for row in rows):
        message = f"expected either this column or {' and '.join(_PRIOR)}, found both"
        raise InputError(message, code=ErrorCode.MISMATCH, file=path, field=DATE)
    return Table(rows, Archive("table", list(_studies(rows, path, failures))), failures, unused)


def find_studies(folder: Path) -> Path | None:
    """Return the table of studies in a folder, if there is one."""
    return next((path for name in _FILES if (path := folder / name).is_file()), None)


def _rows(
    path: Path, folder: Path, columns: Mapping[str, str], failures: list[Failure], unused: dict[str, None]
) -> Iterator[TableRow]:
    location_of: dict[str, str] = {}
    fields, present = {column: name for name, column in columns.items()}, set[str]()
    images_of = Counter[str]()
    for record in table_records(path, [columns.get("frontal", "frontal")]):
        record.value("sample_id")  # refuses an item that is no object
        present |= record.cells.keys()
        cells, place = dict[str, Any](), f"{record.key}." if record.key else ""
        for column, value in record.cells.items():
            name = fields.get(column) or (column if column not in columns else "")
            if name not in FIELDS:
                # A misspelled column would be missing without a word; an export has many others.
                if not columns and (meant := get_close_matches(column.lower(), FIELDS, n=1, cutoff=0.85)):
                    hint = f"did you mean '{meant[0]}'? Name own columns with --columns FIELD=NAME"
                    raise record.error(field_name(column), f"unknown column; {hint}", ErrorCode.UNKNOWN_FIELD)
                unused[column] = None
                continue
            is_missing = isinstance(value, str) and value.strip().casefold() in _MISSING
            if name in _WHOLE and isinstance(value, str | int | float) and not isinstance(value, bool):
                # pandas writes whole numbers as 7.0 if one is missing.
                value = re.sub(r"^(\d+)\.0$", r"\1", str(value))
            cells[name] = None if is_missing else value
            if name in _NESTED and isinstance(text := cells[name], str):
                cells[name] = parse_json(text, path, first_line=record.line or 1, field=place + column)
        if cells.get("sample_id") is None and (study_id := cells.get("study_id")):
            images_of[study_id] += 1
            cells["sample_id"] = study_id if images_of[study_id] == 1 else f"{study_id}-{images_of[study_id]}"
        date, sections = cells.pop(DATE, None), _read_sections(record, columns.get(REPORT, REPORT), cells)
        if not cells.get("frontal") and isinstance(sample_id := cells.get("sample_id"), str):
            place = record.key or f"line {record.line}"
            failures.append(Failure(sample_id=sample_id, stage="read", reason=f"{place}: no frontal image"))
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
        yield TableRow(study, radiographs, _date(record, date), sections)
    if missing := [name for name in columns.values() if name not in present]:
        message = f"expected this column, found {list_columns(sorted(present))}"
        raise InputError(message, code=ErrorCode.MISSING_FIELD, file=path, field=missing[0])


def _read_sections(record: TableRecord, column: str, cells: dict[str, Any]) -> dict[str, str] | None:
    """Fill the missing sections of a row from its report, and return the sections of the report."""
    report = cells.pop(REPORT, None)
    if not isinstance(report, str | None):
        raise record.error(column, f"expected a string, found {describe(report)}")
    if report is None:
        return None
    sections = split_report(report)
    for name in SECTIONS:
        if not cells.get(name):
            cells[name] = sections.get(name, sections.get("history") if name == "indication" else None)
    return sections


def _with_findings(rows: Sequence[TableRow], extract: Extract | None, failures: list[Failure]) -> list[TableRow]:
    """Return the rows with the sections that `extract` finds in reports without findings, and list those without."""
    lacking = {row.study.sample_id: row.report for row in rows if row.report is not None and not is_reported(row.study)}
    reports = [report for report in dict.fromkeys(lacking.values()) if report]
    extracted = dict(zip(reports, extract(reports) if extract and reports else [{}] * len(reports), strict=True))
    complete: list[TableRow] = []
    for row in rows:
        study = row.study
        if (report := lacking.get(study.sample_id)) is not None:
            sections = extracted.get(report, {})
            if isinstance(sections, QueryFailure):
                failures.append(Failure(sample_id=study.sample_id, stage="read", reason=f"report: {sections.reason}"))
            elif "findings" in sections:
                # A section by its heading may contain the findings; a column of its own stays.
                read = [name for name in SECTIONS if getattr(study, name) in (None, *(row.sections or {}).values())]
                study = study.model_copy(update={name: sections.get(name) for name in read})
            else:
                failures.append(Failure(sample_id=study.sample_id, stage="sections", reason=NO_FINDINGS))
        complete.append(replace(row, study=study))
    return complete


def is_reported(study: Study) -> bool:
    """Return whether a study has a reference report."""
    return bool(study.findings or study.grounded_findings or study.phrases)


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


def _studies(rows: Iterable[TableRow], path: Path, failures: list[Failure]) -> Iterator[ArchiveStudy]:
    """Group rows to studies, with frontal and lateral radiographs in the table's order."""
    groups: dict[str, list[TableRow]] = {}
    for row in rows:
        groups.setdefault(row.study.study_id or row.study.sample_id, []).append(row)
    for name, group in groups.items():
        first = group[0]
        values: dict[str, Any] = {}
        for row in group:
            own = {column: getattr(row.study, column) for column in _STUDY_COLUMNS} | {
                DATE: row.date,
                REPORT: row.report,
            }
            # A row without a value has that of the others.
            for column, value in own.items():
                if value is not None and values.setdefault(column, value) != value:
                    message = f"samples '{first.study.sample_id}' and '{row.study.sample_id}' of study '{name}' differ"
                    raise InputError(message, code=ErrorCode.MISMATCH, file=path, field=column)
        radiographs = {radiograph.key: radiograph for row in group for radiograph in row.radiographs.values()}
        sample_ids: dict[str, str] = {}
        for row in group:
            sample_id = row.study.sample_id
            if (previous := sample_ids.setdefault(row.radiographs["frontal"].key, sample_id)) != sample_id:
                reason = f"same frontal radiograph as sample '{previous}' of the study"
                failures.append(Failure(sample_id=sample_id, stage="read", reason=reason))
        shared: dict[str, Any] = {column: values.get(column) for column in SHARED_FIELDS} | {"study_id": name}
        yield ArchiveStudy(
            timestamp=values.get(DATE),
            radiographs=tuple(radiographs.values()),
            report=values.get(REPORT) or values.get("findings"),
            sample_ids=sample_ids,
            **shared,
        )
