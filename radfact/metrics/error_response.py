"""The notation that GREEN and VERT answer in: errors by significance and category, matched findings, a score."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from radfact.llm.response_text import after_thought, bodies, read_data
from radfact.metrics.count_parser import COUNT_KEYS, ZERO, Counted, read_counted, read_number, says_none, without_marks

T = TypeVar("T")

Letter = Literal["a", "b", "c", "d", "e", "f"]
CATEGORIES: Mapping[str, str] = {
    "a": "False report of a finding in the candidate",
    "b": "Missing a finding present in the reference",
    "c": "Misidentification of a finding's anatomic location/position",
    "d": "Misassessment of the severity of a finding",
    "e": "Mentioning a comparison that isn't in the reference",
    "f": "Omitting a comparison detailing a change from a prior study",
}
"""The six kinds of errors, by the letter that stands for each (paper 000, appendix A.1)."""

Section = Literal["explanation", "significant", "insignificant", "matched", "score"]

TITLES: Mapping[Section, str] = {
    "explanation": "[Explanation]",
    "significant": "[Clinically Significant Errors]",
    "insignificant": "[Clinically Insignificant Errors]",
    "matched": "[Matched Findings]",
    "score": "[Overall Accuracy Score]",
}

_NAMES: Mapping[Section, str] = {
    "explanation": r"explanation",
    "significant": r"(?:clinically[\s_-]+)?significant[\s_-]+errors?",
    "insignificant": r"(?:clinically[\s_-]+)?insignificant[\s_-]+errors?",
    "matched": r"(?:number\s+of\s+)?match(?:ed|ing)[\s_-]+findings?",
    "score": r"(?:overall[\s_-]+)?(?:accuracy[\s_-]+)?score",
}
_ANY_NAME = "|".join(f"(?P<{section}>{name})" for section, name in _NAMES.items())
_BRACKETED = re.compile(rf"^\W*\[\s*(?:{_ANY_NAME})\s*\]\s*[:：]?(?P<rest>.*)$", re.IGNORECASE)
_BARE = re.compile(
    rf"^\W*(?:\d[.)]\s*)?(?:{_ANY_NAME})\s*(?:[:：](?P<rest>.*)|(?P<counted>\(\d+\).*)|)$", re.IGNORECASE
)
_INLINE_HEADER = re.compile(rf"(?<=\S)[ \t]*(?=\[\s*(?:{'|'.join(_NAMES.values())})\s*\]\W*:)", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"<(?:the number of|error|finding|explanation|count)\b", re.IGNORECASE)
_LETTER = re.compile(r"^[-•\s]*(?:\(([a-f])\)|([a-f])[.)](?=\s))\s*:?\s*", re.IGNORECASE)
_DIGIT = re.compile(r"^[-•\s]*\(([1-6])\)\s*")
_LIST_NUMBER = re.compile(r"^[-•\s]*(?:\(?\d[.)]\s*)?")
_LIKE_NAME = {
    "a": r"false (?:report|prediction|finding)",
    "b": r"(?:missing|missed) (?:a )?finding|omission of (?:a )?finding",
    "c": r"misidentification|incorrect (?:anatomic(?:al)? )?location",
    "d": r"misassessment|incorrect severity",
    "e": r"mention(?:ing)? (?:of )?(?:a )?comparison",
    "f": r"(?:omitting|omission of) (?:a )?comparison",
}
_NAMED = re.compile("|".join(f"(?P<{letter}>{name})" for letter, name in _LIKE_NAME.items()), re.IGNORECASE)
_ANY_LIKE = "|".join(_LIKE_NAME.values())
_A_COUNT = r"(?:[0-9]{1,2}(?![0-9])(?!\.[0-9])|no\b|none\b|zero\b|one\b|two\b|three\b)"
_INLINE_CATEGORY = re.compile(
    rf"(?<=\S)[ \t]+(?=(?:\([a-f1-6]\)|[a-f]\))\s+(?:{_ANY_LIKE})[^:;\n]{{0,70}}:\W*{_A_COUNT})|"
    rf"(?<=[^\s)\-•])(?<![0-9]\.)[ \t]+(?=(?:{_ANY_LIKE})[^:;\n]{{0,70}}:\W*{_A_COUNT})|"
    rf"(?<=\S)[ \t]+(?=\([b-f2-6]\)\s+(?:{_A_COUNT}|[A-Z][^:;\n]{{5,90}}:\W*{_A_COUNT}))",
    re.IGNORECASE,
)
_LETTER_INSIDE = re.compile(r"(?<!\w)\(([a-f])\)")


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one significance, (a) to (f): how many there are, and what is said of them."""

    counts: tuple[int, ...]
    said: tuple[tuple[str, ...], ...]

    @property
    def total(self) -> int:
        """Number of errors of all categories."""
        return sum(self.counts)

    def as_record(self) -> dict[str, Any]:
        """Count and explanations by letter, for a person to read; categories without an error are left out."""
        return {
            letter: {"count": count, "errors": list(said)}
            for letter, count, said in zip(CATEGORIES, self.counts, self.said, strict=True)
            if count
        }


