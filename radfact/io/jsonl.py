"""Atomic writing of text files, and reading of JSON and JSON Lines with the line of every error."""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

from radfact.errors import ErrorCode, InputError, field_name

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"(?P<colon>\s*:)?|[{}]')
"""A text, a key with its colon, or the begin or end of an object in valid JSON."""
WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""Errors of writing to an open file, for which Python does not name the file."""
_NOT_WRITTEN = "cannot be written: "

command_inputs: ContextVar[tuple[Path, ...]] = ContextVar("command_inputs", default=())
"""Files and folders that the running command reads; no file is written over them."""
private_files: ContextVar[bool] = ContextVar("private_files", default=True)
"""Whether new files and folders are readable by their owner only, because most hold reports of patients."""


def is_same_file(path: Path, other: Path) -> bool:
    """Return whether two paths lead to the same file or folder, also by symbolic or hard links."""
    if path.resolve() == other.resolve():
        return True
    with suppress(OSError):
        return path.samefile(other)
    return False


def check_not_input(path: Path) -> None:
    """Refuse to write to a file that is an input of the running command."""
    if any(is_same_file(path, item) for item in command_inputs.get()):
        message = "is an input of this command and cannot be its output; choose another output"
        raise InputError(message, code=ErrorCode.OUTPUT_CONFLICT, file=path)


@contextmanager
def naming_file(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Name `path` in errors of the operating system about an open file, or about `temporary` and the files in it."""
    try:
        yield
    except OSError as error:
        name = None if error.filename is None else Path(os.fsdecode(error.filename))
        if name is None and error.errno in WRITE_ERRORS:
            final = path
        elif name is not None and temporary is not None and name.is_relative_to(temporary):
            final = path / name.relative_to(temporary)
        else:
            raise
        reason = str(error.strerror).removeprefix(_NOT_WRITTEN)
        raise OSError(error.errno, f"{_NOT_WRITTEN}{reason}", str(final)) from error


def create_folder(folder: Path) -> None:
    """Create a folder and its parents if they are missing, for their owner only if `private_files` is set."""
    if folder.is_dir():
        return
    for path in reversed([folder, *folder.parents]):
        if not path.exists():
            path.mkdir(mode=0o700 if private_files.get() else 0o777, exist_ok=True)


def create_parent(path: Path) -> None:
    """Create the folder of a file like `create_folder`; an `OSError` names the file."""
    try:
        create_folder(path.parent)
    except OSError as error:
        raise OSError(error.errno, f"{_NOT_WRITTEN}{error.strerror}", str(path)) from error


def open_private(path: Path | str, flags: int) -> int:
    """Open a file descriptor as `opener` of `open`; with `private_files`, only the owner can read a new file."""
    return os.open(path, flags, 0o600 if private_files.get() else 0o666)


