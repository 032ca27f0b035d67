"""Atomic writing of text files, and reading of JSON and JSON Lines with the line of every error."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from radfact.errors import ErrorCode, InputError

_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""Errors of writing to an open file, for which Python does not name the file."""


@contextmanager
def naming_file(path: Path, *others: Path | str) -> Iterator[None]:
    """Name the file in errors of the operating system.

    Args:
        path: the file that is written.
        others: temporary files and folders, which mean nothing to a user.

    Raises:
        OSError: instead of an error about `others` or an open file; it names `path`.
    """
    try:
        yield
    except OSError as error:
        is_temporary = (
            error.errno in _WRITE_ERRORS if error.filename is None else str(error.filename) in map(str, others)
        )
        if not is_temporary:
            raise
        raise OSError(error.errno, f"cannot be written: {error.strerror}", str(path)) from error


@contextmanager
def open_atomic(path: Path | str, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file next to `path` for writing, and rename it to `path` if the block ends without error.

    Args:
        path: the file to write; missing parent folders are created.
        mode: "w" for UTF-8 text, "wb" for bytes.

    Raises:
        OSError: the file cannot be written; it names `path`.
    """
    path = Path(path)
    with naming_file(path, *path.parents):
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with naming_file(path, temporary):
            # With the usual permissions, and never replacing an existing file.
            with temporary.open(mode.replace("w", "x"), encoding=None if "b" in mode else "utf-8") as handle:
                yield handle
                handle.flush()
                os.fsync(handle.fileno())
            temporary.replace(path)
    except BaseException:
        with suppress(OSError):  # the first error matters more
            temporary.unlink()
        raise


def dumps(row: Any) -> str:
    """Return one line of strict JSON; NaN and infinities raise ValueError."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False)


def write_jsonl(path: Path | str, rows: Iterable[dict[str, Any]]) -> int:
    """Write rows as JSON Lines atomically, and return their number.

    Args:
        path: of the file.
        rows: JSON objects.
    """
    count = 0
    with open_atomic(path) as handle:
        for row in rows:
            handle.write(dumps(row) + "\n")
            count += 1
    return count


def append_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Append rows to a JSON Lines file; they are on disk when this returns.

    Args:
        path: of the file.
        rows: JSON objects.

    Raises:
        OSError: the rows cannot be written; the error has the file name `path`.
    """
    with naming_file(path, path), path.open("a", encoding="utf-8") as handle:
        handle.writelines(dumps(row) + "\n" for row in rows)
        handle.flush()
        os.fsync(handle.fileno())


def write_json(path: Path | str, value: Any) -> None:
    """Write one indented JSON document atomically.

    Args:
        path: of the file.
        value: that JSON can represent.
    """
    with open_atomic(path) as handle:
        json.dump(value, handle, ensure_ascii=False, allow_nan=False, indent=2)
        handle.write("\n")


def read_text(path: Path | str) -> str:
    """Read a UTF-8 text file (a byte order mark is dropped).

    Raises:
        InputError: the file does not exist, cannot be read or is not UTF-8 text.
    """
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError("no such file", code=ErrorCode.FILE_NOT_FOUND, file=path) from None
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text (byte {error.start})", code=ErrorCode.FILE_UNREADABLE, file=path) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", code=ErrorCode.FILE_UNREADABLE, file=path) from None


def read_json(path: Path | str) -> Any:
    """Read one JSON document.

    Raises:
        InputError: the file cannot be read or is not JSON.
    """
    return _parse(read_text(path), path)


def read_jsonl(path: Path | str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) for every line that is not blank, while the file is read.

    Raises:
        InputError: the file cannot be read, or a line is not one JSON object.
    """
    return parse_rows(read_lines(path), path)


def parse_rows(lines: Iterable[str], path: Path | str, first_line: int = 1) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for lines of a JSON Lines file that are not blank.

    Args:
        lines: lines without their ends.
        path: named in errors.
        first_line: number of the first line.

    Raises:
        InputError: a line is not one JSON object.
    """
    for number, line in enumerate(lines, start=first_line):
        if not line.strip():
            continue
        row = _parse(line, path, first_line=number)
        if not isinstance(row, dict):
            raise InputError(
                f"expected one JSON object per line, found {type(row).__name__}",
                code=ErrorCode.INVALID_FORMAT,
                file=path,
                line=number,
            )
        yield number, row


def read_lines(path: Path | str) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file (a byte order mark is dropped), which may be larger than the memory.

    Raises:
        InputError: the file does not exist, cannot be read or is not UTF-8 text.
    """
    read = 0
    try:
        # Read as bytes: JSON strings may contain U+2028 and similar characters, which are not line ends here.
        with Path(path).open("rb") as handle:
            for line in handle:
                yield line.decode("utf-8-sig" if read == 0 else "utf-8").removesuffix("\n")
                read += len(line)
    except FileNotFoundError:
        raise InputError("no such file", code=ErrorCode.FILE_NOT_FOUND, file=path) from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"not UTF-8 text (byte {read + error.start})", code=ErrorCode.FILE_UNREADABLE, file=path
        ) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", code=ErrorCode.FILE_UNREADABLE, file=path) from None


def _parse(text: str, path: Path | str, first_line: int = 1) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise InputError(
            f"not JSON: {error.msg} at column {error.colno}", code=ErrorCode.INVALID_FORMAT, file=path, line=line
        ) from None
    except (ValueError, RecursionError) as error:
        # Python refuses valid JSON with integers or nesting of thousands of digits or levels.
        raise InputError(
            f"not JSON that can be read: {error}", code=ErrorCode.INVALID_FORMAT, file=path, line=first_line
        ) from None
