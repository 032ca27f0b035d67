"""Corrections of a report line by line, as FineRadScore asks for them: read from JSON, and applied."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radfact.llm.response_text import EMPTY_WORDS, bodies
from radfact.records import normalised_text

SEVERITIES: Mapping[str, int] = {
    "no error": 0,
    "not actionable": 1,
    "invalid comparison": 1,
    "actionable nonurgent error": 2,
    "urgent error": 3,
    "emergent error": 4,
}
"""How severe an error is (paper 001, sections 4.2 and 6.4)."""

CATEGORY_NAMES: Mapping[str, str] = {
    "a": "False prediction of finding",
    "b": "Omission of finding",
    "c": "Incorrect location/position of finding",
    "d": "Incorrect severity of finding",
    "e": "Mention of comparison that is not present in the reference impression",
    "f": "Omission of comparison describing a change from a previous study",
}
"""ReXVal's categories in FineRadScore's words, by the letters that GREEN has for them."""

_DELETE = re.compile(r"\W*deleted?(?:\s+(?:this\s+|the\s+)?line)?\W*|.*\[\s*deleted?\s*\].*", re.IGNORECASE | re.DOTALL)
_KEEP = re.compile(r"\W*no[\W_]*edits?\W*", re.IGNORECASE)
_LINE_ID = re.compile(r"\W*(?:line\s*)?\W*(\d+)\W*", re.IGNORECASE)
_NO_LINE = re.compile(
    r"\W*(?:none|null|insert(?:ion|ed)?s?|new)(?:[\W_]*(?:line|sentence))?[\W_]*\d*\W*", re.IGNORECASE
)
_OBJECT_BEGINS = re.compile(r"[{\[][\s{\[]*[\"']")
_NOTHING_ELSE = re.compile(r"\W*(?:(?:the\s+)?(?:corrections?|answer|output|result|json)\W*)*", re.IGNORECASE)
"""What may stand around an object that has nothing in it: among other words it is a figure of speech."""
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
_GRADE = re.compile(r"([0-4])(?:\.0+)?")
_LETTERS = re.compile(r"[^a-z]")
_NEAR_SEVERITY = {
    _LETTERS.sub("", key): value
    for key, value in {
        **SEVERITIES,
        "none": 0,
        "not actionable error": 1,
        "nonactionable": 1,
        "non actionable error": 1,
        "actionable nonurgent": 2,
        "actionable non urgent finding": 2,
        "nonurgent error": 2,
        "urgent": 3,
        "emergent": 4,
    }.items()
}
_NEAR_CATEGORY = {
    "a": ("falseprediction",),
    "b": ("omissionoffinding", "omissionofafinding"),
    "c": ("incorrectlocation", "incorrectposition"),
    "d": ("incorrectseverity",),
    "e": ("mentionof", "mentioningof"),
    "f": ("omissionofcomparison", "omissionofacomparison"),
}


@dataclass(frozen=True, slots=True)
class Correction:
    """One correction.

    Attributes:
        line: its number from 0 among the candidate's lines; None for a line that is inserted.
        text: what the line should be; None where it is deleted.
        severity: 1 to 4.
        comment: why.
        categories: letters of `CATEGORY_NAMES`.
    """

    line: int | None
    text: str | None
    severity: int
    comment: str = ""
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Corrections:
    """All corrections of a report's lines."""

    lines: tuple[str, ...]
    items: tuple[Correction, ...] = ()

    @property
    def severities(self) -> list[int]:
        """Of every correction."""
        return [one.severity for one in self.items]

    @property
    def inserted(self) -> list[str]:
        """The lines that are added."""
        return [one.text for one in self.items if one.line is None and one.text is not None]

    def by_line(self) -> dict[int, Correction]:
        """The corrections of the lines that are there."""
        return {one.line: one for one in self.items if one.line is not None}

    def applied(self) -> str:
        """The corrected report; insertions, whose place the answer does not say, stand at its end."""
        changed = {number: one.text for number, one in self.by_line().items()}
        kept = [changed.get(number, line) for number, line in enumerate(self.lines)]
        return " ".join([line for line in kept if line is not None] + self.inserted)

    def as_record(self) -> dict[str, Any]:
        """As JSON values, for a person to read."""
        rows = [
            {
                "line": one.line,
                "was": None if one.line is None else self.lines[one.line],
                "correction": one.text,
                "severity": one.severity,
                "comment": one.comment,
                "categories": list(one.categories),
            }
            for one in self.items
        ]
        return {"corrections": rows, "corrected": self.applied()}


