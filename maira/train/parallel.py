"""How a model is trained on its devices (MAIRA-2, appendix B.2): processes that share it, blocks, optimizer."""

from __future__ import annotations

import inspect
import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import MethodType
from typing import Any, TypeVar

import torch
from rich.console import Console
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from transformers.generation import GenerationMixin
from transformers.modeling_layers import GradientCheckpointingLayer

from maira.encoders import Encoder
from maira.model.modeling import Adapter
from maira.runtime import processes
from maira.runtime.processes import DistributedContext
from maira.train.config.run_config import BaseTrainConfig
from maira.train.data.packing import PackedBatch
from maira.train.loss import Losses, PackedLossModel
from radfact.errors import ErrorCode, InputError
from radfact.progress import display_progress

OpenedT = TypeVar("OpenedT")

TIMEOUT = timedelta(hours=1)
"""Time that a process waits for the tensors of the others before it considers one of them dead."""
CACHED_KERNELS = "16"
"""Matrix products in bfloat16 on a CPU whose kernels oneDNN keeps, of its default of 1024.

Rows have many lengths, and each needs kernels of its own. They stay between the tensors of a step, which then find no
memory of their size: after 60 steps of configs/phantom.yaml the peak was 4.3 GB, and is 2.9 GB with this limit.
"""
UNSHARDED_GRADIENT_LIMIT = 1 / 8
"""Unsharded gradients are kept from one row of a step to the next if they take at most this share of a GPU."""


def init_distributed() -> DistributedContext:
    """Join the processes that the launcher started, each on its own GPU if there are GPUs."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
    if cuda:
        if (device.index or 0) >= (gpus := torch.cuda.device_count()):
            message = f"process {device.index} of this machine has no GPU; there are {gpus} here"
            raise InputError(message, code=ErrorCode.MISSING_REQUIREMENT)
        processes.use_gpu(device)
    else:
        # Before the first product, after which oneDNN does not read it again.
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", CACHED_KERNELS)
    context = processes.join_group(accelerated=cuda)
    context.device = device
    if context.size > 1 and context.group is None:
        context.group = torch.distributed.new_group(backend=processes.backend(accelerated=cuda), timeout=TIMEOUT)
    return context


def main_process_first(
    context: DistributedContext, title: str, function: Callable[[Callable[[int, int], None] | None], OpenedT]
) -> OpenedT:
    """Call a function, with a callback for (done, total), in the main process, then in the others (with its files)."""
    usage: dict[str, int] = {}
    if context.is_main:
        with display_progress(Console(stderr=True), {title: usage.copy}):
            result = function(lambda done, planned: usage.update(done=done, planned=planned))
    context.wait()
    if not context.is_main:
        result = function(None)
    # A run that is refused after this removes the files, so the other processes must have read them.
    context.wait()
    return result


def sharding(config: BaseTrainConfig, context: DistributedContext) -> str:
    """Return how the processes share the work: "fsdp", "ddp", or "none" for a single process."""
    if context.size == 1:
        return "none"
    quantized = config.lora is not None and config.lora.quantize is not None
    if quantized and config.parallel == "fsdp":
        message = "weights in 4 bits cannot be sharded; use ddp"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field="parallel")
    if config.parallel == "auto":
        return "fsdp" if context.device.type == "cuda" and not quantized else "ddp"
    return config.parallel


def parallelize(model: PackedLossModel, config: BaseTrainConfig, context: DistributedContext) -> ParallelModel:
    """Move a model to this process's device and distribute it; all processes get rank 0's weights."""
    kind = sharding(config, context)
    if kind == "fsdp":
        _shard(model, config, context)
        return ParallelModel(model, model, context, keeps_unsharded_gradients=_fits_unsharded(model, context))
    model.to(context.device)
    half = config.precision == "bf16"
    if config.compile:
        # DDPOptimizer would split a block's graph at each 25 MB of gradients, to reduce them earlier; blocks suffice.
        torch._dynamo.config.optimize_ddp = False
    if kind == "none":
        return ParallelModel(model, model, context, autocast=half)
    ids = [context.device.index] if context.device.type == "cuda" else None
    # torch 2.15 renamed the option.
    known = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {buffers: False, "gradient_as_bucket_view": True}
    wrapped = DistributedDataParallel(model, device_ids=ids, process_group=context.group, **options)
    return ParallelModel(model, wrapped, context, autocast=half)


@dataclass(frozen=True)
class ParallelModel:
    """A model as this process computes with it."""

    training: PackedLossModel  # its parameters are DTensors if it is sharded
    wrapped: nn.Module  # the module that is called
    context: DistributedContext
    autocast: bool = False  # compute in bfloat16 with weights of another type
    keeps_unsharded_gradients: bool = True  # until the last row of a step

    def __call__(self, batch: PackedBatch) -> Losses:
        with torch.autocast(self.context.device.type, torch.bfloat16, enabled=self.autocast):
            losses: Losses = self.wrapped(batch)
        return losses

    def accumulate(self, *, is_last: bool) -> AbstractContextManager[None]:
        """Context for a row of a step: gradients are reduced with the last one if they fit in memory unsharded."""
        if isinstance(self.wrapped, DistributedDataParallel):
            return nullcontext() if is_last else self.wrapped.no_sync()
        if self.context.size > 1:
            self.wrapped.set_requires_gradient_sync(is_last or not self.keeps_unsharded_gradients)  # type: ignore[operator]
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Compute the gradient of this process's share of a loss; the sum over processes is that of the loss."""
        # FSDP2 and DDP both average over the processes.
        torch.autograd.backward(loss * self.context.size)

    def gradient_norm(self) -> Tensor:
        """Return the Euclidean norm of the whole gradient, a scalar tensor on this process's device."""
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.training.parameters() if p.grad is not None])
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def clip(self, norm: Tensor, limit: float) -> None:
        torch.nn.utils.clip_grads_with_norm_([p for p in self.training.parameters() if p.grad is not None], limit, norm)


