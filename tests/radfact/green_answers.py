"""Answers in GREEN's notation as models write them, and what the published reader makes of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hypothesis import strategies as st

from radfact.error_categories import ERROR_CATEGORIES
from radfact.metrics.responses.assessment import SECTION_TITLES

Counts = tuple[tuple[int, ...], tuple[int, ...], int]


@dataclass(frozen=True)
class Written:
    """An answer before it is written: explanations by category and significance, and findings."""

    significant: tuple[tuple[str, ...], ...]
    insignificant: tuple[tuple[str, ...], ...]
    findings: tuple[str, ...]
    explanation: str = "The candidate differs."
    score: str | None = None

    @property
    def counts(self) -> Counts:
        return tuple(map(len, self.significant)), tuple(map(len, self.insignificant)), len(self.findings)

    def text(self) -> str:
        """In the layout that the prompt asks for."""
        parts = [
            f"[Explanation]:\n{self.explanation}",
            f"{SECTION_TITLES['significant']}:\n{_lines(self.significant)}",
            f"{SECTION_TITLES['insignificant']}:\n{_lines(self.insignificant)}",
            f"[Matched Findings]:\n{_said(self.findings)}",
        ]
        if self.score is not None:
            parts.append(f"[Overall Accuracy Score]:\n{self.score}")
        return "\n\n".join(parts) + "\n"


def _lines(errors: tuple[tuple[str, ...], ...]) -> str:
    return "\n".join(
        f"({letter}) {name}: {_said(said)}"
        for (letter, name), said in zip(ERROR_CATEGORIES.items(), errors, strict=True)
    )


def _said(items: tuple[str, ...]) -> str:
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
answers = st.builds(Written, errors, errors, items, explanation=_text)


def published(answer: str) -> Counts:
    """The counts that the published reader takes from an answer, written from how it is described.

    A section runs from its exact header to the first blank line. A category's count is the number between a colon
    with a space and a full stop, in a line with the category's letter; what is not found counts 0.
    """
    kinds = ("significant", "insignificant")
    significant, insignificant = (
        tuple(_count(_section(answer, kind), letter) for letter in ERROR_CATEGORIES) for kind in kinds
    )
    digits = _section(answer, "matched").split(".")[0]
    return significant, insignificant, int(digits) if digits.isdigit() else 0


def _section(answer: str, name: str) -> str:
    title = {"significant": "[Clinically Significant Errors]:", "insignificant": "[Clinically Insignificant Errors]:"}
    _, _, after = answer.partition(title.get(name, "[Matched Findings]:"))
    return after.lstrip().split("\n\n")[0]


def _count(section: str, letter: str) -> int:
    for line in section.splitlines():
        if line.startswith(f"({letter}) "):
            for piece in line.split(": ")[1:]:
                number, stop, _ = piece.partition(".")
                if stop and number.isdigit():
                    return int(number)
    return 0