def is_deletion(said: str) -> bool:
    """Whether a correction takes its line out: `[delete]`, in whatever case and with or without brackets."""
    return _DELETE.fullmatch(said) is not None


def is_kept(said: str) -> bool:
    """Whether a correction says that its line stays: `[no edit]`, written as freely."""
    return _KEEP.fullmatch(said) is not None


class _Object(list[tuple[str, Any]]):
    """A JSON object with all its keys, also those that come twice, as "None" does."""


def read_corrections(text: str, lines: Sequence[str]) -> Corrections:
    """Read an answer: a JSON object by line number, "None" (once or often) for insertions, `[delete]`.

    Correction and severity are read in either order, as the second published example has them swapped.

    Args:
        text: the answer, fenced or with words around it.
        lines: of the candidate.

    Raises:
        ValueError: there is no such object, or what is wrong with an entry.
    """
    entries = _entries(text)
    if entries is None:
        raise ValueError("expected one JSON object by line number, {} where nothing is to be corrected")
    found: list[Correction] = []
    of_lines: dict[int, Correction] = {}
    for key, value in entries:
        line = _line(key, len(lines))
        one = _correction(key, value, line, None if line is None else lines[line])
        if one is None:
            continue
        if line is None:
            found.append(one)
        elif line not in of_lines:
            found.append(of_lines.setdefault(line, one))
        elif of_lines[line] != one:
            raise ValueError(f"line {line} is corrected twice")
    return Corrections(tuple(lines), tuple(found))


def _entries(text: str) -> list[tuple[str, Any]] | None:
    """What is said by line; None where nothing is."""
    *fenced, everything = bodies(text)
    for said in ("\n".join(fenced), everything):
        objects, around = _objects(said)
        found = [entries for entries in objects if entries]
        if found:
            return _merged(found)
        if objects and _NOTHING_ELSE.fullmatch(around):
            return []
    return None


def _objects(text: str) -> tuple[list[list[tuple[str, Any]]], str]:
    """Entries of every object in a text that may be the one that was asked for, and the text around them.

    Raises:
        ValueError: an object has no end, or is no JSON.
    """
    found, around = [], ""
    while match := re.search(r"[{\[]", text):
        around, text = around + text[: match.start()], text[match.start() :]
        data, after = _decoded(text)
        if (entries := _by_line(data)) is not None:
            found.append(list(_flat(entries)))
            text = after
            continue
        if data is None and _OBJECT_BEGINS.match(text):
            raise ValueError("an object is cut off, or no JSON")
        around, text = around + text[0], text[1:]
    return found, around + text


def _decoded(text: str) -> tuple[Any, str]:
    """The value that a text begins with, None without one, and what follows it."""
    decoder = json.JSONDecoder(object_pairs_hook=_Object)
    for tried in (text, _TRAILING_COMMA.sub(r"\1", text)):
        try:
            data, end = decoder.raw_decode(tried)
        except (ValueError, RecursionError):
            continue
        return data, tried[end:]
    return None, text


def _merged(found: Sequence[list[tuple[str, Any]]]) -> list[tuple[str, Any]]:
    """One object, or the entries of several that are of different lines, as where a model writes one a line."""
    ids = [{match[1] for key, _ in one if (match := _LINE_ID.fullmatch(key))} for one in found]
    # Insertions alone, twice the same, may be one or two.
    if all(one == found[0] for one in found) and (len(found) == 1 or ids[0]):
        return found[0]
    entries = [entry for one in found for entry in one]
    lines = [line for one in ids for line in one]
    if (
        any(found.count(one) > 1 for one in found)
        or len(set(lines)) < len(lines)
        or not all(_is_id(key) for key, _ in entries)
    ):
        raise ValueError("has several objects that differ; give one")
    return entries


