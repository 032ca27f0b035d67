"""Stage `state`: saving and restoring the training state of a random model with the shape of MAIRA-2."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gpu_stages import training
from gpu_stages.cases import Measurement, Setup, SkipCase, parse_case
from gpu_stages.models import GIB, make_config, reset_peak_memory, synchronized_time
from maira.runtime.processes import DistributedContext
from maira.train.checkpointing import CheckpointManager
from maira.train.loss import MairaLossModel
from maira.train.optimizers import make_optimizer


def measure(case: str, setup: Setup) -> Iterator[Measurement]:
    """Save weights and optimizer states after a step, overwrite them, restore them, and compare."""
    plan = training.TINY_PLAN if setup.is_tiny else training.Plan()
    train_config = training.make_train_config(parse_case(case), setup, plan)
    reset_peak_memory(setup.device)
    model = training.trainable_model(make_config(setup), train_config, setup.device)
    loss_model = MairaLossModel(model, 0, 0.0)
    optimizer = make_optimizer(loss_model, train_config)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # Each weight has two optimizer states, which take less in 8 bits.
    needed = 3 * sum(parameter.nbytes for parameter in trained)
    if (free := shutil.disk_usage(setup.folder).free) < needed:
        raise SkipCase(f"expected {needed / GIB:.0f} GiB of free disk space, found {free / GIB:.0f} GiB")
    _step(trained, optimizer)
    messages: list[str] = []
    manager = CheckpointManager(setup.folder, 1, DistributedContext(0, 1, setup.device), messages.append)
    started = synchronized_time(setup.device)
    manager.save(1, loss_model, optimizer, {})
    blocked = synchronized_time(setup.device) - started
    if not manager.finish():
        raise ValueError(messages[-1])
    written = time.perf_counter() - started
    expected = _checksums(loss_model, optimizer)
    _step(trained, optimizer)
    changed = sum(a != b for a, b in zip(_checksums(loss_model, optimizer), expected, strict=True))
    started = synchronized_time(setup.device)
    (state,) = manager.find()
    manager.load(state, loss_model, optimizer)
    restored = synchronized_time(setup.device) - started
    manager.close()
    same = sum(a == b for a, b in zip(_checksums(loss_model, optimizer), expected, strict=True))
    size = sum(file.stat().st_size for file in state.iterdir())
    yield Measurement("size", size / GIB, "GiB")
    yield Measurement("training waits", blocked, "s")
    yield Measurement("written after", written, "s")
    yield Measurement("written per second", size / written / GIB, "GiB/s")
    yield Measurement("restored after", restored, "s")
    yield Measurement("tensors changed before restoring", changed / len(expected), at_least=0.5)
    yield Measurement("tensors equal after restoring", same / len(expected), at_least=1.0)


def _step(trained: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    """Take an optimizer step with random gradients."""
    for parameter in trained:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def _checksums(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[float, float]]:
    """Return two sums over each trained weight and each tensor of its optimizer state."""
    tensors = [parameter for parameter in model.parameters() if parameter.requires_grad]
    states = [optimizer.state[parameter] for parameter in tensors]
    values: list[Any] = [*tensors, *(value for state in states for _, value in sorted(state.items()))]
    return [_checksum(value.detach()) for value in values if isinstance(value, Tensor)]


def _checksum(tensor: Tensor) -> tuple[float, float]:
    plain = tensor if type(tensor) is Tensor else tensor.dequantize()
    flat = plain.flatten().double()
    return float(flat.sum()), float(flat[::2].sum())
