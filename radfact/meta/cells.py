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


def read_number(said: str, path: Path, line: int, field: str) -> float:
    """A cell as a finite number, or NaN where it says so.

    Raises:
        InputError: it is none.
    """
    try:
        value = float(said)
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
