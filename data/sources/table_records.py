"""Shared code of the readers of tables, which have a row per image or per study.

A reader states in a `Layout` how its archive names columns, studies, views and files; `read_studies` does the rest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
_VIEWS: Mapping[str, View | None] = {
    **dict.fromkeys(("FRONTAL", "PA", "AP", "POSTERO ANTERIOR", "ANTERO POSTERIOR", "AP HORIZONTAL"), "frontal"),
    **dict.fromkeys(("LATERAL", "LAT", "LL", "RL", "L", "LEFT LATERAL", "RIGHT LATERAL"), "lateral"),
    **dict.fromkeys(("LAO", "RAO", "LPO", "RPO", "OBLIQUE", "DECUBITUS", "AP AXIAL", "KUB", "COSTAL", "EXCLUDE"), None),
    **dict.fromkeys(("AP LLD", "AP RLD", "PA LLD", "PA RLD", "SWIMMERS", "XTABLE LATERAL"), None),
}
"""Views by their names in upper case, words separated by spaces; None for views that are neither."""
# A list as JSON, as Python prints it, or as numpy prints an array, without commas.
_TEXT = r"""(?:'[^']*'|"[^"]*")"""
_LIST = re.compile(rf"\[\s*(?:{_TEXT}(?:[\s,]+{_TEXT})*\s*,?)?\s*\]")


def parse_number(value: str) -> int | None:
    """Return a natural number; pandas writes "3.0" if values are missing."""
    match = re.fullmatch(r"(\d+)(\.0)?", value, re.ASCII)
    return int(match[1]) if match else None


