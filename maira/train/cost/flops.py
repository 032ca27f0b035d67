"""Data sheets of accelerators, and floating-point operations of a training step, independent of the implementation.

For each token, a weight takes two operations in the forward pass, two in the backward pass if the gradient flows on to
earlier layers, and two more if the weight is trained. Attention counts the pairs of the causal mask in each sample. As
usual for model FLOPs utilization (MFU), recomputation, padding and everything but matrix products are excluded.

Source: PaLM (Chowdhery et al. 2022), appendix B.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from maira.model.tokens import ADDED_TOKENS
from maira.train.config.run_config import BaseTrainConfig


class Accelerator(NamedTuple):
    """One kind of GPU by the data sheet; for a card of two devices (MI250), one of them.

    Attributes:
        device: part of the device name that the driver reports; case does not matter.
        memory: approximate memory that is available to programs, in GiB.
        peak: dense bfloat16 operations per second with float32 sums; for the V100, which has no bfloat16, of float16.
        bandwidth: memory bandwidth, bytes per second.
    """

    device: str
    memory: float
    peak: float
    bandwidth: float


# `find_accelerator` takes the first match, so longer device names come before names that they contain.
ACCELERATORS = {
    "a100-80g": Accelerator("A100-SXM4-80GB", 79.1, 312e12, 2.039e12),
    "a100-80g-pcie": Accelerator("A100 80GB PCIe", 79.1, 312e12, 1.935e12),
    "a100-40g": Accelerator("A100", 39.4, 312e12, 1.555e12),
    "h100-pcie": Accelerator("H100 PCIe", 79.1, 756e12, 2.0e12),
    "h100-nvl": Accelerator("H100 NVL", 93.1, 835e12, 3.9e12),
    "h100": Accelerator("H100", 79.1, 989e12, 3.35e12),
    "h200": Accelerator("H200", 139.8, 989e12, 4.8e12),
    "b200": Accelerator("B200", 178.4, 2250e12, 7.7e12),
    "l40s": Accelerator("L40S", 44.4, 362e12, 0.864e12),
    "l4": Accelerator("L4", 22.0, 121e12, 0.3e12),
    "a10": Accelerator("A10", 22.0, 125e12, 0.6e12),
    "v100-32g": Accelerator("V100-SXM2-32GB", 31.7, 125e12, 0.9e12),
    "v100-16g": Accelerator("V100", 15.8, 125e12, 0.9e12),
    "mi250x": Accelerator("MI250X", 64.0, 191.5e12, 1.638e12),
    "mi250": Accelerator("MI250", 64.0, 181e12, 1.638e12),
    "mi300x": Accelerator("MI300X", 192.0, 1307e12, 5.3e12),
}
"""By short name, as in `--gpu`."""


def find_accelerator(device: str) -> Accelerator | None:
    """Return the accelerator with a device name (as of `torch.cuda.get_device_name`), or None if it is unknown."""
    # Match whole words: an A10G is not an A10.
    known = ACCELERATORS.values()
    return next((each for each in known if re.search(rf"\b{re.escape(each.device)}\b", device, re.I)), None)


class Rates(NamedTuple):
    """Operations of the forward and backward pass.

    Attributes:
        encoder, adapter: for an image.
        token: of the language model for a token.
        pair: for a pair of tokens, one of which attends to the other.
        answer: of the head for a token of an answer.
    """

    encoder: float
    adapter: float
    token: float
    pair: float
    answer: float

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


def make_rates(model_config: Any, config: BaseTrainConfig) -> Rates:
    """Return the operations of MAIRA-2, or of a language model with the layers of Llama, for its trained components.

    The head of the patch loss is excluded. Only active experts count.
    """
    text, vision, lora = model_config.get_text_config(), getattr(model_config, "vision_config", None), config.lora
    trains_encoder, trains_adapter = "encoder" in config.trains, "adapter" in config.trains
    trains_all = "language_model" in config.trains and lora is None
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
    return Rates(
        _encoder_image(vision, trains_encoder) if vision else 0.0,
        _adapter_image(model_config, trains_adapter, trains_encoder) if vision else 0.0,
        token,
        pair,
        _linear(width * text.vocab_size, trains_all, flows) + 2 * width * rows,
    )


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
    total += side**2 * _linear(width**2, is_trained, is_trained)
    return total


def _adapter_image(model_config: Any, is_trained: bool, flows: bool) -> float:
    widths = [model_config.vision_config.hidden_size * model_config.image_merge**2]
    widths += [model_config.text_config.hidden_size] * model_config.projector_n_layers
    layers = [before * after for before, after in pairwise(widths)]
    token: float = _linear(layers[0], is_trained, flows)
    token += sum(_linear(weights, is_trained, flows or is_trained) for weights in layers[1:])
    return token * int(model_config.image_seq_length)
