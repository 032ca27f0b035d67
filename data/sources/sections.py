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
_BANNERS = {"FINAL REPORT": "preamble", "PRELIMINARY REPORT": "wet_read", "FINAL ADDENDUM": "addendum"}

# The first match counts; "views" is a title that names the views, "detail" a sub-heading of the findings.
_KINDS = {
    r"findings?": "findings",
    r"impressions?|conclusions?": "impression",
    r"(?:clinical )?indications?": "indication",
    r"history|clinical (?:information|data|details)": "history",
    r"techniques?": "technique",
    r"comparisons?|reference exam(?:ination)?": "comparison",
    r"(?:type of )?exam(?:ination)?|study|procedure": "examination",
    r"recommendation(?:s|\(s\))?": "recommendation",
    r"notifications?|communication": "notification",
    r"wet ?read|pfi|(?:provisional findings|wet read).*": "wet_read",
    r"reason for.*": "indication",
    r".*impression.*": "impression",
    r".*findings.*": "findings",
    r".*history.*": "history",
    r".*comparison.*": "comparison",
    r".*addendum.*": "addendum",
    r"(?:(?:lungs?|pleura|pleural|spaces?|airways?|trachea|heart|cardiac|cardiomediastin(?:um|al)|silhouette|hil(?:a|um|ar)"
    r"|mediastin(?:um|al)|vessels|vascular|vasculature|pulmonary|bones?|osseous|skelet(?:on|al)|musculoskeletal|structures"
    r"|spine|soft|tissues?|diaphragms?|abdomen|upper|lines?|tubes?|devices?|support|catheters|hardware|chest wall|and)"
    r"[ ,/&]*)+": "detail",
    r".*\b(?:chest|portable|ribs|bone window|(?:one|two|three|single|frontal|lateral|pa|ap)[ ,-]+views?"
    r"|(?:pa|ap|frontal) (?:and|&) (?:lat|lateral)|lateral (?:and|&) (?:pa|ap)|frontal (?:and|(?:semi-)?upright))"
    r"\b.*": "views",
}
_SIMILAR_TO = [
    *("findings", "impression", "indication", "comparison", "comparisons", "technique", "examination", "conclusion")
]
_JOINED = frozenset(("findings", "views", "impression", "addendum", "wet_read"))
# Words after a title that contain only a time: "CHEST, PA AND LATERAL: ___ AT 10:15 AM".
_TIME_WORDS = frozenset(("am", "pm", "at", "on", "hrs", "hour", "hours", "ap", "pa", "dated", "the"))


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
    """Return the section of a heading, None if it is not a heading."""
    name = " ".join(heading.lower().split()).strip(" ,-/'")
    for pattern, kind in _KINDS.items():
        if re.fullmatch(pattern, name):
            return kind
    if " " not in name and (similar := get_close_matches(name, _SIMILAR_TO, n=1, cutoff=0.86)):
        return _kind(similar[0])
    return "other" if re.fullmatch(r"[a-z ()/,-]+", name) else None


def _resolve_title(part: _Part) -> _Part:
    """Assign a title that names the views to the findings if it has text, and else to the examination."""
    if part.kind != "views":
        return part
    prose = part.prose()
    if any(word not in _TIME_WORDS for word in re.findall(r"[a-z]+", prose.lower())):
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
