"""Few-shot examples for VERT's prompt, in the five layouts of VERT, appendices D.5 to D.9."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from radfact.error_categories import ERROR_CATEGORIES, CategoryLetter
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_json
from radfact.metrics.llm.responses.assessment import SECTION_TITLES
from radfact.records import Record, Share, Text, validate_model

Style = Literal["random", "rad-err", "rate-err", "rad-err-10", "rate-err-10"]
"""Layouts. D.5: reports and scores. D.6: one example per error type, with counts. D.7: also with explanations.
D.8: illustrations of the error types, then assessments with counts. D.9: also with explanations and findings."""

Count = Annotated[int, Field(ge=0)]

_LOWER_TITLE = "[Overall accuracy Score]"
_WITH_ILLUSTRATIONS: tuple[Style, ...] = ("rad-err-10", "rate-err-10")


class Shot(Record):
    """An example: a pair of reports and its assessment by experts or a model."""

    reference: Text
    candidate: Text
    score: Share | None = None
    significant: dict[CategoryLetter, Count] = Field(default_factory=dict)
    insignificant: dict[CategoryLetter, Count] = Field(default_factory=dict)
    category: CategoryLetter | None = None
    explanation: str | None = None
    matched: str | None = None

    @property
    def overall(self) -> float:
        """The score in the prompt: `score`, or max(0, 1 - 0.15 x significant errors), as in VERT, appendix D.6."""
        return max(0.0, 1 - 0.15 * sum(self.significant.values())) if self.score is None else self.score


class Illustration(Record):
    """An example of an error type; `source` tells whether it is printed in the paper."""

    category: CategoryLetter
    reference: Text
    candidate: Text
    why: Text
    source: str = "the user's"


def load_shots(path: Path | str) -> list[Shot]:
    """Read examples from a JSON list of objects with the fields of `Shot`.

    Raises:
        InputError: the file or a field is invalid.
    """
    rows = read_json(path)
    if not isinstance(rows, list) or not rows:
        raise InputError("expected a list of at least one example", code=ErrorCode.INVALID_FORMAT, file=path)
    return [validate_model(Shot, row, file=path, field=f"[{index}]") for index, row in enumerate(rows)]


def draw_shots(shots: Sequence[Shot], n: int, *, seed: int = 42) -> list[Shot]:
    """Draw examples at random, without replacement.

    Args:
        shots: examples to draw from.
        n: number of examples.
        seed: random seed.

    Raises:
        InputError: there are fewer than `n` examples.

    Source: VERT, section 4.1.3.
    """
    if not 0 < n <= len(shots):
        raise InputError(
            f"expected a number from 1 to {len(shots)}, found {n}", code=ErrorCode.INVALID_OPTION, field="n"
        )
    return random.Random(seed).sample(list(shots), n)


def default_illustrations() -> list[Illustration]:
    """Return one illustration per error type: (a) and (f) as printed in VERT, appendix D.9, the other four are ours."""
    with resources.as_file(resources.files("radfact.metrics.llm") / "prompts" / "vert_illustrations.json") as file:
        return [validate_model(Illustration, row, file=file) for row in read_json(file)]


@dataclass(frozen=True, slots=True)
class FewShot:
    """Few-shot examples and their layout.

    Attributes:
        style: the layout.
        shots: the examples; `rad-err` and `rate-err` require a `category` for each.
        illustrations: illustrations of the error types, for layouts that have them. VERT, appendix D.8, does not print
            its own, so both layouts have the same.
    """

    style: Style
    shots: Sequence[Shot]
    illustrations: Sequence[Illustration] = field(default_factory=default_illustrations)

    def __post_init__(self) -> None:
        """Check style and examples.

        Raises:
            InputError: the style is unknown, there are no examples, or an example lacks its category.
        """
        if self.style not in get_args(Style):
            expected = ", ".join(get_args(Style))
            raise InputError(
                f"expected one of {expected}, found '{self.style}'", code=ErrorCode.INVALID_OPTION, field="style"
            )
        if not self.shots:
            raise InputError("expected at least one example", code=ErrorCode.EMPTY_INPUT, field="shots")
        for index, shot in enumerate(self.shots):
            if self.style in ("rad-err", "rate-err") and shot.category is None:
                raise InputError(
                    f"missing; the style '{self.style}' requires it",
                    code=ErrorCode.MISSING_FIELD,
                    field=f"shots[{index}].category",
                )

    def section(self) -> str:
        """Format the section that follows VERT's prompt."""
        if self.style in _WITH_ILLUSTRATIONS:
            shown = "\n".join(map(_format_illustration, self.illustrations))
            head = f"5. Error Type Illustrations:\n\n{shown}\n6. Full Assessment Examples:\n\n"
        else:
            head = "5. Examples:\n\n"
        return head + "\n".join(self._format_shot(number, shot) for number, shot in enumerate(self.shots, start=1))

    def _format_shot(self, number: int, shot: Shot) -> str:
        illustrates = (
            f" (illustrating error category ({shot.category}))" if self.style in ("rad-err", "rate-err") else ""
        )
        score_title = SECTION_TITLES["score"] if self.style in ("random", "rad-err-10") else _LOWER_TITLE
        parts = [
            f"--- Example {number}{illustrates} ---\nReference Report:\n{shot.reference}",
            f"Candidate Report:\n{shot.candidate}",
            *(self._format_assessment(shot) if self.style != "random" else ()),
            f"{score_title}:\n{shot.overall:.2f}",
        ]
        return "\n\n".join(parts) + "\n"

    def _format_assessment(self, shot: Shot) -> list[str]:
        explained = shot.explanation if self.style in ("rate-err", "rate-err-10") else None
        gap = " " if self.style == "rate-err-10" else "\n"
        parts = [] if explained is None else [f"{SECTION_TITLES['explanation']}:{gap}{explained}"]
        parts += [_format_counts("significant", shot.significant), _format_counts("insignificant", shot.insignificant)]
        if self.style == "rate-err-10" and shot.matched is not None:
            parts.append(f"{SECTION_TITLES['matched']}: {shot.matched}")
        return parts


def _format_counts(kind: Literal["significant", "insignificant"], counts: Mapping[Any, int]) -> str:
    lines = (f"({letter}) {name}: {counts.get(letter, 0)}." for letter, name in ERROR_CATEGORIES.items())
    return f"{SECTION_TITLES[kind]}:\n" + "\n".join(lines)


def _format_illustration(illustration: Illustration) -> str:
    letter = illustration.category
    return (
        f"--- Error type ({letter}): {ERROR_CATEGORIES[letter]} ---\nReference: {illustration.reference}\n"
        f"Candidate: {illustration.candidate}\n→ {illustration.why}\n"
    )
