"""The engine protocol: requests to a model, its responses, and the engines that produce them."""

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
"""Constraint on a response: "narrative" ends loops; "report" follows the grammar of a grounded report; "boxes" follows
that grammar from within a sentence's first box to the end of its object."""

_ENGINES: dict[EngineKind, str] = {
    "transformers": "maira.generate.transformers_engine:TransformersEngine",
    "vllm": "maira.generate.vllm_engine:VLLMEngine",
    "ray": "maira.generate.ray_engine:RayEngine",
}
NON_FINITE = "the model computed NaN or infinite logits; its weights or this image overflow"
"""Reason of a request whose next token cannot be chosen."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Random choice of the tokens of a response, whose seed does not depend on its batch."""

    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request for one response, with greedy decoding unless it has a sampling."""

    example: Example
    form: Form
    max_new_tokens: int
    sampling: Sampling | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """The text that a model generated, without control tokens; for a box completion up to and including `</obj>`."""

    text: str
    cut_off: bool
    """Whether the token limit ended the text, instead of the model."""
    seconds: float
    """Share of the time of everything that ran together."""
    ids: tuple[int, ...] = ()
    """Tokens of the response, with the one that ends it."""
    log_probs: tuple[float, ...] = ()
    """Of each sampled token, NaN if unknown; empty for greedy decoding and for the transformers engine."""


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request without a response, and the reason in one line."""

    reason: str


class Engine(Protocol):
    """A loaded checkpoint; created as `Engine(checkpoint, options)`.

    Attributes:
        name: name of the checkpoint and its fingerprint.
    """

    name: str

    def generate(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Response | FailedRequest]]:
        """Yield the index and the response of every request once, in any order.

        Raises:
            RunError: the engine broke, and no further response will come.
        """

    def close(self) -> None:
        """Release what the engine holds."""


def start_engine(checkpoint: Path, options: EngineOptions) -> Engine:
    """Start the engine that the options name."""
    kind = options.engine
    if kind != "transformers" and process_count() > 1:
        message = f"'{kind}' drives all GPUs from one process; start it without a launcher (accelerate, torchrun)"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field="engine")
    module, name = _ENGINES[kind].split(":")
    engine: Engine = getattr(import_module(module), name)(checkpoint, options)
    return engine


def report_request(example: Example, max_new_tokens: int | None = None) -> GenerationRequest:
    """Make the request for a whole report, by default with the limit of its task."""
    form: Form = "narrative" if example.task == "findings" else "report"
    return GenerationRequest(example, form, max_new_tokens or NEW_TOKENS[example.task])


def length_key(request: GenerationRequest) -> tuple[Form, int, int, int]:
    """Return a sort key by form, limit and approximate prompt length, which needs no tokenizer."""
    return request.form, request.max_new_tokens, len(request.example.images), len(request.example.text)


def fit_window(request: GenerationRequest, length: int, window: int) -> GenerationRequest | FailedRequest:
    """Lower the limit of new tokens to what a prompt of `length` tokens leaves of the context window."""
    if length < window:
        return replace(request, max_new_tokens=min(request.max_new_tokens, window - length))
    return FailedRequest(f"the prompt has {length} tokens, and prompt and response share a context window of {window}")
