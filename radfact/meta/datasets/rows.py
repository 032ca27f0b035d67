"""Typed access to the fields of rows of CSV and JSON Lines files; errors name file, line and field."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from radfact.errors import ErrorCode, InputError, describe, describe_choice, list_some
from radfact.io.columns import NAMES, Columns, check_columns, find_columns, with_own_names
from radfact.io.csv_tables import read_csv
from radfact.io.pairs import read_clusters
from radfact.records import is_missing

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row of a file: file, line from 1, and cells by column; `names` are the columns of fields with other names."""

    file: Path
    line: int
    cells: Mapping[str, Any]
    names: Mapping[str, str]

    def column(self, field: str) -> str:
        return self.names.get(field, field)

    def text(self, column: str) -> str:
        """Return a cell without spaces around it; a missing value is empty."""
        value = self.cells.get(self.column(column))
        if not isinstance(value, str | None):
            raise self.error(f"expected text, found {describe(value)}", column)
        return "" if value is None or is_missing(value) else value.strip()

    def lacks(self, column: str) -> bool:
        """Return whether a report is missing, unlike an empty one."""
        return is_missing(self.cells.get(self.column(column)))

    def report(self, column: str) -> str:
        if self.lacks(column):
            raise self.error("expected a report, found none; an empty report is an empty cell", column)
        return self.text(column)

    def id(self, column: str) -> str:
        key = self.text(column)
        if not key:
            raise self.error("expected an id, found none", column, ErrorCode.MISSING_FIELD)
        return key

    def number(self, column: str, expected: str = "a number", accepts: Callable[[float], bool] | None = None) -> float:
        """Return a cell as a finite number, or NaN for an empty cell or a missing value, if it is accepted."""
        text = self.text(column)
        try:
            # Python reads 1_0 as 10.
            value = math.inf if "_" in text else float(text or "nan")
        except ValueError:
            value = math.inf
        if math.isinf(value) or not (accepts is None or accepts(value)):
            raise self.error(f"expected {expected}, found {describe_choice(text)}", column)
        return value

    def whole_number(self, column: str, lowest: int, highest: int) -> int:
        expected, allowed = f"a whole number from {lowest} to {highest}", range(lowest, highest + 1)
        return int(self.number(column, expected, lambda value: value in allowed))

    def count(self, column: str) -> float:
        return self.number(column, "a whole number from 0", lambda n: math.isnan(n) or (n >= 0 and not n % 1))

    def choice(self, column: str, values: Mapping[str, T], expected: str) -> T:
        """Return the value of a cell with one of some names, in any case."""
        text = self.text(column)
        if text.lower() not in values:
            raise self.error(f"expected {expected}, found {describe_choice(text)}", column)
        return values[text.lower()]

    def error(self, message: str, column: str | None = None, code: ErrorCode = ErrorCode.INVALID_VALUE) -> InputError:
        field = None if column is None else self.column(column)
        return InputError(message, code=code, file=self.file, line=self.line, field=field)


def read_rows(
    path: Path, required: Sequence[str], columns: Columns | None = None
) -> tuple[list[str], Iterator[InputRow]]:
    headings, rows = read_csv(path)
    columns = check_columns(columns or {})
    layout = {name: NAMES.get(name, (name,)) for name in (*required, *columns)}
    names = find_columns(headings, layout, columns, {"file": path, "line": 1})
    cells = ((line, with_own_names(row, columns, {"file": path, "line": line})) for line, row in rows)
    return headings, (InputRow(path, line, row, names) for line, row in cells)


_RATER = re.compile(
    r"(?:rater|reader|annotator|radiologist|reviewer|observer|physician|expert)(?:[ _-]?(?:id|name|index|number))?",
    re.IGNORECASE,
)
"""Columns with the name of the rater of a row."""

RowsByRater = Mapping[str, Mapping[str, InputRow]]
"""The rows of each id, by rater; the rater is "" in a file without a column for it."""


def group_rows(
    rows: Iterable[InputRow], columns: Sequence[str], *, rated: Sequence[str], same: Sequence[str] = ()
) -> RowsByRater:
    """Group rows by id and rater; rows of an id have the `same` texts, and none of the `rated` columns has raters."""
    raters = next((name for name in columns if _RATER.fullmatch(name.strip()) and name not in rated), None)
    by_id: dict[str, dict[str, InputRow]] = {}
    for row in rows:
        key, rater = row.id("id"), "" if raters is None else row.id(raters)
        of_id = by_id.setdefault(key, {})
        first = of_id.setdefault(rater, row)
        if first is not row:
            more = f" of rater '{rater}'" if rater else ""
            hint = "" if rater else "; a column 'rater' makes the rows ratings by several raters"
            message = f"duplicate id '{key}'{more}, first at line {first.line}{hint}"
            raise row.error(message, "id", ErrorCode.DUPLICATE)
        first = next(iter(of_id.values()))
        for name in same:
            if row.text(name) != first.text(name):
                message = f"expected the text of this id in line {first.line}, found another"
                raise row.error(message, name, ErrorCode.MISMATCH)
    return by_id


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Rows of a CSV file with all reports, by id and rater; `notes` are about the others, `by` names the clusters."""

    columns: Sequence[str]
    rows: RowsByRater
    clusters: Sequence[str | None]
    by: str | None
    notes: Sequence[str]
    has_raters: bool


def missing_reports(lines: Sequence[int], read: int) -> list[str]:
    """Return a sentence about the lines of excluded rows, if there are any."""
    count, listed = f"{len(lines)} of {read} rows", list_some([str(line) for line in lines])
    return [f"{count} have no report and are excluded (lines {listed})."] if lines else []


def read_report_table(
    path: Path, reports: Sequence[str], cluster: str | None, columns: Columns | None, experts: Sequence[str] = ()
) -> ReportTable:
    """Read a CSV file of reports with the column `id`; raters are in its rows, or in the names of its columns."""
    headings, read = read_rows(path, ("id", *reports, *experts), columns)
    rated = [name for name in headings if name.startswith("expert") or ":" in name]
    names_raters = len(rated) > 1 or any(":" in name for name in rated)
    rows = group_rows(read, () if names_raters else headings, rated=[*rated, *experts], same=reports)
    kept, without = dict[str, Mapping[str, InputRow]](), list[int]()
    for key, of_id in rows.items():
        row, *_ = of_id.values()
        if any(map(row.lacks, reports)):
            without += [row.line for row in of_id.values()]
        else:
            kept[key] = of_id
    notes = missing_reports(without, sum(map(len, rows.values())))
    first = [next(iter(of_id.values())) for of_id in kept.values()]
    by, clusters = read_clusters([(row.cells, {"file": path, "line": row.line}) for row in first], cluster, file=path)
    return ReportTable(headings, kept, clusters, by, notes, any("" not in of_id for of_id in rows.values()))
