"""Estimate the memory of training on one GPU by running a step on fake tensors.

The model is built from the real modules of the configuration, with its adapters, activation checkpointing and
attention, on PyTorch's fake tensors, which have a shape and a type but no data. A forward and a backward pass over a
row show how many bytes are allocated at any time. The sizes of weights, gradients, optimizer states and FSDP2's
gathered parameters are computed from the same model. With `torch.compile` training needs less memory, because it
recomputes cheap operations.
"""

from __future__ import annotations

import copy
import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from maira.model.config import MairaConfig
from maira.model.modeling import MODULES, MairaForConditionalGeneration, modules_of
from maira.train import attention
from maira.train.blocks import prepare_blocks
from maira.train.components import set_trainable, weight_dtype
from maira.train.config.run_config import TrainConfig
from maira.train.parallel import UNSHARDED_GRADIENT_LIMIT

_BLOCK_SIZE = 256
"""Elements that share a scale in the 8-bit states of torchao."""
_MIN_8BIT_SIZE = 4096
"""Minimum number of elements of a weight with 8-bit states."""
NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes per 4-bit weight, with a scale per 64 weights and a second scale per 256 of these."""
PASSES = ("encoder", "adapter", "activations", "logits")


@dataclass(frozen=True)
class RowShape:
    """Size of a packed row.

    Attributes:
        samples: number of tokens of each sample.
        images: number of images of all samples.
        answers: number of answer tokens of all samples.
    """

    samples: tuple[int, ...]
    images: int
    answers: int


@dataclass(frozen=True)
class ParallelSetup:
    """How training is distributed.

    Attributes:
        processes: number of processes.
        sharding: "none", "ddp" or "fsdp" (`maira.train.parallel.sharding`).
        kernel: attention kernel, `attention.VARLEN` or `attention.SAMPLES`.
        accumulates: whether a process computes several rows per step, so that gradients are accumulated.
        memory: memory of the GPU in bytes. With FSDP, gradients are accumulated unsharded if they fit.
    """

    processes: int = 1
    sharding: str = "none"
    kernel: str = attention.SAMPLES
    accumulates: bool = True
    memory: int = 0


@dataclass(frozen=True)
class Memory:
    """Peak memory of a training step on one GPU, in bytes, by use.

    The activations include the bfloat16 copies of weights that autocast makes.

    Attributes:
        weights: weights, with FSDP the shard of this GPU.
        gradients: gradients, with FSDP the shard of this GPU.
        states: optimizer states, with FSDP the shard of this GPU.
        encoder: activations of the encoder.
        adapter: activations of the adapter and the token embeddings.
        activations: activations of the blocks of the language model.
        logits: logits of the answers, and the loss.
        gathered: unsharded weights and gradients of the active blocks, with FSDP.
        temporary: tensors of the backward pass, with recomputed activations.
    """

    weights: int
    gradients: int
    states: int
    encoder: int
    adapter: int
    activations: int
    logits: int
    gathered: int
    temporary: int

    @property
    def total(self) -> int:
        """Sum of all uses."""
        return sum(vars(self).values())


def build_shapes(model_config: MairaConfig, config: TrainConfig) -> MairaForConditionalGeneration:
    """Build the model of a configuration on the meta device, with its adapters and the types of its weights.

    Args:
        model_config: of the model.
        config: of the training.
    """
    # `estimate_memory` accounts for 4-bit weights. Their layers have the same shapes.
    unquantized = config.lora.model_copy(update={"quantize": None}) if config.lora else None
    with torch.device("meta"):
        model = MairaForConditionalGeneration(copy.deepcopy(model_config))
        for part in MODULES:
            for module in modules_of(model, part):
                module.to(weight_dtype(config, part))
        set_trainable(model, config.model_copy(update={"lora": unquantized}))
    return model


def estimate_memory(
    model: MairaForConditionalGeneration, config: TrainConfig, row: RowShape, setting: ParallelSetup
) -> Memory:
    """Estimate the peak memory of a training step on one GPU.

    Args:
        model: with adapters and with `requires_grad` set, on any device; not changed.
        config: of the training.
        row: the largest row of a process.
        setting: how training is distributed.
    """
    is_sharded = setting.sharding == "fsdp"
    share = setting.processes if is_sharded else 1
    parameters = dict(model.named_parameters())
    trained = [p for p in parameters.values() if p.requires_grad]
    quantized = {name for name in parameters if is_quantized(name, parameters[name], config)}
    weights = sum(NF4 * p.numel() if name in quantized else p.nbytes for name, p in parameters.items())
    weights += sum(buffer.nbytes for buffer in model.buffers())
    gradients = sum(p.nbytes for p in trained)
    allocated = _run_passes(model, config, row, setting)
    temporary = allocated["temporary"]
    if quantized:
        # One layer at a time is dequantized.
        temporary += 2 * max(parameters[name].numel() for name in quantized)
    return Memory(
        weights=ceil(weights / share),
        gradients=ceil(gradients / share) if setting.accumulates or is_sharded else allocated["gradients"],
        states=sum(_state_bytes(ceil(p.numel() / share), p.itemsize, config) for p in trained),
        gathered=_gathered_bytes(model, config, setting) if is_sharded else 0,
        temporary=temporary,
        **{part: allocated[part] for part in PASSES},
    )


def is_quantized(name: str, parameter: Tensor, config: TrainConfig) -> bool:
    """Return whether a weight is stored in 4 bits.

    Args:
        name: name of the weight in the model.
        parameter: the weight.
        config: run config.
    """
    if config.lora is None or config.lora.quantize is None:
        return False
    return name.startswith("model.language_model.layers.") and parameter.ndim == 2 and not parameter.requires_grad


def _state_bytes(count: int, itemsize: int, config: TrainConfig) -> int:
    """Return the bytes of the two optimizer states of a weight with `count` elements."""
    if config.optimizer == "adamw_8bit" and count >= _MIN_8BIT_SIZE and count % _BLOCK_SIZE == 0:
        return 2 * (count + 4 * count // _BLOCK_SIZE + 4 * 256)
    return 2 * itemsize * count


def _gathered_bytes(model: nn.Module, config: TrainConfig, setting: ParallelSetup) -> int:
    """Return the bytes that FSDP2 needs in addition to its shards during the backward pass of a block.

    These are the gathered weights of the current block and of the prefetched block, the buffer that receives the
    latter, and the float32 gradients of the block; or all gradients, if they are accumulated unsharded.
    """
    size = 2 if config.precision == "bf16" else 4
    blocks = [module for module in model.modules() if isinstance(module, LlamaDecoderLayer)]
    whole = max(sum(p.numel() for p in block.parameters()) for block in blocks)
    reduced = max(sum(p.numel() for p in block.parameters() if p.requires_grad) for block in blocks)
    accumulated = 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    if not setting.accumulates or accumulated > UNSHARDED_GRADIENT_LIMIT * setting.memory:
        accumulated = 0
    return int(3 * size * whole + 4 * reduced) + accumulated


class _MemoryTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all allocated tensors by label, and records the peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.label = "temporary"
        self._allocated: Counter[str] = Counter()
        self._labels: Any = WeakIdKeyDictionary()
        self._max_total = 0
        self.peak: Counter[str] = Counter()

    def ignore(self, tensors: Iterable[Tensor]) -> None:
        """Do not count these tensors."""
        for tensor in tensors:
            self._labels[tensor.untyped_storage()] = None

    def relabel(self, tensor: Tensor, label: str) -> None:
        """Count a tensor under another label from now on."""
        storage = tensor.untyped_storage()
        if (entry := self._labels.get(storage)) is not None:
            self._allocated[entry[0]] -= storage.nbytes()
            entry[0] = label
            self._allocated[label] += storage.nbytes()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._add, result)
        if (total := self._allocated.total()) > self._max_total:
            self._max_total, self.peak = total, self._allocated.copy()
        return result

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage not in self._labels:
            entry = [self.label]
            self._labels[storage] = entry
            self._allocated[self.label] += storage.nbytes()
            weakref.finalize(storage, self._free, entry, storage.nbytes())

    def _free(self, entry: list[str], size: int) -> None:
        self._allocated[entry[0]] -= size


def _run_passes(
    model: MairaForConditionalGeneration, config: TrainConfig, row: RowShape, setting: ParallelSetup
) -> Counter[str]:
    """Return the peak bytes of a forward and backward pass by label; gradients only if none are accumulated."""
    is_sharded = setting.sharding == "fsdp"
    half = config.precision == "bf16"
    packed = _packed_row(row, setting.kernel)
    with torch.device("meta"):
        shapes = copy.deepcopy(model).to("meta")
    attention.set_kernel(shapes, setting.kernel)
    prepare_blocks(shapes, config.model_copy(update={"compile": False}))
    if is_sharded and half:
        shapes.to(torch.bfloat16)
    tracker = _MemoryTracker()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        shapes.to_empty(device="cpu")
        shapes.train()
        trained = [p for p in shapes.parameters() if p.requires_grad]
        tracker.ignore([*shapes.parameters(), *shapes.buffers()])
        for parameter in trained:
            if setting.accumulates or is_sharded:
                parameter.grad = torch.empty_like(parameter)
                tracker.ignore([parameter.grad])
            else:
                parameter.register_post_accumulate_grad_hook(lambda p: tracker.relabel(p.grad, "gradients"))
        inputs = _inputs(shapes, row)
        fake_row = attention.PackedRow(
            mode.from_tensor(packed.starts),
            packed.longest,
            mode.from_tensor(packed.places),
            mode.from_tensor(packed.back),
        )
        with tracker:
            with torch.autocast("cpu", torch.bfloat16, enabled=half and not is_sharded):
                loss = _forward(shapes, inputs, fake_row, tracker)
            tracker.label = "temporary"
            torch.autograd.backward(loss)
    return tracker.peak


def _packed_row(row: RowShape, kernel: str) -> attention.PackedRow:
    """Return the positions of the samples of a row, on the CPU because shapes depend on their values."""
    starts = torch.tensor([0, *row.samples]).cumsum(0).int()
    tokens = sum(row.samples)
    batch: Any = SimpleNamespace(
        input_ids=torch.empty(1, tokens, device="meta"), starts=starts, used_tokens=tokens, longest=max(row.samples)
    )
    return attention.packed_kwargs(kernel, batch)["row"]


def _inputs(model: MairaForConditionalGeneration, row: RowShape) -> SimpleNamespace:
    side, tokens = model.config.vision_config.image_size, sum(row.samples)
    dtype = next(model.model.vision_tower.parameters()).dtype
    return SimpleNamespace(
        pixels=torch.empty(row.images, 1, side, side, dtype=dtype),
        ids=torch.empty(1, tokens, dtype=torch.long),
        positions=torch.empty(1, tokens, dtype=torch.long),
        answers=torch.empty(row.answers, dtype=torch.long),
    )


def _forward(
    model: MairaForConditionalGeneration, inputs: SimpleNamespace, row: attention.PackedRow, tracker: _MemoryTracker
) -> Tensor:
    """Compute the loss as `MairaLossModel` does, without operations that depend on values."""
    tracker.label = "encoder"
    patches = model.encode_patches(inputs.pixels)
    tracker.label = "adapter"
    embeddings = model.embed(inputs.ids, model.project(patches), check=False)
    tracker.label = "activations"
    hidden = model.decode(embeddings, position_ids=inputs.positions, use_cache=False, row=row).last_hidden_state
    tracker.label = "logits"
    scores = model.lm_head(hidden[0].index_select(0, inputs.answers)).float()
    loss: Tensor = F.cross_entropy(scores, inputs.answers, reduction="none").sum()
    return loss
