"""Error counts of one candidate as a cell of a table holds them: an object by significance, or lines of text."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from radfact.error_categories import ERROR_CATEGORIES
from radfact.llm.response_text import read_data

GRAMMAR = "g"
"""The seventh category of RadEval's experts: an inarticulate report (paper 003, section 3)."""

_LIKE = {
    "a": r"false (?:prediction|report|finding)",
    "b": r"omission of (?:a )?finding|omitted finding|miss(?:ed|ing) (?:a )?finding",
    "c": r"location|position",
    "d": r"severity",
    "e": r"mention(?:s|ing)?\b.*comparison|comparison\b.*(?:absent|not (?:present|in))|unsupported comparison",
    "f": r"omi(?:ssion of|tting|tted) (?:a )?(?:comparison|change)",
    GRAMMAR: r"grammar|inarticulate|readab",
}
_LINE = re.compile(r"^[\s\-*•(]*(?:\(?[a-g1-7]\)?[.):]\s*)?(?P<name>[^:=]+?)\s*[:=]\s*(?P<count>\S+).*$", re.IGNORECASE)

_EITHER = "either"
_SIGNIFICANCE = re.compile(r"signific(?:ant|ance)")
_NO_SIGNIFICANCE = re.compile(
    r"(?:in|no[nt] ?(?:(?:of|any|clinical|clinically) )*"
    r"|\b(?:no|without|lacking) (?:(?:of|any|clinical) )*(?=significance))signific(?:ant|ance)"
)
_DOUBT = re.compile(
    r"\b(?:no|non|not|without|lacking|little|low|less|minor|unclear|unknown|uncertain|possibly|potentially|perhaps|maybe|"
    r"questionabl[ey]|borderline)\b"
)
"""Words of a heading that leave it open which of the two it means."""


def read_annotation(said: str) -> dict[str, dict[str, float]]:
    """Counts by significance and letter, GREEN's six and `g` for grammar.

    An object `{significant: {CATEGORY: n}, insignificant: {CATEGORY: n}}` in JSON, YAML or as Python writes it, or
    lines `CATEGORY: n` under headings that say "significant" and "insignificant" (or "not significant", "without
    clinical significance"); categories by their names.

    Raises:
        ValueError: there are no counts of significant errors, a count is no whole number, or a heading above counts may
            mean both.
    """
    counts: dict[str, dict[str, float]] = {}
    for kind, name, count in _entries(said):
        if kind == _EITHER:
            raise ValueError(f"the heading above '{name}' may mean significant or insignificant errors")
        letter = next((one for one, like in _LIKE.items() if re.search(like, name, re.IGNORECASE)), None)
        if letter is None:
            letter = name.strip("() ").lower()
            if letter not in (*ERROR_CATEGORIES, GRAMMAR):
                raise ValueError(f"'{name}' is none of the categories")
        value = _count(count, name)
        of_kind = counts.setdefault(kind, {})
        if letter in of_kind:
            raise ValueError(f"'{name}' stands twice")
        of_kind[letter] = value
    if not counts.get("significant"):
        raise ValueError("expected counts of significant errors by category")
    return counts


def _entries(said: str) -> Iterator[tuple[str, str, Any]]:
    data = _data(said)
    if isinstance(data, Mapping) and any(isinstance(inner, Mapping) for inner in data.values()):
        for heading, inner in data.items():
            kind = _kind(str(heading))
            if kind and isinstance(inner, Mapping):
                for name, count in inner.items():
                    yield kind, str(name), count
        return
    # Headings and counts one below the other are YAML too, but all on one level.
    kind = None
    for line in said.splitlines():
        match = _LINE.match(line)
        heading = _kind(line)
        if heading and (match is None or _kind(match["name"])):
            kind = heading
        elif match and kind:
            yield kind, match["name"], match["count"]


def _data(said: str) -> Any:
    if (data := read_data(said.strip())) is not None and not isinstance(data, str):
        return data
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        return ast.literal_eval(said.strip())
    return None


def _kind(heading: str) -> str | None:
    """What a heading says of significance; None where it says nothing of it."""
    whole = re.sub(r"n['’]t\b", " not", heading.lower())
    plain = " ".join(re.findall(r"[^\W_]+", whole))
    said, denied = len(_SIGNIFICANCE.findall(plain)), len(_NO_SIGNIFICANCE.findall(plain))
    if not said:
        return None
    if 0 < denied < said or _DOUBT.search(_NO_SIGNIFICANCE.sub("", plain)):
        return _EITHER
    return "insignificant" if denied else "significant"


def _count(said: Any, name: str) -> float:
    try:
        value = float(str(said).rstrip(".,;"))
    except ValueError:
        value = math.nan
    if isinstance(said, bool) or not (value >= 0 and value == value // 1):
        raise ValueError(f"the count of '{name}' is no whole number: '{said}'")
    return value
