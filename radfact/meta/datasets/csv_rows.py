"""Typed access to the cells of CSV rows; errors name file, line and column."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from radfact.errors import ErrorCode, InputError, check_unique_id, describe_choice, list_some
from radfact.io.columns import NAMES, Columns, check_columns, find_columns, with_own_names
from radfact.io.csv_tables import read_csv
from radfact.io.pairs import read_clusters
from radfact.records import is_missing

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One row of a CSV file: file, line from 1, and cells by column; `names` are the columns of required fields."""

    file: Path
    line: int
    cells: Mapping[str, Any]
    names: Mapping[str, str]

    def text(self, column: str) -> str:
        """Return a cell without spaces around it; a missing value is empty."""
        text: str = self.cells[self.names.get(column, column)].strip()
        return "" if is_missing(text) else text

    def report(self, column: str) -> str:
        if is_missing(self.cells[self.names.get(column, column)]):
            raise self.error("expected a report, found none; an empty report is an empty cell", column)
        return self.text(column)

    def id(self, column: str) -> str:
        key = self.text(column)
        if not key:
            raise self.error("expected an id, found an empty cell", column, ErrorCode.MISSING_FIELD)
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

    def choice(self, column: str, values: Mapping[str, T], expected: str) -> T:
        """Return the value of a cell with one of some names, in any case."""
        text = self.text(column)
        if text.lower() not in values:
            raise self.error(f"expected {expected}, found {describe_choice(text)}", column)
        return values[text.lower()]

    def error(self, message: str, column: str | None = None, code: ErrorCode = ErrorCode.INVALID_VALUE) -> InputError:
        field = None if column is None else self.names.get(column, column)
        return InputError(message, code=code, file=self.file, line=self.line, field=field)


def read_rows(
    path: Path, required: Sequence[str], columns: Columns | None = None
) -> tuple[list[str], Iterator[CsvRow]]:
    headings, rows = read_csv(path)
    columns = check_columns(columns or {})
    layout = {name: NAMES.get(name, (name,)) for name in (*required, *columns)}
    names = find_columns(headings, layout, columns, {"file": path, "line": 1})
    return headings, (CsvRow(path, line, with_own_names(cells, columns), names) for line, cells in rows)


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A CSV file of reports with unique ids: rows by id, and the label of the cluster of each row in column `by`.

    Rows in which a report is missing are excluded, which `notes` say.
    """

    columns: Sequence[str]
    rows: Mapping[str, CsvRow]
    clusters: Sequence[str | None]
    by: str | None
    notes: Sequence[str]


def read_report_table(
    path: Path, reports: Sequence[str], cluster: str | None, columns: Columns | None, others: Sequence[str] = ()
) -> ReportTable:
    """Read a CSV file with the column `id`, columns of reports, and others."""
    headings, rows = read_rows(path, ("id", *reports, *others), columns)
    by_id: dict[str, CsvRow] = {}
    lines: dict[str, int] = {}
    without = []
    for row in rows:
        key = row.id("id")
        check_unique_id(lines, key, row.line, file=path, field=row.names["id"])
        if any(is_missing(row.cells[row.names[name]]) for name in reports):
            without.append(str(row.line))
        else:
            by_id[key] = row
    count = f"{len(without)} of {len(without) + len(by_id)} rows"
    notes = [f"{count} have no report and are excluded (lines {list_some(without)})."] if without else []
    cells = [(row.cells, {"file": path, "line": row.line}) for row in by_id.values()]
    by, clusters = read_clusters(cells, cluster, file=path)
    return ReportTable(headings, by_id, clusters, by, notes)