@dataclass(frozen=True, slots=True)
class Assessment:
    """What a model says of a candidate; `score` is the overall accuracy, in [0, 1], NaN if not asked for."""

    significant: Errors
    insignificant: Errors
    matched: int
    findings: tuple[str, ...] = ()
    explanation: str = ""
    score: float = math.nan

    def as_record(self) -> dict[str, Any]:
        """As JSON values, for a person to read."""
        record: dict[str, Any] = {
            "explanation": self.explanation,
            "significant": self.significant.as_record(),
            "insignificant": self.insignificant.as_record(),
            "matched": {"count": self.matched, "findings": list(self.findings)},
        }
        return record if math.isnan(self.score) else record | {"score": self.score}


def read_assessment(text: str, *, scored: bool = False) -> Assessment:
    """Read an answer in GREEN's or VERT's notation, strict on meaning and lenient on form.

    Bold, lower-case or run-on headers, missing full stops, blank lines, lists, tables and JSON are read; what could
    be read in two ways is not.

    Args:
        text: the answer.
        scored: whether it must have an overall accuracy score.

    Raises:
        ValueError: a section is missing, or a count, or it is said twice and differently.
    """
    sections = read_sections(text)
    errors = {name: section_errors(sections, name) for name in ("significant", "insignificant")}
    matched = _once(sections, "matched", _matched)
    score = _once(sections, "score", read_score) if scored else math.nan
    explanation = next((one for one in sections.get("explanation", ()) if isinstance(one, str)), "").strip()
    return Assessment(errors["significant"], errors["insignificant"], matched.count, matched.said, explanation, score)


def section_errors(sections: Mapping[Section, Sequence[Any]], name: Section, *, complete: bool = False) -> Errors:
    """The errors of one significance.

    Args:
        sections: as `read_sections` gives them.
        name: significant or insignificant.
        complete: whether a category that is not there is missing, and not without errors: nothing that comes after
            says that the answer was not cut off.

    Raises:
        ValueError: as `read_assessment`.
    """
    return _once(sections, name, lambda body: _errors(body, TITLES[name], complete))


def read_sections(text: str) -> dict[Section, list[Any]]:
    """What an answer says under each header: lines of text, or values where it is JSON; a header may come twice.

    Raises:
        ValueError: there is no header at all.
    """
    if text.strip() and not after_thought(text).strip():
        raise ValueError("it ends before the answer begins; think less")
    for body in bodies(text):
        start, end = body.find("{"), body.rfind("}")
        if start >= 0 and not _has_bracketed(body) and (found := _json_sections(read_data(body[start : end + 1]))):
            return found
    found = _text_sections("\n".join(bodies_without_fences(text)))
    if not found:
        raise ValueError(f"it has none of the headers {', '.join(TITLES[one] for one in list(TITLES)[1:4])}")
    return found


def bodies_without_fences(text: str) -> list[str]:
    """The lines after any thinking aloud, without fences and marks of Markdown."""
    lines = _INLINE_HEADER.sub("\n", after_thought(text)).splitlines()
    return [without_marks(line) for line in lines if not line.lstrip().startswith("```")]


