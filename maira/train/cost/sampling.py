"""Estimate the time and memory of sampling the responses of a training step.

The requests of a step are batched as `TransformersEngine` does with a model in training: the longest prompts first, as
many as fit into the memory that training leaves, prompts padded to the longest of the batch, and decoded until the
longest response of the batch ends. Prefill is compute-bound. A decoding step takes the time of its operations or of its
memory traffic (weights, keys and values), whichever is longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from maira.generate.transformers_engine import batch_bytes, largest_batch_size
from maira.model.config import context_window
from maira.model.modeling import MairaForConditionalGeneration
from maira.train.config.run_config import TrainConfig
from maira.train.cost.flops import make_rates
from maira.train.cost.memory import NF4, Memory, is_quantized
from maira.train.data.packing import prompt_table

_CACHE_MOVES = 3
"""Times that a decoding step moves the keys and values of all tokens: reads them, and copies the dynamic cache."""
_FUSED_ROWS = 4
"""Maximum rows that bitsandbytes multiplies with 4-bit weights directly; for more rows, it may dequantize first."""
_DRAWS = 20
"""Number of random batches of prompts that are averaged."""


@dataclass(frozen=True)
class SamplingRates:
    """Operations and memory traffic of generation.

    Attributes:
        encoder_image: operations of the encoder for an image.
        adapter_image: operations of the adapter for an image.
        token: operations of the blocks of the language model for a token.
        pair: operations for a pair of tokens, one of which attends to the other.
        head: operations of the head for a token.
        weights: bytes of the weights that a decoding step reads, without those in 4 bits.
        quantized: number of weights in 4 bits.
        keys_and_values: bytes of the keys and values of a token.
        cache_moves: times that a decoding step moves the keys and values of all tokens.
    """

    encoder_image: float
    adapter_image: float
    token: float
    pair: float
    head: float
    weights: int
    quantized: int
    keys_and_values: int
    cache_moves: int = _CACHE_MOVES

    def prompt_operations(self, rows: int, length: int) -> float:
        """Return the operations of the language model that reads the prompts of a batch.

        Args:
            rows: number of prompts.
            length: tokens of the longest, to which the others are padded.
        """
        return rows * (length * self.token + length * (length + 1) / 2 * self.pair)

    def decoding_seconds(self, rows: int, length: int, tokens: int, operations: float, bandwidth: float) -> float:
        """Return the seconds of decoding a batch.

        Args:
            rows: number of responses.
            length: tokens of the longest prompt.
            tokens: tokens of the longest response.
            operations: matrix product operations per second.
            bandwidth: memory bandwidth, bytes per second.
        """
        context = length + np.arange(tokens)
        needed = rows * (self.token + self.head + context * self.pair)
        # Dequantized weights are written in 16 bits and read again.
        weights = self.weights + self.quantized * (NF4 + (4 if rows > _FUSED_ROWS else 0))
        moved = weights + self.cache_moves * rows * context * self.keys_and_values
        return float(np.maximum(needed / operations, moved / bandwidth).sum())


@dataclass(frozen=True)
class SamplingMemory:
    """Peak memory of sampling on one GPU, in bytes, by use.

    Attributes:
        weights: weights, with FSDP the shard of this GPU.
        gradients: buckets of gradients, which DDP keeps.
        states: optimizer states, with FSDP the shard of this GPU.
        gathered: all weights, gathered by FSDP.
        copies: bfloat16 copies of trained float32 weights, which autocast keeps.
        cache: keys and values of a batch whose responses reach the limit.
        temporary: embeddings, logits, and the tensors of a chunk of the prompts.
    """

    weights: int
    gradients: int
    states: int
    gathered: int
    copies: int
    cache: int = 0
    temporary: int = 0

    @property
    def total(self) -> int:
        """Sum of all uses."""
        return sum(vars(self).values())


@dataclass(frozen=True)
class SamplingCost:
    """Cost of sampling on the slowest GPU.

    Attributes:
        responses: responses per step on one GPU.
        batch_size: maximum number of responses that are generated together.
        decoding_steps: mean number of decoding steps per batch.
        prompt_seconds: seconds per optimizer step for images and prompts.
        decoding_seconds: seconds per optimizer step for decoding.
        memory: memory of the GPU.
    """

    responses: int
    batch_size: int
    decoding_steps: float
    prompt_seconds: float
    decoding_seconds: float
    memory: SamplingMemory

    @property
    def seconds(self) -> float:
        """Seconds per optimizer step."""
        return self.prompt_seconds + self.decoding_seconds


@dataclass(frozen=True)
class SamplingSetup:
    """The GPUs that sample.

    Attributes:
        processes: number of GPUs.
        sharding: "none", "ddp" or "fsdp" (`maira.train.parallel.sharding`).
        memory: available memory of a GPU, bytes.
        operations: matrix product operations per second on one GPU.
        bandwidth: memory bandwidth of a GPU, bytes per second.
    """

    processes: int
    sharding: str
    memory: int
    operations: float
    bandwidth: float


def make_sampling_rates(model: MairaForConditionalGeneration, config: TrainConfig) -> SamplingRates:
    """Return the operations and memory traffic of generation with a model in training.

    Args:
        model: with adapters, on any device.
        config: run config.
    """
    text, itemsize = model.config.text_config, _itemsize(config)
    forward = make_rates(model.config, config.model_copy(update={"trained": (), "lora": None}))
    weights, adapters, quantized = 0, 0, 0
    for name, module in model.named_modules():
        if not name.startswith(("model.language_model.", "lm_head")) or not isinstance(module, nn.Linear):
            continue
        if is_quantized(f"{name}.weight", module.weight, config):
            quantized += module.weight.numel()
        else:
            weights += module.weight.numel()
            adapters += module.weight.numel() if ".lora_" in name else 0
    head_size = text.head_dim or text.hidden_size // text.num_attention_heads
    return SamplingRates(
        encoder_image=forward.encoder_image,
        adapter_image=forward.adapter_image,
        token=forward.token + 2 * adapters,
        pair=forward.pair,
        head=forward.answer,
        weights=itemsize * weights,
        quantized=quantized,
        keys_and_values=2 * text.num_hidden_layers * text.num_key_value_heads * head_size * itemsize,
    )


def _itemsize(config: TrainConfig) -> int:
    return 2 if config.precision == "bf16" else 4


def estimate_sampling(
    model: MairaForConditionalGeneration,
    config: TrainConfig,
    lengths: npt.NDArray[Any],
    training: Memory,
    setup: SamplingSetup,
) -> SamplingCost:
    """Estimate the cost of sampling the responses of a step.

    Each response is assumed to be as long as the report of its study.

    Args:
        model: with adapters and with `requires_grad` set, on any device.
        config: run config.
        lengths: (samples,) of dtype `maira.train.data.packing.SAMPLE_LENGTHS`.
        training: memory of training.
        setup: the GPUs.
    """
    if config.grpo is None:
        raise ValueError("expected a run config with grpo")
    sampler = _Sampler(model, config, training, setup)
    limits = prompt_table(lengths, config.grpo, context_window(model.config.text_config))["answer"]
    rng, copies = np.random.default_rng(0), config.grpo.num_generations
    seconds, all_batches = [], []
    for _ in range(_DRAWS):
        prompts = rng.integers(len(lengths), size=config.samples_per_draw)
        slowest = (0.0, 0.0)
        for rank in range(min(setup.processes, len(prompts))):
            own = np.repeat(prompts[rank :: setup.processes], copies)
            tokens = np.minimum(lengths["answer"], limits)[own]
            responses = Responses(lengths["task"][own], lengths["prompt"][own], limits[own], tokens)
            batches = list(plan_batches(responses, sampler.batch_size))
            all_batches += batches
            images = int(lengths["images"][own].sum())
            slowest = max(slowest, sampler.seconds(batches, images, images // copies), key=sum)
        seconds.append(slowest)
    prompt_seconds, decoding_seconds = np.mean(seconds, axis=0) / config.grpo.num_iterations
    return SamplingCost(
        responses=-(-config.samples_per_draw // setup.processes) * copies,
        batch_size=max(batch.rows for batch in all_batches),
        decoding_steps=float(np.mean([batch.tokens for batch in all_batches])),
        prompt_seconds=float(prompt_seconds),
        decoding_seconds=float(decoding_seconds),
        memory=max(
            (sampler.memory(batch.rows, batch.length + batch.limit) for batch in all_batches), key=lambda m: m.total
        ),
    )


@dataclass(frozen=True)
class Responses:
    """Responses of a step on one GPU, (responses,) each.

    Attributes:
        tasks: indices of `maira.train.data.packing.TASKS`.
        prompts: tokens of the prompts.
        limits: maximum tokens of the responses.
        tokens: tokens of the responses.
    """

    tasks: npt.NDArray[Any]
    prompts: npt.NDArray[Any]
    limits: npt.NDArray[Any]
    tokens: npt.NDArray[Any]


@dataclass(frozen=True)
class ResponseBatch:
    """Responses that are generated together.

    Attributes:
        rows: number of responses.
        length: tokens of the longest prompt.
        tokens: tokens of the longest response.
        limit: maximum tokens of a response.
    """

    rows: int
    length: int
    tokens: int
    limit: int


def plan_batches(responses: Responses, batch_size: Callable[[int], int]) -> Iterator[ResponseBatch]:
    """Yield the batches of responses in the order of `TransformersEngine`.

    Args:
        responses: to batch.
        batch_size: returns how many sequences of a number of tokens, prompt and response, are generated together.
    """
    order = np.lexsort((responses.prompts, responses.limits, responses.tasks))[::-1]
    while len(order):
        first = order[0]
        length, limit = int(responses.prompts[first]), int(responses.limits[first])
        rows = order[: batch_size(length + limit)]
        is_same = (responses.tasks[rows] == responses.tasks[first]) & (responses.limits[rows] == limit)
        rows = rows[is_same]
        yield ResponseBatch(len(rows), length, int(responses.tokens[rows].max()), limit)
        order = order[len(rows) :]


class _Sampler:
    """The size, time and memory of batches on one GPU. See `estimate_sampling`."""

    def __init__(
        self, model: MairaForConditionalGeneration, config: TrainConfig, training: Memory, setup: SamplingSetup
    ) -> None:
        self._setup, self._text_config, self._itemsize = setup, model.config.text_config, _itemsize(config)
        self._rates = make_sampling_rates(model, config)
        is_sharded = setup.sharding == "fsdp"
        # The engine plans with the type of the model's first weight.
        self._planned_itemsize = self._itemsize if is_sharded else model.dtype.itemsize
        trained = [p for p in model.parameters() if p.requires_grad]
        copied = sum(p.numel() for p in trained if p.itemsize > self._itemsize)
        self._states = SamplingMemory(
            weights=training.weights,
            gradients=sum(p.nbytes for p in trained) if setup.sharding == "ddp" else 0,
            states=training.states,
            gathered=self._itemsize * sum(p.numel() for p in model.parameters()) if is_sharded else 0,
            copies=0 if is_sharded else self._itemsize * copied,
        )

    def batch_size(self, longest: int) -> int:
        """Return how many sequences of at most `longest` tokens, prompt and response, are generated together."""
        # Autocast has not copied the weights yet.
        free = self._setup.memory - (self._states.total - self._states.copies)
        rows = largest_batch_size(free, longest, self._text_config, self._planned_itemsize)
        while rows > 1 and self.memory(rows, longest).total > self._setup.memory:
            rows //= 2
        return rows

    def memory(self, rows: int, longest: int) -> SamplingMemory:
        """Return the peak memory of a batch.

        Args:
            rows: number of responses that are generated together.
            longest: tokens of the longest prompt and its response at the limit.
        """
        row, chunk = batch_bytes(longest, self._text_config, self._itemsize)
        cache = rows * longest * self._rates.keys_and_values
        return SamplingMemory(**{**vars(self._states), "cache": cache, "temporary": rows * row + chunk - cache})

    def seconds(self, batches: Sequence[ResponseBatch], images: int, distinct: int) -> tuple[float, float]:
        """Return the seconds for images and prompts, and for decoding.

        Args:
            batches: all of the GPU.
            images: images of all responses, each of which passes the adapter.
            distinct: images of distinct prompts, each of which passes the encoder.
        """
        operations = distinct * self._rates.encoder_image + images * self._rates.adapter_image
        operations += sum(self._rates.prompt_operations(batch.rows, batch.length) for batch in batches)
        rates = self._setup.operations, self._setup.bandwidth
        decoding = (self._rates.decoding_seconds(batch.rows, batch.length, batch.tokens, *rates) for batch in batches)
        return operations / self._setup.operations, sum(decoding)
