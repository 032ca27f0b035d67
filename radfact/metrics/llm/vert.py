"""VERT: GREEN's prompt with an overall accuracy score, in its variants and with few-shot examples."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal

from radfact.llm import ChatClient, ChatRequest
from radfact.llm.response_text import strip_reasoning
from radfact.metrics.llm.green import compute_counts, count_scores
from radfact.metrics.llm.llm_metric import LLMMetric, fill_prompt, load_prompt
from radfact.metrics.llm.responses.accuracy_score import parse_accuracy_score
from radfact.metrics.llm.responses.assessment import Assessment, parse_assessment
from radfact.metrics.llm.vert_shots import Style, draw_shots, few_shot_section, load_shots
from radfact.metrics.protocol import Score

PromptName = Literal["vert", "vert_formula", "vert_rubric"]

_PREVIOUS_CRITERION = "    The count of clinically insignificant errors.\n"
_CRITERION = (
    "    The overall accuracy score to assign to the candidate report given the count of clinically significant and "
    "clinically insignificant errors. The score must be a continuous number in [0.00, 1.00] with two decimals.\n"
)
_CLOSING_FENCE = "    ```\n"
_SCORE_SECTION = (
    "\n    [Overall Accuracy Score]:\n    <Overall accuracy score between 0 and 1 given the total number of clinically "
    "significant and insignificant errors in the candidate reports>\n"
)
_REPORTS_HEADER = "    2. Reference Report:\n"


@cache
def vert_prompt(name: PromptName = "vert") -> str:
    """Return the prompt of a variant, with the slots `{reference}` and `{candidate}`.

    Source: VERT, appendices D.2 to D.4.
    """
    green = load_prompt("green").removesuffix(_CLOSING_FENCE)
    vert = green.replace(_PREVIOUS_CRITERION, _PREVIOUS_CRITERION + _CRITERION) + _SCORE_SECTION + _CLOSING_FENCE
    if name == "vert":
        return vert
    before = fill_prompt(load_prompt(name), steps=load_prompt("vert_steps"))
    return before + dedent(vert[vert.index(_REPORTS_HEADER) :])


class Vert(LLMMetric[Assessment]):
    """VERT: the overall accuracy, from 0 to 1, that a model states after it has counted the errors."""

    name = "vert"
    display_name = "VERT"
    measures = "overall accuracy, rated by a model after counting errors"
    scores: Mapping[str, Score] = {"vert": Score("higher", "overall accuracy"), **count_scores("vert")}
    cost = "a response"
    source = "VERT, appendix D.2"
    parameters: Mapping[str, Any] = {"temperature": 0, "max_tokens": 2048}
    prompt_name: PromptName = "vert"

    def __init__(
        self,
        client: ChatClient,
        *,
        shots: Path | str | None = None,
        style: Style = "random",
        n: int | None = None,
        seed: int = 42,
    ) -> None:
        super().__init__(client)
        self._few_shot_section = ""
        if shots is not None:
            examples = load_shots(shots)
            drawn = examples if n is None else draw_shots(examples, n, seed=seed)
            self._few_shot_section = f"\n{few_shot_section(style, drawn)}"

    def request(self, candidate: str, reference: str) -> ChatRequest[Assessment]:
        content = (
            fill_prompt(vert_prompt(self.prompt_name), reference=reference, candidate=candidate)
            + self._few_shot_section
        )
        return ChatRequest((("user", content),), partial(parse_assessment, requires_score=True))

    def compute_scores(self, response: Assessment) -> Mapping[str, float]:
        return {self.name: response.score, **compute_counts(self.name, response)}

    def record(self, response: Assessment) -> Mapping[str, Any]:
        return response.as_record()


class VertFormula(Vert):
    """VERT's formula variant: the prompt asks for M / (M + 2S + 0.5I)."""

    name = "vert_formula"
    display_name = "VERT, formula"
    measures = "overall accuracy, computed with a formula in the prompt"
    scores: Mapping[str, Score] = {"vert_formula": Score("higher", "overall accuracy"), **count_scores("vert_formula")}
    source = "VERT, appendix D.3"
    is_variant = True
    prompt_name: PromptName = "vert_formula"


class VertRubric(Vert):
    """VERT's rubric variant: the prompt has a rubric of five ranges."""

    name = "vert_rubric"
    display_name = "VERT, rubric"
    measures = "overall accuracy, rated with a rubric in the prompt"
    scores: Mapping[str, Score] = {"vert_rubric": Score("higher", "overall accuracy"), **count_scores("vert_rubric")}
    source = "VERT, appendix D.4"
    is_variant = True
    prompt_name: PromptName = "vert_rubric"


class VertTuned(LLMMetric[float]):
    """VERT's score from a model that is fine-tuned to return the score alone.

    The prompt has VERT's first sentence (two lines in print) and the reports, but no criteria: other models do not know
    what to return.
    """

    name = "vert_tuned"
    display_name = "VERT, tuned"
    measures = "overall accuracy, from a model fine-tuned on expert ratings"
    scores: Mapping[str, Score] = {"vert_tuned": Score("higher", "overall accuracy")}
    cost = "a response of one number"
    source = "VERT, section 4.1.4"
    is_variant = True
    parameters: Mapping[str, Any] = {"temperature": 0, "max_tokens": 16}

    def request(self, candidate: str, reference: str) -> ChatRequest[float]:
        objective = vert_prompt().partition("\n")[0]
        content = f"{objective}\n\nReference Report:\n{reference}\n\nCandidate Report:\n{candidate}"
        return ChatRequest((("user", content),), lambda text: parse_accuracy_score(strip_reasoning(text)))

    def compute_scores(self, response: float) -> Mapping[str, float]:
        return {self.name: response}

    def record(self, response: float) -> Mapping[str, Any]:
        return {"score": response}
