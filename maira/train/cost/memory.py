"""Peak memory of a training step on one GPU: weights and states by count, activations by a formula.

The factors are the tensors that PyTorch keeps for the backward pass of a block, and those of the first block that the
backward pass reaches.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from math import ceil
from typing import Any

import torch
from torch import Tensor

from maira.model.config import MairaConfig
from maira.model.modeling import MairaForConditionalGeneration
from maira.train import attention
from maira.train.components import set_trainable, set_weight_types
from maira.train.config.run_config import TrainConfig
from maira.train.parallel import UNSHARDED_GRADIENT_LIMIT

NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes per 4-bit weight, with a scale per 64 weights and a second scale per 256 of these."""


def build_shapes(model_config: MairaConfig, config: TrainConfig) -> MairaForConditionalGeneration:
    """Build the model of a configuration on the meta device, with its adapters and the types of its weights."""
    # 4-bit weights have the same shapes; `estimate_memory` counts their bytes.
    unquantized = config.lora.model_copy(update={"quantize": None}) if config.lora else None
    with torch.device("meta"):
        model = MairaForConditionalGeneration(copy.deepcopy(model_config))
        set_weight_types(model, config)
        set_trainable(model, config.model_copy(update={"lora": unquantized}))
    return model


def estimate_memory(
    model: MairaForConditionalGeneration,
    config: TrainConfig,
    samples: Sequence[int],
    images: int,
    answers: int,
    *,
    processes: int = 1,
    sharding: str = "none",
    kernel: str = attention.SAMPLES,
    accumulates: bool = True,
    memory: float = 0,
) -> dict[str, int]:
    """Estimate the peak memory of a training step on one GPU in bytes by use, from the tokens of its largest row."""
    is_sharded, is_half, checkpointing = sharding == "fsdp", config.precision == "bf16", config.activation_checkpointing
    share, size = processes if is_sharded else 1, 2 if is_half else 4
    text, vision, tokens = model.config.text_config, model.config.vision_config, sum(samples)
    parameters = dict(model.named_parameters())
    trained = [p for p in parameters.values() if p.requires_grad]
    quantized = [p for name, p in parameters.items() if is_quantized(name, p, config)]
    weights = sum(p.nbytes for p in parameters.values()) + sum(buffer.nbytes for buffer in model.buffers())
    weights -= sum(p.nbytes - ceil(NF4 * p.numel()) for p in quantized)
    gradients = sum(p.nbytes for p in trained)
    block = [p for name, p in parameters.items() if "language_model" in name and ".layers.0." in name]
    # With trained float32 weights, autocast keeps the residual stream in float32 and casts the weights.
    is_cast = is_half and not is_sharded and config.weights != "bfloat16"
    is_mixed = is_cast and "language_model" in config.trained and config.lora is None
    copies = 2 * text.num_hidden_layers * sum(p.numel() for p in block) if is_mixed else 0
    kept, temporary = _token_bytes(text, config, is_mixed=is_mixed)
    if kernel == attention.SAMPLES and checkpointing != "full":
        # As a padded batch: queries, keys, values and outputs, or only outputs if the others are computed again.
        padded = len(samples) * max(samples) / tokens - 1
        kept += size * text.hidden_size * (4 * padded + 1 if checkpointing == "none" else padded)
    activations = tokens * text.num_hidden_layers * kept
    # The peak is the end of the forward pass, or the beginning of the backward pass; the former has all casts.
    logits = answers * (8 * text.vocab_size + size * text.hidden_size)
    logits += 2 * text.vocab_size * text.hidden_size if is_mixed else 0
    forward = copies + (10 if is_mixed else 2.5 * size) * text.hidden_size * tokens
    backward = tokens * temporary + 2 * max((p.numel() for p in quantized), default=0)
    held = copies if checkpointing == "none" else 0
    if forward + logits > held + backward:
        activations, backward = activations + forward, 0
    else:
        activations, logits = activations + held, 0
    if not accumulates and not is_sharded:
        # The backward pass frees activations while it makes gradients.
        gradients = max(0, gradients - round(activations + logits + backward))
    adapter = (4 if is_mixed else size) * text.hidden_size * tokens
    if "adapter" in config.trained:
        # Inputs and outputs of GELU between the layers.
        width = 2 * (model.config.projector_n_layers - 1) * text.hidden_size
        width += model.config.image_merge**2 * vision.hidden_size
        adapter += images * model.config.image_seq_length * size * width
        if is_cast:
            adapter += 2 * sum(p.numel() for name, p in parameters.items() if "multi_modal_projector" in name)
    gathered = 0
    if is_sharded:
        # The gathered weights of the current block and of the prefetched block, the buffer that receives the latter,
        # and the float32 gradients of the block; or all gradients, if they are accumulated unsharded.
        unsharded = 4 * sum(p.numel() for p in trained)
        is_kept = accumulates and unsharded <= UNSHARDED_GRADIENT_LIMIT * memory
        reduced = 4 * sum(p.numel() for p in block if p.requires_grad)
        gathered = 3 * size * sum(p.numel() for p in block) + reduced + is_kept * unsharded
    return {
        "weights": ceil(weights / share),
        "gradients": ceil(gradients / share),
        "states": sum(_state_bytes(ceil(p.numel() / share), p.itemsize, config) for p in trained),
        "encoder": round(images * _image_bytes(vision, config, size)),
        "adapter": round(adapter),
        "activations": round(activations),
        "logits": round(logits),
        "gathered": gathered,
        "temporary": round(backward),
    }


