"""Packed rows of random samples for a tiny model, and the same samples by themselves; shared by tests of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from maira.model.config import MairaConfig
from maira.model.modeling import MairaForConditionalGeneration
from maira.train.data.packing import PackedBatch, StepTotals
from maira.train.loss import MairaLossModel

KINDS = 3


@dataclass(frozen=True)
class Sample:
    """Return tokens of prompt and answer, prepared images (images, 1, size, size), and targets of the patch loss."""

    ids: list[int]
    prompt: int
    images: Tensor
    coverage: Tensor


def make_sample(config: MairaConfig, images: int, words: int, answer: int, seed: int) -> Sample:
    """A sample of random words and noise."""
    rng = np.random.default_rng(seed)
    ids = [1]
    for _ in range(images):
        ids += rng.integers(3, 200, 2).tolist() + [config.image_token_index] * config.image_seq_length
    ids += rng.integers(3, 200, words).tolist()
    prompt = len(ids)
    ids += [*rng.integers(3, 200, answer - 1).tolist(), 2]
    size = config.vision_config.image_size
    pixels = torch.from_numpy(rng.normal(size=(images, 1, size, size)).astype(np.float32))
    patches = (size // config.vision_config.patch_size) ** 2
    return Sample(ids, prompt, pixels, torch.from_numpy(rng.random((patches, KINDS), np.float32)))


def pack(samples: Sequence[Sample], padding: int = 0, totals: StepTotals | None = None) -> PackedBatch:
    """One row of samples, padding behind."""
    lengths = [len(sample.ids) for sample in samples]
    starts = np.cumsum([0, *lengths])
    ids = [token for sample in samples for token in sample.ids] + [0] * padding
    positions = [i for length in (*lengths, padding) for i in range(length)]
    answers = [starts[i] + t for i, sample in enumerate(samples) for t in range(sample.prompt - 1, len(sample.ids) - 1)]
    counts = [len(sample.images) for sample in samples]
    tokens = [len(sample.ids) - sample.prompt for sample in samples]
    return PackedBatch(
        input_ids=torch.tensor([ids]),
        position_ids=torch.tensor([positions]),
        starts=torch.tensor(starts, dtype=torch.int32),
        used_tokens=int(starts[-1]),
        longest=max((*lengths, padding)),
        answers=torch.tensor(answers, dtype=torch.long),
        targets=torch.tensor([ids[t + 1] for t in answers], dtype=torch.long),
        answer_samples=torch.tensor([i for i, n in enumerate(tokens) for _ in range(n)], dtype=torch.long),
        pixel_values=torch.cat([sample.images for sample in samples]) if samples else torch.zeros(0, 1, 32, 32),
        frontal_rows=torch.tensor(np.cumsum([0, *counts[:-1]]) if samples else [], dtype=torch.long),
        coverage=torch.stack([sample.coverage for sample in samples]) if samples else None,
        sample_ids=tuple(f"sample {i}" for i in range(len(samples))),
        tasks=("findings",) * len(samples),
        totals=totals or StepTotals(sum(tokens), len(samples)),
    )


def alone(training: MairaLossModel, sample: Sample) -> tuple[Tensor, Tensor]:
    """Losses of one sample by the model's plain forward pass: summed cross-entropy, and the patches' loss."""
    model = training.model
    pixels = sample.images.expand(-1, 3, -1, -1)
    scores = model(input_ids=torch.tensor([sample.ids]), pixel_values=pixels).logits[0, sample.prompt - 1 : -1].float()
    answer = F.cross_entropy(scores, torch.tensor(sample.ids[sample.prompt :]), reduction="sum")
    if training.patch_head is None:
        return answer, answer.new_zeros(())
    found = training.patch_head(model.model.vision_tower(pixels[:1]))[0]
    wrong = F.binary_cross_entropy_with_logits(found, sample.coverage, reduction="none")
    return answer, wrong.sum(1).mean()


def gradients(module: torch.nn.Module) -> dict[str, Tensor]:
    """Gradients by parameter, taken away from the module."""
    found = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    module.zero_grad(set_to_none=True)
    return found


def trainable(config: MairaConfig, frozen: bool = False, **text: Any) -> MairaForConditionalGeneration:
    """A model with random weights, large enough that every attended token affects the result."""
    vision = config.vision_config.to_dict() | {"frozen": frozen}
    made = MairaConfig(
        vision_config=vision,
        text_config=config.text_config.to_dict() | text,
        image_token_index=config.image_token_index,
        projector_n_layers=2,
    )
    torch.manual_seed(0)
    model = MairaForConditionalGeneration(made)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(5)
    return model.train()