def _shard(model: PackedLossModel, config: BaseTrainConfig, context: DistributedContext) -> None:
    """Apply FSDP2 in place: a parameter group for each block, encoder, adapter, and the first and last layers."""
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options: dict[str, Any] = {
        "mesh": DeviceMesh.from_group(context.group, context.device.type),
        "mp_policy": half if config.precision == "bf16" else MixedPrecisionPolicy(),
    }
    weights = model.state_dict() if context.is_main else {}
    # Also buffers that no state dict has, such as the frequencies of the rotary embedding.
    own = {name: buffer.cpu() for name, buffer in model.named_buffers()} if context.is_main else None
    buffers: dict[str, Tensor] = context.gather(own)[0]
    model.to("meta")
    model.model.tie_weights()  # the move has duplicated weights that modules share
    for group in _groups(model):
        fully_shard(group, **options)
    fully_shard(model, **options)
    model.to_empty(device=context.device)
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    for name, buffer in buffers.items():
        place, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(place), leaf, buffer.to(context.device))


def _groups(model: nn.Module) -> Iterator[nn.Module | list[nn.Module]]:
    """Yield the parameter groups of FSDP2, inner modules first."""
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
                blocks = getattr(body, "language_model", body)
                yield [blocks.norm, module.lm_head] if "norm" in blocks._modules else module.lm_head


def _fits_unsharded(model: nn.Module, context: DistributedContext) -> bool:
    if context.device.type != "cuda":
        return True
    # Unsharded gradients are float32 whatever the type of the weights.
    size = 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    return size <= UNSHARDED_GRADIENT_LIMIT * torch.cuda.get_device_properties(context.device).total_memory


_SDPA_KERNELS = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
_KEPT = {f"aten::_scaled_dot_product_{kernel}" for kernel in _SDPA_KERNELS}
_KEPT |= {"aten::mm", "aten::addmm", "aten::bmm", "torch_attn::_varlen_attn"}
"""Operations whose outputs "selective" saves, since they are expensive: matrix products and attention."""


def prepare_blocks(model: nn.Module, config: BaseTrainConfig) -> None:
    """Apply activation checkpointing and compilation to the blocks in training, before the model is distributed."""
    for block in _blocks(model):
        forward: Callable[..., Any] = block.forward
        if config.activation_checkpointing == "selective":
            # Inside of the compiled function, whose operations are not visible from outside.
            forward = MethodType(_selective, block)
        if config.compile and isinstance(block, GradientCheckpointingLayer):
            # Only sizes that have changed become dynamic. With `dynamic=True`, under FSDP2, the numbers of a module,
            # such as the size of a head, become symbolic too, which splits a block into several graphs.
            forward = torch.compile(forward)
        if config.activation_checkpointing == "full":
            forward = partial(checkpoint, forward, use_reentrant=False)
        if forward is not block.forward:
            block.forward = partial(_training_only, block, forward)


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    for module in model.modules():
        is_trained = any(parameter.requires_grad for parameter in module.parameters())
        if isinstance(module, GradientCheckpointingLayer) or (isinstance(module, Block) and is_trained):
            yield module


def _training_only(block: nn.Module, forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
    if block.training and torch.is_grad_enabled():
        return forward(*args, **options)
    return type(block).forward(block, *args, **options)


def _selective(block: nn.Module, *args: Any, **options: Any) -> Any:
    whole = type(block).forward
    contexts = partial(create_selective_checkpoint_contexts, _policy)
    return checkpoint(whole, block, *args, use_reentrant=False, context_fn=contexts, **options)


def _policy(_context: Any, operation: Any, *_args: Any, **_options: Any) -> CheckpointPolicy:
    must_save = getattr(operation, "_schema", None) is not None and operation._schema.name in _KEPT
    return CheckpointPolicy.MUST_SAVE if must_save else CheckpointPolicy.PREFER_RECOMPUTE


def make_optimizer(model: nn.Module, config: BaseTrainConfig) -> torch.optim.Optimizer:
    """Make AdamW for a model's trained weights, after the model is distributed."""
    # Matrices have weight decay, biases, norms and other vectors do not.
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices, vectors = [p for p in trained if p.ndim >= 2], [p for p in trained if p.ndim < 2]
    decays = ((matrices, config.weight_decay), (vectors, 0.0))
    groups: list[dict[str, Any]] = [{"params": group, "weight_decay": decay} for group, decay in decays if group]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)
    from torchao.optim import AdamW8bit

    # A message for torchao's developers, when the step is compiled.
    warnings.filterwarnings("ignore", "OptimState8bit does not implement _stable_hash_for_caching")
    options: dict[str, Any] = {"lr": config.learning_rate, "betas": config.betas}
    optimizer: torch.optim.Optimizer = AdamW8bit(groups, **options, bf16_stochastic_round=config.weights == "bfloat16")
    if all(parameter.device.type == "cpu" for parameter in model.parameters()):
        # Compiling it for every shape takes minutes on a CPU.
        optimizer.step = torch.compiler.set_stance("force_eager")(optimizer.step)  # type: ignore[method-assign]
    return optimizer


def make_lr_schedule(config: BaseTrainConfig, steps: int) -> Callable[[int], float]:
    """Return the factor of the learning rate by step: linear warm-up, then cosine decay to 0."""
    warmup = max(1, round(config.warmup * steps))

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, steps - warmup))))

    return factor
