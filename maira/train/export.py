"""A model in training as a checkpoint that every command reads."""

from __future__ import annotations

import copy
import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.train.components import export_weights
from maira.train.config.run_config import FromScratch, TrainConfig
from maira.train.lora import added_rows, save_adapter
from maira.train.parallel import DistributedContext


def write_checkpoint(
    model: MairaForConditionalGeneration,
    processor: MairaProcessor,
    config: TrainConfig,
    context: DistributedContext,
    folder: Path,
) -> None:
    """Write a model and its processor, whole or not at all; all processes call this.

    Args:
        model: perhaps sharded. The main process gathers its trained weights on the CPU, one by one.
        processor: that goes with it.
        config: of the run; it decides the type of the weights, and where those come from that were not trained.
        context: of the run.
        folder: of the checkpoint; one that is there is replaced. Low-rank adapters stand in its `lora/` by themselves.

    Raises:
        OSError: it cannot be written, in the main process; the others wait.
    """
    weights = gather_weights(model, only_trained=not isinstance(config.model, FromScratch))
    if context.is_main:
        with atomic_folder(folder) as fresh:
            _write(model, processor, config, weights, fresh)
    context.wait()


def gather_weights(model: nn.Module, *, only_trained: bool) -> dict[str, Tensor]:
    """Weights of a model by name, whole and on the CPU of the main process; all processes call this.

    Args:
        model: perhaps sharded.
        only_trained: leave out what is not trained.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=only_trained)
    return {n: w for n, w in get_model_state_dict(model, options=options).items() if isinstance(w, Tensor)}


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A folder to write to that takes the place of another when the block ends without an error.

    Raises:
        OSError: it cannot be written.
    """
    fresh, old = (folder.with_name(f"{folder.name}.{end}") for end in ("writing", "old"))
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        yield fresh
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
