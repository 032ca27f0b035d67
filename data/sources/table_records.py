"""Readers of tables with a row per image or study: a `Layout` names columns and parsers, `read_studies` reads them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from maira.data.archive import Archive, ArchiveStudy, Radiograph, View, radiograph_below, read_failure, section_text
from maira.data.manifest import Failure
from radfact.errors import ErrorCode, InputError, describe, describe_choice, list_columns
from radfact.io.csv_tables import find_csv, read_csv
from radfact.io.jsonl import read_json, read_jsonl, read_lines

_MISSING = frozenset({"", "nan", "n/a", "<na>", "none", "null"})
_SPLITS = {"train": "train", **dict.fromkeys(("validation", "validate", "valid", "val"), "validate"), "test": "test"}
# AP_HORIZONTAL: the patient is lying. COSTAL: a rib view, exposed for bone. EXCLUDE: not a chest radiograph.
VIEWS: Mapping[str, View | None] = {
    **dict.fromkeys(("FRONTAL", "PA", "AP", "POSTERO ANTERIOR", "ANTERO POSTERIOR", "AP HORIZONTAL"), "frontal"),
    **dict.fromkeys(("LATERAL", "LAT", "LL", "RL", "L", "LEFT LATERAL", "RIGHT LATERAL"), "lateral"),
    **dict.fromkeys(("LAO", "RAO", "LPO", "RPO", "OBLIQUE", "DECUBITUS", "AP AXIAL", "KUB", "COSTAL", "EXCLUDE"), None),
    **dict.fromkeys(("AP LLD", "AP RLD", "PA LLD", "PA RLD", "SWIMMERS", "XTABLE LATERAL"), None),
}
"""Views by their names in upper case, words separated by spaces; None for views that are neither."""
_FORMATS = "a .csv, .csv.gz, .json or .jsonl file; save another table as CSV in UTF-8, separated by commas"
# A list as JSON, as Python prints it, or as numpy prints an array, without commas.
_TEXT = r"""(?:'[^']*'|"[^"]*")"""
_LIST = re.compile(rf"\[\s*(?:{_TEXT}(?:[\s,]+{_TEXT})*\s*,?)?\s*\]")


def parse_number(value: str | None, digits: str = "+") -> int | None:
    """Return a natural number; pandas writes "3.0" if values are missing."""
    match = re.fullmatch(rf"(\d{digits})(\.0)?", value or "", re.ASCII)
    return int(match[1]) if match else None


