"""Memory that training takes on one GPU, by part, before there is one: its passes are run on tensors without bytes.

The model is made of the recipe's real modules, with its adapters, checkpointing and attention, on tensors that have
shapes and types alone (torch's fake tensors). A forward and a backward pass over a row then say how many bytes live at
any moment, whatever the modules do. Weights, gradients, states and what FSDP2 gathers are arithmetic over the same
model. `torch.compile` keeps less than is said here: it makes again what is cheap to make.
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
from maira.model.modeling import MairaForConditionalGeneration
from maira.train import attention
from maira.train.blocks import prepare_blocks
from maira.train.components import MODULES, set_trainable, weight_dtype
from maira.train.config.run_config import TrainConfig
from maira.train.parallel import UNSHARDED_GRADIENT_LIMIT

_SHARING = 256
"""Numbers that share a scale in torchao's states of 8 bits."""
_LEAST = 4096
"""Numbers that a weight must have for states of 8 bits."""
_NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight in 4 bits, with the scale of its 64, and the scale of 256 of these."""
PASSES = ("encoder", "adapter", "activations", "logits")


@dataclass(frozen=True)
class RowShape:
    """A packed row: the tokens of each of its samples, and the images and answer tokens of all."""

    samples: tuple[int, ...]
    images: int
    answers: int


@dataclass(frozen=True)
class ParallelSetup:
    """Where a recipe runs.

    Attributes:
        processes: that share the work.
        sharding: "none", "ddp" or "fsdp" (`maira.train.parallel.sharding`).
        kernel: of attention: `attention.VARLEN` or `attention.SAMPLES`.
        holds: whether a step has several rows a process, so that gradients are there when the last one is computed.
        memory: of the GPU, bytes; under FSDP gradients wait unsharded for a step's last row where it has the room.
    """

    processes: int = 1
    sharding: str = "none"
    kernel: str = attention.SAMPLES
    holds: bool = True
    memory: int = 0


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU at the fullest moment of a step, by part.

    Attributes:
        weights, gradients, states: of the whole model; this GPU's share of them under FSDP.
        encoder, adapter, activations, logits: made in the forward pass by the encoder, by the adapter with the
            embeddings, by the language model's blocks, and by the head with the loss. Copies of weights in bfloat16,
            which autocast makes, are among them.
        gathered: whole weights and gradients of the blocks at work, under FSDP.
        temporary: made in the backward pass, what is computed again included.
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
        """Of all parts."""
        return sum(vars(self).values())


def build_shapes(model_config: MairaConfig, config: TrainConfig) -> MairaForConditionalGeneration:
    """Build the model of a configuration on the meta device, with its adapters and the types of its weights.

    Args:
        model_config: of the model.
        config: of the training.
    """
    # Weights in 4 bits are counted as such later; their layers are no different to what computes with shapes.
    unquantized = config.lora.model_copy(update={"quantize": None}) if config.lora else None
    with torch.device("meta"):
        model = MairaForConditionalGeneration(copy.deepcopy(model_config))
        for part, name in MODULES.items():
            model.get_submodule(name).to(weight_dtype(config, part))
        set_trainable(model, config.model_copy(update={"lora": unquantized}))
    return model


def estimate_memory(
    model: MairaForConditionalGeneration, config: TrainConfig, row: RowShape, setting: ParallelSetup
) -> Memory:
    """What the fullest moment of training takes on one GPU.

    Args:
        model: with adapters, and what is trained told from what is frozen; on any device, left as it is.
        config: how it is trained.
        row: the largest that a process will see.
        setting: where it runs.
    """
    is_sharded = setting.sharding == "fsdp"
    share = setting.processes if is_sharded else 1
    parameters = dict(model.named_parameters())
    trained = [p for p in parameters.values() if p.requires_grad]
    quantized = {name for name in parameters if _is_quantized(name, parameters[name], config)}
    weights = sum(_NF4 * p.numel() if name in quantized else p.nbytes for name, p in parameters.items())
    weights += sum(buffer.nbytes for buffer in model.buffers())
    gradients = sum(p.nbytes for p in trained)
    living = _run_passes(model, config, row, setting)
    temporary = living["temporary"]
    if quantized:
        # One layer at a time is made whole.
        temporary += 2 * max(parameters[name].numel() for name in quantized)
    return Memory(
        weights=ceil(weights / share),
        gradients=ceil(gradients / share) if setting.holds or is_sharded else living["gradients"],
        states=sum(_state_bytes(ceil(p.numel() / share), p.itemsize, config) for p in trained),
        gathered=_gathered_bytes(model, config, setting) if is_sharded else 0,
        temporary=temporary,
        **{part: living[part] for part in PASSES},
    )


def _is_quantized(name: str, parameter: nn.Parameter, config: TrainConfig) -> bool:
    if config.lora is None or config.lora.quantize is None:
        return False
    return name.startswith("language_model.model.layers.") and parameter.ndim == 2 and not parameter.requires_grad


def _state_bytes(count: int, itemsize: int, config: TrainConfig) -> int:
    """Of the two states of a weight of so many numbers."""
    if config.optimizer == "adamw_8bit" and count >= _LEAST and count % _SHARING == 0:
        return 2 * (count + 4 * count // _SHARING + 4 * 256)
    return 2 * itemsize * count


def _gathered_bytes(model: nn.Module, config: TrainConfig, setting: ParallelSetup) -> int:
    """What FSDP2 holds beside its shares while a block's backward pass runs.

    The whole weights of the block at work and of the one that is fetched ahead, the buffer that the latter arrives in,
    and the block's gradients on their way out, in float32; or all gradients, where they wait for the last row.
    """
    size = 2 if config.precision == "bf16" else 4
    blocks = [module for module in model.modules() if isinstance(module, LlamaDecoderLayer)]
    whole = max(sum(p.numel() for p in block.parameters()) for block in blocks)
    going = max(sum(p.numel() for p in block.parameters() if p.requires_grad) for block in blocks)
    waiting = 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    if not setting.holds or waiting > UNSHARDED_GRADIENT_LIMIT * setting.memory:
        waiting = 0
    return int(3 * size * whole + 4 * going) + waiting


class _Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that live, by the label they were made under, and keeps the fullest moment."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.label = "temporary"
        self._now: Counter[str] = Counter()
        self._labels: Any = WeakIdKeyDictionary()
        self._most = 0
        self.fullest: Counter[str] = Counter()

    def ignore(self, tensors: Iterable[Tensor]) -> None:
        """Leave these out of all counts."""
        for tensor in tensors:
            self._labels[tensor.untyped_storage()] = None

    def relabel(self, tensor: Tensor, label: str) -> None:
        """Count a tensor elsewhere from now on."""
        storage = tensor.untyped_storage()
        if (entry := self._labels.get(storage)) is not None:
            self._now[entry[0]] -= storage.nbytes()
            entry[0] = label
            self._now[label] += storage.nbytes()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._see, made)
        if (total := self._now.total()) > self._most:
            self._most, self.fullest = total, self._now.copy()
        return made

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage not in self._labels:
            entry = [self.label]
            self._labels[storage] = entry
            self._now[self.label] += storage.nbytes()
            weakref.finalize(storage, self._gone, entry, storage.nbytes())

    def _gone(self, entry: list[str], size: int) -> None:
        self._now[entry[0]] -= size


def _run_passes(
    model: MairaForConditionalGeneration, config: TrainConfig, row: RowShape, setting: ParallelSetup
) -> Counter[str]:
    """Bytes by label at the fullest moment of a forward and backward pass; gradients only where none were held."""
    is_sharded = setting.sharding == "fsdp"
    half = config.precision == "bf16"
    place = _place(row, setting.kernel)
    with torch.device("meta"):
        shapes = copy.deepcopy(model).to("meta")
    attention.set_kernel(shapes, setting.kernel)
    prepare_blocks(shapes, config.model_copy(update={"compile": False}))
    if is_sharded and half:
        shapes.to(torch.bfloat16)
    usage_counter = _Ledger()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        shapes.to_empty(device="cpu")
        shapes.train()
        trained = [p for p in shapes.parameters() if p.requires_grad]
        usage_counter.ignore([*shapes.parameters(), *shapes.buffers()])
        for parameter in trained:
            if setting.holds or is_sharded:
                parameter.grad = torch.empty_like(parameter)
                usage_counter.ignore([parameter.grad])
            else:
                parameter.register_post_accumulate_grad_hook(lambda p: usage_counter.relabel(p.grad, "gradients"))
        inputs = _inputs(shapes, row)
        where = attention.PackedRow(
            mode.from_tensor(place.starts), place.longest, mode.from_tensor(place.places), mode.from_tensor(place.back)
        )
        with usage_counter:
            with torch.autocast("cpu", torch.bfloat16, enabled=half and not is_sharded):
                loss = _forward(shapes, inputs, where, usage_counter)
            usage_counter.label = "temporary"
            torch.autograd.backward(loss)
    return usage_counter.fullest


def _place(row: RowShape, kernel: str) -> attention.PackedRow:
    """Where the samples of a row are, on the CPU: no shape can be read off what has no values."""
    starts = torch.tensor([0, *row.samples]).cumsum(0).int()
    batch: Any = SimpleNamespace(
        input_ids=torch.empty(1, sum(row.samples), device="meta"), starts=starts, longest=max(row.samples)
    )
    return attention.packed_kwargs(kernel, batch)["row"]


def _inputs(model: MairaForConditionalGeneration, row: RowShape) -> SimpleNamespace:
    side, tokens = model.config.vision_config.image_size, sum(row.samples)
    dtype = next(model.vision_tower.parameters()).dtype
    return SimpleNamespace(
        pixels=torch.empty(row.images, 1, side, side, dtype=dtype),
        ids=torch.empty(1, tokens, dtype=torch.long),
        positions=torch.empty(1, tokens, dtype=torch.long),
        answers=torch.empty(row.answers, dtype=torch.long),
    )


def _forward(
    model: MairaForConditionalGeneration, inputs: SimpleNamespace, where: attention.PackedRow, usage_counter: _Ledger
) -> Tensor:
    """What `MairaLossModel` computes, without what looks at values."""
    usage_counter.label = "encoder"
    patches = model.encode_patches(inputs.pixels)
    usage_counter.label = "adapter"
    embeddings = model.embed(inputs.ids, model.project(patches), check=False)
    usage_counter.label = "activations"
    hidden = model.decode(embeddings, position_ids=inputs.positions, use_cache=False, row=where).last_hidden_state
    usage_counter.label = "logits"
    scores = model.language_model.lm_head(hidden[0].index_select(0, inputs.answers)).float()
    loss: Tensor = F.cross_entropy(scores, inputs.answers, reduction="none").sum()
    return loss