def is_quantized(name: str, parameter: Tensor, config: TrainConfig) -> bool:
    if config.lora is None or config.lora.quantize is None:
        return False
    return "language_model" in name and ".layers." in name and parameter.ndim == 2 and not parameter.requires_grad


def _token_bytes(text: Any, config: TrainConfig, *, is_mixed: bool) -> tuple[float, float]:
    """Return the bytes per token that a block keeps, and those of the first backward pass of a block."""
    width, inner, size = text.hidden_size, text.intermediate_size, 2 if config.precision == "bf16" else 4
    residual = 4 if is_mixed else size
    # Gradients of weights need the inputs of their layers at once.
    trained = 0.0 if "language_model" not in config.trained else 4.0 if config.lora is None else 2.4
    if config.activation_checkpointing == "full":
        return residual * width, size * ((8.6 + trained) * width + 6 * inner) + 7 * is_mixed * width
    if config.activation_checkpointing == "none":
        inputs = {0.0: 4, 2.4: 1.5, 4.0: 0}[trained]
        kept = size * (4 if trained else 3) * inner + ((24 if size == 2 else 40) - size * inputs) * width
        return kept + 10 * is_mixed * width, 25 * width
    # Outputs of the linear layers (with low-rank adapters twice) and of the attention.
    head = text.head_dim or width // text.num_attention_heads
    linear = (text.num_attention_heads + 2 * text.num_key_value_heads) * head + 2 * width + 2 * inner
    attended = text.num_attention_heads * head
    products = linear + attended if config.lora is None else 2 * linear + attended + 7 * config.lora.rank
    return size * products + residual * width, size * ((3.5 + trained) * width + 4 * inner) + 7 * is_mixed * width


def _image_bytes(vision: Any, config: TrainConfig, size: int) -> float:
    """Return the bytes of an image and of what a trained encoder keeps of it."""
    pixels, width, patches = vision.image_size**2, vision.hidden_size, (vision.image_size // vision.patch_size) ** 2
    if "encoder" not in config.trained:
        return float(size * pixels)
    kept = {"none": (46, 72), "selective": (24, 44), "full": (4, 4)}[config.activation_checkpointing][size // 4]
    stem = 4 * pixels + 4 * patches * width
    if getattr(vision, "stem", "patch") == "conv":
        stem += 3 * size * pixels * width * (1 / 32 + 1 / 64 + 1 / 128 + 1 / 256)
    return float(stem + vision.num_hidden_layers * (patches + 1) * width * kept)


def _state_bytes(count: int, itemsize: int, config: TrainConfig) -> int:
    """Return the bytes of the two optimizer states of a weight with `count` elements."""
    # torchao: a scale for 256 elements, and two tables of codes; small weights have states of their own type.
    if config.optimizer == "adamw_8bit" and count >= 4096 and count % 256 == 0:
        return 2 * (count + 4 * count // 256 + 4 * 256)
    return 2 * itemsize * count
