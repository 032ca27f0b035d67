"""The tables of archives, some columns of them row by row: CSV, plain, gzipped or alone in a zip."""

from __future__ import annotations

import csv
import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from radfact.errors import InputError

_MISSING = frozenset({"", "nan", "NaN"})


def stream_columns(
    path: Path, columns: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[int, tuple[str | None, ...]]]:
    """Yield (line, cells) for every row of a table, holding no more than that row.

    Args:
        path: `.csv`, `.csv.gz`, or `.zip` with one CSV in it.
        columns: names of those wanted, in the order of the cells. Others are ignored.
        optional: names of more that follow; one that the table does not have gives None.

    Yields:
        the line on which the row ends, and its cells, stripped; None where a cell is empty or NaN.

    Raises:
        InputError: the table cannot be read, lacks a column, or has a row that is not as long as its header.
    """
    line = 1
    try:
        with _open(path) as handle:
            rows = csv.reader(handle)
            header = next(rows, [])
            for column in columns:
                if column not in header:
                    raise InputError(f"the table has no such column; it has {_shown(header)}", file=path, field=column)
            # A column that is not there is the one behind the last, which is made empty in every row.
            places = [header.index(name) if name in header else len(header) for name in (*columns, *optional)]
            for row in rows:
                line = rows.line_num
                if not row:
                    continue
                if len(row) != len(header):
                    message = f"the row has {len(row)} cells and the header {len(header)}; is the file whole?"
                    raise InputError(message, file=path, line=line)
                row.append("")
                yield line, tuple([None if (cell := row[place].strip()) in _MISSING else cell for place in places])
    except FileNotFoundError:
        raise InputError("no such file", file=path) from None
    except csv.Error as error:
        raise InputError(f"not CSV: {error}", file=path, line=line + 1) from None
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text: {error.reason}", file=path, line=line + 1) from None
    except (EOFError, OSError, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", file=path, line=line) from None


def find_csv(root: Path, *names: str) -> Path | None:
    """The first of these files (`x.csv`) in a folder, plain, gzipped or zipped; None where there is none."""
    candidates = (root / f"{name}{suffix}" for name in names for suffix in ("", ".gz", ".zip"))
    return next((path for path in candidates if path.is_file()), None)


@contextmanager
def _open(path: Path) -> Iterator[IO[str]]:
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8-sig", newline="") as text:
            yield text
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            # macOS adds a tree of its own.
            names = [n for n in archive.namelist() if n.endswith(".csv") and not n.startswith("__MACOSX/")]
            if len(names) != 1:
                raise InputError(f"holds {len(names)} CSV files; one is needed", file=path)
            with archive.open(names[0]) as binary, io.TextIOWrapper(binary, "utf-8-sig", newline="") as text:
                yield text
    else:
        with path.open(encoding="utf-8-sig", newline="") as text:
            yield text


def _shown(header: Sequence[str]) -> str:
    if not header:
        return "no header"
    return ", ".join(f"'{name}'" for name in header[:8]) + (", ..." if len(header) > 8 else "")
