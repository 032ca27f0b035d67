"""The processes that train one model: what they tell each other, and how the model is dealt out among them (paper B.2).

`torchrun` and `accelerate launch` start them. Tensors travel by NCCL between GPUs and by gloo between CPUs.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from maira.runtime import processes
from maira.train.config.run_config import BaseTrainConfig
from maira.train.data.packing import PackedBatch
from maira.train.loss import Losses, PackedLossModel
from radfact.errors import InputError, RunError

PATIENCE = timedelta(hours=1)
"""How long a process waits for the tensors of the others before it takes one of them for dead."""
HELD_SHARE = 1 / 8
"""Unsharded gradients are kept from one row of a step to the next where they take at most this share of a GPU."""


@dataclass(frozen=True)
class DistributedContext:
    """The processes of a run, met (`init_distributed`).

    Attributes:
        rank: of this process.
        size: of all.
        device: where this process computes.
        group: for tensors; None for a single process.
        members: the same processes for Python values, with word of those that have stopped.
    """

    rank: int
    size: int
    device: torch.device
    group: Any = None
    members: processes.ProcessGroup = field(default_factory=processes.ProcessGroup)

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes what is written once, and the only one that speaks."""
        return self.rank == 0

    def gather(self, value: Any = None) -> list[Any]:
        """The value of every process, by rank.

        Raises:
            InputError: a process has stopped for its input.
            RunError: a process has stopped for another reason.
        """
        return self.members.gather(value)

    def wait(self) -> None:
        """Go on when all processes have come here.

        Raises:
            InputError, RunError: as `gather`.
        """
        self.gather()

    def sum(self, values: Tensor) -> Tensor:
        """The sum of a tensor over the processes, in place."""
        if self.group is not None:
            torch.distributed.all_reduce(values, group=self.group)
        return values

    @contextmanager
    def collective_section(self) -> Iterator[None]:
        """A stretch in which processes wait for each other's tensors, so that one that fails cannot say so in words.

        It ends without waiting for the others, which the launcher stops; its line says which process it was.

        Raises:
            RunError: memory is used up, or another process is gone.
        """
        try:
            yield
        except BaseException as error:
            self.members.abandon()
            where = f"process {self.rank}: " if self.size > 1 else ""
            if isinstance(error, torch.OutOfMemoryError):
                message = (
                    f"{where}out of memory on {self.device}; a smaller token_budget, activation_checkpointing=full, "
                    "lora or optimizer=adamw_8bit needs less"
                )
                raise self.members.report(RunError(message)) from None
            if isinstance(error, torch.distributed.DistError) or (self.size > 1 and "gloo" in str(error).lower()):
                raise self.members.report(RunError(f"{where}another process of the run is gone: {error}")) from None
            raise


