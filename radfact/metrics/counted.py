"""Numbers as models write them: a count with what it counts, "none" in many words, lists without a number, a score."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radfact.llm.texts import unquoted

MOST = 99
"""A greater number of errors in one report is none (a year, a size)."""


@dataclass(frozen=True, slots=True)
class Counted:
    """How many there are, and what is said of each; the two need not agree, the number is what counts."""

    count: int
    said: tuple[str, ...] = ()


ZERO = Counted(0)

_WIDE = str.maketrans("：．；（）０１２３４５６７８９。", ":.;()0123456789.")
_BULLET = re.compile(r"^\s*(?:[-•–—]\s+|\(?[0-9]{1,2}[.)]\s+)")
_NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_WORDS = {word: number for number, word in enumerate(_NUMBER_WORDS)}
_NOUN = (
    r"(?:clinically\s+)?(?:significant\s+|insignificant\s+)?(?:match(?:ed|ing)\s+)?"
    r"(?:errors?|findings?|instances?|occurrences?)\b"
)
_NUMBER = re.compile(
    rf"[\s(\[=]*(?:[-–—]\s+)?(?:(?P<digits>[0-9]{{1,2}})(?![0-9])(?![.,][0-9])(?!\s*[/%])(?!\s*[-–—]\s*[0-9])|"
    rf"(?P<word>{'|'.join(_WORDS)})(?=\s*[.;:,()\]]|\s+[-–—]\s|\s*$|\s*\n|\s+{_NOUN}))(?P<after>.*)",
    re.IGNORECASE | re.DOTALL,
)
_SET_OFF = re.compile(rf"\s*(?:\)|\])?(?:\s+{_NOUN})?\s*(?:[.;:,)\]]+|\(|[-–—](?=\s)|$|\n)", re.IGNORECASE)
_NOUN_AFTER = re.compile(rf"\s+{_NOUN}", re.IGNORECASE)
_NEXT_IS_TEXT = re.compile(
    r"\s*(?=[A-Z\"'“‘])|\s+(?=(?:the|a|an|candidate|reference|missing|missed|mentions|omits|no)\b)"
)
_UNIT = re.compile(r"\s*(?:cm|mm|m|of|to|or|and|by|out|x(?=\s*[0-9])|days?|weeks?|months?|years?|views?)\b")
_NO_ERRORS = (
    r"(?:errors?|issues?|discrepanc(?:y|ies)|differences?|match(?:ed|ing) findings?|missing findings?|"
    r"false (?:reports?|findings?|predictions?))"
)
_NONE = re.compile(
    rf"(?:there (?:are|were|is) )?(?:none|nil|zero|n/?a|not applicable|[-–—]+|no(?: (?:other|further|additional|such|"
    rf"clinically|significant|insignificant))*(?: {_NO_ERRORS})?)(?: (?:were|was|are|is))?"
    r"(?: (?:found|identified|noted|detected|present|observed|reported|listed|applicable|made))?"
    r"(?: (?:in|of) (?:this |the |these |any )?(?:category|categories|type|candidate report|candidate|report|reports))?"
    r"\W*",
    re.IGNORECASE,
)
_CERTAIN_STEP = r"(?:^|[.;]\s+|\n[-•\s]*)"
_ANY_STEP = r"(?:^|\s)"
_COUNT_NAME = re.compile(
    r"^(?:the\s+)?(?:(?:total|number|count)(?:\s+of)?\s*)+(?:match(?:ed|ing)\s+findings?)?(?:\s*[:=]|\s+is)\s*",
    re.IGNORECASE,
)
_PUBLISHED = re.compile(r"(?<=: )([0-9]{1,2})\.(?=\s|$)(.*)", re.DOTALL)
_COUNT_KEYS = ("count", "number", "number_of_errors", "number of errors", "num", "n", "total")
_SCORE = re.compile(
    r"[\s<(\[\"'~≈]*(?:(?:the\s+)?(?:overall\s+)?(?:accuracy\s+)?score(?:\s+is)?\s*[:=]?\s*)?"
    r"(?P<value>(?>[0-9]+(?:[.,][0-9]+)?|[.,][0-9]+))"
    r"(?:\s*/\s*(?P<of>100|10|1(?:\.0+)?)(?![0-9.])|\s*(?P<percent>%))?"
    r"(?!\s*[/*×+^])(?!\s*[-–—]\s*[0-9.])(?!\s+(?:to|or)\s+[0-9.])(?![0-9A-Za-z])",
    re.IGNORECASE,
)


def without_marks(line: str) -> str:
    """A line without marks of Markdown and full-width punctuation; the cells of a table row set off by colons."""
    line = re.sub(r"^(\s*)\*\s+", r"\1- ", line.translate(_WIDE)).replace("*", "").replace("`", "")
    line = re.sub(r"^[\s>#]+(?=\S)", "", line) if line.lstrip()[:1] in (">", "#") else line
    if line.lstrip().startswith("|"):
        return ": ".join(cell.strip() for cell in line.strip().strip("|").split("|"))
    return line


def says_none(text: str) -> bool:
    """Whether the first sentence of a text says that there is nothing, and nothing else."""
    return _NONE.fullmatch(re.split(r"[.;\n]", text.strip(), maxsplit=1)[0].strip()) is not None


def read_counted(said: Any, *, name: str, bare: bool = False) -> Counted:
    """How many there are of something, from text or a value of JSON.

    Args:
        said: "NAME: 2. This; that" or the like, or a number, a list, or an object with a count.
        name: what is counted; a text may leave it out.
        bare: whether the text has no name before its number, and must say something.

    Raises:
        ValueError: there is no number, or what there is may be none.
    """
    counted = _text(without_lines_of_marks(said), name, bare) if isinstance(said, str) else _value(said, bare)
    if counted is None:
        raise ValueError(f"has no number; write it first, as in '{'' if bare else name + ': '}1. ...'")
    return counted


def without_lines_of_marks(text: str) -> str:
    """A text without rules (lines of dashes and the like) and spaces around it."""
    return "\n".join(line for line in text.splitlines() if not re.fullmatch(r"\s*[-=_:.]{3,}\s*", line)).strip()


def _value(value: Any, bare: bool) -> Counted | None:
    if value is None:
        return None if bare else ZERO
    if isinstance(value, list):
        return _listed([_one(item) for item in value])
    if isinstance(value, Mapping):
        by_name = {str(key).lower(): item for key, item in value.items()}
        lists = [item for item in by_name.values() if isinstance(item, list)]
        listed = _listed([_one(item) for item in lists[0]]) if len(lists) == 1 else None
        given = next((by_name[key] for key in _COUNT_KEYS if key in by_name), None)
        if given is None:
            return listed
        counted = _content(given, bare=True) if isinstance(given, str) else _value(given, bare=True)
        return counted and Counted(counted.count, listed.said if listed else counted.said)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST:
        return Counted(value)
    return None


def _one(item: Any) -> str:
    if isinstance(item, Mapping):
        return next((text for text in item.values() if isinstance(text, str)), str(dict(item)))
    return str(item)


def _listed(items: Sequence[str]) -> Counted:
    kept = tuple(text for item in items if (text := unquoted(_BULLET.sub("", item).strip())) and not says_none(text))
    return Counted(len(kept), kept)


def _text(said: str, name: str, bare: bool) -> Counted | None:
    if bare:
        return _content(_COUNT_NAME.sub("", said), bare=True)
    first, newline, rest = said.partition("\n")
    if said[:1].isdigit():
        return _content(said)
    before, colon, after = first.partition(":")
    if not colon:
        # The name alone, or the name and the count with nothing between them.
        known = name.split()[0].lower()
        after = re.sub(r"^[^0-9:]*?(?=$|[\s(\[]*[0-9])", "", before) if before.lower().startswith(known) else before
    found = _content(after + newline + rest)
    if found is None and (match := _PUBLISHED.search(first)):
        return Counted(int(match[1]), _parts(match[2] + newline + rest))
    return found


def _content(text: str, *, bare: bool = False) -> Counted | None:
    """The count that a text begins with, the length of the list that it is, or None."""
    text = text.strip()
    if not text.strip(" .-–—"):
        return None if bare else ZERO
    if says_none(text):
        return ZERO
    if enumerated := _enumerated(text):
        return enumerated
    lines = text.splitlines()
    bullets = [line for line in lines if re.match(r"\s*[-•]\s+\S", line)]
    is_list = bullets and lines[0] is bullets[0] and not re.fullmatch(r"\s*[-•]\s+[0-9]+\W*", lines[0])
    if is_list and len(bullets) > 1:
        return _listed(bullets)
    if number := _number(text):
        return number
    return _listed(bullets) if is_list else None


def _number(text: str) -> Counted | None:
    match = _NUMBER.match(text)
    if match is None:
        return None
    count = int(match["digits"]) if match["digits"] else _WORDS[match["word"].lower()]
    after = match["after"]
    if set_off := _SET_OFF.match(after) or _NOUN_AFTER.match(after) or _NEXT_IS_TEXT.match(after):
        said = after[set_off.end() :]
        return Counted(count, _parts(said.removesuffix(")") if set_off[0].endswith("(") else said))
    # "1 pleural effusion" may be a count and an error, "2 nodules described as large" is none.
    parts = _parts(after)
    return Counted(count, parts) if not _UNIT.match(after) and len(parts) == count else None


def _enumerated(text: str) -> Counted | None:
    """Items numbered 1, 2, 3, ... where the first number is no count of the others."""
    for step, least in ((_CERTAIN_STEP, 2), (_ANY_STEP, 3)):
        places: list[tuple[int, int]] = []
        at = 0
        while match := re.compile(rf"{step}\(?{len(places) + 1}[.)]\s+(?=\S)").search(text, at):
            if not places and match.start():
                break
            places.append(match.span())
            at = match.end() - 1
        if len(places) >= least:
            ends = [start for start, _ in places[1:]] + [len(text)]
            parts = (text[begin:end].strip().rstrip(";") for (_, begin), end in zip(places, ends, strict=True))
            return Counted(len(places), tuple(parts))
    return None


def _parts(text: str) -> tuple[str, ...]:
    """What is said of each, one after another."""
    parts = (_BULLET.sub("", part).strip() for part in re.split(r";|\n", text.strip()))
    return tuple(part for part in parts if part.strip(" .-–—"))


def read_number(said: Any) -> float | None:
    """A score from text or a value of JSON: the number that it begins with, or that the last equation gives.

    "0.85", "0,85", "0.85/1.00", "8.5/10", "85 %" and "3 / (3 + 2) = 0.60" are read; a range is none.
    """
    if isinstance(said, Mapping):
        numbers = [one for one in map(read_number, said.values()) if one is not None]
        return numbers[0] if len(numbers) == 1 else None
    if isinstance(said, int | float) and not isinstance(said, bool):
        return float(said)
    if not isinstance(said, str):
        return None
    equation = re.split(r"[=≈]", said)
    match = _SCORE.match(said) or (_SCORE.match(equation[-1]) if len(equation) > 1 else None)
    if match is None:
        return None
    value = float(match["value"].replace(",", "."))
    return value / (100 if match["percent"] else float(match["of"] or 1))
