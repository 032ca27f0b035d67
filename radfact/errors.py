"""Errors that are meant for the person at the keyboard, and the exit codes that go with them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    """Exit codes of the commands `radfact` and `maira`."""

    DONE = 0
    FAILED = 1
    WRONG_INPUT = 2
    SAMPLES_LEFT_OUT = 3


class InputError(ValueError):
    """Input or options that cannot be used as they are.

    `str(error)` is one line: where it is wrong (file, line, field), what is wrong and what would be right.
    """

    def __init__(
        self, message: str, *, file: Path | str | None = None, line: int | None = None, field: str | None = None
    ) -> None:
        self.message, self.file, self.line, self.field = message, file, line, field
        where = "" if file is None else str(file)
        where += "" if line is None else f", line {line}"
        where += "" if field is None else f"{', ' if where else ''}field '{field}'"
        super().__init__(f"{where}: {message}" if where else message)


class RunFailed(RuntimeError):
    """A run that could not be finished for a reason outside its input; what was done so far is on disk."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A question to a judge or a language model that stayed without a valid answer, and why."""

    reason: str
