"""Parser of counts as models write them: "2. This; that", "none" in many words, a list without a number, JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radfact.llm.response_text import unquoted

MAX_COUNT = 99
"""A greater number in one report is no count of errors or findings but a year or a size."""
COUNT_KEYS = ("count", "number", "number_of_errors", "number of errors", "num", "n", "total")


@dataclass(frozen=True, slots=True)
class CountedItems:
    """A count and the texts that follow it. The two need not agree; the count is what a metric uses."""

    count: int
    items: tuple[str, ...] = ()


ZERO = CountedItems(0)

_WIDE_CHARACTERS = str.maketrans("：．；（）０１２３４５６７８９。", ":.;()0123456789.")
_NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_ANY_NUMBER_WORD = "|".join(_NUMBER_WORDS)
_ANY_ORDINAL = "first|second|third|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf)th"
_NOUN = (
    r"(?:clinically\s+)?(?:significant\s+|insignificant\s+)?(?:match(?:ed|ing)\s+)?"
    r"(?:errors?|findings?|instances?|occurrences?)\b"
)
_NUMBER = re.compile(
    rf"[\s(\[=]*(?:[-–—]\s+)?(?:(?P<digits>[0-9]{{1,2}})(?![0-9])(?![.,][0-9])(?!\s*[/%])(?!\s*[-–—]\s*[0-9])|"
    rf"(?P<word>{_ANY_NUMBER_WORD})(?=\s*[.;:,()\]]|\s+[-–—]\s|\s*$|\s*\n|\s+{_NOUN}))(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_AFTER_NUMBER = re.compile(
    rf"(?i:\s*(?:\)|\])?(?:\s+{_NOUN})?\s*(?:[.;:,)\]]+|\(|[-–—](?=\s)|$|\n)|\s+{_NOUN})|"
    r"\s*(?=[A-Z\"'“‘])|\s+(?=(?:the|a|an|candidate|reference|missing|missed|mentions|omits|no)\b)"
)
"""The end of a number that is a count, or the beginning of the items after it."""
_UNIT_AFTER_NUMBER = re.compile(
    r"\s*(?:cm|mm|m|of|to|or|and|by|out|x(?=\s*[0-9])|days?|weeks?|months?|years?|views?)\b"
)
_NUMBER_ALONE = re.compile(rf"(?:[0-9]+|{_ANY_NUMBER_WORD})(?:\s+{_NOUN})?\W*", re.IGNORECASE)
_PUBLISHED_COUNT = re.compile(r"[^\n]*?: ([0-9]{1,2})\.(?=\s|$)(.*)", re.DOTALL)
"""A count as GREEN's published parser finds it, anywhere after a colon."""
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
_NUMBERED_NAME = re.compile(
    rf"no\.\s*(?:[a-z]?[0-9]|[ivx]{{2,}}\b|(?:{_ANY_NUMBER_WORD}|eleven|twelve|{_ANY_ORDINAL})\b)", re.IGNORECASE
)
"""A name such as "No. 2 rib" or "No. fourth rib", in which "No." means number."""
_BULLET = re.compile(r"^\s*(?:[-•–—]\s+|\(?[0-9]{1,2}[.)]\s+)")
_LIST_ITEM = re.compile(r"(?P<indent>[ \t]*)[-•]\s+(?P<text>\S.*)")
_COUNT_FIELD = re.compile(
    rf"^(?:the\s+)?(?:{_NOUN}\s+)?(?:(?:total|overall|number|count|num|no\.|#)(?:\s+of)?\s*)+(?:{_NOUN})?"
    r"(?:\s*[:=]|\s+(?:is|are)\b)\s*",
    re.IGNORECASE,
)
_ANY_FIELD = re.compile(r"[^\W\d][\w()/'’-]*(?:\s+[\w()/'’-]+){0,4}\s*[:=](?=\s|$)")
_KNOWN_FIELD = re.compile(
    r"(?:the\s+)?(?:errors?|(?:match(?:ed|ing)\s+)?findings?|explanations?|reason(?:s|ing)?|rationale|details?|"
    r"descriptions?|severity|significance|impact|location|category|type|examples?|list|items?|comments?|notes?|"
    r"count|number|total|(?:in\s+(?:the\s+)?)?(?:reference|candidate)(?:\s+report)?)\s*[:=](?=\s|$)",
    re.IGNORECASE,
)


