"""Corrections of a report line by line, as FineRadScore requests them, and the parser of their JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radfact.llm.response_text import EMPTY_WORDS, bodies
from radfact.records import normalize_text

SEVERITIES: Mapping[str, int] = {
    "no error": 0,
    "not actionable": 1,
    "invalid comparison": 1,
    "actionable nonurgent error": 2,
    "urgent error": 3,
    "emergent error": 4,
}
"""Clinical severities. Source: FineRadScore, sections 4.2 and 6.4."""

CATEGORY_NAMES: Mapping[str, str] = {
    "a": "False prediction of finding",
    "b": "Omission of finding",
    "c": "Incorrect location/position of finding",
    "d": "Incorrect severity of finding",
    "e": "Mention of comparison that is not present in the reference impression",
    "f": "Omission of comparison describing a change from a previous study",
}
"""FineRadScore's names of the categories in `ERROR_CATEGORIES`."""

DELETION = re.compile(
    r"\W*deleted?(?:\s+(?:this\s+|the\s+)?line)?\W*|.*\[\s*deleted?\s*\].*", re.IGNORECASE | re.DOTALL
)
"""A correction that deletes its line: `[delete]` in any case, with or without brackets."""
NO_EDIT = re.compile(r"\W*no[\W_]*edits?\W*", re.IGNORECASE)
"""A correction that keeps its line: `[no edit]`, likewise."""
_INSERTION_ID = r"(?:none|null|insert(?:ion|ed)?s?|new)(?:[\W_]*(?:line|sentence))?[\W_]*\d*"
_ID = re.compile(rf"\W*(?:(?:line\s*)?\W*(?P<line>\d+)|{_INSERTION_ID})\W*", re.IGNORECASE)
_OBJECT_START = re.compile(r"[{\[][\s{\[]*[\"']")
_OUTER_BRACKETS = re.compile(r"(?:[{\[]\s*)+(?=[{\[]\s*[{\[])")
_LABEL = re.compile(r"\W*(?:(?:the\s+)?(?:corrections?|answer|output|result|json)\W*)*", re.IGNORECASE)
"""What may surround an empty object; in a sentence, "{}" states nothing about the report."""
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
_GRADE = re.compile(r"([0-4])(?:\.0+)?")
_NOUN = re.compile(r"(?<!^no)(?:error|finding)s?$")
_CATEGORY = re.compile(
    r"(?P<a>falseprediction)|(?P<b>omissionof(?:a)?finding)|(?P<c>incorrect(?:location|position))|"
    r"(?P<d>incorrectseverity)|(?P<e>mention(?:ing)?of)|(?P<f>omissionof(?:a)?comparison)"
)


def _letters(text: str) -> str:
    return re.sub(r"[^a-z]", "", text.lower())


_SEVERITY_BY_LETTERS = {
    **{_NOUN.sub("", _letters(name)): severity for name, severity in SEVERITIES.items()},
    **{"none": 0, "nonactionable": 1, "nonurgent": 2},
}


@dataclass(frozen=True, slots=True)
class Correction:
    """A correction of one line with its severity, 1 to 4, and letters of `ERROR_CATEGORIES`."""

    line: int | None  # index of the candidate's line, from 0; None for an insertion
    text: str | None  # the corrected line; None for a deletion
    severity: int
    comment: str = ""
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Corrections:
    """All corrections of a report, which consists of `lines`."""

    lines: tuple[str, ...]
    items: tuple[Correction, ...] = ()

    @property
    def severities(self) -> list[int]:
        return [correction.severity for correction in self.items]

    @property
    def insertions(self) -> list[str]:
        return [item.text for item in self.items if item.line is None and item.text is not None]

    def by_line(self) -> dict[int, Correction]:
        return {item.line: item for item in self.items if item.line is not None}

    def corrected_report(self) -> str:
        """Apply the corrections. Insertions go to the end, because a response does not tell their place."""
        changes = {line: correction.text for line, correction in self.by_line().items()}
        texts = [changes.get(index, line) for index, line in enumerate(self.lines)]
        return " ".join([text for text in texts if text is not None] + self.insertions)

    def as_record(self) -> dict[str, Any]:
        rows = []
        for item in self.items:
            edit = {"was": None if item.line is None else self.lines[item.line], "correction": item.text}
            details = {"severity": item.severity, "comment": item.comment, "categories": list(item.categories)}
            rows.append({"line": item.line, **edit, **details})
        return {"corrections": rows, "corrected": self.corrected_report()}


class _JSONObject(list[tuple[str, Any]]):
    """A JSON object as a list of keys and values, because the key "None" may occur more than once."""

    def field(self, *names: str) -> Any:
        """Return the value of the first key that consists of one of these letter sequences; None without any."""
        return next((value for key, value in self if _letters(key) in names), None)


_Entries = list[tuple[str, Any]]


def parse_corrections(text: str, lines: Sequence[str]) -> Corrections:
    """Parse a JSON object by line number, with "None" for insertions; correction and severity may be swapped."""
    items: dict[int | str, Correction] = {}
    for index, (key, value) in enumerate(_find_entries(text)):
        if (item := _parse_correction(key, value, lines)) is not None:
            # Several insertions may be equal.
            place = f"insertion {index}" if item.line is None else item.line
            if items.setdefault(place, item) != item:
                raise ValueError(f"line {item.line} is corrected twice")
    return Corrections(tuple(lines), tuple(items.values()))


def _find_entries(text: str) -> _Entries:
    """Return the entries of the objects in the fences, else of those in the whole text."""
    *fenced, whole = bodies(text)
    for body in ("\n".join(fenced), whole):
        objects, surroundings = _find_objects(body)
        if filled := [entries for entries in objects if entries]:
            return _merge(filled)
        if objects and _LABEL.fullmatch(surroundings):
            return []
    raise ValueError("expected one JSON object by line number, {} where nothing is to be corrected")


