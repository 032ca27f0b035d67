"""VERT: GREEN's prompt with an overall accuracy score, its variants, and few-shot examples (appendices D.5 to D.9)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from radfact.error_categories import ERROR_CATEGORIES, CategoryLetter
from radfact.errors import ErrorCode, InputError, option_error
from radfact.judges.prompt import read_examples
from radfact.llm import ChatClient, ChatRequest
from radfact.llm.response_text import strip_reasoning
from radfact.metrics.llm.green import compute_counts, count_scores
from radfact.metrics.llm.llm_metric import LLMMetric, fill_prompt, load_prompt
from radfact.metrics.llm.responses.accuracy_score import parse_accuracy_score
from radfact.metrics.llm.responses.assessment import SECTION_TITLES, ScoredAssessment, parse_scored_assessment
from radfact.metrics.protocol import Score
from radfact.records import Record, Share, Text, TextPair, digest

Style = Literal["random", "rad-err", "rate-err", "rad-err-10", "rate-err-10"]
"""Layouts. D.5: reports and scores. D.6: one example per error type, with counts. D.7: also with explanations.
D.8: illustrations of the error types, then assessments with counts. D.9: also with explanations and findings."""

Count = Annotated[int, Field(ge=0)]


class Shot(Record):
    """An example: a pair of reports and its assessment by experts or a model; the id names it in messages."""

    id: str | None = None
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


def draw_shots(shots: Sequence[Shot], n: int, *, seed: int = 42) -> list[Shot]:
    """Draw examples at random, without replacement (VERT, section 4.1.3)."""
    if not 0 < n <= len(shots):
        raise option_error(f"expected a number from 1 to {len(shots)}, found {n}", "n")
    return random.Random(seed).sample(list(shots), n)


def few_shot_section(style: Style, shots: Sequence[Shot]) -> str:
    """Format the section of examples that follows VERT's prompt."""
    if style not in get_args(Style):
        raise option_error(f"expected one of {', '.join(get_args(Style))}, found '{style}'", "style")
    for index, shot in enumerate(shots):
        if style in ("rad-err", "rate-err") and shot.category is None:
            message = f"missing; the style '{style}' requires it"
            raise option_error(message, f"shots[{index}].category", ErrorCode.MISSING_FIELD)
    import jinja2

    template = jinja2.Template(load_prompt("vert_shots"), trim_blocks=True, keep_trailing_newline=True)
    return str(template.render(style=style, shots=shots, categories=ERROR_CATEGORIES, titles=SECTION_TITLES))


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
        self._few_shot_section, self._places = "", dict[str, int]()
        if shots is not None:
            examples = read_examples(shots, Shot)
            drawn = examples if n is None else draw_shots(examples, n, seed=seed)
            self._few_shot_section = f"\n{few_shot_section(style, drawn)}"
            self._places = {digest(shot.candidate, shot.reference): examples.index(shot) for shot in drawn}

    def requests(self, pairs: Sequence[TextPair]) -> list[ChatRequest[ScoredAssessment]]:
        """Refuse a pair that is an example: its prompt would contain its score."""
        for pair in pairs if self._places else ():
            if (place := self._places.get(digest(pair.candidate, pair.reference))) is not None:
                message = f"is the pair '{pair.sample_id}', whose prompt would contain its score; omit one of the two"
                field = f"metric_args.{self.name}.shots[{place}]"
                raise InputError(message, code=ErrorCode.DUPLICATE, field=field)
        return super().requests(pairs)

    def request(self, pair: TextPair) -> ChatRequest[ScoredAssessment]:
        content = fill_prompt(load_prompt(self.name), reference=pair.reference, candidate=pair.candidate)
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

    def request(self, pair: TextPair) -> ChatRequest[float]:
        objective = load_prompt("vert").partition("\n")[0]
        content = f"{objective}\n\nReference Report:\n{pair.reference}\n\nCandidate Report:\n{pair.candidate}"
        return ChatRequest((("user", content),), lambda text: parse_accuracy_score(strip_reasoning(text)))

    def compute_scores(self, response: float) -> Mapping[str, float]:
        return {self.name: response}

    def record(self, response: float) -> Mapping[str, Any]:
        return {"score": response}
