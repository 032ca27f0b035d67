"""Typed access to the cells of CSV rows; errors name file, line and column."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from radfact.errors import ErrorCode, InputError, describe_choice, list_columns
from radfact.io.csv_tables import read_csv


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One row of a CSV file: file, line from 1, and cells by column."""

    file: Path
    line: int
    cells: dict[str, str]

    def text(self, column: str) -> str:
        """Return a cell without the spaces around it."""
        return self.cells[column].strip()

    def id(self, column: str) -> str:
        """Return a cell as an id."""
        key = self.text(column)
        if not key:
            raise self.error("expected an id, found an empty cell", column, ErrorCode.MISSING_FIELD)
        return key

    def number(self, column: str) -> float:
        """Return a cell as a finite number, or NaN for an empty cell and "nan"."""
        text = self.text(column) or "nan"
        try:
            # Python reads 1_0 as 10.
            value = math.inf if "_" in text else float(text)
        except ValueError:
            value = math.inf
        if math.isinf(value):
            raise self.error(f"expected a number, found {describe_choice(text)}", column)
        return value

    def whole_number(self, column: str, lowest: int, highest: int) -> int:
        """Return a cell as a whole number."""
        value = self.number(column)
        if not (value == value // 1 and lowest <= value <= highest):
            message = f"expected a whole number from {lowest} to {highest}, found {describe_choice(self.cells[column])}"
            raise self.error(message, column)
        return int(value)

    def count(self, column: str) -> float:
        """Return a cell as a whole number from 0, or NaN for an empty cell and "nan"."""
        value = self.number(column)
        if not (math.isnan(value) or (value >= 0 and value == value // 1)):
            raise self.error(f"expected a whole number from 0, found {describe_choice(self.cells[column])}", column)
        return value

    def error(self, message: str, column: str | None = None, code: ErrorCode = ErrorCode.INVALID_VALUE) -> InputError:
        """Return an error at a cell of this row."""
        return InputError(message, code=code, file=self.file, line=self.line, field=column)


def read_rows(path: Path, required: Sequence[str]) -> tuple[list[str], Iterator[CsvRow]]:
    """Read a CSV file."""
    columns, rows = read_csv(path)
    for name in required:
        if name not in columns:
            raise InputError(
                f"expected this column, found {list_columns(columns)}",
                code=ErrorCode.MISSING_FIELD,
                file=path,
                line=1,
                field=name,
            )
    return columns, (CsvRow(path, line, cells) for line, cells in rows)
