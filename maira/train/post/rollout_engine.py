"""vLLM engine in a training process (colocated), which samples with the current weights of the model.

They are passed in files, since copies between two processes of a GPU cannot be tested without one.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from maira.generate.engine import EngineOptions
from maira.generate.vllm_engine import VLLMEngine, check_colocated_arguments
from maira.generate.vllm_parts import PromptEmbedder, plain_llama_name, write_settings, write_weights
from maira.model.processor import MairaProcessor
from maira.runtime.processes import DistributedContext
from maira.train import lora
from maira.train.config.run_config import MairaLoraOptions, TrainConfig
from maira.train.parallel import ParallelModel
from maira.train.validation import gathered_weights

_FIELD = "grpo.engine_args"


class RolloutEngine:
    """A vLLM engine on the device of this process, with the language model in training; a machine shares its files."""

    def __init__(self, config: TrainConfig, model: ParallelModel, processor: MairaProcessor) -> None:
        self._config, self._model, self._context = config, model, model.context
        maira: Any = model.training.model
        dtype = self._dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
        self._open_folder()
        options = _engine_options(config, self._context)
        embedder = PromptEmbedder(maira, processor, options.image_check, dtype, autocast=model.autocast)
        if self._is_writer:
            ends = maira.generation_config.eos_token_id
            write_settings(self._folder, maira.config.text_config, processor.tokenizer, ends, dtype)
        self._context.wait()
        if self._context.device.type == "cuda":
            torch.cuda.empty_cache()
        self._engine = VLLMEngine.from_folder(self._folder, embedder, options, dtype, field=_FIELD)

    @contextmanager
    def sync_weights(self) -> Iterator[VLLMEngine]:
        """Load the current weights and yield the engine; all processes enter, and generate independently."""
        if self._context.device.type == "cuda":
            torch.cuda.empty_cache()  # memory of the gradient computation
        with gathered_weights(self._model):
            if self._is_writer:
                write_language_model(self._model.training.model, self._config.lora, self._folder, self._dtype)
            self._context.wait()
            self._engine.load_weights()
            yield self._engine
        self._engine.sleep()

    def close(self) -> None:
        """Shut down vLLM and remove the files of the weights."""
        self._engine.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _open_folder(self) -> None:
        """Agree on the folder of the weights, which the first process of each machine creates and writes."""
        hosts = self._context.gather(socket.gethostname())
        writer = hosts.index(hosts[self._context.rank])
        self._is_writer = writer == self._context.rank
        self._temporary = TemporaryDirectory(prefix="maira-language-model-") if self._is_writer else None
        names = self._context.gather(None if self._temporary is None else self._temporary.name)
        self._folder = Path(names[writer])


def write_language_model(model: Any, options: MairaLoraOptions | None, folder: Path, dtype: torch.dtype) -> None:
    """Write the language model of a whole MAIRA-2, with merged adapters, as weights of a plain Llama folder."""
    weights = {
        plain_llama_name(name): weight
        for name, weight in model.named_parameters()
        if name.startswith(("model.language_model.", "lm_head."))
    }
    plain = {lora.plain_name(name): weight for name, weight in weights.items() if not lora.is_adapter(name)}

    @torch.no_grad()
    def read(names: Sequence[str]) -> list[tuple[str, Tensor]]:
        chosen = [(name, plain[name]) for name in names]
        return chosen if options is None else [*lora.merged(chosen, weights, options, added_rows)]

    added_rows = range(0) if options is None else lora.added_rows(options, model.config)
    write_weights(folder, {name: weight.shape for name, weight in plain.items()}, read, dtype)


def check_engine(config: TrainConfig, context: DistributedContext) -> None:
    """Check vLLM, the device and the engine arguments before the model is read."""
    check_colocated_arguments(_engine_options(config, context), field=_FIELD)


def _engine_options(config: TrainConfig, context: DistributedContext) -> EngineOptions:
    assert config.grpo is not None
    return EngineOptions(
        engine="vllm",
        device=str(context.device),
        engine_args=config.grpo.engine_args,
        image_check=config.faults.image_check,
    )
