"""Options of generation and of the engine that runs the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from maira.data.image_check import ImageCheckOption
from maira.model.prompts import Preset
from maira.model.task_examples import Input, parse_inputs
from radfact.errors import ErrorCode, InputError
from radfact.options import Option, Options

EngineKind = Literal["transformers", "vllm", "ray"]


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
        PositiveInt | None,
        Option("Maximum number of tokens per response. Default: 150 to 450, depending on the task."),
    ] = None
    temperature: Annotated[
        PositiveFloat | None,
        Option("Sampling temperature. Default: greedy decoding.", metavar="T"),
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
        Option("Inference engine: transformers (on several GPUs with accelerate launch), vLLM, or a Ray cluster."),
    ] = "transformers"
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
            "Argument passed to vLLM, such as tensor_parallel_size=2; repeatable.",
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
        for name, is_set, has_use, engines in (
            ("workers", self.workers is not None, is_ray, "--engine ray"),
            ("worker_engine", self.worker_engine != "transformers", is_ray, "--engine ray"),
            ("language_model", self.language_model is not None, is_vllm, "--engine vllm or --worker-engine vllm"),
            ("engine_args", bool(self.engine_args), is_vllm, "--engine vllm or --worker-engine vllm"),
            ("cache", self.cache != "auto", not is_vllm, "--engine transformers"),
        ):
            if is_set and not has_use:
                raise InputError(f"only available with {engines}", code=ErrorCode.CONFLICTING_OPTIONS, field=name)
        return self
