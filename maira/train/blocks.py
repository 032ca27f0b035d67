"""Activation checkpointing and compilation of transformer blocks.

Both replace a block's `forward`, so that the names of weights do not change, and hooks of a block, such as FSDP's
gathering of its weights, run once outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import MethodType
from typing import Any

import torch
from timm.models.vision_transformer import Block
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from transformers.modeling_layers import GradientCheckpointingLayer

from maira.train.config.run_config import BaseTrainConfig

_KEPT = frozenset(
    {
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "torch_attn::_varlen_attn",
    }
)
"""Operations whose outputs "selective" saves, since they are expensive: matrix products and attention."""


def prepare_blocks(model: nn.Module, config: BaseTrainConfig) -> None:
    """Apply activation checkpointing and compilation to the blocks of a model before it is distributed.

    Blocks in evaluation mode, as in validation and generation, are not affected.
    """
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
