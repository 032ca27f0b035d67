"""Numbers as models write them: a count with what it counts, "none" in many words, lists without a number, a score."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radfact.llm.response_text import unquoted

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
    rf"^(?:the\s+)?(?:{_NOUN}\s+)?(?:(?:total|overall|number|count|num|no\.|#)(?:\s+of)?\s*)+(?:{_NOUN})?"
    r"(?:\s*[:=]|\s+(?:is|are)\b)\s*",
    re.IGNORECASE,
)
_LISTED = re.compile(r"(?P<indent>[ \t]*)[-•]\s+(?P<said>\S.*)")
_NUMBER_ALONE = re.compile(rf"(?:[0-9]+|{'|'.join(_WORDS)})(?:\s+{_NOUN})?\W*", re.IGNORECASE)
_KEY = re.compile(r"[^\W\d][\w()/'’-]*(?:\s+[\w()/'’-]+){0,4}\s*[:=](?=\s|$)")
_KEY_OF_A_FIELD = re.compile(
    r"(?:the\s+)?(?:errors?|(?:match(?:ed|ing)\s+)?findings?|explanations?|reason(?:s|ing)?|rationale|details?|"
    r"descriptions?|severity|significance|impact|location|category|type|examples?|list|items?|comments?|notes?|"
    r"count|number|total|(?:in\s+(?:the\s+)?)?(?:reference|candidate)(?:\s+report)?)\s*[:=](?=\s|$)",
    re.IGNORECASE,
)
_PUBLISHED = re.compile(r"(?<=: )([0-9]{1,2})\.(?=\s|$)(.*)", re.DOTALL)
COUNT_KEYS = ("count", "number", "number_of_errors", "number of errors", "num", "n", "total")
_SCORE = re.compile(
    r"[\s<(\[\"'~≈]*(?P<named>(?:the\s+)?(?:overall\s+)?(?:accuracy\s+)?score(?:\s+is)?\s*[:=]?\s*)?"
    r"(?P<value>(?>[0-9]+(?:[.,][0-9]+)?|[.,][0-9]+))"
    r"(?:\s*(?:/|\bout\s+of\b)\s*(?P<of>100|10|1(?:\.0+)?)(?![0-9.])|\s*(?P<percent>%))?(?P<after>.*)",
    re.IGNORECASE | re.DOTALL,
)
_AFTER_SCORE = re.compile(r"\s*$|[ \t]*\n|[ \t]*[-–—]\s+(?=[^\s0-9.])|[ \t]*[^\w\s/*×+^%–—-]")
_BECAUSE = re.compile(r"\s+(?:because|since|as|given|due|based|for|which|reflecting)\b", re.IGNORECASE)
_ANOTHER_SCORE = re.compile(r"[\s,;:.]*(?:[0-9]*[.,][0-9]|[0-9]+\W*$)")
_AFTER_WHOLE = re.compile(r"\s*(?:\([^()]*\))?[^\w(]*(?:$|\n)")
_SCORE_INSIDE = re.compile(r"(?<![\w.,])[01]?[.,][0-9]")
_EQUALS_A_SCORE = re.compile(r"(?:score|accuracy|[0-9)\]}])[^\w)\]}]*$", re.IGNORECASE)


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
    counted = _text(_without_rules(said), name, bare) if isinstance(said, str) else _value(said, bare)
    if counted is None:
        raise ValueError(f"has no number; write it first, as in '{'' if bare else name + ': '}1. ...'")
    return counted


def _without_rules(text: str) -> str:
    """A text without rules (lines of dashes and the like)."""
    return "\n".join(line for line in text.splitlines() if not re.fullmatch(r"\s*[-=_:.]{3,}\s*", line))


def _value(value: Any, bare: bool) -> Counted | None:
    if value is None:
        return None if bare else ZERO
    if isinstance(value, list):
        return _listed_values(value)
    if isinstance(value, Mapping):
        by_name = {str(key).lower(): item for key, item in value.items()}
        lists = [item for item in by_name.values() if isinstance(item, list)]
        listed = _listed_values(lists[0]) if len(lists) == 1 else None
        given = next((by_name[key] for key in COUNT_KEYS if key in by_name), None)
        if given is None:
            return listed
        counted = _content(given, bare=True) if isinstance(given, str) else _value(given, bare=True)
        return counted and Counted(counted.count, listed.said if listed else counted.said)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST:
        return Counted(value)
    return None


def _listed_values(items: Sequence[Any]) -> Counted | None:
    """As many as a list of JSON has; None where what it lists are the fields of one, or counts."""
    named = [{str(key).lower() for key in item} for item in items if isinstance(item, Mapping)]
    if any(keys & set(COUNT_KEYS) for keys in named):
        return None
    texts = [_one(item) for item in items if item]
    return None if any(_KEY_OF_A_FIELD.match(_BULLET.sub("", text)) for text in texts) else _listed(texts)


def _one(item: Any) -> str:
    if isinstance(item, Mapping):
        return next((text for text in item.values() if isinstance(text, str)), str(dict(item)))
    return str(item)


def _listed(items: Sequence[str]) -> Counted:
    kept = tuple(text for item in items if (text := unquoted(_BULLET.sub("", item).strip())) and not says_none(text))
    return Counted(len(kept), kept)


def _bullets(lines: Sequence[str], *, bare: bool, inline: bool) -> Counted | None:
    """The items of a list's first level, or the count that one of them gives; what is deeper says more of them.

    Args:
        lines: of which the first is a bullet.
        bare: whether an item may begin with a part of the body and a colon, as findings do.
        inline: whether the first stands behind other words, so that its depth is not known.
    """
    found = [(len(match["indent"].expandtabs()), match["said"]) for line in lines if (match := _LISTED.match(line))]
    # One space more or less is no level.
    level = min(indent for indent, _ in found) + 1
    items = [said for indent, said in found if indent <= level]
    depth_unknown = inline and len(items) == 1 < len(found)
    if found[0][0] > level or depth_unknown:
        return None
    if any(_COUNT_NAME.match(said) for said in items):
        return _fields(items, [said for _, said in found])
    return None if any((_KEY_OF_A_FIELD if bare else _KEY).match(said) for said in items) else _listed(items)


def _fields(items: Sequence[str], lines: Sequence[str]) -> Counted | None:
    """The count that stands among fields, and what all other lines say; None where several counts differ."""
    given = [said[match.end() :] for said in items if (match := _COUNT_NAME.match(said))]
    counts = {ZERO.count if says_none(one) else number.count if (number := _number(one)) else None for one in given}
    count = counts.pop() if len(counts) == 1 else None
    said = [_KEY_OF_A_FIELD.sub("", one) for one in lines if not _COUNT_NAME.match(one)]
    return None if count is None else Counted(count, _listed([part for one in said for part in _parts(one)]).said)


def _text(said: str, name: str, bare: bool) -> Counted | None:
    if bare:
        return _content(said, bare=True)
    said = said.strip()
    known = name.split()[0].lower()
    first, newline, rest = said.partition("\n")
    bullet = _LISTED.match(first)
    if said[:1].isdigit() or (bullet and not bullet["said"].lower().startswith(known)):
        return _content(said)
    before, colon, after = first.partition(":")
    if not colon:
        # The name alone, or the name and the count with nothing between them.
        after = re.sub(r"^[^0-9:]*?(?=$|[\s(\[]*[0-9])", "", before) if before.lower().startswith(known) else before
    found = _content(after + newline + rest)
    if found is None and (match := _PUBLISHED.search(first)):
        return Counted(int(match[1]), _parts(match[2] + newline + rest))
    return found


def _content(text: str, *, bare: bool = False) -> Counted | None:
    """The count that a text begins with, the length of the list that it is, or None."""
    inline = not re.match(r"[ \t]*\n", text)
    text = re.sub(r"\A(?:[ \t]*\n)+", "", text).rstrip()
    text = text if _LISTED.match(text) else _COUNT_NAME.sub("", text.lstrip())
    if not text.strip(" .-–—"):
        return None if bare else ZERO
    if says_none(text):
        return ZERO
    if enumerated := _enumerated(text.strip()):
        fields = any(_KEY_OF_A_FIELD.match(one) or _COUNT_NAME.match(one) for one in enumerated.said)
        return _fields(enumerated.said, enumerated.said) if fields else enumerated
    lines = text.splitlines()
    first = _LISTED.match(lines[0])
    if first is None or _NUMBER_ALONE.fullmatch(first["said"]):
        return _number(text)
    number = _number(text) if sum(bool(_LISTED.match(line)) for line in lines) == 1 else None
    return number or _bullets(lines, bare=bare, inline=inline)


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
    *before, last = re.split(r"[=≈]", said)
    match = _SCORE.match(said)
    if match is None or not _ends(match):
        equals = _SCORE.match(f"score = {last}") if before and _EQUALS_A_SCORE.search(before[-1]) else None
        match = equals if equals and _ends(equals) else None
    if match is None:
        return None
    value = float(match["value"].replace(",", "."))
    return value / (100 if match["percent"] else float(match["of"] or 1))


def _ends(match: re.Match[str]) -> bool:
    """Whether the number is all there is, or a sentence goes on after it; else it counts something, or a list."""
    after = match["after"]
    if _ANOTHER_SCORE.match(after):
        return False
    if match["value"].isdigit() and not (match["named"] or match["of"] or match["percent"]):
        return bool(_AFTER_WHOLE.match(after)) and not _SCORE_INSIDE.search(after)
    return bool(_AFTER_SCORE.match(after) or (match["named"] and _BECAUSE.match(after)))
