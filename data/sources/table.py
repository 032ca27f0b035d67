"""A hospital's own export: a table whose rows are studies in the columns of the Study record."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from data.archive import Archive, ArchiveStudy, Radiograph, View, radiograph_below
from data.manifest import Failure
from data.pairing import UNREADABLE, Rules, SampleMaker, Samples, check_splits, make_samples, png_path
from data.study import IMAGE_COLUMNS, Study
from radfact.errors import InputError, suggest_name
from radfact.io.csv_tables import read_csv
from radfact.io.jsonl import read_jsonl
from radfact.records import validated

DATE = "study_date"
"""A column beside those of Study: with it, and without the prior's columns, priors are found by the paper's rules."""
_PRIOR = ("prior_frontal", "prior_report")
_MISSING = frozenset({"", "nan", "n/a", "<na>", "null"})
_NESTED = ("grounded_findings", "phrases", "labels")
_OF_A_STUDY = [name for name in Study.model_fields if name not in ("sample_id", *IMAGE_COLUMNS)]
_VIEWS: dict[str, View] = {"frontal": "frontal", "prior_frontal": "frontal", "lateral": "lateral"}


@dataclass(frozen=True)
class Table:
    """A table as read.

    Attributes:
        images: folder that paths of images are relative to.
        make: makes its samples.
        failures: rows without a frontal image.
    """

    images: Path
    make: SampleMaker
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True)
class _Row:
    """A row with its images as radiographs, and its date where the table has one."""

    study: Study
    radiographs: Mapping[str, Radiograph]
    date: datetime | None


def read_table(path: Path, images: Path | None = None, rules: Rules | None = None) -> Table:
    """Read a table of studies (CSV with a header, or JSON Lines); images are PNG, JPEG or DICOM files.

    The columns are those of `data.study.Study`; `sample_id` and `frontal` must be there. In a CSV file the nested ones
    (`grounded_findings`, `phrases`, `labels`) are JSON. Each row is a sample with the prior that it names. A table with
    a column `study_date` instead (2024-03-01, 20240301, or with a time 2024-03-01T10:30) is one of studies without
    priors: rows of one `study_id` are its frontal radiographs, each a sample with the row's `sample_id` (and a number, where
    it is shown beside several prior radiographs), and samples are made by the rules of the paper (B.1), where the prior
    report is the earlier study's findings.

    A row without `findings`, `grounded_findings` and `phrases` is a sample all the same, to draft a report for. A cell
    that is empty, NaN, N/A or null in any case of letters is a missing value.

    Args:
        path: the table, or the folder of `studies.csv` or `studies.jsonl`.
        images: folder that image paths are relative to; None is the table's own.
        rules: how samples are made.

    Raises:
        InputError: with line and field of what is wrong.
    """
    rules, path = rules or Rules(), _table(path)
    folder, failures = (images or path.parent).absolute(), list[Failure]()
    rows = list(_rows(path, folder, failures))
    if any(row.date is not None for row in rows):
        if any(row.study.prior_frontal or row.study.prior_report for row in rows):
            raise InputError(f"a table has either this column or {' and '.join(_PRIOR)}", file=path, field=DATE)
        archive = Archive("table", list(_studies(rows, path, failures)))
        rules = replace(rules, takes_unreported=True)
        return Table(folder, partial(make_samples, archive, rules), failures)
    drawn = [_drawn(row, rules) for row in rows]
    check_splits(row.study for row in drawn)
    rules.check_wanted(row.study.split for row in drawn)
    wanted = [row for row in drawn if rules.wants(row.study.split)]
    return Table(folder, partial(_as_they_are, wanted), failures)


def _drawn(row: _Row, rules: Rules) -> _Row:
    study = row.study
    split = rules.split_of(study.split, study.patient_id or study.study_id or study.sample_id)
    return replace(row, study=study.model_copy(update={"split": split}))


def _table(path: Path) -> Path:
    if not path.is_dir():
        return path
    for name in ("studies.csv", "studies.jsonl"):
        if (path / name).is_file():
            return path / name
    raise InputError("there is neither studies.csv nor studies.jsonl in this folder", file=path)


def _rows(path: Path, folder: Path, failures: list[Failure]) -> Iterator[_Row]:
    first: dict[str, int] = {}
    for line, cells in _cells(path):
        cells = {column: None if _is_missing(value) else value for column, value in cells.items()}
        date = cells.pop(DATE, None)
        for column in cells:
            if column not in Study.model_fields:
                known = (*Study.model_fields, DATE)
                hint = suggest_name(column, known, f"known are {', '.join(known)}")
                raise InputError(f"unknown column; {hint}", file=path, line=line, field=column)
        if not cells.get("frontal") and isinstance(name := cells.get("sample_id"), str) and name:
            failures.append(Failure(sample_id=name, stage="read", reason=f"line {line} names no frontal image"))
            continue
        study = validated(Study, {"source": "table", **cells}, file=path, line=line)
        if (before := first.setdefault(study.sample_id, line)) != line:
            message = f"must be unique, but line {before} is '{study.sample_id}' too"
            raise InputError(message, file=path, line=line, field="sample_id")
        shown = {column: image for column in IMAGE_COLUMNS if (image := getattr(study, column)) is not None}
        radiographs = {column: radiograph_below(folder, image, _VIEWS[column]) for column, image in shown.items()}
        yield _Row(study, radiographs, _date(date, path, line))


def _cells(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line and values by column of each row; an empty cell is None."""
    if not path.name.lower().endswith((".csv", ".csv.gz", ".csv.zip")):
        yield from read_jsonl(path)
        return
    columns, rows = read_csv(path)
    if missing := [name for name in ("sample_id", "frontal") if name not in columns]:
        raise InputError(
            f"the table needs this column; it has {', '.join(columns)}", file=path, line=1, field=missing[0]
        )
    for line, cells in rows:
        row: dict[str, Any] = {column: cell.strip() or None for column, cell in cells.items()}
        for column in _NESTED:
            if not _is_missing(row.get(column)):
                row[column] = _json(row[column], path, line, column)
        yield line, row


