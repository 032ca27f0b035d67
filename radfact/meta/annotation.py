"""Error counts of one candidate as a cell of a table holds them: an object by significance, or lines of text."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from radfact.llm.texts import read_data
from radfact.metrics.notation import CATEGORIES

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


def read_annotation(said: str) -> dict[str, dict[str, float]]:
    """Counts by significance and letter, GREEN's six and `g` for grammar.

    An object `{significant: {CATEGORY: n}, insignificant: {CATEGORY: n}}` in JSON, YAML or as Python writes it, or
    lines `CATEGORY: n` under headings that say "significant" and "insignificant"; categories by their names.

    Raises:
        ValueError: there are no counts of significant errors, or a count is no whole number.
    """
    counts: dict[str, dict[str, float]] = {}
    for kind, name, count in _entries(said):
        letter = next((one for one, like in _LIKE.items() if re.search(like, name, re.IGNORECASE)), None)
        if letter is None:
            letter = name.strip("() ").lower()
            if letter not in (*CATEGORIES, GRAMMAR):
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
    plain = heading.lower()
    return "insignificant" if "insignificant" in plain else "significant" if "significant" in plain else None


def _count(said: Any, name: str) -> float:
    try:
        value = float(str(said).rstrip(".,;"))
    except ValueError:
        value = math.nan
    if isinstance(said, bool) or not (value >= 0 and value == value // 1):
        raise ValueError(f"the count of '{name}' is no whole number: '{said}'")
    return value