@contextmanager
def open_atomic(path: Path | str, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file next to `path` for writing, and rename it to `path` if the block ends without error.

    Missing parent folders are created.
    """
    path = Path(path)
    check_not_input(path)
    create_parent(path)
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with naming_file(path, temporary):
            # Never replaces an existing file.
            encoding = None if "b" in mode else "utf-8"
            with open(temporary, mode.replace("w", "x"), encoding=encoding, opener=open_private) as handle:
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


class CompressedRows(Sequence[dict[str, Any]]):
    """JSON objects in memory as compressed bytes, 0.7 KiB instead of 8.8 KiB for the details of RadFact.

    Each is decoded when it is read.
    """

    def __init__(self) -> None:
        self._rows: list[bytes] = []

    def append(self, row: Mapping[str, Any]) -> None:
        # JSON can hold half a surrogate pair, which UTF-8 cannot.
        self._rows.append(zlib.compress(dumps(row).encode("utf-8", "surrogatepass"), 1))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[index] for index in range(len(self))[place]]
        return json.loads(zlib.decompress(self._rows[place]).decode("utf-8", "surrogatepass"))


def write_jsonl(path: Path | str, rows: Iterable[dict[str, Any]]) -> int:
    """Write rows as JSON Lines atomically, and return their number."""
    count = 0
    with open_atomic(path) as handle:
        for row in rows:
            handle.write(dumps(row) + "\n")
            count += 1
    return count


def append_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Append rows to a JSON Lines file; they are on disk when this returns."""
    with naming_file(path), open(path, "a", encoding="utf-8", opener=open_private) as handle:
        handle.writelines(dumps(row) + "\n" for row in rows)
        handle.flush()
        os.fsync(handle.fileno())


def write_json(path: Path | str, value: Any) -> None:
    """Write one indented JSON document atomically."""
    with open_atomic(path) as handle:
        json.dump(value, handle, ensure_ascii=False, allow_nan=False, indent=2)
        handle.write("\n")


@contextmanager
def _reading(path: Path | str) -> Iterator[None]:
    """Raise an `InputError` for a file that cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise InputError("no such file", code=ErrorCode.FILE_NOT_FOUND, file=path) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", code=ErrorCode.FILE_UNREADABLE, file=path) from None


def _decode(data: bytes, path: Path | str, offset: int = 0) -> str:
    """Decode UTF-8 text at an offset of a file; a byte order mark at its begin is dropped."""
    try:
        return data.decode("utf-8" if offset else "utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text (byte {offset + error.start})"
        raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=path) from None


def read_text(path: Path | str) -> str:
    """Read a UTF-8 text file (a byte order mark is dropped, line ends become line feeds)."""
    with _reading(path):
        return _decode(Path(path).read_bytes(), path).replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path | str, *, allow_nan: bool = False) -> Any:
    """Read one JSON document.

    With `allow_nan`, NaN and infinities are null; data sets from pandas have NaN for missing values.
    """
    return parse_json(read_text(path), path, allow_nan=allow_nan)


def read_jsonl(path: Path | str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) for every line that is not blank, while the file is read."""
    return parse_rows(read_lines(path), path)


def parse_rows(lines: Iterable[str], path: Path | str, first_line: int = 1) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for lines of a JSON Lines file that are not blank."""
    for number, line in enumerate(lines, start=first_line):
        if not line.strip():
            continue
        row = parse_json(line, path, first_line=number)
        if not isinstance(row, dict):
            message = f"expected one JSON object per line, found {type(row).__name__}"
            raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path, line=number)
        yield number, row


def read_lines(path: Path | str) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file (a byte order mark is dropped), which may be larger than the memory."""
    offset = 0
    # Read as bytes: JSON strings may contain U+2028 and similar characters, which are not line ends here.
    with _reading(path), Path(path).open("rb") as handle:
        for line in handle:
            yield _decode(line, path, offset).removesuffix("\n")
            offset += len(line)


def parse_json(
    text: str, path: Path | str, *, first_line: int = 1, field: str | None = None, allow_nan: bool = False
) -> Any:
    """Parse one JSON document."""
    line, code = first_line, ErrorCode.INVALID_FORMAT
    try:
        return (_nan_decoder if allow_nan else _decoder).decode(text)
    except json.JSONDecodeError as error:
        message, line = f"not JSON: {error.msg} at column {error.colno}", first_line + error.lineno - 1
    except _DuplicateKeyError:
        key, offset = _find_duplicate_key(text)
        message, code = "duplicate key of an object, expected one value", ErrorCode.DUPLICATE
        line += text.count("\n", 0, offset)
        field = f"{field}.{field_name(key)}" if field else field_name(key)
    except (ValueError, RecursionError) as error:
        # NaN, or integers of thousands of digits and nesting of thousands of levels, which Python refuses.
        message = f"not JSON that can be read: {error}"
    raise InputError(message, code=code, file=path, line=line, field=field)


class _DuplicateKeyError(Exception): ...


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _DuplicateKeyError
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"expected a finite number or null, found {name}")


# Created once: json.loads would create one for each line, which takes half of its time.
_decoder = json.JSONDecoder(object_pairs_hook=_unique_object, parse_constant=_refuse_constant)
_nan_decoder = json.JSONDecoder(object_pairs_hook=_unique_object, parse_constant=lambda _: None)


def _find_duplicate_key(text: str) -> tuple[str, int]:
    """Return the first duplicate key of a valid document that has one, and its offset."""
    objects: list[set[str]] = []
    for token in _TOKEN.finditer(text):
        if token[0] == "{":
            objects.append(set())
        elif token[0] == "}":
            objects.pop()
        elif token["colon"] is not None:
            key = json.loads(token[0].removesuffix(token["colon"]))
            if key in objects[-1]:
                return key, token.start()
            objects[-1].add(key)
    raise AssertionError("no duplicate key")
