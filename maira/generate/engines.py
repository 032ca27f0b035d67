"""Engines by name; what an engine needs is imported when it is started."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from maira.generate.request import Engine, EngineKind, EngineOptions
from maira.runtime.processes import process_count
from radfact.errors import InputError

_ENGINES: dict[EngineKind, str] = {
    "transformers": "maira.generate.transformers_engine:TransformersEngine",
    "vllm": "maira.generate.vllm_engine:VLLMEngine",
    "ray": "maira.generate.ray_engine:RayEngine",
}


def start_engine(kind: EngineKind, checkpoint: Path, options: EngineOptions) -> Engine:
    """An engine with a checkpoint, ready to answer.

    Raises:
        InputError: the folder is no checkpoint of ours, its tokenizer lacks the format's tokens, a package that the
            engine needs is not installed, or a launcher started several processes of an engine that spreads by itself.
        RunError: the engine cannot start.
    """
    if kind != "transformers" and process_count() > 1:
        raise InputError(
            f"'{kind}' drives all GPUs from one process: start it without a launcher (accelerate, torchrun)",
            field="engine",
        )
    module, name = _ENGINES[kind].split(":")
    engine: Engine = getattr(import_module(module), name)(checkpoint, options)
    return engine
