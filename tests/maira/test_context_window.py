"""How long a prompt may be: one number for all engines, the limit of tokens shortened, no rubbish and no reminder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from maira.data.study import Study
from maira.generate.engine import EngineOptions, FailedRequest, GenerationRequest, Response, fit_window, report_request
from maira.generate.transformers_engine import TransformersEngine
from maira.generate.vllm_parts import PromptEmbedder
from maira.model.config import MairaConfig, context_window
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.model.task_examples import make_example


@pytest.fixture
def question(studies: list[Study]) -> GenerationRequest:
    """One that loops until its limit, as small random models do."""
    return report_request(make_example(studies[0], "findings"), 9)


def _engine(model: Any, processor: MairaProcessor, room: int, monkeypatch: pytest.MonkeyPatch) -> TransformersEngine:
    monkeypatch.setattr(model.config.text_config, "max_position_embeddings", room)
    return TransformersEngine.from_model(model, processor, EngineOptions(free=True))


def _length(processor: MairaProcessor, request: GenerationRequest) -> int:
    return len(processor.encode_example(request.example))


def test_maira_2_has_a_context_window_of_6144_tokens() -> None:
    assert context_window(MairaConfig().text_config) == 6144


@pytest.mark.parametrize(
    ("rope", "room"),
    [
        ({"rope_type": "default"}, 100),
        ({"rope_type": "linear", "factor": 1.25}, 125),
        ({"rope_type": "dynamic", "factor": 2.0}, 200),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 50}, 100),
    ],
)
def test_only_position_scaling_extends_the_context_window(rope: dict[str, Any], room: int) -> None:
    config = LlamaConfig(max_position_embeddings=100, rope_parameters={"rope_theta": 10000.0, **rope})
    assert context_window(config) == room


def test_a_prompt_that_fills_the_context_window_is_a_failure_of_its_study_only(
    model: MairaForConditionalGeneration,
    processor: MairaProcessor,
    checkpoint: Path,
    question: GenerationRequest,
    studies: list[Study],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wordy = studies[0].model_copy(update={"indication": "Cough. " * 30})
    long = report_request(make_example(wordy, "findings"), 9)
    length = _length(processor, long)
    answers = dict(_engine(model, processor, length, monkeypatch).generate([long, question]))
    assert isinstance(answers[0], FailedRequest)
    assert answers[0].reason.count(str(length)) == 2
    assert isinstance(answers[1], Response)
    assert list(PromptEmbedder.from_checkpoint(checkpoint).embed([long], length)) == [answers[0]]


@pytest.mark.parametrize("n_left", [1, 4])
def test_a_response_ends_with_the_context_window(
    model: MairaForConditionalGeneration,
    processor: MairaProcessor,
    question: GenerationRequest,
    monkeypatch: pytest.MonkeyPatch,
    n_left: int,
) -> None:
    room = _length(processor, question) + n_left
    short = GenerationRequest(question.example, question.form, n_left)
    ((_, expected),) = _engine(model, processor, 10_000, monkeypatch).generate([short])
    ((_, result),) = _engine(model, processor, room, monkeypatch).generate([question])
    assert isinstance(expected, Response)
    assert isinstance(result, Response)
    assert (result.text, result.cut_off) == (expected.text, expected.cut_off)
    assert fit_window(question, room - n_left, room) == short
