"""Parser of GREEN's and VERT's notation: errors by significance and category, matched findings, overall score."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, PlainSerializer

from radfact.error_categories import ERROR_CATEGORIES
from radfact.llm.response_text import bodies, read_data, strip_reasoning
from radfact.metrics.llm.responses.accuracy_score import SCORE_TITLE, parse_accuracy_score
from radfact.metrics.llm.responses.counts import COUNT_KEYS, parse_count, read_count, states_none, strip_markup

T = TypeVar("T")

Section = Literal["explanation", "significant", "insignificant", "matched", "score"]
Sections = dict[Section, list[Any]]
"""Contents of the sections: text, or values if the response is JSON. A section may occur more than once."""

SECTION_TITLES: Mapping[Section, str] = {
    "explanation": "[Explanation]",
    "significant": "[Clinically Significant Errors]",
    "insignificant": "[Clinically Insignificant Errors]",
    "matched": "[Matched Findings]",
    "score": SCORE_TITLE,
}

_SECTION_NAMES: Mapping[Section, str] = {
    "explanation": r"explanation",
    "significant": r"(?:clinically[\s_-]+)?significant[\s_-]+errors?",
    "insignificant": r"(?:clinically[\s_-]+)?insignificant[\s_-]+errors?",
    "matched": r"(?:number\s+of\s+)?match(?:ed|ing)[\s_-]+findings?",
    "score": r"(?:overall[\s_-]+)?(?:accuracy[\s_-]+)?score",
}
_ANY_SECTION = "|".join(f"(?P<{section}>{name})" for section, name in _SECTION_NAMES.items())
_BRACKETED_HEADER = re.compile(rf"\W*\[\s*(?:{_ANY_SECTION})\s*\]\s*[:：]?", re.IGNORECASE)
_BARE_HEADER = re.compile(rf"\W*(?:\d[.)]\s*)?(?:{_ANY_SECTION})\s*(?:[:：]|(?=\(\d+\))|$)", re.IGNORECASE)
_INLINE_HEADER = re.compile(rf"(?<=\S)[ \t]*(?=\[\s*(?:{'|'.join(_SECTION_NAMES.values())})\s*\]\W*:)", re.IGNORECASE)
_JSON_TITLE = re.compile(
    r"^(?:number[\s_-]+of[\s_-]+)?(?:clinically[\s_-]+)?((?:in)?significant)(?:[\s_-]+errors?)?(?:[\s_-]+by[\s_-]+type)?$",
    re.IGNORECASE,
)
_PLACEHOLDER = re.compile(r"<(?:the number of|error|finding|explanation|count)\b", re.IGNORECASE)

_CATEGORY_NAMES = {
    "a": r"false (?:report|prediction|finding)",
    "b": r"(?:missing|missed) (?:a )?finding|omission of (?:a )?finding",
    "c": r"misidentification|incorrect (?:anatomic(?:al)? )?location",
    "d": r"misassessment|incorrect severity",
    "e": r"mention(?:ing)? (?:of )?(?:a )?comparison",
    "f": r"(?:omitting|omission of) (?:a )?comparison",
}
_ANY_CATEGORY = "|".join(_CATEGORY_NAMES.values())
_CATEGORY = re.compile("|".join(f"(?P<{letter}>{name})" for letter, name in _CATEGORY_NAMES.items()), re.IGNORECASE)
_LETTER = re.compile(r"^[-•\s]*(?:\(([a-f])\)|([a-f])[.)](?=\s))\s*:?\s*", re.IGNORECASE)
_LETTER_IN_TEXT = re.compile(r"(?<!\w)\(([a-f])\)")
_DIGIT = re.compile(r"^[-•\s]*\(([1-6])\)\s*")
_LIST_NUMBER = re.compile(r"^[-•\s]*(?:\(?\d[.)]\s*)?")
_A_COUNT = r"(?:[0-9]{1,2}(?![0-9])(?!\.[0-9])|no\b|none\b|zero\b|one\b|two\b|three\b)"
_INLINE_CATEGORY = re.compile(
    rf"(?<=\S)[ \t]+(?=(?:\([a-f1-6]\)|[a-f]\))\s+(?:{_ANY_CATEGORY})[^:;\n]{{0,70}}:\W*{_A_COUNT})|"
    rf"(?<=[^\s)\-•])(?<![0-9]\.)[ \t]+(?=(?:{_ANY_CATEGORY})[^:;\n]{{0,70}}:\W*{_A_COUNT})|"
    rf"(?<=\S)[ \t]+(?=\([b-f2-6]\)\s+(?:{_A_COUNT}|[A-Z][^:;\n]{{5,90}}:\W*{_A_COUNT}))",
    re.IGNORECASE,
)
_CATEGORY_KEYS = ("category", "type", "error_type", "error type", "name", "letter")


class CategoryErrors(BaseModel):
    """Number of errors of a category, and their explanations."""

    count: int
    errors: tuple[str, ...] = ()


class MatchedFindings(BaseModel):
    """Number of matched findings, and their texts."""

    count: int
    findings: tuple[str, ...] = ()


def _complete(errors: dict[str, CategoryErrors]) -> dict[str, CategoryErrors]:
    return {letter: errors.get(letter, CategoryErrors(count=0)) for letter in ERROR_CATEGORIES}


def _without_zeros(errors: dict[str, CategoryErrors]) -> dict[str, Any]:
    return {letter: category.model_dump(mode="json") for letter, category in errors.items() if category.count}


Errors = Annotated[dict[str, CategoryErrors], AfterValidator(_complete), PlainSerializer(_without_zeros)]
"""Errors of one significance by category; as JSON without the categories that have none."""


class Assessment(BaseModel):
    """A model's assessment of a candidate, also as the details of a sample in a results folder have it."""

    model_config = ConfigDict(frozen=True)

    explanation: str = ""
    significant: Errors
    insignificant: Errors
    matched: MatchedFindings


