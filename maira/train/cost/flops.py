"""Floating-point operations of the model in a training step, independent of the implementation.

A multiplication and an addition count as two operations. For each token, a weight takes two operations in the forward
pass, two in the backward pass if the gradient flows on to earlier layers, and two more if the weight is trained: 6 in
all for a trained layer, 4 for a frozen layer after a trained layer, 2 for a frozen layer with no trained layer before
it. Attention counts the pairs of the causal mask in each sample. As usual for model FLOPs utilization (MFU), the counts
exclude recomputation (activation checkpointing, the scores in the backward pass of FlashAttention), padding, and all
operations other than matrix products.

Source: PaLM (Chowdhery et al. 2022), appendix B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from maira.model.config import MairaConfig
from maira.model.tokens import ADDED_TOKENS
from maira.train.config.run_config import BaseTrainConfig, LoraOptions, MairaLoraOptions


@dataclass(frozen=True)
class Flops:
    """Floating-point operations by component.

    Attributes:
        encoder: of the image encoder.
        adapter: of the adapter.
        language_model: of the linear layers of the language model.
        attention: of the attention of the language model.
        logits: of the head of the language model at the positions of answers.
    """

    encoder: float = 0.0
    adapter: float = 0.0
    language_model: float = 0.0
    attention: float = 0.0
    logits: float = 0.0

    @property
    def total(self) -> float:
        """Sum over all components."""
        return sum(self.by_part().values())

    def scaled(self, factor: float) -> Flops:
        """Return the operations multiplied by a factor."""
        return Flops(**{part: factor * count for part, count in self.by_part().items()})

    def by_part(self) -> dict[str, float]:
        """Return the operations by the name of the component."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class Rates:
    """Floating-point operations of the forward and backward pass.

    Attributes:
        encoder_image: of the encoder for an image.
        adapter_image: of the adapter for an image.
        token: of the language model for a token.
        pair: for a pair of tokens, one of which attends to the other.
        answer: for a position that predicts a token of an answer.
    """

    encoder_image: float
    adapter_image: float
    token: float
    pair: float
    answer: float

    def of(self, tokens: Sequence[int] | npt.NDArray[Any], images: int, answers: int) -> Flops:
        """Return the operations of some samples.

        Args:
            tokens: (samples,), tokens of prompt and answer, with image tokens, without padding.
            images: number of images of all samples.
            answers: number of answer tokens of all samples.
        """
        lengths = np.asarray(tokens, dtype=np.float64)
        return Flops(
            encoder=images * self.encoder_image,
            adapter=images * self.adapter_image,
            language_model=float(lengths.sum()) * self.token,
            attention=float((lengths * (lengths + 1)).sum()) / 2 * self.pair,
            logits=answers * self.answer,
        )


def step_flops(model_config: MairaConfig, config: BaseTrainConfig, lengths: npt.NDArray[Any]) -> Flops:
    """Return the operations of the model for some samples.

    Args:
        model_config: of the model.
        config: of the training, with the trained components.
        lengths: (samples,) of dtype `maira.train.data.packing.SAMPLE_LENGTHS`.
    """
    answers = lengths["answer"].astype(np.int64)
    tokens = lengths["prompt"].astype(np.int64) + answers
    return make_rates(model_config, config).of(tokens, int(lengths["images"].sum()), int(answers.sum()))


def make_rates(model_config: Any, config: BaseTrainConfig) -> Rates:
    """Return the operations of a model, for its trained components; the head of the patch loss is excluded.

    Args:
        model_config: of MAIRA-2 or of a language model with the layers of Llama. Only active experts count.
        config: of the training.
    """
    has_images = isinstance(model_config, MairaConfig)
    text, lora = model_config.text_config if has_images else model_config, config.lora
    trains_encoder, trains_adapter = "encoder" in config.trains, "adapter" in config.trains
    trains_all = "language_model" in config.trains and lora is None
    rows = len(ADDED_TOKENS) if isinstance(lora, MairaLoraOptions) and lora.added_tokens else 0
    # Trained token embeddings come before the first block, as the adapter does.
    flows = trains_encoder or trains_adapter or trains_all or rows > 0
    layers = linear_layers(text)
    first = _block(text, layers, trains_all, lora, flows)
    rest = _block(text, layers, trains_all, lora, first.flows)
    remaining = text.num_hidden_layers - 1
    return Rates(
        encoder_image=_encoder_image(model_config.vision_config, trains_encoder) if has_images else 0.0,
        adapter_image=_adapter_image(model_config, trains_adapter, trains_encoder) if has_images else 0.0,
        token=first.token + remaining * rest.token,
        pair=first.pair + remaining * rest.pair,
        answer=_linear(text.hidden_size * text.vocab_size, trains_all, rest.flows) + 2 * text.hidden_size * rows,
    )


