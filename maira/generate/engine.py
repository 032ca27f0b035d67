"""What is asked of a model, what it answers, and what every engine that runs it looks like."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol

from maira.generate.options import EngineKind, EngineOptions
from maira.model.prompts import NEW_TOKENS
from maira.model.task_examples import Example
from maira.runtime.processes import process_count
from radfact.errors import ErrorCode, InputError

Form = Literal["narrative", "report", "boxes"]
"""What an answer is held to: no loops of a narrative; the grammar of a grounded report; that grammar from inside a
sentence's first box up to the end of its object."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One question.

    Attributes:
        example: prompt and images; the prompt of a box completion ends within a report.
        form: of the answer.
        max_new_tokens: most tokens of the answer.
    """

    example: Example
    form: Form
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Response:
    """What the model wrote.

    Attributes:
        text: without control tokens; of a box completion up to and including `</obj>`.
        cut_off: it stopped at the limit of tokens, or was closed there, and not at an end of the model's own.
        seconds: time it took, its share of what ran together.
    """

    text: str
    cut_off: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """Why there is no answer, as one line."""

    reason: str


class Engine(Protocol):
    """A checkpoint ready to answer; made as `Engine(checkpoint, options)`.

    Attributes:
        name: of the checkpoint, with its fingerprint.
    """

    name: str

    def generate(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Response | FailedRequest]]:
        """Each request's answer once, with its index, in whatever order they come.

        Raises:
            RunError: the engine itself is broken, so that no further answer will come.
        """

    def close(self) -> None:
        """Give back what the engine holds."""


def report_request(example: Example, max_new_tokens: int | None = None) -> GenerationRequest:
    """The request for a whole answer, with the limit of its task (specification, "Grounded output") by default."""
    form: Form = "narrative" if example.task == "findings" else "report"
    return GenerationRequest(example, form, max_new_tokens or NEW_TOKENS[example.task])


def length_key(request: GenerationRequest) -> tuple[Form, int, int, int]:
    """What puts requests in the order of their length without a tokenizer, those of one form and limit together."""
    return request.form, request.max_new_tokens, len(request.example.images), len(request.example.prompt)


def prompt_error(length: int, window: int) -> FailedRequest | None:
    """Return why a prompt of `length` tokens cannot be answered; None if the context window has room for a response."""
    if length < window:
        return None
    return FailedRequest(f"the prompt has {length} tokens, and the context window has {window} for prompt and response")


def limit_to_window(request: GenerationRequest, length: int, window: int) -> GenerationRequest:
    """Lower the limit of new tokens to what a prompt of `length` tokens leaves of the context window."""
    return replace(request, max_new_tokens=min(request.max_new_tokens, window - length))


_ENGINES: dict[EngineKind, str] = {
    "transformers": "maira.generate.transformers_engine:TransformersEngine",
    "vllm": "maira.generate.vllm_engine:VLLMEngine",
    "ray": "maira.generate.ray_engine:RayEngine",
}


def start_engine(checkpoint: Path, options: EngineOptions) -> Engine:
    """An engine with a checkpoint, ready to answer.

    Raises:
        InputError: the folder is no checkpoint of ours, its tokenizer lacks the format's tokens, a package that the
            engine needs is not installed, or a launcher started several processes of an engine that spreads by itself.
        RunError: the engine cannot start.
    """
    kind = options.engine
    if kind != "transformers" and process_count() > 1:
        raise InputError(
            f"'{kind}' drives all GPUs from one process: start it without a launcher (accelerate, torchrun)",
            code=ErrorCode.CONFLICTING_OPTIONS,
            field="engine",
        )
    module, name = _ENGINES[kind].split(":")
    engine: Engine = getattr(import_module(module), name)(checkpoint, options)
    return engine
