"""Tables: CSV, plain, gzipped or alone in a zip, read row by row, with the line of every fault."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from numbers import Number
from pathlib import Path
from typing import IO, Any, Literal

from radfact.errors import ErrorCode, InputError, field_name
from radfact.io.jsonl import open_atomic

_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_BREAKS = ("\t", "\r", "\n")
_SQLITE = b"SQLite format 3\0"
_LONGEST = 10_000_000
"""Maximum number of characters of a line or a cell: a damaged file must not fill the memory."""
_QUOTED = re.compile(r'"[^"]*"')


def read_csv(path: Path | str) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    """Read the columns and the rows of a table, without blank rows; a cell that `guard` changed is as before."""
    rows = _rows(Path(path))
    _, columns = next(rows, (1, []))
    return columns, ((line, dict(zip(columns, map(_unguard, cells), strict=True))) for line, cells in rows)


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with open_atomic(path) as handle:
        handle.write(format_csv(columns, rows))


def format_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table whose cells no spreadsheet executes as a formula; a cell without a value is empty."""
    table = [[guard(cell) for cell in row] for row in (columns, *rows)]
    # Some spreadsheets also split at semicolons, and a carriage return alone would end a row.
    is_plain = not any(isinstance(cell, str) and re.search("[;\r]", cell) for row in table for cell in row)
    quoting: Literal[0, 2] = csv.QUOTE_MINIMAL if is_plain else csv.QUOTE_NONNUMERIC
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=quoting).writerows(table)
    return text.getvalue()


def guard(cell: Any) -> Any:
    """Return a cell of a table with an apostrophe before a text that a spreadsheet could execute; numbers are kept."""
    is_text = not (cell is None or isinstance(cell, Number))
    return f"'{cell}" if is_text and _is_dangerous(str(cell)) else cell


def _is_dangerous(text: str) -> bool:
    # Also a text that looks guarded, so that it is read as it was.
    return text.lstrip().startswith(_FORMULA) or text.startswith((*_BREAKS, "'"))


def _unguard(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and _is_dangerous(cell[1:]) else cell


def find_csv(root: Path, *names: str) -> Path | None:
    """Return the first existing file of some names (`x.csv`), plain, gzipped or zipped; None without any."""
    candidates = (root / f"{name}{suffix}" for name in names for suffix in ("", ".gz", ".zip"))
    return next((path for path in candidates if path.is_file()), None)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line on which the row begins, from 1; cells) of the header and all rows that are not blank."""
    begins, width, reader = 1, None, csv.reader(())
    # Also for a quote that is not closed. Python's own limit is 131,072 characters.
    csv.field_size_limit(_LONGEST)
    code, unreadable = ErrorCode.INVALID_FORMAT, ErrorCode.FILE_UNREADABLE
    try:
        with _open(path) as handle:
            lines = _lines(handle)
            header = next(lines, "")
            _check_separator(header, path)
            # Strict, because a lenient reader swallows the rest of the file after a quote that is not closed.
            reader = csv.reader(chain((header,), lines), strict=True)
            for row in reader:
                if row and width is None:
                    row, width = _header(row, path, begins), len(row)
                if row and len(row) != width:
                    advice = "a text with commas or line ends needs double quotes; or the file is truncated"
                    found = f"expected {width} cells as in the header, found {len(row)} ({advice})"
                    raise InputError(found, code=ErrorCode.INVALID_FORMAT, file=path, line=begins)
                if row:
                    yield begins, row
                begins = reader.line_num + 1
        return
    except FileNotFoundError:
        raise InputError("no such file", code=ErrorCode.FILE_NOT_FOUND, file=path) from None
    except csv.Error as error:
        message = f"not CSV: {error}; close the quote, or check whether the file is damaged"
    except UnicodeDecodeError as error:
        message, code = f"not UTF-8 text ({error.reason}); save the table as CSV UTF-8, separated by commas", unreadable
        # What cannot be read comes after the last line that was.
        begins = reader.line_num + 1 + error.object[: error.start].count(b"\n")
    except (EOFError, OSError, zlib.error, zipfile.BadZipFile) as error:
        message, code = f"cannot be read: {getattr(error, 'strerror', None) or error}", unreadable
    raise InputError(message, code=code, file=path, line=begins)


def _lines(handle: IO[str]) -> Iterator[str]:
    while line := handle.readline(_LONGEST):
        if "\0" in line or len(line) == _LONGEST:
            raise csv.Error("it has a NUL character" if "\0" in line else f"a line of over {_LONGEST:,} characters")
        yield line


def _header(cells: Sequence[str], path: Path, line: int) -> list[str]:
    """Names of columns; those without one may be many, as spreadsheets leave them behind the last."""
    names = [name.strip() for name in cells]
    for name in names:
        if name and names.count(name) > 1:
            message = f"expected one column of this name, found {names.count(name)} columns"
            raise InputError(message, code=ErrorCode.DUPLICATE, file=path, line=line, field=field_name(name))
    return names


def _check_separator(header: str, path: Path) -> None:
    plain = _QUOTED.sub("", header)
    for mark, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars")):
        # A name may have a comma in it.
        if plain.count(mark) > plain.count(","):
            message = f"separated by {name}; save the table as CSV separated by commas"
            raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path, line=1)


@contextmanager
def _open(path: Path) -> Iterator[IO[str]]:
    with ExitStack() as stack:
        binary: Any = stack.enter_context((gzip.open if path.suffix == ".gz" else open)(path, "rb"))
        if binary.peek(len(_SQLITE)).startswith(_SQLITE):
            message = "expected a table, found an SQLite database; export a review with maira review export --manifest"
            raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path)
        if path.suffix == ".zip":
            archive = stack.enter_context(zipfile.ZipFile(binary))
            # macOS adds a folder of metadata.
            names = [n for n in archive.namelist() if n.endswith(".csv") and not n.startswith("__MACOSX/")]
            if len(names) != 1:
                raise InputError(f"expected one CSV file, found {len(names)}", code=ErrorCode.INVALID_FORMAT, file=path)
            binary = stack.enter_context(archive.open(names[0]))
        yield stack.enter_context(io.TextIOWrapper(binary, "utf-8-sig", newline=""))
