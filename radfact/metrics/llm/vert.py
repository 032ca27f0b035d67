"""VERT: GREEN's prompt with an overall accuracy score, in its variants and with few-shot examples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from radfact.llm import ChatClient, ChatRequest
from radfact.llm.response_text import strip_reasoning
from radfact.metrics.llm.green import compute_counts, count_scores
from radfact.metrics.llm.llm_metric import LLMMetric, fill_prompt, load_prompt
from radfact.metrics.llm.responses.accuracy_score import parse_accuracy_score
from radfact.metrics.llm.responses.assessment import ScoredAssessment, parse_scored_assessment
from radfact.metrics.llm.vert_shots import Style, draw_shots, few_shot_section, load_shots
from radfact.metrics.protocol import Score


class Vert(LLMMetric[ScoredAssessment]):
    """VERT: the overall accuracy, from 0 to 1, that a model states after it has counted the errors."""

    name = "vert"
    measures = "overall accuracy, rated by a model after counting errors"
    scores: Mapping[str, Score] = {"vert": Score("higher", "overall accuracy"), **count_scores("vert")}
    cost = "a response"
    source = "VERT, appendix D.2"
    parameters: Mapping[str, Any] = {"temperature": 0, "max_tokens": 2048}

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

    def request(self, candidate: str, reference: str) -> ChatRequest[ScoredAssessment]:
        content = fill_prompt(load_prompt(self.name), reference=reference, candidate=candidate)
        return ChatRequest((("user", content + self._few_shot_section),), parse_scored_assessment)

    def compute_scores(self, response: ScoredAssessment) -> Mapping[str, float]:
        return {self.name: response.score, **compute_counts(self.name, response)}


class VertFormula(Vert):
    """VERT's formula variant: the prompt asks for M / (M + 2S + 0.5I)."""

    name = "vert_formula"
    measures = "overall accuracy, computed with a formula in the prompt"
    scores: Mapping[str, Score] = {"vert_formula": Score("higher", "overall accuracy"), **count_scores("vert_formula")}
    source = "VERT, appendix D.3"
    is_variant = True


class VertRubric(Vert):
    """VERT's rubric variant: the prompt has a rubric of five ranges."""

    name = "vert_rubric"
    measures = "overall accuracy, rated with a rubric in the prompt"
    scores: Mapping[str, Score] = {"vert_rubric": Score("higher", "overall accuracy"), **count_scores("vert_rubric")}
    source = "VERT, appendix D.4"
    is_variant = True


class VertTuned(LLMMetric[float]):
    """VERT's score from a model that is fine-tuned to return the score alone; the prompt has no criteria."""

    name = "vert_tuned"
    measures = "overall accuracy, from a model fine-tuned on expert ratings"
    scores: Mapping[str, Score] = {"vert_tuned": Score("higher", "overall accuracy")}
    cost = "a response of one number"
    source = "VERT, section 4.1.4"
    is_variant = True
    parameters: Mapping[str, Any] = {"temperature": 0, "max_tokens": 16}

    def request(self, candidate: str, reference: str) -> ChatRequest[float]:
        objective = load_prompt("vert").partition("\n")[0]
        content = f"{objective}\n\nReference Report:\n{reference}\n\nCandidate Report:\n{candidate}"
        return ChatRequest((("user", content),), lambda text: parse_accuracy_score(strip_reasoning(text)))

    def compute_scores(self, response: float) -> Mapping[str, float]:
        return {self.name: response}

    def record(self, response: float) -> Mapping[str, Any]:
        return {"score": response}
