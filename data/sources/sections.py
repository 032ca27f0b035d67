"""Sections of a radiology report out of its free text, by its headings.

The headings and what they stand for follow the section parser that Johnson et al. published with MIMIC-CXR, since paper
004 (B.1) extracts sections so: headings in capitals at the start of a line, a title that names the views in place of
FINDINGS, "FINDINGS AND IMPRESSION" as an impression, history apart from indication, and text after the first paragraph
of the last section as a section of its own where a report has neither findings nor impression. In four places it goes
another way. Where a section occurs several times, all of it is kept instead of the last; a sub-heading within the
findings (LUNGS, HEART) does not end them; preliminary readings (WET READ, PFI) are kept apart from the report; and
misspelt headings are known by their likeness to the right ones. Its list of some fifty studies sectioned by hand is not
used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Sections:
    """A report by its sections, each as prose on one line; missing is None, never blank.

    Attributes:
        findings, impression, indication, technique, comparison: what they are called.
        history: clinical history or information, where the report has a heading for it beside or in place of the
            indication.
        examination: what was examined; also a title that names the views.
        addendum: what was added to the report after it was signed.
        recommendation, notification: what is advised, and who was told.
        wet_read: the preliminary reading.
        preamble: text before the first heading; the whole text where there is none.
        last_paragraph: where there are neither findings nor impression, what follows the first paragraph of the last
            section, which is mostly what was found.
        other: sections under any other heading.
        text: the whole report but for the wet read, headings as they were written, without page furniture.
    """

    findings: str | None = None
    impression: str | None = None
    indication: str | None = None
    history: str | None = None
    technique: str | None = None
    comparison: str | None = None
    examination: str | None = None
    addendum: str | None = None
    recommendation: str | None = None
    notification: str | None = None
    wet_read: str | None = None
    preamble: str | None = None
    last_paragraph: str | None = None
    other: str | None = None
    text: str | None = None


@dataclass(slots=True)
class _Part:
    """A heading as written ("" for none), the section it stands for, and the lines under it."""

    kind: str
    heading: str = ""
    lines: list[str] = field(default_factory=list)

    def prose(self) -> str:
        return " ".join(" ".join(self.lines).split())

    def written(self) -> str:
        return " ".join((self.heading + ":", *self.lines)) if self.heading else " ".join(self.lines)


# Digits, "_" (a date taken out) and a time of day occur in titles such as "PORTABLE CHEST, ___ AT 17:25:". Mixed case
# is taken for a heading only in words that do not begin a line of prose; "History:" often does, under INDICATION.
_HEADING = re.compile(
    r"\s*([A-Z](?:[A-Z0-9 ()/,&#'_-]|:(?=\d\d)){0,99}"
    r"|Findings?|Impression|Indication|Technique|Comparisons?|Conclusion):(?!\d\d)"
)
_WET_READ = re.compile(r"\s*(WET ?READ(?: VERSION(?: ?#\S*)?)?):?(?![A-Za-z])")
_RULE = re.compile(r"\s*_{10,}\s*$")
# What a line without a colon may begin: a rule, a banner, a wet read.
_MAY_BEGIN = re.compile(r"\s*[_FPW]")
# "___" stands for what was said before it was taken out.
_WORD = re.compile(r"\w")
_BANNERS = {"FINAL REPORT": "preamble", "PRELIMINARY REPORT": "wet_read", "FINAL ADDENDUM": "addendum"}

_SPELLINGS = {
    **dict.fromkeys(("findings", "finding"), "findings"),
    **dict.fromkeys(("impression", "impressions", "conclusion", "conclusions"), "impression"),
    **dict.fromkeys(("indication", "indications", "clinical indication", "clinical indications"), "indication"),
    **dict.fromkeys(("history", "clinical information", "clinical data", "clinical details"), "history"),
    **dict.fromkeys(("technique", "techniques"), "technique"),
    **dict.fromkeys(("comparison", "comparisons", "reference exam", "reference examination"), "comparison"),
    **dict.fromkeys(
        ("examination", "exam", "type of examination", "type of exam", "study", "procedure"), "examination"
    ),
    **dict.fromkeys(("recommendation", "recommendations", "recommendation(s)"), "recommendation"),
    **dict.fromkeys(("notification", "notifications", "communication"), "notification"),
    **dict.fromkeys(("wet read", "wetread", "pfi"), "wet_read"),
    "addendum": "addendum",
}
_STARTS = {"provisional findings": "wet_read", "wet read": "wet_read", "reason for": "indication"}
_WITHIN = ("impression", "findings", "history", "comparison", "addendum")
_LIKE = ("findings", "impression", "indication", "comparison", "comparisons", "technique", "examination", "conclusion")
_VIEWS = re.compile(
    r"\b(?:chest|portable|ribs|bone window|(?:one|two|three|single|frontal|lateral|pa|ap)[ ,-]+views?"
    r"|(?:pa|ap|frontal) (?:and|&) (?:lat|lateral)|lateral (?:and|&) (?:pa|ap)|frontal (?:and|(?:semi-)?upright))\b"
)
_PARTS_OF_CHEST = re.compile(
    r"(?:(?:lungs?|pleura|pleural|spaces?|airways?|trachea|heart|cardiac|cardiomediastin(?:um|al)|silhouette|hil(?:a|um|ar)"
    r"|mediastin(?:um|al)|vessels|vascular|vasculature|pulmonary|bones?|osseous|skelet(?:on|al)|musculoskeletal|structures"
    r"|spine|soft|tissues?|diaphragms?|abdomen|upper|lines?|tubes?|devices?|support|catheters|hardware|chest wall|and)"
    r"[ ,/&]*)+"
)
_JOINED = frozenset(("findings", "views", "impression", "addendum", "wet_read"))
# What stands after a title that is no more than a time: "CHEST, PA AND LATERAL: ___ AT 10:15 AM".
_NOT_A_WORD = frozenset(("am", "pm", "at", "on", "hrs", "hour", "hours", "ap", "pa", "dated", "the"))


def split_sections(text: str) -> Sections:
    """Split a report by its headings; any text is a report, and none of it is lost.

    Args:
        text: as it was written, lines and all.
    """
    parts = [_resolved(part) for part in _parts(text)]
    written = " ".join(part.written() for part in parts if part.kind != "wet_read")
    # A heading over nothing is no section, so that a title does not keep the last paragraph from being found.
    parts = [part for part in parts if _WORD.search(part.prose())]
    if not any(part.kind in ("findings", "impression") for part in parts):
        parts += _last_paragraph([part for part in parts if part.kind != "wet_read"])
    by_kind: dict[str, list[str]] = {}
    for part in parts:
        if (prose := part.prose()) not in (held := by_kind.setdefault(part.kind, [])):
            held.append(prose)
    sections = {kind: " ".join(held) for kind, held in by_kind.items()}
    return Sections(**sections, text=" ".join(written.split()) or None)


def _parts(text: str) -> Iterator[_Part]:
    part = _Part("preamble")
    for line in text.splitlines():
        start = _begun(line, part.kind) if ":" in line or _MAY_BEGIN.match(line) else None
        if start is not None:
            yield part
            part = start
        elif not _RULE.match(line):
            part.lines.append(line)
    yield part


def _begun(line: str, current: str) -> _Part | None:
    """The part that a line begins, None where it goes on with the current one."""
    if _RULE.match(line):
        # It closes what stands above the report; within the report it is furniture.
        return _Part("preamble") if current in ("wet_read", "addendum") else None
    if (banner := _BANNERS.get(line.strip())) is not None:
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
    """The section that a heading stands for; "views" for a title that names the films, "detail" for a sub-heading of
    the findings, None where it is no heading."""
    name = " ".join(heading.lower().split()).strip(" ,-/'")
    if (known := _SPELLINGS.get(name)) is not None:
        return known
    for start, kind in _STARTS.items():
        if name.startswith(start):
            return kind
    for kind in _WITHIN:
        if kind in name:
            return kind
    if _PARTS_OF_CHEST.fullmatch(name):
        return "detail"
    if _VIEWS.search(name):
        return "views"
    if " " not in name and (like := get_close_matches(name, _LIKE, n=1, cutoff=0.86)):
        return _SPELLINGS[like[0]]
    return "other" if re.fullmatch(r"[a-z ()/,-]+", name) else None


def _resolved(part: _Part) -> _Part:
    """A title that names the views stands for the findings if it has any under it, and else for what was examined."""
    if part.kind != "views":
        return part
    prose = part.prose()
    if any(word not in _NOT_A_WORD for word in re.findall(r"[a-z]+", prose.lower())):
        return _Part("findings", part.heading, part.lines)
    return _Part("examination", lines=[f"{part.heading}: {prose}" if prose else part.heading + ":"])


def _last_paragraph(parts: list[_Part]) -> list[_Part]:
    """Take from the last part what follows its first paragraph, if anything does."""
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
