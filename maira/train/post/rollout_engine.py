"""vLLM engine in a training process (colocated), which samples with the current weights of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from maira.generate.engine import EngineOptions
from maira.generate.vllm_engine import COLOCATED_ARGUMENTS, VLLMEngine, all_arguments, platform_device
from maira.generate.vllm_parts import PromptEmbedder, plain_llama_name, write_settings
from maira.model.processor import MairaProcessor
from maira.runtime.processes import DistributedContext
from maira.train import lora
from maira.train.config.run_config import MairaLoraOptions, TrainConfig
from maira.train.parallel import ParallelModel
from maira.train.validation import gathered_weights
from radfact.errors import ErrorCode, InputError
from radfact.llm.vllm import require_vllm

_FIELD = "grpo.engine_args"
_MEMORY_UTILIZATION = 0.5
"""Default share of the GPU, which the model in training uses, too."""


class RolloutEngine:
    """A vLLM engine on the device of this process, with the language model in training."""

    def __init__(self, config: TrainConfig, model: ParallelModel, processor: MairaProcessor) -> None:
        self._config, self._model = config, model
        maira: Any = model.training.model
        dtype = self._dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
        options = check_engine(config, model.context)
        embedder = PromptEmbedder(maira, processor, options.image_check, dtype, autocast=model.autocast)
        ends = maira.generation_config.eos_token_id
        self._folder = TemporaryDirectory(prefix="maira-language-model-")
        write_settings(Path(self._folder.name), maira.config.text_config, processor.tokenizer, ends, dtype)
        torch.cuda.empty_cache()
        self._engine = VLLMEngine.from_folder(Path(self._folder.name), embedder, options, dtype, field=_FIELD)

    @contextmanager
    def sync_weights(self) -> Iterator[VLLMEngine]:
        """Load the current weights and yield the engine; all processes enter, and generate independently."""
        torch.cuda.empty_cache()  # memory of the gradient computation
        with gathered_weights(self._model):
            layers = language_model_layers(self._model.training.model, self._config.lora)
            self._engine.load_weights(share_weights(layer, self._dtype) for layer in layers)
            yield self._engine
        self._engine.sleep()

    def close(self) -> None:
        self._engine.close()
        self._folder.cleanup()


@torch.no_grad()
def language_model_layers(model: Any, options: MairaLoraOptions | None) -> Iterator[list[tuple[str, Tensor]]]:
    """Yield the weights of a MAIRA-2's language model, with merged adapters, by their names in a plain Llama."""
    weights = {
        plain_llama_name(name): weight
        for name, weight in model.named_parameters()
        if name.startswith(("model.language_model.", "lm_head."))
    }
    plain = [(lora.plain_name(name), weight) for name, weight in weights.items() if not lora.is_adapter(name)]
    added_rows = range(0) if options is None else lora.added_rows(options, model.config)
    for _, group in groupby(plain, key=lambda named: named[0].split(".")[2:3]):  # the number of the layer
        layer = [*group]
        yield layer if options is None else [*lora.merged(layer, weights, options, added_rows)]


def share_weights(weights: Sequence[tuple[str, Tensor]], dtype: torch.dtype) -> tuple[Tensor, bytes]:
    """Copy weights to memory that vLLM's process can open; return it, and what vLLM's process needs."""
    settings = torch._C._accelerator_getAllocatorSettings()
    # Containers may forbid other processes to open segments that can grow.
    torch._C._accelerator_setAllocatorSettings(f"{settings},expandable_segments:False".removeprefix(","))
    try:
        memory = torch.cat([weight.detach().to(dtype).flatten() for _, weight in weights])
    finally:
        torch._C._accelerator_setAllocatorSettings(settings)
    shapes = [(name, tuple(weight.shape)) for name, weight in weights]
    return memory, bytes(ForkingPickler.dumps((reduce_tensor(memory), shapes)))  # type: ignore[no-untyped-call]


def check_engine(config: TrainConfig, context: DistributedContext) -> EngineOptions:
    """Check vLLM, the device and the engine arguments before the model is read; return the options of the engine."""
    assert config.grpo is not None
    require_vllm("vllm", field="grpo.engine")
    platform_device(context.device.type, field="grpo.engine")
    for name in config.grpo.engine_args:
        if name.endswith("parallel_size") or name in COLOCATED_ARGUMENTS:
            message = "cannot be set in training, where each process runs its own engine on its own GPU; remove it"
            raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field=f"{_FIELD}.{name}")
    arguments = {"gpu_memory_utilization": _MEMORY_UTILIZATION, **config.grpo.engine_args}
    check, device = config.faults.image_check, str(context.device)
    options = EngineOptions(engine="vllm", device=device, engine_args=arguments, image_check=check)
    all_arguments(options, "float32", _FIELD)
    return options
