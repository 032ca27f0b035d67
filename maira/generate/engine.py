"""The engine protocol: options, requests to a model, its responses, and the engines that produce them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from maira.data.image_check import ImageCheckOption
from maira.model.prompts import NEW_TOKENS, Preset
from maira.model.task_examples import Example, Input, parse_inputs
from maira.runtime.processes import process_count
from radfact.errors import ErrorCode, InputError, brief
from radfact.options import Option, Options

EngineKind = Literal["transformers", "vllm", "ray", "server"]
Form = Literal["narrative", "report", "boxes"]
"""Constraint on a response: "narrative" ends loops; "report" follows the grammar of a grounded report; "boxes" follows
that grammar from within a sentence's first box to the end of its object."""

_ENGINES = {
    "other": "maira.generate.auto_engine:AutoEngine",
    "transformers": "maira.generate.transformers_engine:TransformersEngine",
    "vllm": "maira.generate.vllm_engine:VLLMEngine",
    "ray": "maira.generate.ray_engine:RayEngine",
    "server": "maira.generate.server_engine:ServerEngine",
}
NON_FINITE = "the model computed NaN or infinite logits; its weights or this image overflow"
"""Reason of a request whose next token cannot be chosen."""


def _parse_drop(value: Any) -> Any:
    items = (value,) if isinstance(value, str) else tuple(value)
    return parse_inputs("+".join(items)) if items else ()


def _parse_engine_args(value: Any) -> Any:
    from radfact.llm import parse_model_args

    return parse_model_args(value, field="engine_args")


class GenerationOptions(Options):
    """What the model generates, and from which inputs."""

    task: Annotated[Literal["findings", "grounded"], Option("Generate narrative findings, or a grounded report.")] = (
        "grounded"
    )
    preset: Annotated[Preset, Option("Prompt wording: that of the released model, or that of the MAIRA-2 paper.")] = (
        "release"
    )
    drop: Annotated[
        tuple[Input, ...],
        BeforeValidator(_parse_drop),
        Option(
            "Inputs to hide from the model, joined by +: prior, lateral, technique, comparison, indication.",
            metavar="INPUTS",
            cli_type=list[str],
        ),
    ] = ()
    max_new_tokens: Annotated[
        PositiveInt | None, Option("Maximum number of tokens per response. Default: 150 to 450, depending on the task.")
    ] = None
    temperature: Annotated[
        PositiveFloat | None, Option("Sampling temperature. Default: greedy decoding.", metavar="T")
    ] = None
    seed: Annotated[NonNegativeInt | None, Option("Random seed for sampling with --temperature. Default: 0.")] = None

    @model_validator(mode="after")
    def _check_seed(self) -> Self:
        if self.seed is not None and self.temperature is None:
            raise InputError("only available with --temperature", code=ErrorCode.CONFLICTING_OPTIONS, field="seed")
        return self


