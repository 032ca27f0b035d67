"""Few-shot examples for VERT's prompt, in the five layouts of VERT, appendices D.5 to D.9."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field

from radfact.error_categories import ERROR_CATEGORIES, CategoryLetter
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_json
from radfact.metrics.llm.llm_metric import load_prompt
from radfact.metrics.llm.responses.assessment import SECTION_TITLES
from radfact.records import Record, Share, Text, validate_model

Style = Literal["random", "rad-err", "rate-err", "rad-err-10", "rate-err-10"]
"""Layouts. D.5: reports and scores. D.6: one example per error type, with counts. D.7: also with explanations.
D.8: illustrations of the error types, then assessments with counts. D.9: also with explanations and findings."""

Count = Annotated[int, Field(ge=0)]


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


def load_shots(path: Path | str) -> list[Shot]:
    """Read examples from a JSON list of objects with the fields of `Shot`."""
    rows = read_json(path)
    if not isinstance(rows, list) or not rows:
        raise InputError("expected a list of at least one example", code=ErrorCode.INVALID_FORMAT, file=path)
    return [validate_model(Shot, row, file=path, field=f"[{index}]") for index, row in enumerate(rows)]


def draw_shots(shots: Sequence[Shot], n: int, *, seed: int = 42) -> list[Shot]:
    """Draw examples at random, without replacement (VERT, section 4.1.3)."""
    if not 0 < n <= len(shots):
        message = f"expected a number from 1 to {len(shots)}, found {n}"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="n")
    return random.Random(seed).sample(list(shots), n)


def few_shot_section(style: Style, shots: Sequence[Shot]) -> str:
    """Format the section of examples that follows VERT's prompt."""
    if style not in get_args(Style):
        message = f"expected one of {', '.join(get_args(Style))}, found '{style}'"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="style")
    for index, shot in enumerate(shots):
        if style in ("rad-err", "rate-err") and shot.category is None:
            message, field = f"missing; the style '{style}' requires it", f"shots[{index}].category"
            raise InputError(message, code=ErrorCode.MISSING_FIELD, field=field)
    import jinja2

    template = jinja2.Template(load_prompt("vert_shots"), trim_blocks=True, keep_trailing_newline=True)
    return str(template.render(style=style, shots=shots, categories=ERROR_CATEGORIES, titles=SECTION_TITLES))
