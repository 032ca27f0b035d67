"""User-facing errors, their codes, and the exit codes of the commands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any


class ExitCode(IntEnum):
    """Exit codes of the commands `radfact` and `maira`."""

    SUCCESS = 0
    FAILURE = 1
    INVALID_INPUT = 2
    INCOMPLETE = 3


class ErrorCode(StrEnum):
    """Stable codes of errors. Messages may change between releases; a code keeps its meaning."""

    # Input files
    FILE_NOT_FOUND = "file-not-found"
    FILE_UNREADABLE = "file-unreadable"
    INVALID_FORMAT = "invalid-format"
    UNSUPPORTED_VERSION = "unsupported-version"
    MISSING_FIELD = "missing-field"
    UNKNOWN_FIELD = "unknown-field"
    INVALID_VALUE = "invalid-value"
    DUPLICATE = "duplicate"
    MISMATCH = "mismatch"
    EMPTY_INPUT = "empty-input"
    # Options and names
    INVALID_OPTION = "invalid-option"
    MISSING_OPTION = "missing-option"
    CONFLICTING_OPTIONS = "conflicting-options"
    UNKNOWN_NAME = "unknown-name"
    MISSING_REQUIREMENT = "missing-requirement"
    INVALID_PLUGIN = "invalid-plugin"
    OUTPUT_CONFLICT = "output-conflict"
    # Runs
    RUN_FAILED = "run-failed"
    NOTHING_SCORED = "nothing-scored"
    JUDGE_FAILED = "judge-failed"
    SERVER_UNAVAILABLE = "server-unavailable"
    CHECKSUM_MISMATCH = "checksum-mismatch"
    LOCKED = "locked"
    INTERRUPTED = "interrupted"
    OUT_OF_MEMORY = "out-of-memory"
    WRITE_FAILED = "write-failed"


EMPTY_TEXT = "expected a string, found an empty one; a missing value is null"
"""Message about an empty text in a manifest: a missing report is not an empty report."""
_BRIEF = 80
_SHORT, _COLUMN = 24, 40
"""Characters of a number or name that is quoted, and of a column's name."""
_SHOWN_IDS = 5
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
"""Control characters except tabs and line ends, halves of surrogate pairs, and bidirectional controls."""


def escape_for_terminal(text: str) -> str:
    """Return text that is safe to print: control and bidirectional characters are escaped."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def brief(value: object) -> str:
    """Return the `repr` of a value, shortened in the middle to fit into one line of an error."""
    text = repr(value)
    return text if len(text) <= _BRIEF else f"{text[: _BRIEF - 4]}...{text[-1]}"


def describe(value: object) -> str:
    """Return a value of an input file for an error: a number, or the kind of all else, since texts are patient data."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float) and len(text := str(value)) <= _SHORT:
        return text
    if isinstance(value, str):
        return f"a text of {len(value)} characters" if value else "an empty text"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)} items"
    return "an object" if isinstance(value, Mapping) else f"a value of type {type(value).__name__}"


def describe_choice(value: object) -> str:
    """Return a value where a name or a number is expected: quoted if it is one word, otherwise as `describe`."""
    is_word = isinstance(value, str) and 0 < len(value) <= _SHORT and not re.search(r"\s", value)
    return repr(value) if is_word else describe(value)


def field_name(name: str) -> str:
    """Return the name of a field or column of a file for an error; what reads as a sentence is not shown."""
    is_sentence = len(name) > _COLUMN or name.endswith(".")
    return f"(a name of {len(name)} characters)" if is_sentence else name


def list_columns(names: Sequence[str]) -> str:
    """Return the first columns of a table for an error; a table without a header may have reports in this place."""
    if not names:
        return "no header"
    if any(field_name(name) != name for name in names):
        return f"{len(names)} columns without names"
    return ", ".join(f"'{name}'" for name in names[:8]) + (", ..." if len(names) > 8 else "")


def list_some(ids: Sequence[str]) -> str:
    """Return the first few ids, joined by commas."""
    return ", ".join(ids[:_SHOWN_IDS]) + (", ..." if len(ids) > _SHOWN_IDS else "")


def suggest_name(name: str, known: Iterable[str], otherwise: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, [*known], n=1)
    return f"did you mean '{close[0]}'?" if close else otherwise


class InputError(ValueError):
    """Input or options that cannot be used as they are.

    `str(error)` is one line in the form `FILE:LINE: FIELD: message`, with the parts that are known.

    Attributes:
        message: what was expected and what was found, without the location.
        code: stable code of the error.
        file: file that holds the error.
        line: line in that file, from 1.
        field: path of the field, column or option, as in `boxes[0].x_min`.
    """

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode = ErrorCode.INVALID_VALUE,
        file: Path | str | None = None,
        line: int | None = None,
        field: str | None = None,
    ) -> None:
        self.message, self.code, self.file, self.line, self.field = message, code, file, line, field
        place = "" if file is None else str(file)
        if line is not None:
            place = f"{place}:{line}" if place else f"line {line}"
        super().__init__(": ".join(part for part in (place, field, message) if part))


def option_error(message: str, field: str, code: ErrorCode = ErrorCode.INVALID_OPTION) -> InputError:
    return InputError(message, code=code, field=field)


def check_unique_id(
    seen: dict[str, Any], key: str, place: int | str, *, file: Path | str | None, field: str = "sample_id"
) -> None:
    """Record the line or the path at which an id occurs, and refuse a duplicate."""
    first = seen.setdefault(key, place)
    if first == place:
        return
    line = place if isinstance(place, int) else None
    message = f"duplicate id '{key}', first at {'' if line is None else 'line '}{first}"
    path = f"{place}.{field}" if line is None else field
    raise InputError(message, code=ErrorCode.DUPLICATE, file=file, line=line, field=path)


class RunError(RuntimeError):
    """A run that cannot finish for a reason outside its input. Completed work is on disk.

    Attributes:
        code: stable code of the error.
    """

    def __init__(self, message: str, *, code: ErrorCode = ErrorCode.RUN_FAILED) -> None:
        self.message, self.code = message, code
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Failure:
    """A query to a judge or a language model without a valid answer, and the reason."""

    reason: str
