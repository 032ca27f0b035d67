"""A model in training as a checkpoint that every command reads."""

from __future__ import annotations

import copy
import errno
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from maira.model import MairaForConditionalGeneration
from maira.processor import MairaProcessor
from maira.train.lora import save_adapter
from maira.train.parallel import World
from maira.train.parts import finished_weights
from maira.train.recipe import FromScratch, Recipe


def write_checkpoint(
    model: MairaForConditionalGeneration, processor: MairaProcessor, recipe: Recipe, world: World, folder: Path
) -> None:
    """Write a model and its processor, whole or not at all; all processes call this.

    Args:
        model: perhaps sharded. The main process gathers its trained weights on the CPU, one by one.
        processor: that goes with it.
        recipe: of the run; it decides the type of the weights, and where those come from that were not trained.
        world: of the run.
        folder: of the checkpoint; one that is there is replaced. Low-rank adapters stand in its `lora/` by themselves.

    Raises:
        OSError: it cannot be written, in the main process; the others wait.
    """
    options = StateDictOptions(
        full_state_dict=True, cpu_offload=True, ignore_frozen_params=not isinstance(recipe.model, FromScratch)
    )
    weights = {n: w for n, w in get_model_state_dict(model, options=options).items() if isinstance(w, Tensor)}
    if world.is_main:
        _write(model, processor, recipe, weights, folder)
    world.wait()


def _write(
    model: MairaForConditionalGeneration,
    processor: MairaProcessor,
    recipe: Recipe,
    weights: dict[str, Tensor],
    folder: Path,
) -> None:
    with torch.device("meta"):
        whole = MairaForConditionalGeneration(copy.deepcopy(model.config))
    whole.to(getattr(torch, recipe.checkpoint_dtype))
    whole.generation_config = model.generation_config
    fresh, old = (folder.with_name(f"{folder.name}.{end}") for end in ("writing", "old"))
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        whole.save_pretrained(fresh, state_dict=finished_weights(weights, recipe, model.config))
        processor.save_pretrained(fresh)
        if recipe.lora:
            save_adapter(weights, recipe.lora, model.config, fresh / "lora")
    except BaseException as error:
        # What is left of it takes the place that others need.
        shutil.rmtree(fresh, ignore_errors=True)
        if isinstance(error, SafetensorError):
            raise OSError(errno.EIO, str(error), str(folder)) from error
        raise
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
