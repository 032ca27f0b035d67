"""Worked examples for VERT's prompt, in the five layouts of paper 003, appendices D.5 to D.9."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from radfact.error_categories import ERROR_CATEGORIES, CategoryLetter
from radfact.errors import InputError
from radfact.io.jsonl import read_json
from radfact.metrics.responses.assessment import SECTION_TITLES
from radfact.records import Record, Share, Text, validated

Style = Literal["random", "rad-err", "rate-err", "rad-err-10", "rate-err-10"]
"""D.5 reports and scores; D.6 one example an error type, with counts; D.7 the same, with what is wrong; D.8
illustrations of the error types, then assessments with counts; D.9 the same, with explanations and findings."""

Count = Annotated[int, Field(ge=0)]

_LOWER_TITLE = "[Overall accuracy Score]"
_WITH_ILLUSTRATIONS: tuple[Style, ...] = ("rad-err-10", "rate-err-10")


class Shot(Record):
    """One worked example: a pair of reports and what experts, or a model, said of it.

    Without a `score` it is max(0, 1 - 0.15 x significant errors), as in the paper (D.6).
    """

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
        """The score that is shown."""
        return max(0.0, 1 - 0.15 * sum(self.significant.values())) if self.score is None else self.score


class Illustration(Record):
    """What an error type looks like; `source` says whether the paper prints it or it is ours."""

    category: CategoryLetter
    reference: Text
    candidate: Text
    why: Text
    source: str = "the user's"


def load_shots(path: Path | str) -> list[Shot]:
    """Read worked examples, a JSON list of objects with the fields of `Shot`.

    Raises:
        InputError: naming the file and the path of the field that is wrong.
    """
    rows = read_json(path)
    if not isinstance(rows, list) or not rows:
        raise InputError("expected a list of at least one example", file=path)
    return [validated(Shot, row, file=path, field=f"[{index}]") for index, row in enumerate(rows)]


def draw_shots(shots: Sequence[Shot], n: int, *, seed: int = 42) -> list[Shot]:
    """`n` examples at random, without replacement, in the order drawn (paper 003, section 4.1.3).

    Raises:
        InputError: there are not so many.
    """
    if not 0 < n <= len(shots):
        raise InputError(f"expected a number from 1 to {len(shots)}, found {n}", field="shots")
    return random.Random(seed).sample(list(shots), n)


def default_illustrations() -> list[Illustration]:
    """One illustration an error type: (a) and (f) as printed (D.9), the four that the paper leaves out are ours."""
    with resources.as_file(resources.files("radfact.metrics") / "prompts" / "vert_illustrations.json") as file:
        return [validated(Illustration, row, file=file) for row in read_json(file)]


@dataclass(frozen=True, slots=True)
class FewShot:
    """Worked examples and the layout that they are shown in.

    Attributes:
        style: the layout.
        shots: the examples; those of `rad-err` and `rate-err` each have a `category`.
        illustrations: of the error types, where the layout has them; D.8 does not print its own, so both have ours.
    """

    style: Style
    shots: Sequence[Shot]
    illustrations: Sequence[Illustration] = field(default_factory=default_illustrations)

    def __post_init__(self) -> None:
        """Check style and examples.

        Raises:
            InputError: an unknown style, no examples, or one without the category that it should illustrate.
        """
        if self.style not in get_args(Style):
            raise InputError(f"expected one of {', '.join(get_args(Style))}, found '{self.style}'", field="style")
        if not self.shots:
            raise InputError("expected at least one example", field="shots")
        for index, shot in enumerate(self.shots):
            if self.style in ("rad-err", "rate-err") and shot.category is None:
                raise InputError(f"missing; '{self.style}' illustrates one", field=f"shots[{index}].category")

    def section(self) -> str:
        """What is put after VERT's prompt."""
        if self.style in _WITH_ILLUSTRATIONS:
            shown = "\n".join(map(_illustration, self.illustrations))
            head = f"5. Error Type Illustrations:\n\n{shown}\n6. Full Assessment Examples:\n\n"
        else:
            head = "5. Examples:\n\n"
        return head + "\n".join(self._example(number, shot) for number, shot in enumerate(self.shots, start=1))

    def _example(self, number: int, shot: Shot) -> str:
        illustrates = (
            f" (illustrating error category ({shot.category}))" if self.style in ("rad-err", "rate-err") else ""
        )
        parts = [
            f"--- Example {number}{illustrates} ---\nReference Report:\n{shot.reference}",
            f"Candidate Report:\n{shot.candidate}",
            *(self._assessment(shot) if self.style != "random" else ()),
            f"{SECTION_TITLES['score'] if self.style in ('random', 'rad-err-10') else _LOWER_TITLE}:\n{shot.overall:.2f}",
        ]
        return "\n\n".join(parts) + "\n"

    def _assessment(self, shot: Shot) -> list[str]:
        explained = shot.explanation if self.style in ("rate-err", "rate-err-10") else None
        gap = " " if self.style == "rate-err-10" else "\n"
        parts = [] if explained is None else [f"{SECTION_TITLES['explanation']}:{gap}{explained}"]
        parts += [_counts("significant", shot.significant), _counts("insignificant", shot.insignificant)]
        if self.style == "rate-err-10" and shot.matched is not None:
            parts.append(f"{SECTION_TITLES['matched']}: {shot.matched}")
        return parts


def _counts(kind: Literal["significant", "insignificant"], counts: Mapping[Any, int]) -> str:
    lines = (f"({letter}) {name}: {counts.get(letter, 0)}." for letter, name in ERROR_CATEGORIES.items())
    return f"{SECTION_TITLES[kind]}:\n" + "\n".join(lines)


def _illustration(one: Illustration) -> str:
    return (
        f"--- Error type ({one.category}): {ERROR_CATEGORIES[one.category]} ---\nReference: {one.reference}\n"
        f"Candidate: {one.candidate}\n→ {one.why}\n"
    )