def strip_markup(line: str) -> str:
    """Return a line without Markdown and full-width punctuation; the cells of a table row are joined by colons."""
    line = re.sub(r"^(\s*)\*\s+", r"\1- ", line.translate(_WIDE_CHARACTERS)).replace("*", "").replace("`", "")
    line = re.sub(r"^[\s>#]+(?=\S)", "", line) if line.lstrip()[:1] in (">", "#") else line
    if line.lstrip().startswith("|"):
        return ": ".join(cell.strip() for cell in line.strip().strip("|").split("|"))
    return line


def states_none(text: str) -> bool:
    """Return whether the first sentence of a text states that there is nothing, and nothing else."""
    text = text.strip()
    sentence = re.split(r"[.;\n]", text, maxsplit=1)[0].strip()
    return _NUMBERED_NAME.match(text) is None and _NONE.fullmatch(sentence) is not None


def parse_count(value: Any, *, name: str = "", may_be_empty: bool = False, place: str = "") -> CountedItems:
    """Parse how many errors or findings a response states; errors begin with the place of the value."""
    counted = read_count(value, name=name, may_be_empty=may_be_empty)
    if counted is None:
        raise ValueError(f"{place} has no number; write it first, as in '{name and f'{name}: '}1. ...'".lstrip())
    return counted


def read_count(value: Any, *, name: str = "", may_be_empty: bool = True) -> CountedItems | None:
    """Read a count and the items after it; None if there is none."""
    if not isinstance(value, str):
        return _parse_json(value)
    text = "\n".join(line for line in value.splitlines() if not re.fullmatch(r"\s*[-=_:.]{3,}\s*", line))
    return _parse_named_text(text, name, may_be_empty) if name else _parse_text(text, may_be_empty)


def _parse_json(value: Any) -> CountedItems | None:
    if isinstance(value, list):
        return _parse_json_list(value)
    if isinstance(value, Mapping):
        fields = {str(key).lower(): item for key, item in value.items()}
        lists = [item for item in fields.values() if isinstance(item, list)]
        listed = _parse_json_list(lists[0]) if len(lists) == 1 else None
        keys = [key for key in COUNT_KEYS if key in fields]
        counted = read_count(fields[keys[0]], may_be_empty=False) if keys else listed
        return counted and CountedItems(counted.count, listed.items if listed else counted.items)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT:
        return CountedItems(value)
    return None


def _parse_json_list(items: Sequence[Any]) -> CountedItems | None:
    """Count the items of a JSON list; None if one is empty or a number, or if they are the fields of a single item."""
    if any(str(key).lower() in COUNT_KEYS for item in items if isinstance(item, Mapping) for key in item):
        return None
    texts = [_first_text(item) if isinstance(item, Mapping) else item for item in items]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        return None
    return None if any(_KNOWN_FIELD.match(_BULLET.sub("", text)) for text in texts) else _count_items(texts)


def _first_text(item: Mapping[str, Any]) -> str:
    """Return the first text of an object, or the object as text if it has other values; empty without a value."""
    values = [value for value in item.values() if value not in (None, "")]
    return next((value for value in values if isinstance(value, str)), str(dict(item)) if values else "")


def _parse_named_text(text: str, name: str, may_be_empty: bool) -> CountedItems | None:
    """Parse "NAME: COUNT. ITEMS" where the name may be missing, and the rest too if it may be empty."""
    text, first_word = text.strip(), name.split()[0]
    bullet = _LIST_ITEM.match(text)
    if text[:1].isdigit() or (bullet and not bullet["text"].lower().startswith(first_word.lower())):
        return _parse_text(text, may_be_empty)
    # The name ends with a colon, or before the count or the end of the line.
    end_of_name = rf".*?:|(?i:{first_word})[^0-9:]*?(?=$|[\s(\[]*[0-9])"
    counted = _parse_text(re.sub(rf"\A(?:{end_of_name})", "", text, flags=re.MULTILINE), may_be_empty)
    if counted is None and (match := _PUBLISHED_COUNT.match(text)):
        return CountedItems(int(match[1]), _split_items(match[2]))
    return counted


