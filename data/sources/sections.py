"""Split the free text of a radiology report into sections by its headings.

Headings follow the section parser that Johnson et al. published with MIMIC-CXR, which MAIRA-2 (appendix B.1) uses:
headings in capitals at the start of a line, a title that names the views instead of FINDINGS, "FINDINGS AND IMPRESSION"
as an impression, history separate from indication, and the text after the first paragraph of the last section as a
separate section if a report has neither findings nor impression. There are four differences: repeated sections are
joined instead of keeping the last; a sub-heading within the findings (LUNGS, HEART) does not end them; preliminary
readings (WET READ, PFI) are separated from the report; misspelled headings are recognized by similarity. The list of
some fifty manually sectioned studies is not used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
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


def split_sections(text: str) -> dict[str, str]:
    """Split a report, with its line breaks, by its headings; all of its text is in some section.

    Returns the sections that are not blank, as prose on one line, by name: findings, impression, indication, history
    (clinical history or information under its own heading), technique, comparison, examination (also a title that names
    the views), addendum, recommendation, notification, wet_read (the preliminary reading), preamble (before the first
    heading, or the whole text), last_paragraph (for a report without findings and impression, the text after the first
    paragraph of the last section, which usually describes the findings) and other. `text` is the report without the
    wet read and separator lines, with its original headings.
    """
    parts = [_resolve_title(part) for part in _parts(text)]
    text = " ".join(part.text() for part in parts if part.kind != "wet_read")
    # A heading without text is not a section, so a title does not hide the last paragraph.
    parts = [part for part in parts if _WORD.search(part.prose())]
    if not any(part.kind in ("findings", "impression") for part in parts):
        parts += _last_paragraph([part for part in parts if part.kind != "wet_read"])
    by_kind: dict[str, list[str]] = {}
    for part in parts:
        if (prose := part.prose()) not in (texts := by_kind.setdefault(part.kind, [])):
            texts.append(prose)
    sections = {kind: " ".join(texts) for kind, texts in by_kind.items()}
    return sections | ({"text": complete} if (complete := " ".join(text.split())) else {})


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


def _last_paragraph(parts: list[_Part]) -> list[_Part]:
    """Remove the text after the first paragraph from the last part, and return it."""
    if not parts:
        return []
    lines = parts[-1].lines
    first = next(number for number, line in enumerate(lines) if line.strip())
    blank = next((number for number, line in enumerate(lines) if number > first and not line.strip()), len(lines))
    rest = _Part("last_paragraph", lines=lines[blank:])
    if not _WORD.search(rest.prose()):
        return []
    parts[-1].lines = lines[:blank]
    return [rest]
