"""Cells of tables, with the line and the field of every fault."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from radfact.errors import InputError


def need_columns(path: Path, columns: Sequence[str], wanted: Sequence[str]) -> None:
    """See to it that a table has some columns.

    Raises:
        InputError: naming the first that is missing.
    """
    for name in wanted:
        if name not in columns:
            raise InputError(
                f"missing; the table has {', '.join(columns) or 'no header'}", file=path, line=1, field=name
            )


def read_id(said: str, path: Path, line: int, field: str) -> str:
    """A cell as an id, without the blanks around it.

    Raises:
        InputError: it is empty.
    """
    key = said.strip()
    if not key:
        raise InputError("empty; every row needs an id", file=path, line=line, field=field)
    return key


def read_number(said: str, path: Path, line: int, field: str) -> float:
    """A cell as a finite number, or NaN where it says so.

    Raises:
        InputError: it is none.
    """
    try:
        # Python reads 1_0 as 10, which nobody writes into a table.
        value = math.inf if "_" in said else float(said)
    except ValueError:
        value = math.inf
    if math.isinf(value):
        raise InputError(f"expected a number, found '{said}'", file=path, line=line, field=field)
    return value


def read_whole(said: str, path: Path, line: int, field: str, most: int, *, least: int = 0) -> int:
    """A cell as a whole number from `least` to `most`.

    Raises:
        InputError: it is none.
    """
    value = read_number(said, path, line, field)
    if not (value == value // 1 and least <= value <= most):
        raise InputError(
            f"expected a whole number from {least} to {most}, found '{said}'", file=path, line=line, field=field
        )
    return int(value)


def read_count(said: str, path: Path, line: int, field: str) -> float:
    """A cell as a number of errors: a whole number from 0, or NaN where it says so.

    Raises:
        InputError: it is none.
    """
    value = read_number(said, path, line, field)
    if not (math.isnan(value) or (value >= 0 and value == value // 1)):
        raise InputError(f"expected a whole number from 0, found '{said}'", file=path, line=line, field=field)
    return value