def parse_date(value: str | None) -> int | None:
    """Return a date yyyymmdd as a number."""
    return parse_number(value) if value is not None and len(value.partition(".")[0]) == 8 else None


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A row of a table, or an object of a JSON file.

    Attributes:
        file: the file.
        cells: values by column. A damaged JSON file can have another value in place of an object.
        line: line on which the row begins; None for an object of a JSON file.
        key: path of the object in its JSON file; "" for a row.
    """

    file: Path
    cells: Mapping[str, Any]
    line: int | None = None
    key: str = ""

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

    def order(self, column: str, parse: Callable[[str], int | None] = parse_number) -> int | None:
        """Return a cell as a sort key; None for a missing value."""
        text = self.text(column)
        if text is not None and parse(text) is None:
            message = f"expected a date or a number, found {describe_choice(text)}; the study is used without it"
            raise self.error(column, message)
        return None if text is None else parse(text)

    def split(self, name: str | None) -> str:
        """Return the name of a split as used in manifests."""
        if name is None or name.lower() not in _SPLITS:
            raise self.error("split", f"expected train, validation or test, found {describe_choice(name)}")
        return _SPLITS[name.lower()]

    def texts(self, column: str) -> list[str | None]:
        """Return a list of strings; a CSV cell holds the list as JSON, Python or numpy write it, or one string."""
        value = self.value(column)
        if isinstance(value, list):
            if any(not isinstance(item, str | None) for item in value):
                found = next(describe(item) for item in value if not isinstance(item, str | None))
                raise self.error(column, f"expected a list of strings, found {found} in it")
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
    """Column names and parsers of an archive.

    Attributes:
        source: name of the archive.
        images: column with the path of an image, or a list of paths.
        study: returns the name of a record's study, from the record and its image paths.
        view: returns the view of an image as the archive names it, and its column, from the record, the position of
            the image in it, and its path.
        find: returns the radiograph of an image, from the record, the folder of images, the path and the view; None if
            the reader lists it itself.
        sections: columns of each section; the first one with text is used.
        split: returns the split as the archive names it; None if it has none.
        patient: column of the patient, if there is one.
        requires_patient: whether a record without its patient is refused.
        order: returns the time or position of the study among those of the patient; None if it is unknown.
    """

    source: str
    images: str
    study: Callable[[TableRecord, Sequence[str]], str]
    view: Callable[[TableRecord, int, str], tuple[str | None, str]]
    find: Callable[[TableRecord, Path, str, View], Radiograph | None]
    sections: Mapping[str, Sequence[str]] = field(default_factory=dict)
    split: Callable[[TableRecord], str | None] = lambda _record: None
    patient: str | None = None
    requires_patient: bool = True
    order: Callable[[TableRecord], Any] = lambda _record: None


def read_studies(layout: Layout, records: Iterable[TableRecord], folder: Path) -> Archive:
    """Group records into studies, and list every record and image that cannot be used.

    Records of one study can differ in their reports: the first one with findings is used. Of several dates or positions
    the earliest is used. The prior report of a later study consists of findings and impression.
    """
    studies: dict[str, ArchiveStudy] = {}
    radiographs: dict[str, list[Radiograph]] = {}
    location_of: dict[str, str] = {}
    failures: list[Failure] = []
    for record in records:
        paths: list[str] = []
        try:
            paths = _image_paths(record, layout.images)
            name = layout.study(record, paths)
            if name not in studies and all(path in location_of for path in paths):
                _check_new(paths[0], location_of, record, layout)
            study = _study(layout, record, name)
            first = _merge(studies.get(study.study_id, study), study, record, layout)
        except InputError as error:
            failures.append(read_failure(next(iter(paths), record.location), str(error)))
            continue
        try:
            orders = (first.timestamp, layout.order(record))
            first = replace(first, timestamp=min((order for order in orders if order is not None), default=None))
        except InputError as error:
            failures.append(read_failure(study.study_id, str(error)))
        studies[study.study_id] = first
        for index, path in enumerate(paths):
            try:
                _check_new(path, location_of, record, layout)
                location_of[path] = record.location
                shown_as, view = _view(layout, record, index, path)
            except InputError as error:
                failures.append(read_failure(path, str(error)))
                continue
            if view is None:
                reason = f"view {shown_as} is neither frontal nor lateral"
                failures.append(Failure(source=path, stage="select", reason=reason))
            elif (radiograph := layout.find(record, folder, path, view)) is not None:
                radiographs.setdefault(study.study_id, []).append(radiograph)
    images = [image for group in radiographs.values() for image in group]
    if images and not any(os.path.isfile(image.path) for image in images):  # noqa: PTH113
        message = f"expected the images of the table below this folder, such as {next(iter(location_of))}, found none"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=folder)
    shown = [replace(study, radiographs=tuple(radiographs.get(name, ()))) for name, study in studies.items()]
    return Archive(layout.source, shown, failures)


def first_file(files: Callable[[str], Iterable[str]]) -> Callable[[TableRecord, Path, str, View], Radiograph]:
    """Return `Layout.find` for the first existing file among some paths below the folder, or else the first."""

    def find(_record: TableRecord, folder: Path, path: str, view: View) -> Radiograph:
        candidates = [folder / name for name in files(path)]
        # Unlike Path.is_file, it is false for names that the file system does not allow.
        file = next((file for file in candidates if os.path.isfile(file)), candidates[0])  # noqa: PTH113
        return replace(radiograph_below(folder, Path(path), view), path=file)

    return find


def _image_paths(record: TableRecord, column: str) -> list[str]:
    paths = record.texts(column)
    if not paths or None in paths:
        raise record.error(column, "expected the path of an image, found none", ErrorCode.MISSING_FIELD)
    return [path for path in paths if path is not None]


def _check_new(path: str, location_of: Mapping[str, str], record: TableRecord, layout: Layout) -> None:
    if path in location_of:
        raise record.error(layout.images, f"duplicate image, first at {location_of[path]}", ErrorCode.DUPLICATE)


def _study(layout: Layout, record: TableRecord, name: str) -> ArchiveStudy:
    """Return the study of one record, without radiographs and time."""
    sections: dict[str, Any] = {
        section: next((text for column in columns if (text := section_text(record.text(column) or ""))), None)
        for section, columns in layout.sections.items()
    }
    split = layout.split(record)
    patient = record.require if layout.requires_patient else record.text
    return ArchiveStudy(
        study_id=name,
        patient_id=None if layout.patient is None else patient(layout.patient),
        report=join_sections(sections.get("findings"), sections.pop("impression", None)),
        split=None if split is None else record.split(split),
        **sections,
    )


def _merge(first: ArchiveStudy, study: ArchiveStudy, record: TableRecord, layout: Layout) -> ArchiveStudy:
    """Return a study with what another record of it states."""
    for column, name in ((layout.patient or "", "patient_id"), ("split", "split")):
        expected, actual = getattr(first, name), getattr(study, name)
        if actual != expected:
            message = f"expected '{expected}' as in the study's first record, found '{actual}'"
            raise record.error(column, message, ErrorCode.MISMATCH)
    if first.findings is None and study.findings is not None:
        return replace(study, timestamp=first.timestamp)
    return first


def _view(layout: Layout, record: TableRecord, index: int, path: str) -> tuple[str | None, View | None]:
    """Return the view as the archive names it, and as frontal, lateral or neither."""
    name, column = layout.view(record, index, path)
    known = "" if name is None else re.sub("[_-]", " ", name.upper())
    if known not in _VIEWS:
        found = "none" if name is None else describe_choice(name)
        raise record.error(column, f"expected a view such as PA, AP or LATERAL, found {found}")
    return name, _VIEWS[known]


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
        raise InputError("expected a .csv, .csv.gz, .json or .jsonl file", code=ErrorCode.INVALID_FORMAT, file=path)


def join_sections(findings: str | None, impression: str | None) -> str | None:
    """Join two sections to one report, with headings as in MIMIC-CXR."""
    sections = (("FINDINGS", findings), ("IMPRESSION", impression))
    return " ".join(f"{heading}: {text}" for heading, text in sections if text) or None