parse_date = partial(parse_number, digits="{8}")
"""Return a date yyyymmdd as a number."""


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A row of a table, or an object of a JSON file, for which a damaged file can have another value."""

    file: Path
    cells: Mapping[str, Any]  # by column
    line: int | None = None  # on which the row begins; None for an object of a JSON file
    key: str = ""  # path of the object in its JSON file; "" for a row

    @property
    def location(self) -> str:
        """File and row or key, for lists of failures."""
        return f"{self.file.name}:{self.key or self.line}"

    def error(self, column: str, message: str, code: ErrorCode = ErrorCode.INVALID_VALUE) -> InputError:
        """Return an error about a cell."""
        path = ".".join(part for part in (self.key, column) if part)
        return InputError(message, code=code, file=self.file, line=self.line, field=path or None)

    def value(self, column: str) -> Any:
        """Return a cell as it is; None if there is none."""
        if not isinstance(self.cells, Mapping):
            raise self.error("", f"expected an object, found {describe(self.cells)}", ErrorCode.INVALID_FORMAT)
        return self.cells.get(column)

    def text(self, column: str) -> str | None:
        """Return a cell as text; None for the spellings of a missing value."""
        value = self.value(column)
        if isinstance(value, list | dict | bool):
            raise self.error(column, f"expected a string, found {describe(value)}")
        text = "" if value is None else str(value).strip()
        return None if text.casefold() in _MISSING else text

    def require(self, column: str) -> str:
        """Return a cell as text."""
        if (text := self.text(column)) is None:
            raise self.error(column, "expected a value, found none", ErrorCode.MISSING_FIELD)
        return text

    def order(self, column: str, parse: Callable[[str | None], int | None] = parse_number) -> int | None:
        """Return a cell as a sort key; None for a missing value."""
        text = self.text(column)
        if (number := parse(text)) is None and text is not None:
            message = f"expected a date or a number, found {describe_choice(text)}; the study is used without it"
            raise self.error(column, message)
        return number

    def split(self, name: str | None) -> str:
        """Return the name of a split as used in manifests."""
        if name is None or name.lower() not in _SPLITS:
            raise self.error("split", f"expected train, validation or test, found {describe_choice(name)}")
        return _SPLITS[name.lower()]

    def texts(self, column: str) -> list[str | None]:
        """Return a list of strings; a CSV cell holds the list as JSON, Python or numpy write it, or one string."""
        value = self.value(column)
        if isinstance(value, list):
            for item in value:
                if not isinstance(item, str | None):
                    raise self.error(column, f"expected a list of strings, found {describe(item)} in it")
            return [None if item is None or item.strip().casefold() in _MISSING else item.strip() for item in value]
        text = self.text(column)
        if text is None:
            return []
        if _LIST.fullmatch(text):
            return [item[1:-1].strip() or None for item in re.findall(_TEXT, text)]
        if re.search(r"""[\[\]'",]""", text):
            raise self.error(column, "expected a list such as ['a.png', 'b.png'], found another format")
        return [text]


@dataclass(frozen=True)
class Layout:
    """Column names and parsers of an archive; the parsers get the record, and what else they need."""

    source: str  # name of the archive
    images: str  # column with the path of an image, or a list of paths
    study: Callable[[TableRecord, Sequence[str]], str]  # the name of the study, from the paths of its images
    # The view of an image as the archive names it, and its column, from its position in the record and its path.
    view: Callable[[TableRecord, int, str], tuple[str | None, str]]
    # The radiograph of an image, from the folder of images, its path and view; None if the reader lists it itself.
    find: Callable[[TableRecord, Path, str, View], Radiograph | None]
    sections: Mapping[str, Sequence[str]] = field(default_factory=dict)  # columns; the first one with text is used
    split: Callable[[TableRecord], str | None] = lambda _record: None  # as the archive names it; None if it has none
    patient: str | None = None  # column, if there is one
    requires_patient: bool = True  # whether a record without its patient is refused
    order: Callable[[TableRecord], Any] = lambda _record: None  # time or position of the study; None if unknown


def read_studies(layout: Layout, records: Iterable[TableRecord], folder: Path) -> Archive:
    """Group records into studies, and list every record and image that cannot be used."""
    studies: dict[str, ArchiveStudy] = {}
    location_of: dict[str, str] = {}
    failures: list[Failure] = []
    for record in records:
        paths: list[str] = []
        try:
            if not (images := record.texts(layout.images)) or None in images:
                raise record.error(layout.images, "expected the path of an image, found none", ErrorCode.MISSING_FIELD)
            paths = [path for path in images if path is not None]
            name = layout.study(record, paths)
            if name not in studies and all(path in location_of for path in paths):
                _check_new(paths[0], location_of, record, layout)
            study = _study(layout, record, name, studies.get(name))
        except InputError as error:
            failures.append(read_failure(next(iter(paths), record.location), str(error)))
            continue
        try:
            orders = (study.timestamp, layout.order(record))
            study = replace(study, timestamp=min((order for order in orders if order is not None), default=None))
        except InputError as error:
            failures.append(read_failure(name, str(error)))
        radiographs = list(study.radiographs)
        for index, path in enumerate(paths):
            try:
                _check_new(path, location_of, record, layout)
                location_of[path] = record.location
                shown_as, column = layout.view(record, index, path)
                known = "" if shown_as is None else re.sub("[_-]", " ", shown_as.upper())
                if known not in VIEWS:
                    found = "none" if shown_as is None else describe_choice(shown_as)
                    raise record.error(column, f"expected a view such as PA, AP or LATERAL, found {found}")
            except InputError as error:
                failures.append(read_failure(path, str(error)))
                continue
            if (view := VIEWS[known]) is None:
                reason = f"view {shown_as} is neither frontal nor lateral"
                failures.append(Failure(source=path, stage="select", reason=reason))
            elif (radiograph := layout.find(record, folder, path, view)) is not None:
                radiographs.append(radiograph)
        studies[name] = replace(study, radiographs=tuple(radiographs))
    files = [radiograph.path for study in studies.values() for radiograph in study.radiographs]
    if files and not any(map(os.path.isfile, files)):
        message = f"expected the images of the table below this folder, such as {next(iter(location_of))}, found none"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=folder)
    return Archive(layout.source, list(studies.values()), failures)


