"""Responses in GREEN's notation, and the counts that GREEN's published parser reads in them."""

import re
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from radfact.error_categories import ERROR_CATEGORIES
from radfact.metrics.llm.responses.assessment import SECTION_TITLES, Section

Counts = tuple[tuple[int, ...], tuple[int, ...], int]
Explanations = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class GreenResponse:
    """Content of a response: explanations by significance and category, and matched findings."""

    significant: Explanations
    insignificant: Explanations
    findings: tuple[str, ...]
    explanation: str = "The candidate differs."
    score: str | None = None

    @property
    def counts(self) -> Counts:
        return tuple(map(len, self.significant)), tuple(map(len, self.insignificant)), len(self.findings)

    def text(self) -> str:
        sections: dict[Section, str] = {
            "explanation": self.explanation,
            "significant": _lines(self.significant),
            "insignificant": _lines(self.insignificant),
            "matched": _counted(self.findings),
        }
        if self.score is not None:
            sections["score"] = self.score
        return "\n\n".join(f"{SECTION_TITLES[name]}:\n{body}" for name, body in sections.items()) + "\n"


def _lines(errors: Explanations) -> str:
    categories = zip(ERROR_CATEGORIES.items(), errors, strict=True)
    return "\n".join(f"({letter}) {name}: {_counted(explanations)}" for (letter, name), explanations in categories)


def _counted(items: tuple[str, ...]) -> str:
    return f"{len(items)}. {'; '.join(items)}".strip()


_text = st.text("abcdeflmnoprstu RLT,'-/%0123456789:()", min_size=1, max_size=40).map(
    lambda text: " ".join(text.split())
)
# A numbered list inside an item, or a letter in brackets, is another layout.
item = _text.filter(lambda text: re.search(r"[A-Za-z]", text) and not re.search(r"\([a-f1-6]\)|^\W*\d+\W", text)).map(
    lambda text: "The " + text
)
items = st.lists(item, max_size=4).map(tuple)
errors = st.tuples(*[items] * 6)
responses = st.builds(GreenResponse, errors, errors, items, explanation=_text)


def published_counts(response: str) -> Counts:
    """Read the counts as GREEN's published parser: a number between ": " and a full stop in a letter's line, or 0."""
    significant, insignificant, matched = (
        response.partition(f"{SECTION_TITLES[name]}:")[2].lstrip().split("\n\n")[0]
        for name in ("significant", "insignificant", "matched")
    )
    digits = matched.split(".")[0]
    return (
        tuple(_published_count(significant, letter) for letter in ERROR_CATEGORIES),
        tuple(_published_count(insignificant, letter) for letter in ERROR_CATEGORIES),
        int(digits) if digits.isdigit() else 0,
    )


def _published_count(section: str, letter: str) -> int:
    for line in section.splitlines():
        if line.startswith(f"({letter}) "):
            for piece in line.split(": ")[1:]:
                number, stop, _ = piece.partition(".")
                if stop and number.isdigit():
                    return int(number)
    return 0


def edited(text: str, edits: list[Any]) -> str:
    """Edit a response: `lower`, or patterns with a replacement or one for each match. See `responses.yaml`."""
    for edit in edits:
        if edit == "lower":
            text = text.lower()
            continue
        pattern, replacement = edit
        by_match = isinstance(replacement, dict)
        text = re.sub(pattern, (lambda match, of=replacement: of[match[0]]) if by_match else replacement, text)
    return text