class ScoredAssessment(Assessment):
    """An assessment with the overall accuracy in [0, 1]."""

    score: float


def total(errors: Errors) -> int:
    return sum(category.count for category in errors.values())


def parse_assessment(text: str) -> Assessment:
    """Parse a response in GREEN's notation, in any form that can be read in one way only."""
    sections = parse_sections(text)
    significant, insignificant = parse_errors(sections, "significant"), parse_errors(sections, "insignificant")
    matched = _parse_unique(sections, "matched", partial(parse_count, place=SECTION_TITLES["matched"]))
    return Assessment(
        explanation=next((body for body in sections.get("explanation", ()) if isinstance(body, str)), "").strip(),
        significant=significant,
        insignificant=insignificant,
        matched=MatchedFindings(count=matched.count, findings=matched.items),
    )


def parse_scored_assessment(text: str) -> ScoredAssessment:
    """Parse a response in VERT's notation, which is that of GREEN with a score."""
    assessment = parse_assessment(text)
    score = _parse_unique(parse_sections(text), "score", parse_accuracy_score)
    return ScoredAssessment(**dict(assessment), score=score)


def _parse_unique(sections: Sections, section: Section, parse: Callable[[Any], T]) -> T:
    """Parse a section; if it occurs twice, both must state the same."""
    if not sections.get(section):
        raise ValueError(f"it has no section {SECTION_TITLES[section]}")
    values = [parse(body) for body in sections[section]]
    if any(value != values[0] for value in values):
        raise ValueError(f"it has {len(values)} sections {SECTION_TITLES[section]} that differ; give one")
    return values[0]


def parse_sections(text: str) -> Sections:
    response = strip_reasoning(text)
    if text.strip() and not response.strip():
        raise ValueError("it ends before the answer begins; think less")
    sections: Sections = {}
    for body in bodies(text):
        has_headers = any(_BRACKETED_HEADER.match(strip_markup(line)) for line in body.splitlines())
        start, end = body.find("{"), body.rfind("}")
        if start >= 0 and not has_headers:
            for section, values in _json_sections(read_data(body[start : end + 1])).items():
                sections.setdefault(section, []).extend(values)
    sections = sections or _text_sections(response)
    if not any(sections.values()):
        raise ValueError(f"it has none of the headers {', '.join(list(SECTION_TITLES.values())[1:4])}")
    return sections


def _json_sections(data: Any) -> Sections:
    if not isinstance(data, dict):
        return {}
    sections: Sections = {}
    for key, value in data.items():
        title = _JSON_TITLE.sub(r"\1 errors", str(key))
        if match := _BRACKETED_HEADER.match(title) or _BARE_HEADER.match(title):
            sections.setdefault(_section_of(match), []).append(value)
    if sections.keys() & {"significant", "insignificant", "matched"}:
        return sections
    inner = [part for value in data.values() if (part := _json_sections(value))]
    return inner[0] if len(inner) == 1 else {}


def _text_sections(text: str) -> Sections:
    lines = _INLINE_HEADER.sub("\n", text).splitlines()
    lines = [strip_markup(line) for line in lines if not line.lstrip().startswith("```")]
    bracketed = {_section_of(match) for line in lines if (match := _BRACKETED_HEADER.match(line))}
    sections: dict[Section, list[list[str]]] = {}
    body: list[str] = []
    for line in lines:
        header = _BRACKETED_HEADER.match(line)
        if header is None and (header := _BARE_HEADER.match(line)):
            section = _section_of(header)
            is_prose = section in bracketed or (section == "score" and "matched" not in sections)
            # Each error may have an explanation of its own.
            is_detail = section == "explanation" and not sections.keys().isdisjoint(("significant", "insignificant"))
            header = None if is_prose or is_detail else header
        if header is None:
            body.append(line)
        else:
            body = [line[header.end() :]]
            sections.setdefault(_section_of(header), []).append(body)
    # Leading spaces are kept: they tell the level of the first line in its list.
    texts = {section: ["\n".join(body).rstrip() for body in occurrences] for section, occurrences in sections.items()}
    return {section: [text for text in texts[section] if not _PLACEHOLDER.search(text)] for section in texts}


def _section_of(header: re.Match[str]) -> Section:
    return cast(Section, header.lastgroup)


