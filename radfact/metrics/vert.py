"""VERT: GREEN's question with an overall accuracy score, in its variants and with worked examples (paper 003)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any, ClassVar, Literal, Self

from radfact.llm import ChatClient, ChatRequest
from radfact.llm.response_text import after_thought
from radfact.metrics.green import count_figures, read_counts
from radfact.metrics.llm_metric import AskedMetric, fill, load_prompt
from radfact.metrics.responses.accuracy_score import parse_accuracy_score
from radfact.metrics.responses.assessment import Assessment, parse_assessment
from radfact.metrics.vert_shots import FewShot, Style, draw_shots, load_shots
from radfact.statistics.bootstrap import Direction

Variant = Literal["vert", "vert_formula", "vert_rubric"]

_CRITERION_ABOVE = "    The count of clinically insignificant errors.\n"
_CRITERION = (
    "    The overall accuracy score to assign to the candidate report given the count of clinically significant and "
    "clinically insignificant errors. The score must be a continuous number in [0.00, 1.00] with two decimals.\n"
)
_SECTION_BELOW = "    ```\n"
_SECTION = (
    "\n    [Overall Accuracy Score]:\n    <Overall accuracy score between 0 and 1 given the total number of clinically "
    "significant and insignificant errors in the candidate reports>\n"
)
_REPORTS = "    2. Reference Report:\n"


@cache
def vert_prompt(variant: Variant = "vert") -> str:
    """The prompt of a variant, with the slots `{reference}` and `{candidate}` (paper 003, appendices D.2 to D.4)."""
    green = load_prompt("green").removesuffix(_SECTION_BELOW)
    vert = green.replace(_CRITERION_ABOVE, _CRITERION_ABOVE + _CRITERION) + _SECTION + _SECTION_BELOW
    if variant == "vert":
        return vert
    before = fill(load_prompt(variant), steps=load_prompt("vert_steps"))
    return before + dedent(vert[vert.index(_REPORTS) :])


class Vert(AskedMetric[Assessment]):
    """VERT: the overall accuracy that a model gives a candidate after it has counted the errors (paper 003, D.2).

    `vert` is the model's own score in [0, 1]; the counts behind it are those of GREEN's notation.
    """

    name: ClassVar[str] = "vert"
    figures: ClassVar[Mapping[str, Direction]] = {"vert": "higher", **count_figures("vert")}
    parameters: ClassVar[Mapping[str, Any]] = {"temperature": 0, "max_tokens": 2048}
    variant: ClassVar[Variant] = "vert"

    def __init__(self, client: ChatClient, *, few_shot: FewShot | None = None) -> None:
        """Take the client of the model that is asked, and worked examples to show it (none: zero-shot)."""
        super().__init__(client)
        self.few_shot = few_shot
        self._examples = "" if few_shot is None else f"\n{few_shot.section()}"

    @classmethod
    def make(
        cls,
        client: ChatClient,
        *,
        shots: Path | str | None = None,
        style: Style = "random",
        n: int | None = None,
        seed: int = 42,
    ) -> Self:
        """With worked examples from a file.

        Args:
            client: of the model.
            shots: examples, as `load_shots` reads them; none for zero-shot.
            style: the layout that they are shown in.
            n: how many of them, drawn at random; by default all, in their order.
            seed: of the draw.

        Raises:
            InputError: the file cannot be read, or style and number do not fit it.
        """
        if shots is None:
            return cls(client)
        chosen = load_shots(shots)
        return cls(client, few_shot=FewShot(style, chosen if n is None else draw_shots(chosen, n, seed=seed)))

    def question(self, candidate: str, reference: str) -> ChatRequest[Assessment]:
        """The prompt and the examples after it, as the only message."""
        content = fill(vert_prompt(self.variant), reference=reference, candidate=candidate) + self._examples
        return ChatRequest((("user", content),), _read)

    def read(self, answer: Assessment) -> Mapping[str, float]:
        """Score and counts of an answer."""
        return {self.name: answer.score, **read_counts(self.name, answer)}

    def detail(self, answer: Assessment) -> Mapping[str, Any]:
        """Explanation, errors, findings and score."""
        return answer.as_record()


class VertFormula(Vert):
    """VERT's formula variant: the model is told to compute M / (M + 2S + 0.5I) (paper 003, D.3)."""

    name: ClassVar[str] = "vert_formula"
    figures: ClassVar[Mapping[str, Direction]] = {"vert_formula": "higher", **count_figures("vert_formula")}
    variant: ClassVar[Variant] = "vert_formula"


class VertRubric(Vert):
    """VERT's rubric variant: the model scores by a rubric of five ranges (paper 003, D.4)."""

    name: ClassVar[str] = "vert_rubric"
    figures: ClassVar[Mapping[str, Direction]] = {"vert_rubric": "higher", **count_figures("vert_rubric")}
    variant: ClassVar[Variant] = "vert_rubric"


class VertTuned(AskedMetric[float]):
    """VERT's score from a model that was tuned to give it alone (paper 003, section 4.1.4).

    The prompt has VERT's first sentence (its first two lines in print) and the reports. A model that was not tuned to
    it has no criteria to go by.
    """

    name: ClassVar[str] = "vert_tuned"
    figures: ClassVar[Mapping[str, Direction]] = {"vert_tuned": "higher"}
    parameters: ClassVar[Mapping[str, Any]] = {"temperature": 0, "max_tokens": 16}

    def question(self, candidate: str, reference: str) -> ChatRequest[float]:
        """The prompt, as the only message."""
        objective = vert_prompt().partition("\n")[0]
        content = f"{objective}\n\nReference Report:\n{reference}\n\nCandidate Report:\n{candidate}"
        return ChatRequest((("user", content),), _read_score)

    def read(self, answer: float) -> Mapping[str, float]:
        """The score."""
        return {self.name: answer}

    def detail(self, answer: float) -> Mapping[str, Any]:
        """The score is all that the model says."""
        return {"score": answer}


def _read(text: str) -> Assessment:
    return parse_assessment(text, requires_score=True)


def _read_score(text: str) -> float:
    return parse_accuracy_score(after_thought(text))
