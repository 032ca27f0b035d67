"""Typed access to the cells of CSV rows; errors name file, line and column."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from radfact.errors import ErrorCode, InputError, check_unique_id, describe_choice, list_columns
from radfact.io.csv_tables import read_csv
from radfact.io.pairs import read_clusters

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One row of a CSV file: file, line from 1, and cells by column."""

    file: Path
    line: int
    cells: dict[str, str]

    def text(self, column: str) -> str:
        return self.cells[column].strip()

    def id(self, column: str) -> str:
        key = self.text(column)
        if not key:
            raise self.error("expected an id, found an empty cell", column, ErrorCode.MISSING_FIELD)
        return key

    def number(self, column: str, expected: str = "a number", accepts: Callable[[float], bool] | None = None) -> float:
        """Return a cell as a finite number, or NaN for an empty cell and "nan", if it is accepted."""
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
        return InputError(message, code=code, file=self.file, line=self.line, field=column)


def read_rows(path: Path, required: Sequence[str]) -> tuple[list[str], Iterator[CsvRow]]:
    columns, rows = read_csv(path)
    for name in required:
        if name not in columns:
            message = f"expected this column, found {list_columns(columns)}"
            raise InputError(message, code=ErrorCode.MISSING_FIELD, file=path, line=1, field=name)
    return columns, (CsvRow(path, line, cells) for line, cells in rows)


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A CSV file of reports with unique ids: rows by id, and the label of the cluster of each row in column `by`."""

    columns: Sequence[str]
    rows: Mapping[str, CsvRow]
    clusters: Sequence[str | None]
    by: str | None


def read_report_table(path: Path, required: Sequence[str], cluster: str | None) -> ReportTable:
    """Read a CSV file of reports with the column `id`."""
    columns, rows = read_rows(path, ("id", *required))
    by_id: dict[str, CsvRow] = {}
    lines: dict[str, int] = {}
    for row in rows:
        key = row.id("id")
        check_unique_id(lines, key, row.line, file=path, field="id")
        by_id[key] = row
    cells = [(row.cells, {"file": path, "line": row.line}) for row in by_id.values()]
    by, clusters = read_clusters(cells, cluster, file=path)
    return ReportTable(columns, by_id, clusters, by)
