"""AdamW and its learning rate schedule.

Source: MAIRA-2, appendix B.2.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from maira.train.config.run_config import BaseTrainConfig
from radfact.errors import ErrorCode, InputError


def make_optimizer(model: nn.Module, config: BaseTrainConfig) -> torch.optim.Optimizer:
    """Make AdamW for a model's trained weights, after the model is distributed."""
    # Matrices have weight decay, biases, norms and other vectors do not.
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices, vectors = [p for p in trained if p.ndim >= 2], [p for p in trained if p.ndim < 2]
    decays = ((matrices, config.weight_decay), (vectors, 0.0))
    groups: list[dict[str, Any]] = [{"params": group, "weight_decay": decay} for group, decay in decays if group]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)
    try:
        from torchao.optim import AdamW8bit
    except ImportError:
        message = "adamw_8bit needs torchao, which is not installed: pip install 'maira-radfact[states8bit]'"
        raise InputError(message, code=ErrorCode.MISSING_REQUIREMENT, field="optimizer") from None
    # A message for torchao's developers, when the step is compiled.
    warnings.filterwarnings("ignore", "OptimState8bit does not implement _stable_hash_for_caching")
    stochastic = config.weights == "bfloat16"
    optimizer: torch.optim.Optimizer = AdamW8bit(
        groups, lr=config.learning_rate, betas=config.betas, bf16_stochastic_round=stochastic
    )
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