def init_distributed() -> DistributedContext:
    """Meet the processes that the launcher started together with this one, each on a GPU of its own where there are."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
    if cuda:
        if (device.index or 0) >= (gpus := torch.cuda.device_count()):
            raise InputError(f"process {device.index} of this machine has no GPU of its own; there are {gpus} here")
        torch.cuda.set_device(device)
    members = processes.join_group(accelerated=cuda)
    if members.count == 1:
        return DistributedContext(0, 1, device)
    group = torch.distributed.new_group(backend=processes.backend(accelerated=cuda), timeout=PATIENCE)
    return DistributedContext(members.rank, members.count, device, group, members)


def sharding(config: BaseTrainConfig, world: DistributedContext) -> str:
    """How the processes share the work: "fsdp", "ddp", or "none" for a single one.

    Raises:
        InputError: weights in 4 bits are to be sharded.
    """
    if world.size == 1:
        return "none"
    quantized = config.lora is not None and config.lora.quantize is not None
    if quantized and config.parallel == "fsdp":
        raise InputError("weights in 4 bits cannot be sharded; use ddp", field="parallel")
    if config.parallel == "auto":
        return "fsdp" if world.device.type == "cuda" and not quantized else "ddp"
    return config.parallel


def parallelize(model: PackedLossModel, config: BaseTrainConfig, world: DistributedContext) -> ParallelModel:
    """Put a model on this process's device, dealt out as the recipe says; all processes go on with rank 0's weights.

    Args:
        model: of ranks above 0 only names, shapes and types of its weights count.
        config: its `parallel` and `precision` count.
        world: of this run.

    Raises:
        InputError: as `sharding`.
    """
    kind = sharding(config, world)
    if kind == "fsdp":
        _shard(model, config, world)
        return ParallelModel(model, model, world, holds_gradients=_can_hold(model, world))
    model.to(world.device)
    half = config.precision == "bf16"
    if kind == "none":
        return ParallelModel(model, model, world, autocast=half)
    ids = [world.device.index] if world.device.type == "cuda" else None
    # The name that torch 2.15 has for it; the other is deprecated there.
    known = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {buffers: False, "gradient_as_bucket_view": True}
    wrapped = DistributedDataParallel(model, device_ids=ids, process_group=world.group, **options)
    return ParallelModel(model, wrapped, world, autocast=half)


@dataclass(frozen=True)
class ParallelModel:
    """A model as this process computes with it.

    Attributes:
        training: the model itself; its parameters are DTensors where it is sharded.
        wrapped: what is called.
        world: of the run.
        autocast: computes in bfloat16 with weights of another type.
        holds_gradients: whether gradients wait, unsharded, for the last row of a step.
    """

    training: PackedLossModel
    wrapped: nn.Module
    world: DistributedContext
    autocast: bool = False
    holds_gradients: bool = True

    def __call__(self, batch: PackedBatch) -> Losses:
        """The model's losses of a packed row."""
        with torch.autocast(self.world.device.type, torch.bfloat16, enabled=self.autocast):
            losses: Losses = self.wrapped(batch)
        return losses

    def row(self, *, last: bool) -> AbstractContextManager[None]:
        """Where a row of a step is computed: gradients are exchanged with the last one, if they fit in memory."""
        if isinstance(self.wrapped, DistributedDataParallel):
            return nullcontext() if last else self.wrapped.no_sync()
        if self.world.size > 1:
            self.wrapped.set_requires_gradient_sync(last or not self.holds_gradients)  # type: ignore[operator]
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Gradients of a process's share of a loss, so that those of all processes add up to the loss's."""
        # FSDP2 and DDP both take the mean over the processes.
        torch.autograd.backward(loss * self.world.size)

    def gradient_norm(self) -> Tensor:
        """Euclidean norm of the whole gradient, a scalar on this process's device."""
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.training.parameters() if p.grad is not None])
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def clip(self, norm: Tensor, most: float) -> None:
        """Scale the gradient, whose norm is given, to `most` where it is longer."""
        trained = [p for p in self.training.parameters() if p.grad is not None]
        torch.nn.utils.clip_grads_with_norm_(trained, most, norm)


def _shard(model: PackedLossModel, config: BaseTrainConfig, world: DistributedContext) -> None:
    """FSDP2, in place: a group of parameters for each block, the encoder, the adapter and the ends of the model."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options: dict[str, Any] = {
        "mesh": DeviceMesh.from_group(world.group, world.device.type),
        "mp_policy": half if config.precision == "bf16" else MixedPrecisionPolicy(),
    }
    weights = model.state_dict() if world.is_main else {}
    # Also those buffers that no state dict has, such as the frequencies of the rotary embedding.
    own = {name: buffer.cpu() for name, buffer in model.named_buffers()} if world.is_main else None
    buffers: dict[str, Tensor] = world.gather(own)[0]
    model.to("meta")
    model.model.tie_weights()  # the move has made two of a weight that two modules share
    for group in _groups(model):
        fully_shard(group, **options)
    fully_shard(model, **options)
    model.to_empty(device=world.device)
    everything = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, weights, options=everything)
    for name, buffer in buffers.items():
        place, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(place), leaf, buffer.to(world.device))


def _groups(model: nn.Module) -> Iterator[nn.Module | list[nn.Module]]:
    """What is gathered together: inner modules first."""
    from transformers.generation import GenerationMixin
    from transformers.modeling_layers import GradientCheckpointingLayer

    from encoders import Encoder
    from maira.model.modeling import Adapter

    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer | Adapter):
            yield module
        elif isinstance(module, Encoder):
            yield module.vit
    for module in model.modules():
        if isinstance(module, GenerationMixin) and "lm_head" in module._modules:
            body: Any = module.base_model
            if not module.config.tie_word_embeddings:
                yield body.get_input_embeddings()
                yield [body.norm, module.lm_head] if "norm" in body._modules else module.lm_head


def _can_hold(model: nn.Module, world: DistributedContext) -> bool:
    if world.device.type != "cuda":
        return True
    # Gradients that wait are float32, whatever type the weights are of.
    held = 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    return held <= HELD_SHARE * torch.cuda.get_device_properties(world.device).total_memory