class EngineOptions(Options):
    """The engine that runs the model. Only `free` changes the generated text."""

    panel = "Engine"

    engine: Annotated[
        EngineKind,
        Option(
            "Inference engine: transformers (on several GPUs with accelerate launch), vLLM, a Ray cluster, or a server "
            "with another vision-language model."
        ),
    ] = "transformers"
    model: Annotated[
        str | None,
        Option("Model on the server of --base-url, or PROVIDER:MODEL as for judges (--engine server).", metavar="NAME"),
    ] = None
    base_url: Annotated[
        str | None, Option("Address of an OpenAI-compatible server (--engine server).", metavar="URL")
    ] = None
    concurrency: Annotated[
        PositiveInt | None, Option("Number of parallel calls (--engine server). Default: 8.", metavar="N")
    ] = None
    batch_size: Annotated[
        PositiveInt | None,
        Option("Maximum number of prompts per batch. Default: as many as fit into memory.", flag="--batch"),
    ] = None
    device: Annotated[
        str | None, Option("Device of the transformers engine, such as cpu or cuda:1. Default: a GPU if available.")
    ] = None
    cache: Annotated[
        Literal["auto", "dynamic", "static"],
        Option(
            "Key-value cache of the transformers engine: dynamic grows with every token; static is allocated once, and "
            "the decoding step is compiled (GPU only); auto is static on a GPU, compiled from 1,000 studies on."
        ),
    ] = "auto"
    language_model: Annotated[
        Path | None,
        Option("Folder for the language model in vLLM format, written once. Default: a folder in the user cache."),
    ] = None
    engine_args: Annotated[
        Mapping[str, Any],
        BeforeValidator(_parse_engine_args),
        Option(
            "Argument passed to vLLM, such as tensor_parallel_size=2, or to the model of a server, such as "
            "reasoning_effort=low; repeatable.",
            flag="--engine-arg",
            metavar="NAME=VALUE",
        ),
    ] = Field(default_factory=dict)
    workers: Annotated[
        PositiveInt | None, Option("Number of Ray workers (--engine ray). Default: one per GPU, or one per CPU.")
    ] = None
    worker_engine: Annotated[
        Literal["transformers", "vllm"], Option("Inference engine of each Ray worker (--engine ray).")
    ] = "transformers"
    image_check: ImageCheckOption = "refuse"
    free: Annotated[bool, Option("Disable the output grammar and the repetition guard.", flag="--free")] = False

    @model_validator(mode="after")
    def _fit_engine(self) -> Self:
        is_ray, is_vllm = self.engine == "ray", "vllm" in (self.engine, self.worker_engine)
        is_server = self.engine == "server"
        if is_server and self.model is None:
            message = "expected the name of the server's model, found none"
            raise InputError(message, code=ErrorCode.MISSING_OPTION, field="model")
        for name, is_set, has_use, engines in (
            ("model", self.model is not None, is_server, "--engine server; --checkpoint names a model on disk"),
            ("base_url", self.base_url is not None, is_server, "--engine server"),
            ("concurrency", self.concurrency is not None, is_server, "--engine server"),
            ("batch_size", self.batch_size is not None, not is_server, "the other engines; use --concurrency"),
            ("device", self.device is not None, not is_server, "engines that run a checkpoint"),
            ("workers", self.workers is not None, is_ray, "--engine ray"),
            ("worker_engine", self.worker_engine != "transformers", is_ray, "--engine ray"),
            ("language_model", self.language_model is not None, is_vllm, "--engine vllm or --worker-engine vllm"),
            ("engine_args", bool(self.engine_args), is_vllm or is_server, "--engine vllm or server, or vllm workers"),
            ("cache", self.cache != "auto", not is_vllm and not is_server, "--engine transformers"),
        ):
            if is_set and not has_use:
                raise InputError(f"only available with {engines}", code=ErrorCode.CONFLICTING_OPTIONS, field=name)
        return self


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

    @property
    def length_key(self) -> tuple[Form, int, int, int]:
        """Sort key by form, limit and approximate prompt length, which needs no tokenizer."""
        return self.form, self.max_new_tokens, len(self.example.images), len(self.example.text)

    def fit_window(self, length: int, window: int) -> GenerationRequest | FailedRequest:
        """Lower the limit of new tokens to what a prompt of `length` tokens leaves of the context window."""
        if length < window:
            return replace(self, max_new_tokens=min(self.max_new_tokens, window - length))
        message = f"the prompt has {length} tokens, and prompt and response share a context window of {window}"
        return FailedRequest(message)


@dataclass(frozen=True, slots=True)
class Response:
    """The text that a model generated, without control tokens; for a box completion up to and including `</obj>`."""

    text: str
    cut_off: bool  # whether the token limit ended the text, instead of the model
    seconds: float  # share of the time of everything that ran together
    ids: tuple[int, ...] = ()  # tokens of the response, with the one that ends it
    # Of each sampled token, NaN if unknown; empty for greedy decoding and for the transformers engine.
    log_probs: tuple[float, ...] = ()
    raw: str = ""  # all that the model wrote, if the text is a part of it


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request without a response, and the reason in one line."""

    reason: str


class Engine(Protocol):
    """A loaded checkpoint, or a server's model; created as `Engine(checkpoint, options)`.

    Attributes:
        name: name of the checkpoint and its fingerprint, or of the server's model.
    """

    name: str

    def generate(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Response | FailedRequest]]:
        """Yield the index and the response of every request once, in any order.

        Raises:
            RunError: the engine broke, and no further response will come.
        """

    def close(self) -> None:
        """Release what the engine holds; by default nothing."""


def start_engine(checkpoint: Path | None, options: EngineOptions) -> Engine:
    kind = options.engine
    if kind != "transformers" and process_count() > 1:
        message = f"'{kind}' drives all GPUs from one process; start it without a launcher (accelerate, torchrun)"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field="engine")
    from maira.model.other_models import is_other_model

    is_other = is_other_model(checkpoint)
    if is_other and "vllm" in (kind, options.worker_engine):
        message = "vLLM runs checkpoints of MAIRA-2 here; start 'vllm serve' with this one, and use --engine server"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field="engine")
    module, name = _ENGINES["other" if is_other and kind == "transformers" else kind].split(":")
    engine: Engine = getattr(import_module(module), name)(checkpoint, options)
    return engine


def report_request(example: Example, max_new_tokens: int | None = None) -> GenerationRequest:
    """Make the request for a whole report, by default with the limit of its task."""
    form: Form = "narrative" if example.task == "findings" else "report"
    return GenerationRequest(example, form, max_new_tokens or NEW_TOKENS[example.task])


def read_chat(response: Response | FailedRequest, example: Example) -> Response | FailedRequest:
    """Return a chat model's response with the report as its text; a failure if it refuses."""
    from maira.model.other_models import find_report

    if isinstance(response, FailedRequest):
        return response
    try:
        return replace(response, text=find_report(response.text, example), raw=response.text)
    except ValueError as error:
        return FailedRequest(f"no report in the response {brief(response.text)}: {error}")