def _has_bracketed(body: str) -> bool:
    return any(_BRACKETED.match(without_marks(line)) for line in body.splitlines())


def _text_sections(text: str) -> dict[Section, list[Any]]:
    lines = text.splitlines()
    bracketed = {_section(match) for line in lines if (match := _BRACKETED.match(line))}
    found: dict[Section, list[Any]] = {}
    current: list[str] = []
    for line in lines:
        match = _BRACKETED.match(line)
        # Where a section has its brackets, the same words without any are prose.
        if match is None and (match := _BARE.match(line)) and not _begins(_section(match), bracketed, found):
            match = None
        if match is None:
            current.append(line)
            continue
        given = match.groupdict()
        current = [given.get("rest") or given.get("counted") or ""]
        found.setdefault(_section(match), []).append(current)
    # Spaces before a first line tell how deep it stands in its list.
    joined = {name: ["\n".join(lines).rstrip() for lines in occurrences] for name, occurrences in found.items()}
    return {name: kept for name, texts in joined.items() if (kept := [t for t in texts if not _PLACEHOLDER.search(t)])}


def _begins(section: Section, bracketed: Container[Section], found: Container[Section]) -> bool:
    """Whether a header without brackets begins its section; every single error may have an explanation or a score."""
    if section == "explanation" and ("significant" in found or "insignificant" in found):
        return False
    return section not in bracketed and (section != "score" or "matched" in found)


def _section(match: re.Match[str]) -> Section:
    return next(name for name in TITLES if match[name] is not None)


def _json_sections(data: Any) -> dict[Section, list[Any]]:
    if not isinstance(data, dict):
        return {}
    found: dict[Section, list[Any]] = {}
    for key, value in data.items():
        match = _BRACKETED.match(str(key)) or _BARE.match(str(key))
        if match:
            found.setdefault(_section(match), []).append(value)
    if not {"significant", "insignificant", "matched"} & set(found):
        inner = [part for value in data.values() if (part := _json_sections(value))]
        return inner[0] if len(inner) == 1 else {}
    return found


def _once(sections: Mapping[Section, Sequence[Any]], name: Section, read: Callable[[Any], T]) -> T:
    """What a section says; said twice, it must be the same."""
    given = sections.get(name)
    if not given:
        raise ValueError(f"it has no section {TITLES[name]}")
    values = [read(body) for body in given]
    if any(value != values[0] for value in values[1:]):
        raise ValueError(f"it has {len(values)} sections {TITLES[name]} that differ; give one")
    return values[0]


def _errors(body: Any, title: str, complete: bool) -> Errors:
    chunks = list(_chunks(body)) if isinstance(body, str) else list(_items(body))
    if not chunks:
        if says_none(body) if isinstance(body, str) else body in ({}, []) and not complete:
            return Errors((0,) * len(CATEGORIES), ((),) * len(CATEGORIES))
        raise ValueError(f"{title} has no lines (a) to (f)")
    found: dict[str, Counted] = {}
    for letter, said in chunks:
        texts = [one for one in (said if isinstance(said, list) else [said]) if isinstance(one, str)]
        if any(_holds_another(one, {letter for letter, _ in chunks}) for one in texts):
            raise ValueError(f"{title} has several categories in one line; give each its own")
        counted = _category(letter, said, title)
        if found.setdefault(letter, counted) != counted:
            raise ValueError(f"{title} has ({letter}) twice; give each category one line with the number of its errors")
    missing = [f"({letter})" for letter in CATEGORIES if letter not in found]
    if complete and missing:
        raise ValueError(f"{title} has no {', '.join(missing)}; give all six categories")
    each = [found.get(letter, ZERO) for letter in CATEGORIES]
    return Errors(tuple(one.count for one in each), tuple(one.said for one in each))


def _holds_another(said: str, begun: set[str]) -> bool:
    """Whether what follows a letter has another category in it, which would be lost."""
    inside = said.lower()
    named = any(inside.find(name.lower(), 1) > 0 for letter, name in CATEGORIES.items() if letter not in begun)
    return named or any(letter not in begun for letter in _LETTER_INSIDE.findall(said))


