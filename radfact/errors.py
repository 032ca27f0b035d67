"""Errors that are meant for the person at the keyboard, and the exit codes that go with them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from pathlib import Path
from typing import TypeVar


class ExitCode(IntEnum):
    """Exit codes of the commands `radfact` and `maira`."""

    DONE = 0
    FAILED = 1
    WRONG_INPUT = 2
    SAMPLES_LEFT_OUT = 3


_BRIEF = 80
_SHOWN_IDS = 5
_TURNING = ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")
"""Bidirectional classes of the characters that turn the text around them."""


def for_terminal(text: str) -> str:
    """A text from anywhere as a terminal may have it: what would steer it or turn its letters is spelt out."""
    return "".join(_spelt(letter) if _steers(letter) else letter for letter in text)


def _steers(letter: str) -> bool:
    is_control = unicodedata.category(letter) in ("Cc", "Cs") and letter not in "\n\t"
    return is_control or unicodedata.bidirectional(letter) in _TURNING


def _spelt(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def brief(value: object) -> str:
    """A value as Python writes it, its middle left out where it is too long for a line of an error."""
    text = repr(value)
    return text if len(text) <= _BRIEF else f"{text[: _BRIEF - 4]}...{text[-1]}"


def some_of(ids: Sequence[str]) -> str:
    """The first of some ids, as a line that has counted them shows them."""
    return ", ".join(ids[:_SHOWN_IDS]) + (", ..." if len(ids) > _SHOWN_IDS else "")


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """What helps whoever gave a name that there is not.

    Args:
        name: as it was given.
        known: those that there are.
        otherwise: what to say where none of them is like it.
    """
    close = get_close_matches(name, [*known], n=1)
    return f"did you mean '{close[0]}'?" if close else otherwise


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


_PlaceT = TypeVar("_PlaceT", int, str)


def note_id(seen: dict[str, _PlaceT], key: str, place: _PlaceT, *, file: Path | str, field: str = "sample_id") -> None:
    """Note where an id stands.

    Args:
        seen: where those before it do.
        key: the id.
        place: its line, or the path of the object that has it, as in `images[3]`.
        file: that it is read from.
        field: that holds it there.

    Raises:
        InputError: it stands elsewhere already.
    """
    first = seen.setdefault(key, place)
    if first == place:
        return
    if isinstance(place, str):
        raise InputError(
            f"'{key}' stands twice, first at {first}; ids must be unique", file=file, field=f"{place}.{field}"
        )
    message = f"'{key}' stands twice, first at line {first}; ids must be unique"
    raise InputError(message, file=file, line=place, field=field)


class RunFailed(RuntimeError):
    """A run that could not be finished for a reason outside its input; what was done so far is on disk."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A question to a judge or a language model that stayed without a valid answer, and why."""

    reason: str