def parse_errors(
    sections: Sections, section: Literal["significant", "insignificant"], *, complete: bool = False
) -> Errors:
    return _parse_unique(sections, section, lambda body: _parse_errors(body, SECTION_TITLES[section], complete))


def _parse_errors(body: Any, title: str, complete: bool) -> Errors:
    entries = _text_entries(body) if isinstance(body, str) else _json_entries(body)
    if not entries:
        if states_none(body) if isinstance(body, str) else body in ({}, []) and not complete:
            return _complete({})
        raise ValueError(f"{title} has no lines (a) to (f)")
    letters = {letter for letter, _ in entries}
    errors: Errors = {}
    for letter, value in entries:
        texts = value if isinstance(value, list) else [value]
        if any(_contains_category(text, letters) for text in texts if isinstance(text, str)):
            raise ValueError(f"{title} has several categories in one line; give each its own")
        place = f"({letter}) of {title}"
        counted = parse_count(value, name=ERROR_CATEGORIES[letter], may_be_empty=isinstance(body, str), place=place)
        category = CategoryErrors(count=counted.count, errors=counted.items)
        if errors.setdefault(letter, category) != category:
            raise ValueError(f"{title} has ({letter}) twice; give each category one line with the number of its errors")
    missing = [f"({letter})" for letter in ERROR_CATEGORIES if letter not in errors]
    if complete and missing:
        raise ValueError(f"{title} has no {', '.join(missing)}; give all six categories")
    return _complete(errors)


def _contains_category(text: str, letters: set[str]) -> bool:
    """Return whether an entry contains another category that has no entry of its own and would be lost."""
    names = [name.lower() for letter, name in ERROR_CATEGORIES.items() if letter not in letters]
    has_name = any(text.lower().find(name, 1) > 0 for name in names)
    return has_name or any(letter not in letters for letter in _LETTER_IN_TEXT.findall(text))


def _text_entries(body: str) -> list[tuple[str, Any]]:
    """Return the letter of each category of a section and the text that follows it."""
    lines = _INLINE_CATEGORY.sub("\n", body).splitlines()
    by_name = not any(map(_LETTER.match, lines))
    entries: list[tuple[str, list[str]]] = []
    for line in lines:
        if match := _match_category(line, by_name=by_name):
            entries.append((match[0], [match[1]]))
        elif entries:
            entries[-1][1].append(line)
    return [(letter, "\n".join(entry)) for letter, entry in entries]


def _match_category(line: str, *, by_name: bool) -> tuple[str, str] | None:
    """Return the letter of the category that a line begins with, and the text that follows it."""
    if match := _LETTER.match(line):
        return (match[1] or match[2]).lower(), line[match.end() :]
    text = _LIST_NUMBER.sub("", line) if by_name else ""
    if match := _CATEGORY.match(text):
        return str(match.lastgroup), text
    if by_name and (match := _DIGIT.match(line)):
        return "abcdef"[int(match[1]) - 1], line[match.end() :]
    return None


def _json_entries(value: Any) -> list[tuple[str, Any]]:
    """Return the letter of each category of a JSON section and its value; a list may hold single errors instead."""
    if isinstance(value, dict):
        return [(_letter_of(key), item) for key, item in value.items()]
    if not isinstance(value, list):
        return []
    if all(isinstance(item, str) for item in value):
        entries = _text_entries("\n".join(map(strip_markup, value)))
    else:
        entries = [(_letter_of(key), item) for key, item in map(_json_item, value)]
    errors = [_error_of(*entry) for entry in entries]
    if len(entries) != len(value) or None in errors:
        return entries
    by_letter: dict[str, list[Any]] = {}
    for (letter, _), error in zip(entries, errors, strict=True):
        by_letter.setdefault(letter, []).append(error)
    return list(by_letter.items())


def _json_item(item: Any) -> tuple[Any, Any]:
    """Return the category of a list item and the rest of the item."""
    if not isinstance(item, dict):
        return item, None
    for key in _CATEGORY_KEYS:
        if key in item:
            return item[key], {name: value for name, value in item.items() if name != key}
    return next(iter(item.items())) if len(item) == 1 else (item, None)


def _letter_of(key: Any) -> str:
    name = strip_markup(str(key)).strip()
    if name.lower() in ERROR_CATEGORIES:
        return name.lower()
    match = _match_category(f"{name} ", by_name=True)
    if match is None:
        raise ValueError(f"'{name:.80}' is none of the categories (a) to (f)")
    return match[0]


def _error_of(letter: str, item: Any) -> Any:
    """Return the error that an item describes, without its category; None if it has a number of errors, or no error."""
    if isinstance(item, dict):
        texts = [text for key, text in item.items() if str(key).lower() not in COUNT_KEYS and isinstance(text, str)]
        is_error = 0 < len(texts) == len(item) and not any(read_count(text, name="errors") for text in texts)
        return item if is_error else None
    if not isinstance(item, str) or read_count(item, name=ERROR_CATEGORIES[letter]):
        return None
    return (item.partition(":")[2] if _CATEGORY.match(item) else item).strip(" .-–—\n") or None