def _category(letter: str, said: Any, title: str) -> Counted:
    try:
        return read_counted(said, name=CATEGORIES[letter])
    except ValueError as error:
        raise ValueError(f"({letter}) of {title} {error}") from None


def _chunks(body: str) -> Iterator[tuple[str, str]]:
    """(letter, what follows it) for every category of a section."""
    lines = _INLINE_CATEGORY.sub("\n", body).splitlines()
    mark = _by_letter if any(_LETTER.match(line) for line in lines) else _by_name
    letter, chunk = "", list[str]()
    for line in lines:
        begun = mark(line)
        if begun is None:
            chunk.append(line)
            continue
        if letter:
            yield letter, "\n".join(chunk)
        letter, chunk = begun[0], [begun[1]]
    if letter:
        yield letter, "\n".join(chunk)


def _by_letter(line: str) -> tuple[str, str] | None:
    match = _LETTER.match(line)
    return None if match is None else ((match[1] or match[2]).lower(), line[match.end() :])


def _by_name(line: str) -> tuple[str, str] | None:
    said = _LIST_NUMBER.sub("", line)
    if match := _NAMED.match(said):
        return str(match.lastgroup), said
    if match := _DIGIT.match(line):
        return "abcdef"[int(match[1]) - 1], line[match.end() :]
    return None


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """(letter, what is said of it) for every category of a section in JSON; a list without counts is of errors."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        found: list[tuple[str, Any]] = [*_chunks("\n".join(map(without_marks, value)))]
    else:
        pairs = value.items() if isinstance(value, dict) else map(_named_item, value) if isinstance(value, list) else ()
        found = [(_letter_of(key), said) for key, said in pairs]
    if not isinstance(value, list) or len(found) != len(value) or not all(_is_one(*one) for one in found):
        yield from found
        return
    for letter in dict.fromkeys(letter for letter, _ in found):
        yield letter, [_error(letter, said) for one, said in found if one == letter]


def _letter_of(key: Any) -> str:
    name = without_marks(str(key)).strip()
    begun = (name.lower(), "") if name.lower() in CATEGORIES else _by_letter(f"{name} ") or _by_name(name)
    if begun is None:
        raise ValueError(f"'{name:.80}' is none of the categories (a) to (f)")
    return begun[0]


def _is_one(letter: str, said: Any) -> bool:
    """Whether an item speaks of an error, and gives no number of them."""
    if isinstance(said, dict):
        texts = [text for key, text in said.items() if str(key).lower() not in COUNT_KEYS and isinstance(text, str)]
        return 0 < len(texts) == len(said) and not any(_has_count(text, "errors") for text in texts)
    text = _without_name(str(said))
    return isinstance(said, str) and (not text or not _has_count(said, CATEGORIES[letter]))


def _has_count(said: str, name: str) -> bool:
    try:
        return read_counted(said, name=name) is not None
    except ValueError:
        return False


def _without_name(said: str) -> str:
    """What an item says behind the name of its category."""
    return (said.partition(":")[2] if _NAMED.match(said) else said).strip(" .-–—\n")


def _error(letter: str, said: Any) -> Any:
    text = said if isinstance(said, dict) else _without_name(said)
    if not text:
        raise ValueError(f"({letter}) has neither a number nor an error; write the number of its errors first")
    return text


def _named_item(item: Any) -> tuple[Any, Any]:
    if isinstance(item, dict):
        for key in ("category", "type", "error_type", "error type", "name", "letter"):
            if key in item:
                return item[key], {name: value for name, value in item.items() if name != key}
        if len(item) == 1:
            return next(iter(item.items()))
    return item, None


def _matched(body: Any) -> Counted:
    try:
        return read_counted(body, name="Matched findings", bare=True)
    except ValueError as error:
        raise ValueError(f"{TITLES['matched']} {error}") from None


def read_score(body: Any) -> float:
    """The overall accuracy score of a section, in [0, 1].

    Raises:
        ValueError: there is none, or it lies elsewhere.
    """
    score = read_number(body)
    if score is None or not 0 <= score <= 1:
        raise ValueError(f"{TITLES['score']} has no number from 0.00 to 1.00")
    return score