def first_file(files: Callable[[str], Iterable[str]]) -> Callable[[TableRecord, Path, str, View], Radiograph]:
    """Return `Layout.find` for the first existing file among some paths below the folder, or else the first."""

    def find(_record: TableRecord, folder: Path, path: str, view: View) -> Radiograph:
        candidates = [folder / name for name in files(path)]
        # Unlike Path.is_file, it is false for names that the file system does not allow.
        file = next(filter(os.path.isfile, candidates), candidates[0])
        return replace(radiograph_below(folder, Path(path), view), path=file)

    return find


def _check_new(path: str, location_of: Mapping[str, str], record: TableRecord, layout: Layout) -> None:
    if path in location_of:
        raise record.error(layout.images, f"duplicate image, first at {location_of[path]}", ErrorCode.DUPLICATE)


def _study(layout: Layout, record: TableRecord, name: str, first: ArchiveStudy | None) -> ArchiveStudy:
    """Return the study of a record, with what its earlier records state."""
    sections: dict[str, Any] = {
        section: next((text for column in columns if (text := section_text(record.text(column) or ""))), None)
        for section, columns in layout.sections.items()
    }
    split = layout.split(record)
    patient = record.require if layout.requires_patient else record.text
    study = ArchiveStudy(
        study_id=name,
        patient_id=None if layout.patient is None else patient(layout.patient),
        report=join_sections(sections.get("findings"), sections.pop("impression", None)),
        split=None if split is None else record.split(split),
        **sections,
    )
    if first is None:
        return study
    for column, field_name in ((layout.patient or "", "patient_id"), ("split", "split")):
        expected, actual = getattr(first, field_name), getattr(study, field_name)
        if actual != expected:
            message = f"expected '{expected}' as in the study's first record, found '{actual}'"
            raise record.error(column, message, ErrorCode.MISMATCH)
    if first.findings is not None or study.findings is None:
        return first
    return replace(study, timestamp=first.timestamp, radiographs=first.radiographs)


def find_table(folders: Sequence[Path], *names: str, hint: str = "here") -> Path:
    """Return the first existing table of some names (`x.csv`), also gzipped or zipped."""
    for folder in folders:
        if (path := find_csv(folder, *names)) is not None:
            return path
    message = f"expected {names[0]} (also .gz or .zip) {hint}, found none"
    raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=folders[0])


def table_records(path: Path, required: Sequence[str] = ()) -> Iterator[TableRecord]:
    """Yield the rows of a table: CSV (also `.gz` or `.zip`), JSON Lines, or a JSON list of objects."""
    name = path.name.lower()
    if name.endswith((".csv", ".csv.gz", ".zip")):
        columns, rows = read_csv(path)
        if missing := [name for name in required if name not in columns]:
            message = f"expected this column, found {list_columns(columns)}"
            raise InputError(message, code=ErrorCode.MISSING_FIELD, file=path, line=1, field=missing[0])
        for line, cells in rows:
            yield TableRecord(path, {column: cell.strip() for column, cell in cells.items()}, line)
    elif name.endswith(".json") and next(read_lines(path), "").lstrip().startswith("["):
        for index, cells in enumerate(read_json(path)):
            yield TableRecord(path, cells, key=f"[{index}]")
    elif name.endswith((".jsonl", ".ndjson", ".json")):
        for line, cells in read_jsonl(path):
            yield TableRecord(path, cells, line)
    else:
        raise InputError(f"expected {_FORMATS}", code=ErrorCode.INVALID_FORMAT, file=path)


def join_sections(findings: str | None, impression: str | None) -> str | None:
    """Join two sections to one report, with headings as in MIMIC-CXR."""
    sections = (("FINDINGS", findings), ("IMPRESSION", impression))
    return " ".join(f"{heading}: {text}" for heading, text in sections if text) or None
