"""Parser of an overall accuracy score from 0 to 1, as VERT requests it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

SCORE_TITLE = "[Overall Accuracy Score]"

_SCORE = re.compile(
    r"[\s<(\[\"'~≈]*(?P<name>(?:the\s+)?(?:overall\s+)?(?:accuracy\s+)?score(?:\s+is)?\s*[:=]?\s*)?"
    r"(?P<value>(?>[0-9]+(?:[.,][0-9]+)?|[.,][0-9]+))"
    r"(?:\s*(?:/|\bout\s+of\b)\s*(?P<scale>100|10|1(?:\.0+)?)(?![0-9.])|\s*(?P<percent>%))?(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_END = re.compile(r"\s*$|[ \t]*\n|[ \t]*[-–—]\s+(?=[^\s0-9.])|[ \t]*[^\w\s/*×+^%–—-]")
_WHOLE_NUMBER_END = re.compile(r"\s*(?:\([^()]*\))?[^\w(]*(?:$|\n)")
_REASON = re.compile(r"\s+(?:because|since|as|given|due|based|for|which|reflecting)\b", re.IGNORECASE)
_ANOTHER_SCORE = re.compile(r"[\s,;:.]*(?:[0-9]*[.,][0-9]|[0-9]+\W*$)")
_FRACTION = re.compile(r"(?<![\w.,])[01]?[.,][0-9]")
_EQUATION_OF_SCORE = re.compile(r"(?:score|accuracy|[0-9)\]}])[^\w)\]}]*$", re.IGNORECASE)


def parse_accuracy_score(value: Any) -> float:
    """Parse the number that a text begins with ("0.85", "0,85/1.00", "85 %"), or the result of its last equation."""
    score = _parse_number(value)
    if score is None or not 0 <= score <= 1:
        raise ValueError(f"{SCORE_TITLE} has no number from 0.00 to 1.00")
    return score


def _parse_number(value: Any) -> float | None:
    if isinstance(value, Mapping):
        numbers = [number for number in map(_parse_number, value.values()) if number is not None]
        return numbers[0] if len(numbers) == 1 else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str):
        return None
    match = _SCORE.match(value)
    if match is None or not _is_complete(match):
        *terms, result = re.split(r"[=≈]", value)
        match = _SCORE.match(f"score = {result}") if terms and _EQUATION_OF_SCORE.search(terms[-1]) else None
        if match is None or not _is_complete(match):
            return None
    number = float(match["value"].replace(",", "."))
    return number / (100 if match["percent"] else float(match["scale"] or 1))


def _is_complete(match: re.Match[str]) -> bool:
    """Return whether the text ends after the number or continues with a sentence, so that it counts nothing."""
    rest = match["rest"]
    if _ANOTHER_SCORE.match(rest):
        return False
    if match["value"].isdigit() and not (match["name"] or match["scale"] or match["percent"]):
        return bool(_WHOLE_NUMBER_END.match(rest)) and not _FRACTION.search(rest)
    return bool(_END.match(rest) or (match["name"] and _REASON.match(rest)))
