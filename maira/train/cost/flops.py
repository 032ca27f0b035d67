"""Floating-point operations of a training step, independent of the implementation, and data sheets of accelerators.

For each token, a weight takes two operations in the forward pass, two in the backward pass if the gradient flows on to
earlier layers, and two more if the weight is trained. Attention counts the pairs of the causal mask in each sample. As
usual for model FLOPs utilization (MFU), recomputation, padding and everything but matrix products are excluded.
Source: PaLM (Chowdhery et al. 2022), appendix B.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from importlib import resources
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from maira.model.tokens import ADDED_TOKENS
from maira.train.config.run_config import LoraOptions
from radfact.io.yaml_files import parse_yaml


class Accelerator(NamedTuple):
    """One kind of GPU by the data sheet. See `tables.yaml` for the units."""

    device: str
    memory: float
    peak: float
    bandwidth: float


TABLES: dict[str, Any] = parse_yaml((resources.files("maira.train.cost") / "tables.yaml").read_text(encoding="utf-8"))
ACCELERATORS = {name: Accelerator(*values) for name, values in TABLES["accelerators"].items()}


def find_accelerator(device: str) -> Accelerator | None:
    """Return the accelerator with a device name (as of `torch.cuda.get_device_name`), or None if it is unknown."""
    # Match whole words: an A10G is not an A10.
    known = ACCELERATORS.values()
    return next((each for each in known if re.search(rf"\b{re.escape(each.device)}\b", device, re.I)), None)


class Rates(NamedTuple):
    """Operations of the forward and backward pass."""

    encoder: float  # for an image
    adapter: float  # for an image
    token: float  # of the language model for a token
    pair: float  # for a pair of tokens, one of which attends to the other
    answer: float  # of the head for a token of an answer

    def of(self, tokens: Sequence[int] | npt.NDArray[Any], images: int, answers: int) -> dict[str, float]:
        """Return the operations by component of samples of so many tokens, without padding, and all their images."""
        lengths = np.asarray(tokens, dtype=np.float64)
        return {
            "encoder": images * self.encoder,
            "adapter": images * self.adapter,
            "language_model": float(lengths.sum()) * self.token,
            "attention": float((lengths * (lengths + 1)).sum()) / 2 * self.pair,
            "logits": answers * self.answer,
        }


class Generation(NamedTuple):
    """Generation at the rates of a GPU: a lower bound, without launches, grammar, and copies of keys and values."""

    rates: Rates  # of the forward pass
    operations: float  # per second
    bandwidth: float  # bytes per second
    weights: float  # bytes that a step reads
    cached: float  # bytes of keys and values that a step moves for a token

    def prompt_seconds(self, lengths: Sequence[int] | npt.NDArray[Any], images: int) -> float:
        """Return the seconds of prompts of so many tokens, which include the first token of every response."""
        return sum(self.rates.of(lengths, images, len(lengths)).values()) / self.operations

    def decoding_seconds(self, rows: int, tokens: npt.NDArray[Any]) -> float:
        """Return the seconds of the steps of a batch; each has so many earlier tokens in every row."""
        computed = rows * (self.rates.token + self.rates.answer + tokens * self.rates.pair) / self.operations
        moved = (self.weights + rows * tokens * self.cached) / self.bandwidth
        return float(np.maximum(computed, moved).sum())


def make_generation(model_config: Any, operations: float, bandwidth: float, itemsize: int = 2) -> Generation:
    """Return the generation of a model whose layers, head, keys and values have numbers of `itemsize` bytes."""
    text, rates = model_config.get_text_config(), make_rates(model_config)
    # Attention takes four operations for two numbers, the key and the value, which groups of heads may share.
    cached = itemsize * rates.pair / 2 * text.num_key_value_heads / text.num_attention_heads
    return Generation(rates, operations, bandwidth, itemsize * (rates.token + rates.answer) / 2, cached)


def make_rates(model_config: Any, trains: Collection[str] = (), lora: LoraOptions | None = None) -> Rates:
    """Return the operations of MAIRA-2 or a language model with Llama's layers; the patch loss is excluded."""
    text, vision = model_config.get_text_config(), getattr(model_config, "vision_config", None)
    trains_encoder, trains_adapter = "encoder" in trains, "adapter" in trains
    trains_all = "language_model" in trains and lora is None
    rows = len(ADDED_TOKENS) if getattr(lora, "added_tokens", False) else 0
    width, head = text.hidden_size, getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    queries, keys, inner = text.num_attention_heads * head, text.num_key_value_heads * head, text.intermediate_size
    if experts := getattr(text, "num_experts_per_tok", None):
        inner = experts * getattr(text, "moe_intermediate_size", inner)
    # Trained token embeddings come before the first block, as the adapter does.
    flows = trains_encoder or trains_adapter or trains_all or rows > 0
    token = pair = 0.0
    # Every block after the second equals the second. The layers of a group share their input.
    for repeats in (1, text.num_hidden_layers - 1):
        for group in (
            {"q_proj": (width, queries), "k_proj": (width, keys), "v_proj": (width, keys)},
            {"o_proj": (queries, width)},
            {"gate_proj": (width, inner), "up_proj": (width, inner)},
            {"down_proj": (inner, width)},
        ):
            adapted = [] if lora is None else [sizes for name, sizes in group.items() if name in lora.targets]
            token += repeats * sum(_linear(a * b, trains_all, flows) for a, b in group.values())
            for a, b in adapted:
                rank = lora.rank if lora else 0
                token += repeats * (_linear(a * rank, True, flows) + _linear(rank * b, True, True))
            flows = flows or trains_all or bool(adapted)
            if "q_proj" in group:
                # Two products of the head's width (scores, weighted sum); the backward pass has two for each of them.
                pair += repeats * 4 * queries * (3 if flows else 1)
    encoder = _encoder_image(vision, trains_encoder) if vision else 0.0
    adapter = _adapter_image(model_config, trains_adapter, trains_encoder) if vision else 0.0
    answer = _linear(width * text.vocab_size, trains_all, flows) + 2 * width * rows
    return Rates(encoder, adapter, token, pair, answer)


def _linear(weights: float, is_trained: bool, flows: bool) -> float:
    """Return the operations per token of a layer: forward, backward to its input (if `flows`) and to its weights."""
    return 2 * weights * (1 + flows + is_trained)


def _encoder_image(vision: Any, is_trained: bool) -> float:
    """Return the operations of the vision transformer for one image; no gradient flows to the pixels."""
    width, side = int(vision.hidden_size), int(vision.image_size)
    patches = (side // int(vision.patch_size)) ** 2
    blocks = 24 * width**2 * (patches + 1) + 4 * width * (patches + 1) ** 2
    total: float = vision.num_hidden_layers * blocks * (3 if is_trained else 1)
    if getattr(vision, "stem", "patch") == "patch":
        return total + patches * _linear(3 * vision.patch_size**2 * width, is_trained, False)
    for before, after in pairwise([3, width // 8, width // 4, width // 2, width]):
        side //= 2
        total += side**2 * _linear(9 * before * after, is_trained, is_trained and before != 3)
    return total + side**2 * _linear(width**2, is_trained, is_trained)


def _adapter_image(model_config: Any, is_trained: bool, flows: bool) -> float:
    widths = [model_config.vision_config.hidden_size * model_config.image_merge**2]
    widths += [model_config.text_config.hidden_size] * model_config.projector_n_layers
    layers = [before * after for before, after in pairwise(widths)]
    token: float = _linear(layers[0], is_trained, flows)
    token += sum(_linear(weights, is_trained, flows or is_trained) for weights in layers[1:])
    return token * int(model_config.image_seq_length)