def linear_layers(text: Any) -> dict[str, tuple[int, int]]:
    """Return the number of inputs and outputs of each linear layer of a Llama block, by name."""
    width, inner = text.hidden_size, text.intermediate_size
    if experts := getattr(text, "num_experts_per_tok", None):
        inner = experts * getattr(text, "moe_intermediate_size", inner)
    queries, keys = text.num_attention_heads * _head_width(text), text.num_key_value_heads * _head_width(text)
    return {
        "q_proj": (width, queries),
        "k_proj": (width, keys),
        "v_proj": (width, keys),
        "o_proj": (queries, width),
        "gate_proj": (width, inner),
        "up_proj": (width, inner),
        "down_proj": (inner, width),
    }


def _head_width(text: Any) -> int:
    width: int = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return width


def _linear(weights: float, is_trained: bool, flows: bool) -> float:
    """Return the operations per token of a layer: forward, backward to its input (if `flows`) and to its weights."""
    return 2 * weights * (1 + flows + is_trained)


@dataclass(frozen=True)
class _Block:
    """Operations of a block of the language model, and whether the gradient flows through it to trained weights."""

    token: float
    pair: float
    flows: bool


def _block(
    text: Any, layers: dict[str, tuple[int, int]], trains_all: bool, lora: LoraOptions | None, flows: bool
) -> _Block:
    targets = () if lora is None else lora.targets
    rank = 0 if lora is None else lora.rank
    token, pair = 0.0, 0.0
    # The layers of a group share their input, which gets a gradient if anything before the group is trained.
    for group in (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",)):
        for name in group:
            inputs, outputs = layers[name]
            token += _linear(inputs * outputs, trains_all, flows)
            if name in targets:
                token += _linear(inputs * rank, True, flows) + _linear(rank * outputs, True, True)
        flows = flows or trains_all or any(name in targets for name in group)
        if "q_proj" in group:
            # Two products of the head's width (scores, weighted sum); the backward pass has two for each of them.
            pair = 4 * text.num_attention_heads * _head_width(text) * (3 if flows else 1)
    return _Block(token, pair, flows)


def _encoder_image(vision: Any, is_trained: bool) -> float:
    """Return the operations of the vision transformer for one image."""
    width, grid = vision.hidden_size, vision.image_size // vision.patch_size
    tokens = grid**2 + 1
    passes = 3 if is_trained else 1
    blocks = vision.num_hidden_layers * (2 * 12 * width**2 * tokens + 4 * width * tokens**2) * passes
    return float(blocks + _stem_image(vision, is_trained))


def _stem_image(vision: Any, is_trained: bool) -> float:
    """Return the operations of the patch embedding for one image; no gradient flows to the pixels."""
    width, side = vision.hidden_size, vision.image_size
    if getattr(vision, "stem", "patch") == "patch":
        return float((side // vision.patch_size) ** 2 * _linear(3 * vision.patch_size**2 * width, is_trained, False))
    total = 0.0
    for before, after in pairwise([3, width // 8, width // 4, width // 2, width]):
        side //= 2
        total += side**2 * _linear(9 * before * after, is_trained, is_trained and before != 3)
    return float(total + side**2 * _linear(width**2, is_trained, is_trained))


def _adapter_image(model_config: MairaConfig, is_trained: bool, flows: bool) -> float:
    """Return the operations of the adapter for one image; `flows` tells whether the encoder is trained."""
    widths = [model_config.vision_config.hidden_size * model_config.image_merge**2]
    widths += [model_config.text_config.hidden_size] * model_config.projector_n_layers
    token = 0.0
    for before, after in pairwise(widths):
        token += _linear(before * after, is_trained, flows)
        flows = flows or is_trained
    return token * model_config.image_seq_length