def _parse_text(text: str, may_be_empty: bool = False) -> CountedItems | None:
    """Parse the count at the beginning of a text, or the length of the list that the text is."""
    depth_known = re.match(r"[ \t]*\n", text) is not None
    text = re.sub(r"\A(?:[ \t]*\n)+", "", text).rstrip()
    text = text if _LIST_ITEM.match(text) else _COUNT_FIELD.sub("", text.lstrip())
    if not text.strip(" .-–—"):
        return ZERO if may_be_empty else None
    if states_none(text):
        return ZERO
    if items := _numbered_items(text.strip()):
        has_fields = any(_KNOWN_FIELD.match(item) or _COUNT_FIELD.match(item) for item in items)
        return _parse_fields(items, items) if has_fields else CountedItems(len(items), tuple(items))
    first, bullets = _LIST_ITEM.match(text), [match for line in text.splitlines() if (match := _LIST_ITEM.match(line))]
    if first is None or _NUMBER_ALONE.fullmatch(first["text"]):
        return _parse_number(text)
    number = _parse_number(text) if len(bullets) == 1 else None
    return number or _parse_bullets(bullets, _ANY_FIELD if may_be_empty else _KNOWN_FIELD, depth_known=depth_known)


def _parse_number(text: str) -> CountedItems | None:
    match = _NUMBER.match(text)
    if match is None:
        return None
    count = int(match["digits"]) if match["digits"] else _NUMBER_WORDS.index(match["word"].lower())
    rest = match["rest"]
    if end := _AFTER_NUMBER.match(rest):
        text = rest[end.end() :]
        return CountedItems(count, _split_items(text.removesuffix(")") if end[0].endswith("(") else text))
    # "1 pleural effusion" may be a count and an error, "2 nodules described as large" is not.
    items = _split_items(rest)
    return CountedItems(count, items) if not _UNIT_AFTER_NUMBER.match(rest) and len(items) == count else None


def _numbered_items(text: str) -> list[str]:
    """Return the items of a list numbered 1, 2, 3, ...; none if the first number may be a count of the others."""
    first = re.match(r"\(?1[.)]\s+(?=\S)", text)
    if first is None:
        return []
    for step, min_items in ((r"(?:[.;]\s+|\n[-•\s]*)", 2), (r"\s", 3)):
        items, rest = list[str](), text[first.end() - 1 :]
        while match := re.search(rf"{step}\(?{len(items) + 2}[.)]\s+(?=\S)", rest):
            items.append(rest[: match.start()])
            rest = rest[match.end() - 1 :]
        items.append(rest)
        if len(items) >= min_items:
            return [item.strip().rstrip(";") for item in items]
    return []


def _parse_bullets(
    bullets: Sequence[re.Match[str]], field: re.Pattern[str], *, depth_known: bool
) -> CountedItems | None:
    """Count the items at the first level of a list, or parse the count that one of them states."""
    indents = [len(bullet["indent"].expandtabs()) for bullet in bullets]
    texts = [bullet["text"] for bullet in bullets]
    # An indentation of one space more or less is the same level.
    level = min(indents) + 1
    items = [text for indent, text in zip(indents, texts, strict=True) if indent <= level]
    if indents[0] > level or (not depth_known and len(items) == 1 < len(texts)):
        return None
    if any(_COUNT_FIELD.match(item) for item in items):
        return _parse_fields(items, texts)
    # A response may end within "Count: 0".
    is_one_item = any(field.match(item) or "count".startswith(item.lower()) for item in items)
    return None if is_one_item else _count_items(items)


def _parse_fields(items: Sequence[str], lines: Sequence[str]) -> CountedItems | None:
    """Parse fields such as "Count: 2" and "Errors: ..."; None if their counts differ."""
    counted = [_parse_text(item) for item in items if _COUNT_FIELD.match(item)]
    counts = {field.count if field else None for field in counted}
    count = counts.pop() if len(counts) == 1 else None
    if count is None:
        return None
    texts = [_KNOWN_FIELD.sub("", line) for line in lines if not _COUNT_FIELD.match(line)]
    return CountedItems(count, _count_items([item for text in texts for item in _split_items(text)]).items)


def _count_items(texts: Sequence[str]) -> CountedItems:
    items = tuple(item for text in texts if (item := unquoted(_BULLET.sub("", text).strip())) and not states_none(item))
    return CountedItems(len(items), items)


def _split_items(text: str) -> tuple[str, ...]:
    items = (_BULLET.sub("", item).strip() for item in re.split(r";|\n", text.strip()))
    return tuple(item for item in items if item.strip(" .-–—"))