def _is_missing(value: Any) -> bool:
    """Whether a cell is one of the ways in which tools write that there is no value."""
    return value is None or (isinstance(value, str) and value.strip().casefold() in _MISSING)


def _json(text: str, path: Path, line: int, column: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"expected JSON: {error}", file=path, line=line, field=column) from None


def _date(value: Any, path: Path, line: int) -> datetime | None:
    """A date or a time: other ways of writing them do not sort, or leave open which number is the month."""
    text = "" if value is None else str(value).strip()
    if not text:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        message = f"expected a date such as 2024-03-01, 20240301 or 2024-03-01T10:30, found '{text}'"
        raise InputError(message, file=path, line=line, field=DATE) from None
    return when if when.tzinfo is None else when.astimezone(UTC).replace(tzinfo=None)


def _studies(rows: Iterable[_Row], path: Path, failures: list[Failure]) -> Iterator[ArchiveStudy]:
    """Rows of one study together, their frontal and lateral radiographs in the table's order."""
    together: dict[str, list[_Row]] = {}
    for row in rows:
        together.setdefault(row.study.study_id or row.study.sample_id, []).append(row)
    for name, group in together.items():
        first = group[0].study
        for row in group[1:]:
            alike = {column: getattr(row.study, column) == getattr(first, column) for column in _OF_A_STUDY}
            alike[DATE] = row.date == group[0].date
            if differing := next((column for column, is_alike in alike.items() if not is_alike), None):
                message = f"rows of study '{name}' differ; samples '{first.sample_id}' and '{row.study.sample_id}'"
                raise InputError(message, file=path, field=differing)
        radiographs = {radiograph.key: radiograph for row in group for radiograph in row.radiographs.values()}
        sample_ids: dict[str, str] = {}
        for row in group:
            sample_id = row.study.sample_id
            if (other := sample_ids.setdefault(row.radiographs["frontal"].key, sample_id)) != sample_id:
                reason = f"shows the same frontal radiograph as sample '{other}' of its study"
                failures.append(Failure(sample_id=sample_id, stage="read", reason=reason))
        yield ArchiveStudy(
            study_id=name,
            patient_id=first.patient_id,
            when=group[0].date,
            radiographs=tuple(radiographs.values()),
            findings=first.findings,
            indication=first.indication,
            technique=first.technique,
            comparison=first.comparison,
            report=first.findings,
            grounded_findings=tuple(first.grounded_findings) if first.grounded_findings else None,
            phrases=tuple(first.phrases) if first.phrases else None,
            labels=tuple(first.labels) if first.labels is not None else None,
            split=first.split,
            sample_ids=sample_ids,
        )


def _as_they_are(rows: Iterable[_Row], without: frozenset[str]) -> Samples:
    """Each row a sample; without its frontal radiograph it is left out, without another it goes on without that."""
    made = Samples([], {})
    for row in rows:
        usable = {column: radiograph for column, radiograph in row.radiographs.items() if radiograph.key not in without}
        if "frontal" not in usable:
            made.left_out.append(Failure(sample_id=row.study.sample_id, stage="select", reason=UNREADABLE))
            continue
        shown: dict[str, Any] = dict.fromkeys(IMAGE_COLUMNS)
        shown |= {column: png_path(radiograph) for column, radiograph in usable.items()}
        if row.study.prior_frontal is not None and shown["prior_frontal"] is None:
            # Without its image the prompt has no place for it.
            shown["prior_report"] = None
        made.radiographs.update({png_path(radiograph): radiograph for radiograph in usable.values()})
        made.studies.append(row.study.model_copy(update=shown))
    return made
