"""Split the free text of a radiology report into sections by its headings; rules in docs/archives.md."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache
from itertools import takewhile
from pathlib import Path

from radfact.io.yaml_files import read_yaml


@dataclass(slots=True)
class _Part:
    """A heading as written ("" for none), its section, and the lines below it."""

    kind: str
    heading: str = ""
    lines: list[str] = field(default_factory=list)

    def prose(self) -> str:
        return " ".join(" ".join(self.lines).split())

    def text(self) -> str:
        return " ".join((self.heading + ":", *self.lines)) if self.heading else " ".join(self.lines)


# Digits, "_" (a removed date) and times occur in titles such as "PORTABLE CHEST, ___ AT 17:25:". Mixed case counts as a
# heading only for words that do not start a line of prose; "History:" often does, under INDICATION.
_HEADING = re.compile(
    r"\s*([A-Z](?:[A-Z0-9 ()/,&#'_-]|:(?=\d\d)){0,99}"
    r"|Findings?|Impression|Indication|Technique|Comparisons?|Conclusion):(?!\d\d)"
)
_WET_READ = re.compile(r"\s*(WET ?READ(?: VERSION(?: ?#\S*)?)?):?(?![A-Za-z])")
_RULE = re.compile(r"\s*_{10,}\s*$")
# First characters of lines without a colon that start a section: a separator, a banner, a wet read.
_MAY_BEGIN = re.compile(r"\s*[_FPW]")
# "___" stands for de-identified text.
_WORD = re.compile(r"\w")
_JOINED = frozenset(("findings", "views", "impression", "addendum", "wet_read"))
_TERMS = read_yaml(Path(__file__).with_suffix(".yaml"))

# Line breaks in cells of tables: HTML, HL7, Excel, and the escapes of programming languages.
_BREAK = re.compile(
    r"<br\s*/?>|</?(?:p|div|li|ul|ol|tr|section|text|h\d)\b[^>]*>|\\\.br\\|\\X0[AD]\\|_x000D_|(?:\\r)?\\n|\r\n?|\f",
    re.I,
)
_TAG = re.compile(
    r"</?(?:a href|[bius]|em|strong|span|font|small|big|su[bp]|table|t[dh]|tbody|hr|html|body|pre|title)\b[^<>]*>", re.I
)
_FOOTER = re.compile(rf"(?:^\W*|(?<=[.;!] ))(?={_TERMS['footers']})", re.I | re.M)
_FINAL = re.compile(r"^\W*final report\W*$", re.I | re.M)
_NAME = "|".join(_TERMS["any_case"])
_NAMES = (
    rf"(?P<name>(?:{_NAME})(?:(?: ?/ ?| ?& ?| and )(?:{_NAME})){{0,2}}|{_TERMS['titles']}|{_TERMS['details']})"
    r"(?:/[a-z]+| ?\([^()\n]{1,30}\))?"
)
_OWN = {kind: re.compile(_TERMS[name], re.I) for kind, name in (("detail", "details"), ("views", "titles"))}
_BOLD = re.compile(
    rf"(?:<(?:b|strong|u|t[dh]|title)>|\*\*)\s*{_NAMES}\s*:?\s*(?:</(?:b|strong|u|t[dh]|title)>|\*\*)\s*:?", re.I
)
_ANY_CASE = re.compile(
    rf"(?<![\w/-]){_NAMES}(?![\w/])[ *=#\])}}]*(?P<end>[:>|\t]|;(?=[ *=#]*$)|[-–—](?=\s)|\.?(?=[ *=#]*$)"
    rf"|(?P<prose>(?-i:(?=[ \t]+(?:[A-Z]?[a-z]|1[.)])))(?![ \t]+(?:{_TERMS['predicates']})\b)))(?:[*=]|->)*",
    re.IGNORECASE | re.MULTILINE,
)
"""A heading in any case, and a mark of its end: a colon, a dash, the end of the line, or a sentence."""
_NUMBER = re.compile(r"\W*(?:(?:\d+|[A-Z]|[IVX]+)[.)])?\W*", re.I)
_REPORTED = ("findings", "impression")
_BEFORE_FINDINGS = ("indication", "history", "technique", "comparison", "examination")
_SIGNATURE = "SIGNED BY"


def split_sections(text: str) -> dict[str, str]:
    """Split a report, with its line breaks, by its headings; all of its text is in some section."""
    parts = [_resolve_title(part) for part in _parts(text)]
    written = _written(parts)
    text = _text(parts)
    # A heading without text is not a section, so a title does not hide the last paragraph.
    if not any(part.kind in _REPORTED for part in written):
        parts += _last_paragraph([part for part in written if part.kind != "wet_read"], "last_paragraph")
    return _join(parts, text)


def split_report(text: str) -> dict[str, str]:
    """Split a report of any source as `split_sections` does."""
    parts = list(_parts_of_any_source(text))
    # Below a title, a report with a heading for the findings has names and dates.
    is_headed = any(part.kind == "findings" and part.heading for part in parts)
    parts = [replace(p, kind="examination") if p.kind == "views" and is_headed else _resolve_title(p) for p in parts]
    written = _written(parts)
    text = _text(parts)
    if not any(part.kind == "findings" for part in written):
        before = takewhile(lambda part: part.kind != "impression", written)
        parts += _last_paragraph([part for part in before if part.kind in _BEFORE_FINDINGS], "findings")
    return _join(parts, text)


def _written(parts: Iterable[_Part]) -> list[_Part]:
    return [part for part in parts if _WORD.search(part.prose())]


def _text(parts: Iterable[_Part]) -> str:
    return " ".join(part.text() for part in parts if part.kind != "wet_read" and part.heading != _SIGNATURE)


def _join(parts: Iterable[_Part], text: str) -> dict[str, str]:
    """Return the texts of each section, and the whole text."""
    by_kind: dict[str, list[str]] = {}
    for part in _written(parts):
        if (prose := part.prose()) not in (texts := by_kind.setdefault(part.kind, [])):
            texts.append(prose)
    sections = {kind: " ".join(texts) for kind, texts in by_kind.items()}
    return sections | ({"text": complete} if (complete := " ".join(text.split())) else {})


def _parts_of_any_source(text: str) -> Iterator[_Part]:
    text = _BREAK.sub("\n", html.unescape(text)).replace("：", ":")
    text = _TAG.sub(" ", _BOLD.sub(r"\n\g<name>: ", text)).strip()
    final = _FINAL.search(text)
    if final is not None and "preliminary" in text[: final.start()].lower():
        text = text[final.end() :]
    text = _FOOTER.sub(f"\n{_SIGNATURE}: ", text)
    begin, current, heading, has_findings = 0, "preamble", "", False
    for match in _ANY_CASE.finditer(text):
        start = text.rfind("\n", begin, match.start()) + 1 or begin
        # Slices of a limited length: the output of a model in a loop must take linear time.
        before, above = text[max(start, match.start() - 99) : match.start()], text[max(begin, start - 99) : start]
        has_findings |= current == "views" and _WORD.search(text, begin, match.start()) is not None
        name = _known_heading(match["name"], has_findings)
        kind = next((kind for kind, own in _OWN.items() if own.fullmatch(match["name"])), _kind(name) or "other")
        is_line = start > begin or not begin
        if _is_expected(kind, current, before, has_findings, is_line) and _is_heading(match, kind, before, above):
            end = start if _NUMBER.fullmatch(before) else match.start()
            yield from _section(current, heading, text[begin:end].rstrip(" \t#*=>[({|"))
            begin, current, heading = match.end(), kind, name
            if kind == "detail":
                begin, current, heading = match.start(), "findings", ""
            has_findings |= current == "findings"
    yield from _section(current, heading, text[begin:])


def _section(kind: str, heading: str, text: str) -> Iterator[_Part]:
    """Yield the part of a section, and those that other headings of MIMIC-CXR begin in one that is not the report."""
    if kind in ("findings", "impression", "addendum", "other"):
        yield _Part(kind, heading, text.split("\n"))
        return
    line, _, rest = text.partition("\n")
    first, *others = _parts(rest)
    yield _Part(kind, heading, [line, *first.lines])
    yield from others


def _is_expected(kind: str, current: str, before: str, has_findings: bool, is_line: bool) -> bool:
    """Return whether a section of a kind can begin within the current one."""
    is_first = _NUMBER.fullmatch(before) is not None
    if current in ("addendum", "other") and has_findings:
        return kind == "addendum"
    if kind in ("detail", "views"):
        if kind == "detail":
            return current not in _REPORTED and is_line and is_first
        follows_stop = before.rstrip()[-1:] in (".", ";")
        return current in ("preamble", "indication", "history") and ((is_line and is_first) or follows_stop)
    if current not in _REPORTED:
        return True
    if current == "impression" and kind == "findings":
        return not has_findings and not re.search(r"\d[.)]\W*$", before)
    return is_first or kind in (*_REPORTED, "recommendation", "notification", "addendum", "other")


def _is_heading(match: re.Match[str], kind: str, before: str, above: str) -> bool:
    """Return whether a name is a heading, by its mark, the text before it on its line, and the text above."""
    name, end = match["name"], match["end"]
    is_first = _NUMBER.fullmatch(before) is not None
    is_capital = name[0].isupper() or match.string[0].islower()
    is_free = (re.findall(r"\w+", before) or [""])[-1].lower() not in _TERMS["modifiers"]
    follows_stop = before.rstrip(" \t*=#[(")[-1:] in (*".;:!?|/", "")
    if end and end in ":;>|\t":
        return is_first or follows_stop or (is_capital and is_free)
    if kind == "detail":
        return False
    if end in ("-", "–", "—"):
        return is_capital and (is_first or follows_stop)
    if match["prose"] is not None:
        return kind != "views" and name.isupper() and len(name) > 3 and is_free
    # Alone on a line: a name in lower case may also end a wrapped sentence.
    ends_sentence = above.rstrip()[-1:] in (*".:;!?", "") or above.endswith("\n\n")
    return is_first and (is_capital or end == "") and (ends_sentence or (is_capital and not end))


def _known_heading(name: str, has_findings: bool) -> str:
    """Return the heading of MIMIC-CXR; a comment after the findings is the impression."""
    synonym = next((known for pattern, known in _TERMS["synonyms"].items() if re.fullmatch(pattern, name, re.I)), name)
    heading = str(synonym).upper().replace("&", "AND")
    return heading if heading != "COMMENT" else "IMPRESSION" if has_findings else "FINDINGS"


def _parts(text: str) -> Iterator[_Part]:
    part = _Part("preamble")
    for line in text.splitlines():
        start = _start_of_part(line, part.kind) if ":" in line or _MAY_BEGIN.match(line) else None
        if start is not None:
            yield part
            part = start
        elif not _RULE.match(line):
            part.lines.append(line)
    yield part


def _start_of_part(line: str, current: str) -> _Part | None:
    """Return the part that a line starts; None if it continues the current one."""
    if _RULE.match(line):
        # It ends the text above the report; within the report it is a separator.
        return _Part("preamble") if current in ("wet_read", "addendum") else None
    if (banner := _TERMS["banners"].get(line.strip())) is not None:
        return _Part(banner)
    match = _WET_READ.match(line) or _HEADING.match(line)
    if match is None:
        return None
    heading, rest = match[1].strip(), line[match.end() :]
    kind = "wet_read" if match.re is _WET_READ else _kind(heading)
    if kind is None:
        return None
    if kind == "detail":
        return None if current in _JOINED else _Part("findings", lines=[line])
    return _Part(kind, heading, [rest])


@lru_cache(maxsize=1 << 14)
def _kind(heading: str) -> str | None:
    """Return the section of a heading, None if it is not a heading."""
    name = " ".join(heading.lower().split()).strip(" ,-/'")
    for pattern, kind in _TERMS["kinds"].items():
        if re.fullmatch(pattern, name):
            return str(kind)
    if " " not in name and (similar := get_close_matches(name, _TERMS["similar_to"], n=1, cutoff=0.86)):
        return _kind(similar[0])
    return "other" if re.fullmatch(r"[a-z ()/,-]+", name) else None


def _resolve_title(part: _Part) -> _Part:
    """Assign a title that names the views to the findings if it has text, and else to the examination."""
    if part.kind != "views":
        return part
    prose = part.prose()
    if any(word not in _TERMS["time_words"] for word in re.findall(r"[a-z]+", prose.lower())):
        return _Part("findings", part.heading, part.lines)
    return _Part("examination", lines=[f"{part.heading}: {prose}" if prose else part.heading + ":"])


def _last_paragraph(parts: Sequence[_Part], kind: str) -> list[_Part]:
    """Move the text after the first paragraph of the last part to a part of its own."""
    if not parts:
        return []
    lines = parts[-1].lines
    first = next(number for number, line in enumerate(lines) if line.strip())
    blank = next((number for number, line in enumerate(lines) if number > first and not line.strip()), len(lines))
    rest = _Part(kind, lines=lines[blank:])
    if not _WORD.search(rest.prose()):
        return []
    parts[-1].lines = lines[:blank]
    return [rest]
