"""Options of generation and of the engine that runs the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

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
    """What the model writes, and from which inputs."""

    task: Annotated[Literal["findings", "grounded"], Option("A narrative of the findings, or a grounded report.")] = (
        "grounded"
    )
    preset: Annotated[Preset, Option("Wording of the prompts: of the released model, or of the MAIRA-2 paper.")] = (
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
        Option("Maximum number of tokens per response (default: 150 to 450, depending on the task)."),
    ] = None


class EngineOptions(Options):
    """What runs the model. Only `free` changes the text that the model writes."""

    panel = "Engine"

    engine: Annotated[
        EngineKind,
        Option("Engine of the model: transformers (under accelerate launch on several GPUs), vLLM, or a Ray cluster."),
    ] = "transformers"
    batch_size: Annotated[
        PositiveInt | None,
        Option("Maximum number of prompts per batch (default: as many as fit into memory).", flag="--batch"),
    ] = None
    device: Annotated[
        str | None, Option("cpu, cuda or cuda:1, for the transformers engine (default: a GPU, if any).")
    ] = None
    cache: Annotated[
        Literal["dynamic", "static"],
        Option("Key-value cache of the transformers engine; static compiles the decoding step on a GPU."),
    ] = "dynamic"
    language_model: Annotated[
        Path | None,
        Option("Folder for the language model in vLLM's layout, written once (default: in the user's cache)."),
    ] = None
    engine_args: Annotated[
        Mapping[str, Any],
        BeforeValidator(_parse_engine_args),
        Option(
            "Argument of vLLM's engine, such as tensor_parallel_size=2; repeatable.",
            flag="--engine-arg",
            metavar="NAME=VALUE",
        ),
    ] = Field(default_factory=dict)
    workers: Annotated[
        PositiveInt | None, Option("Workers of --engine ray (default: one per GPU, or one per CPU).")
    ] = None
    worker_engine: Annotated[Literal["transformers", "vllm"], Option("Engine in each worker of --engine ray.")] = (
        "transformers"
    )
    free: Annotated[
        bool, Option("Neither grammar nor repetition guard: the output of the model as released.", flag="--free")
    ] = False

    @model_validator(mode="after")
    def _fit_engine(self) -> Self:
        is_ray, is_vllm = self.engine == "ray", "vllm" in (self.engine, self.worker_engine)
        for name, is_set, has_use, engines in (
            ("workers", self.workers is not None, is_ray, "--engine ray"),
            ("worker_engine", self.worker_engine != "transformers", is_ray, "--engine ray"),
            ("language_model", self.language_model is not None, is_vllm, "--engine vllm or --worker-engine vllm"),
            ("engine_args", bool(self.engine_args), is_vllm, "--engine vllm or --worker-engine vllm"),
            ("cache", self.cache == "static", not is_vllm, "--engine transformers"),
        ):
            if is_set and not has_use:
                raise InputError(f"only available with {engines}", code=ErrorCode.CONFLICTING_OPTIONS, field=name)
        return self