def _by_line(data: Any) -> list[tuple[str, Any]] | None:
    """The entries of what may be the object that was asked for, or of the one inside it."""
    if isinstance(data, _Object):
        if all(isinstance(value, _Object | list | None) for _, value in data):
            inner = data[0][1] if len(data) == 1 and not _is_id(data[0][0]) else None
            return data if inner is None else _by_line(inner)
        return None
    if data == []:
        return []
    if isinstance(data, list) and all(isinstance(item, _Object) for item in data):
        pairs = [(_field(item, "id", "line", "lineid"), item) for item in data]
        return [(str(key), item) for key, item in pairs] if all("correct" in str(item) for item in data) else None
    return None


def _is_id(key: str) -> bool:
    return bool(_LINE_ID.fullmatch(key) or _NO_LINE.fullmatch(key))


def _flat(entries: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """One entry a correction: insertions may come as a list under one key."""
    for key, value in entries:
        if isinstance(value, list) and not isinstance(value, _Object):
            yield from ((key, item) for item in value)
        elif value:
            yield key, value


def _line(key: str, count: int) -> int | None:
    if _NO_LINE.fullmatch(key):
        return None
    match = _LINE_ID.fullmatch(key)
    if match is None or not int(match[1]) < count:
        raise ValueError(f"'{key:.40}' is no line; use the numbers 0 to {count - 1}, or \"None\" for an insertion")
    return int(match[1])


def _correction(key: str, value: Any, line: int | None, was: str | None) -> Correction | None:
    """One entry; None where it says that there is no error."""
    if not isinstance(value, _Object):
        raise ValueError(f"'{key}' is no object with corrections, clinical severity, comments and error category")
    text, graded = (
        _field(value, "corrections", "correction", "correctedline"),
        _field(value, "clinicalseverity", "severity"),
    )
    if _severity(graded) is None and _severity(text) is not None:
        text, graded = graded, text
    severity = _severity(graded)
    said = text.strip() if isinstance(text, str) else ""
    if severity == 0 or (line is None and said.lower() in EMPTY_WORDS):
        return None
    if severity is None:
        raise ValueError(f"the clinical severity of '{key}' is neither 0 to 4 nor one of {', '.join(SEVERITIES)}")
    comment = _field(value, "comments", "comment")
    rest = (severity, comment.strip() if isinstance(comment, str) else "", _categories(value))
    if line is not None and is_deletion(said):
        return Correction(line, None, *rest)
    if said.lower() in EMPTY_WORDS or is_deletion(said):
        raise ValueError(f"the correction of '{key}' is empty; give the whole line, or [delete]")
    if is_kept(said) or (was is not None and normalised_text(said) in (normalised_text(was), "no change", "unchanged")):
        raise ValueError(f"'{key}' is graded but not changed; leave it out if it is right")
    return Correction(line, said, *rest)


def _field(value: _Object, *names: str) -> Any:
    return next((item for key, item in value if _LETTERS.sub("", key.lower()) in names), None)


def _severity(value: Any) -> int | None:
    """0 to 4, in words or as a number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if match := _GRADE.fullmatch(str(value).strip()):
        return int(match[1])
    return _NEAR_SEVERITY.get(_LETTERS.sub("", value.lower())) if isinstance(value, str) else None


def _categories(value: _Object) -> tuple[str, ...]:
    """Letters of the categories that are known; a model's own are dropped."""
    given = _field(value, "errorcategory", "errorcategories", "category", "categories")
    named = given if isinstance(given, list) else [given]
    letters = {letter for one in named if (letter := _category(one))}
    return tuple(letter for letter in CATEGORY_NAMES if letter in letters)


def _category(name: Any) -> str | None:
    text = str(name).strip()
    if re.fullmatch(r"[1-6]\W*", text):
        return "abcdef"[int(text[0]) - 1]
    plain = _LETTERS.sub("", text.lower())
    return next((letter for letter, starts in _NEAR_CATEGORY.items() if plain.startswith(starts)), None)