def _find_objects(text: str) -> tuple[list[_Entries], str]:
    """Return the entries of every object of corrections in a text, and the text around the objects."""
    objects, surroundings = [], ""
    while match := re.search(r"[{\[]", text):
        surroundings, text = surroundings + text[: match.start()], text[match.start() :]
        data, rest = _decode(text)
        if (entries := _entries_of(data)) is not None:
            objects.append(entries)
            text = rest
            continue
        if data is None and _OBJECT_START.match(text):
            raise ValueError("an object is cut off, or no JSON")
        # Of brackets in a row only the last two can begin an object of corrections, or a list of such objects.
        end = outer.end() if (outer := _OUTER_BRACKETS.match(text)) else 1
        surroundings, text = surroundings + text[:end], text[end:]
    return objects, surroundings + text


def _decode(text: str) -> tuple[Any, str]:
    """Return the JSON value that a text begins with (None if there is none) and the text after it."""
    decoder = json.JSONDecoder(object_pairs_hook=_JSONObject)
    for candidate in (text, _TRAILING_COMMA.sub(r"\1", text)):
        try:
            data, end = decoder.raw_decode(candidate)
        except (ValueError, RecursionError):
            continue
        return data, candidate[end:]
    return None, text


def _entries_of(data: Any) -> _Entries | None:
    """Return the entries of a value, or of the object in it, if it has the form of corrections."""
    if isinstance(data, _JSONObject):
        if not all(isinstance(value, _JSONObject | list | None) for _, value in data):
            return None
        inner = data[0][1] if len(data) == 1 and not _ID.fullmatch(data[0][0]) else None
        if inner is not None:
            return _entries_of(inner)
        # A key may hold a list of insertions, or null.
        values = [(key, value if type(value) is list else [value] if value else []) for key, value in data]
        return [(key, item) for key, items in values for item in items]
    if isinstance(data, list) and all(isinstance(item, _JSONObject) for item in data):
        is_corrections = all("correct" in str(item) for item in data)
        return [(str(item.field("id", "line", "lineid")), item) for item in data] if is_corrections else None
    return None


def _merge(objects: Sequence[_Entries]) -> _Entries:
    """Return the entries of one object, or of several objects about different lines."""
    line_ids = [{match["line"] for key, _ in entries if (match := _ID.fullmatch(key))} - {None} for entries in objects]
    # Two equal objects with insertions alone may mean one insertion or two.
    if all(entries == objects[0] for entries in objects) and (len(objects) == 1 or line_ids[0]):
        return objects[0]
    has_duplicates = any(objects.count(entries) > 1 for entries in objects)
    if has_duplicates or len(set[str]().union(*line_ids)) < sum(map(len, line_ids)):
        raise ValueError("has several objects that differ; give one")
    return [entry for entries in objects for entry in entries]


def _parse_correction(key: str, value: Any, lines: Sequence[str]) -> Correction | None:
    """Parse one entry; None if it states that there is no error."""
    match = _ID.fullmatch(key)
    line = int(match["line"]) if match and match["line"] else None
    if match is None or (line is not None and line >= len(lines)):
        numbers = f'use the numbers 0 to {len(lines) - 1}, or "None" for an insertion'
        raise ValueError(f"'{key:.40}' is no line; {numbers}")
    if not isinstance(value, _JSONObject):
        raise ValueError(f"'{key}' is no object with corrections, clinical severity, comments and error category")
    text = value.field("corrections", "correction", "correctedline")
    severity_value = value.field("clinicalseverity", "severity")
    if _parse_severity(text) is not None:
        text, severity_value = severity_value, text
    severity = _parse_severity(severity_value)
    text = text.strip() if isinstance(text, str) else ""
    is_empty = text.lower() in EMPTY_WORDS
    if severity == 0 or (line is None and is_empty):
        return None
    if severity is None:
        raise ValueError(f"the clinical severity of '{key}' is neither 0 to 4 nor one of {', '.join(SEVERITIES)}")
    comment = value.field("comments", "comment")
    details = (severity, comment.strip() if isinstance(comment, str) else "", _parse_categories(value))
    if line is not None and DELETION.fullmatch(text):
        return Correction(line, None, *details)
    if is_empty or DELETION.fullmatch(text):
        raise ValueError(f"the correction of '{key}' is empty; give the whole line, or [delete]")
    unchanged = () if line is None else (normalize_text(lines[line]), "no change", "unchanged")
    if NO_EDIT.fullmatch(text) or normalize_text(text) in unchanged:
        raise ValueError(f"'{key}' is graded but not changed; leave it out if it is right")
    return Correction(line, text, *details)


def _parse_severity(value: Any) -> int | None:
    """Return a severity from 0 to 4, given by name or as a number; None for anything else."""
    if match := _GRADE.fullmatch(str(value).strip()):
        return int(match[1])
    return _SEVERITY_BY_LETTERS.get(_NOUN.sub("", _letters(value))) if isinstance(value, str) else None


def _parse_categories(value: _JSONObject) -> tuple[str, ...]:
    """Return the letters of the known categories; others are dropped."""
    categories = value.field("errorcategory", "errorcategories", "category", "categories")
    letters = set()
    for category in categories if isinstance(categories, list) else [categories]:
        name = str(category).strip()
        if re.fullmatch(r"[1-6]\W*", name):
            letters.add("abcdef"[int(name[0]) - 1])
        elif match := _CATEGORY.match(_letters(name)):
            letters.add(str(match.lastgroup))
    return tuple(sorted(letters))
