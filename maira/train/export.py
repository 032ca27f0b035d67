"""Export of a model in training as a checkpoint."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from maira.model.checkpoint import checkpoint_folder
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.runtime.processes import DistributedContext
from maira.train.components import export_weights
from maira.train.config.run_config import FromScratch, TrainConfig
from maira.train.lora import added_rows, save_adapter


def write_checkpoint(
    model: MairaForConditionalGeneration,
    processor: MairaProcessor,
    config: TrainConfig,
    context: DistributedContext,
    folder: Path,
) -> None:
    """Write a model and its processor atomically; all processes call this."""
    weights = gather_weights(model, only_trained=not isinstance(config.model, FromScratch))
    if context.is_main:
        with checkpoint_folder(folder) as fresh:
            _write(model, processor, config, weights, fresh)
    context.wait()


def gather_weights(model: nn.Module, *, only_trained: bool) -> dict[str, Tensor]:
    """Gather the weights of a model by name on the CPU of the main process; all processes call this."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=only_trained)
    return {n: w for n, w in get_model_state_dict(model, options=options).items() if isinstance(w, Tensor)}


def _write(
    model: MairaForConditionalGeneration,
    processor: MairaProcessor,
    config: TrainConfig,
    weights: dict[str, Tensor],
    folder: Path,
) -> None:
    with torch.device("meta"):
        whole = MairaForConditionalGeneration(copy.deepcopy(model.config))
    whole.to(getattr(torch, config.checkpoint_dtype))
    whole.generation_config = model.generation_config
    whole.save_pretrained(folder, state_dict=export_weights(weights, config, model.config))
    processor.save_pretrained(folder)
    if config.lora:
        save_adapter(weights, config.lora, folder / "lora", added_rows(config.lora, model.config))
