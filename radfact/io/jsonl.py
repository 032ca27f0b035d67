"""Atomic writing of text files, and reading of JSON and JSON Lines with the line of every error."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import zlib
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

from radfact.errors import ErrorCode, InputError, field_name

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"(?P<colon>\s*:)?|[{}]|-?Infinity')
"""A text, a key with its colon, the begin or end of an object, or an infinity in valid JSON."""
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]|(?P<half>u[dD][89a-fA-F])|.)")
"""An escape in valid JSON: both halves of a surrogate pair, one half, or something else."""
WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""Errors of writing to an open file, for which Python does not name the file."""
_NOT_WRITTEN = "cannot be written: "
_LINE_BYTES = 64 << 20
"""Size from which a line of JSON Lines is refused: a damaged file must not fill the memory."""

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
    """Name `path` in errors of the operating system about it, its folder, or about `temporary` and the files in it."""
    try:
        yield
    except OSError as error:
        name = None if error.filename is None else Path(os.fsdecode(error.filename))
        if name is not None and temporary is not None and name.is_relative_to(temporary):
            final = path / name.relative_to(temporary)
        elif error.errno in WRITE_ERRORS if name is None else name in path.parents:
            final = path
        else:
            raise
        reason = str(error.strerror).removeprefix(_NOT_WRITTEN)
        raise OSError(error.errno, f"{_NOT_WRITTEN}{reason}", str(final)) from error


def create_folder(folder: Path) -> None:
    """Create a folder and its parents if they are missing, for their owner only if `private_files` is set."""
    for path in reversed([folder, *folder.parents]):
        if not path.exists():
            path.mkdir(mode=0o700 if private_files.get() else 0o777, exist_ok=True)


def open_private(path: Path | str, flags: int) -> int:
    """Open a file descriptor as `opener` of `open`; with `private_files`, only the owner can read a new file."""
    return os.open(path, flags, 0o600 if private_files.get() else 0o666)


@contextmanager
def open_atomic(path: Path | str, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file next to `path`, in a new folder if needed, and rename it if the block has no error."""
    path = Path(path)
    check_not_input(path)
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with naming_file(path, temporary):
            create_folder(path.parent)
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
    """JSON objects in memory as compressed bytes, decoded when they are read: 0.7 KiB instead of 8.8 for RadFact."""

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
    with open_atomic(path) as handle:
        return sum(1 for row in rows if handle.write(dumps(row) + "\n"))


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
def reading(path: Path | str) -> Iterator[None]:
    """Raise an `InputError` for a file that cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise InputError("no such file", code=ErrorCode.FILE_NOT_FOUND, file=path) from None
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=path) from None


def _decode(data: bytes, path: Path | str, offset: int = 0) -> str:
    """Decode UTF-8 text at an offset of a file; a byte order mark at its begin is dropped."""
    try:
        return data.decode("utf-8" if offset else "utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text (byte {offset + error.start})"
        raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=path) from None


def read_text(path: Path | str) -> str:
    """Read a UTF-8 text file (a byte order mark is dropped, line ends become line feeds)."""
    with reading(path):
        return _decode(Path(path).read_bytes(), path).replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path | str, decoder: json.JSONDecoder | None = None) -> Any:
    """Read one JSON document; NaN, which pandas writes for a missing value, is null."""
    return parse_json(read_text(path), path, decoder=decoder)


def read_jsonl(path: Path | str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) for every line that is not blank, while the file is read."""
    return parse_rows(read_lines(path, _LINE_BYTES), path)


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


def read_lines(path: Path | str, most: int = -1) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file (a byte order mark is dropped), which may be larger than the memory."""
    offset = 0
    # Read as bytes: JSON strings may contain U+2028 and similar characters, which are not line ends here.
    with reading(path), Path(path).open("rb") as handle:
        for number, line in enumerate(iter(lambda: handle.readline(most), b""), start=1):
            if len(line) == most:
                message = f"expected lines of less than {most >> 20} MB, found a longer one"
                raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path, line=number)
            yield _decode(line, path, offset).removesuffix("\n")
            offset += len(line)


def parse_json(
    text: str, path: Path | str, *, first_line: int = 1, field: str | None = None, decoder: Any = None
) -> Any:
    line, code, offset = first_line, ErrorCode.INVALID_FORMAT, None
    try:
        value = (decoder or _decoder).decode(text)
        # Fast for the texts without such an escape, which are most.
        escapes = _ESCAPE.finditer(text) if "\\ud" in text or "\\uD" in text else ()
        if (offset := next((escape.start() for escape in escapes if escape["half"]), None)) is None:
            return value
        message, code = "expected a text of Unicode characters, found half of a surrogate pair", ErrorCode.INVALID_VALUE
    except json.JSONDecodeError as error:
        message, line = f"not JSON: {error.msg} at column {error.colno}", first_line + error.lineno - 1
    except _DuplicateKeyError:
        message, code = "duplicate key of an object, expected one value", ErrorCode.DUPLICATE
        seen = dict[tuple[int, str], int]()
        offset = next(at for keys, object_, at in _iter_keys(text) if seen.setdefault((object_, keys[-1]), at) != at)
    except KeyError as error:
        message = f"expected a finite number or null, found {error.args[0]}"
        offset = next(token.start() for token in _TOKEN.finditer(text) if token[0] == error.args[0])
    except (ValueError, RecursionError) as error:
        # Integers of thousands of digits and nesting of thousands of levels, which Python refuses.
        message = f"not JSON that can be read: {error}"
    if offset is not None:
        line += text.count("\n", 0, offset)
        *_, key = ("", *(path[-1] for path, _, begin in _iter_keys(text) if begin <= offset))
        field = ".".join(filter(None, (field, field_name(key))))
    raise InputError(message, code=code, file=path, line=line, field=field)


class _DuplicateKeyError(Exception): ...


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _DuplicateKeyError
    return value


# Created once: json.loads would create one for each line, which takes half of its time.
_decoder = json.JSONDecoder(object_pairs_hook=_unique_object, parse_constant={"NaN": None}.__getitem__)
_ANY = {"NaN": None, "Infinity": math.inf, "-Infinity": -math.inf}
any_number = json.JSONDecoder(object_pairs_hook=_unique_object, parse_constant=_ANY.get)
"""Decoder that also reads infinity."""
KeyLines = Mapping[tuple[str, ...], int]


def key_lines(text: str) -> KeyLines:
    """Return the line of each key of a valid document of nested objects."""
    ends = [end.start() for end in re.finditer("\n", text)]
    return {path: bisect(ends, offset) + 1 for path, _, offset in _iter_keys(text)}


def _iter_keys(text: str) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """Yield the path of each key of a valid document, the number of its object, and its offset."""
    path, objects, count = list[str](), list[int](), 0
    for token in _TOKEN.finditer(text):
        if token[0] == "{":
            path.append("")
            objects.append(count := count + 1)
        elif token[0] == "}":
            path.pop()
            objects.pop()
        elif token["colon"] is not None:
            path[-1] = json.loads(token[0].removesuffix(token["colon"]))
            yield tuple(path), objects[-1], token.start()
