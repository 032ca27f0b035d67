"""Estimated memory against the tracker of torch during training with the same config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed._tools.mem_tracker import MemTracker

from maira.model.config import VICUNA_7B, MairaConfig
from maira.model.modeling import MODULES, MairaForConditionalGeneration, modules_of
from maira.train.blocks import prepare_blocks
from maira.train.components import set_trainable, weight_dtype
from maira.train.config.run_config import TrainConfig
from maira.train.cost.memory import build_shapes, estimate_memory
from maira.train.data.packing import EncodedSample, PackedBatch, StepTotals, collate
from maira.train.loss import MairaLossModel
from maira.train.optimizers import make_optimizer

SAMPLES, IMAGES, ANSWERS = (220, 150, 130), 4, 40
IMAGE = 300
VISION = {"image_size": 56, "patch_size": 7, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT = VICUNA_7B | {
    "vocab_size": 400,
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}


def make_recipe(**values: Any) -> TrainConfig:
    return TrainConfig.model_validate(
        {"model": Path("m"), "train": "t.jsonl", "out": Path("o"), "epochs": 1, "token_budget": 512} | values
    )


def make_config() -> MairaConfig:
    return MairaConfig(vision_config=VISION, text_config=TEXT, image_token_index=IMAGE)


def make_model(train_config: TrainConfig) -> MairaForConditionalGeneration:
    model = MairaForConditionalGeneration(make_config())
    for part in MODULES:
        for module in modules_of(model, part):
            module.to(weight_dtype(train_config, part))
    set_trainable(model, train_config)
    return model


def make_batch() -> PackedBatch:
    """A row of the lengths of `SAMPLES`: of its samples, the first shows two images."""
    samples = []
    for tokens, images, answers in zip(SAMPLES, (2, 1, 1), (15, 13, 12), strict=True):
        ids = [IMAGE] * (64 * images) + [7] * (tokens - 64 * images)
        radiographs = np.zeros((images, 56, 56), np.float32)
        samples.append(EncodedSample("s", "findings", ids, tokens - answers, radiographs))
    return collate(samples, StepTotals(40, 3), pad_id=0)


def tracked(train_config: TrainConfig, rows: int) -> int:
    """Bytes of tensors at the fullest moment of a step of so many rows, after one that made the optimizer's states."""
    torch.manual_seed(0)
    model = MairaLossModel(make_model(train_config), kinds=0, patch_weight=0.0).train()
    prepare_blocks(model, train_config)
    optimizer = make_optimizer(model, train_config)
    batch = make_batch()
    tracker: Any = MemTracker()

    def step() -> None:
        for _ in range(rows):
            with torch.autocast("cpu", torch.bfloat16, enabled=train_config.precision == "bf16"):
                losses = model(batch)
            losses.total(batch.totals, 0.0).backward()
            tracker.reset_mod_stats()
        optimizer.step()
        optimizer.zero_grad()

    step()
    tracker.track_external(model, optimizer)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            # The tracker wants to hook itself to every weight's gradient.
            tracker._param_to_grad_hook_handles[parameter] = (_Nothing(), _Nothing())
    with tracker:
        step()
    return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])


class _Nothing:
    def remove(self) -> None:
        """There was no hook."""


FULL = {"trained": ["adapter", "language_model"]}
CASES = {
    "full": FULL,
    "with encoder": {"trained": ["encoder", "adapter", "language_model"]},
    "adapter": {"trained": ["adapter"]},
    "lora": FULL | {"lora": {"rank": 8}},
}


@pytest.mark.parametrize(
    ("checkpointing", "precision", "rows"), [("none", "bf16", 2), ("selective", "bf16", 2), ("full", "no", 1)]
)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_estimated_peak_is_within_10_percent_of_the_tracker(
    case: str, checkpointing: str, precision: str, rows: int
) -> None:
    train_config = make_recipe(**CASES[case], activation_checkpointing=checkpointing, precision=precision)
    model = build_shapes(make_config(), train_config)
    parts = estimate_memory(model, train_config, SAMPLES, IMAGES, ANSWERS, accumulates=rows > 1)
    assert sum(parts.values()) == pytest.approx(tracked(train_config, rows), rel=0.1)
