"""Reader of RadEval's expert set, and of its cells with error counts.

We had no access to the file. Public code that reads it describes an annotation as a heading for significant and one for
insignificant errors, each with seven numbered lines `CATEGORY: n`, and reports two lines with a malformed number.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import ErrorCode
from radfact.llm.response_text import read_data
from radfact.meta.datasets.csv_rows import read_rows
from radfact.meta.datasets.ratings import COUNTS, RatedReport, RatingSet, count_directions, count_quantities
from radfact.records import Pair

_GRAMMAR = "g"
"""The seventh category of RadEval's experts: an inarticulate report (VERT, section 3)."""

_CATEGORY_PATTERNS = {
    "a": r"false (?:prediction|report|finding)",
    "b": r"omission of (?:a )?finding|omitted finding|miss(?:ed|ing) (?:a )?finding",
    "c": r"location|position",
    "d": r"severity",
    "e": r"mention(?:s|ing)?\b.*comparison|comparison\b.*(?:absent|not (?:present|in))|unsupported comparison",
    "f": r"omi(?:ssion of|tting|tted) (?:a )?(?:comparison|change)",
    _GRAMMAR: r"grammar|inarticulate|readab",
}
_CATEGORIES = (*ERROR_CATEGORIES, _GRAMMAR)
_LINE = re.compile(r"^[\s\-*•(]*(?:\(?[a-g1-7]\)?[.):]\s*)?(?P<name>[^:=]+?)\s*[:=]\s*(?P<count>.*)$", re.IGNORECASE)
_COUNT = re.compile(r"([0-9]+)(?:\.0*)?[,;]?")

_AMBIGUOUS = "ambiguous"
_SIGNIFICANCE = re.compile(r"signific(?:ant|ance)")
_NO_SIGNIFICANCE = re.compile(
    r"(?:in|no[nt] ?(?:(?:of|any|clinical|clinically) )*"
    r"|\b(?:no|without|lacking) (?:(?:of|any|clinical) )*(?=significance))signific(?:ant|ance)"
)
_DOUBT = re.compile(
    r"\b(?:no|non|not|without|lacking|little|low|less|minor|unclear|unknown|uncertain|possibly|potentially|perhaps|maybe|"
    r"questionabl[ey]|borderline)\b"
)
"""Words that make a heading ambiguous."""


def read_radeval(path: Path) -> RatingSet:
    """Read three annotated candidates per row; a missing count is NaN, and so are all of an invalid annotation."""
    texts = [f"{kind}{number}" for kind in ("prediction", "annotation") for number in (1, 2, 3)]
    _, rows = read_rows(path, ("annotator", "type", "ground_truth", *texts))
    samples: list[RatedReport] = []
    notes: list[str] = []
    for index, row in enumerate(rows):
        rater = row.id("annotator")
        for number in (1, 2, 3):
            candidate = row.text(f"prediction{number}")
            if not candidate:
                error = row.error(
                    "expected a report, found an empty cell", f"prediction{number}", ErrorCode.MISSING_FIELD
                )
                notes.append(f"{error}; the candidate is skipped.")
                continue
            try:
                counts = parse_annotation(row.cells[f"annotation{number}"])
                missing = [
                    f"{kind} ({letter})" for kind in counts for letter, n in counts[kind].items() if math.isnan(n)
                ]
                problem = f"expected the number of errors: {', '.join(missing)}" if missing else ""
            except ValueError as invalid:
                problem = str(invalid)
                counts = {kind: dict.fromkeys(_CATEGORIES, math.nan) for kind in COUNTS[1:]}
            if problem:
                notes.append(f"{row.error(problem, f'annotation{number}')}; these counts are missing.")
            by_rater = {
                kind: {letter: {rater: value} for letter, value in letters.items()} for kind, letters in counts.items()
            }
            pair = Pair(f"{index}_{number}", candidate, row.text("ground_truth"), str(index))
            samples.append(RatedReport(pair, count_quantities(by_rater), {"type": row.text("type")}))
    return RatingSet(samples, count_directions(), "significant", "type", notes, "study_id")


def parse_annotation(text: str) -> dict[str, dict[str, float]]:
    """Parse error counts by significance and letter: GREEN's six categories and `g` for grammar; NaN if missing.

    An object `{significant: {CATEGORY: n}, insignificant: {CATEGORY: n}}` in JSON, YAML or Python syntax, or lines
    `CATEGORY: n` under headings such as "significant", "not significant", "without clinical significance". A count is
    missing if its category is, or if it is anything but a whole number.
    """
    counts: dict[str, dict[str, float]] = {}
    for kind, name, count in _entries(text):
        if kind == _AMBIGUOUS:
            raise ValueError(f"expected significant or insignificant errors, found an ambiguous heading above '{name}'")
        patterns = _CATEGORY_PATTERNS.items()
        letter = next((letter for letter, pattern in patterns if re.search(pattern, name, re.IGNORECASE)), None)
        if letter is None:
            letter = name.strip("() ").lower()
            if letter not in _CATEGORIES:
                raise ValueError(f"expected a category of errors, found '{name}'")
        of_kind = counts.setdefault(kind, {})
        if letter in of_kind:
            raise ValueError(f"duplicate category '{name}'")
        of_kind[letter] = _count(count)
    if all(math.isnan(number) for of_kind in counts.values() for number in of_kind.values()):
        raise ValueError("expected counts of errors by significance and category")
    return {kind: dict.fromkeys(_CATEGORIES, math.nan) | counts.get(kind, {}) for kind in COUNTS[1:]}


def _entries(text: str) -> Iterator[tuple[str, str, Any]]:
    """Yield significance, category and count."""
    data = _load(text.strip())
    if isinstance(data, Mapping) and any(isinstance(inner, Mapping) for inner in data.values()):
        for heading, inner in data.items():
            kind = _significance(str(heading))
            if kind and isinstance(inner, Mapping):
                for name, count in inner.items():
                    yield kind, str(name), count
        return
    # Lines of headings and counts are YAML as well, but all on one level.
    kind = None
    for line in text.splitlines():
        match = _LINE.match(line)
        heading = _significance(line)
        if heading and (match is None or _significance(match["name"])):
            kind = heading
        elif match and kind:
            yield kind, match["name"], match["count"]


def _load(text: str) -> Any:
    if (data := read_data(text)) is not None and not isinstance(data, str):
        return data
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        return ast.literal_eval(text)
    return None


def _significance(heading: str) -> str | None:
    """Return significant, insignificant or ambiguous; None for a heading without significance."""
    expanded = re.sub(r"n['’]t\b", " not", heading.lower())
    words = " ".join(re.findall(r"[^\W_]+", expanded))
    mentions, negated = len(_SIGNIFICANCE.findall(words)), len(_NO_SIGNIFICANCE.findall(words))
    if not mentions:
        return None
    if 0 < negated < mentions or _DOUBT.search(_NO_SIGNIFICANCE.sub("", words)):
        return _AMBIGUOUS
    return "insignificant" if negated else "significant"


def _count(count: Any) -> float:
    match = None if isinstance(count, bool) else _COUNT.fullmatch(str(count).strip())
    return float(match[1]) if match else math.nan
