"""Packed rows of samples for a tiny model, and the same samples by themselves; shared by tests of training."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from maira.data.study import Study
from maira.model.config import MairaConfig
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.model.task_examples import make_example
from maira.train.data.packing import EncodedSample, PackedBatch, StepTotals, collate
from maira.train.loss import MairaLossModel

KINDS = 3


def make_sample(config: MairaConfig, images: int, words: int, answer: int, seed: int) -> EncodedSample:
    """A sample of random words and noise."""
    rng = np.random.default_rng(seed)
    ids = [1]
    for _ in range(images):
        ids += rng.integers(3, 200, 2).tolist() + [config.image_token_index] * config.image_seq_length
    ids += rng.integers(3, 200, words).tolist()
    prompt = len(ids)
    ids += [*rng.integers(3, 200, answer - 1).tolist(), 2]
    size = config.vision_config.image_size
    pixels = rng.normal(size=(images, 1, size, size)).astype(np.float32)[:, 0]
    patches = (size // config.vision_config.patch_size) ** 2
    return EncodedSample(f"seed {seed}", "findings", ids, prompt, pixels, rng.random((patches, KINDS), np.float32))


def pack(samples: Sequence[EncodedSample], padding: int = 0, totals: StepTotals | None = None) -> PackedBatch:
    """One row of samples, padding behind."""
    tokens = sum(len(sample.input_ids) for sample in samples)
    answers = tokens - sum(sample.prompt_tokens for sample in samples)
    return collate(samples, totals or StepTotals(answers, len(samples)), pad_id=0, multiple=tokens + padding)


def alone(training: MairaLossModel, sample: EncodedSample) -> tuple[Tensor, Tensor]:
    """Losses of one sample by the model's plain forward pass: summed cross-entropy, and the patches' loss."""
    model = training.model
    scores = answer_scores(model, sample.input_ids, sample.prompt_tokens, sample.images)
    answer = F.cross_entropy(scores, torch.tensor(sample.input_ids[sample.prompt_tokens :]), reduction="sum")
    if training.patch_head is None:
        return answer, answer.new_zeros(())
    frontal = torch.from_numpy(sample.images[:1])[:, None].expand(-1, 3, -1, -1)
    found = training.patch_head(model.model.vision_tower(frontal))[0]
    assert sample.coverage is not None
    wrong = F.binary_cross_entropy_with_logits(found, torch.from_numpy(sample.coverage), reduction="none")
    return answer, wrong.sum(1).mean()


def gradients(module: torch.nn.Module) -> dict[str, Tensor]:
    """Gradients by parameter, taken away from the module."""
    found = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    module.zero_grad(set_to_none=True)
    return found


def trainable(config: MairaConfig, frozen: bool = False, **text: Any) -> MairaForConditionalGeneration:
    """A model with random weights, large enough that every attended token affects the result."""
    vision = config.vision_config.to_dict() | {"frozen": frozen}
    own = {"image_token_index": config.image_token_index, "projector_n_layers": 2}
    made = MairaConfig(vision_config=vision, text_config=config.text_config.to_dict() | text, **own)
    torch.manual_seed(0)
    model = MairaForConditionalGeneration(made)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(5)
    return model.train()


def encode_prompt(study: Study, processor: MairaProcessor) -> tuple[list[int], Any]:
    """The tokens and images, (images, size, size), of the prompt of a grounded report."""
    example = make_example(study, "grounded")
    images = processor.image_processor(list(example.images))["pixel_values"][:, 0].numpy()
    return processor.encode_example(example), images


def answer_scores(model: Any, ids: list[int], prompt: int, images: Any) -> Tensor:
    """The logits of each token of an answer, by the model's plain forward pass."""
    pixels = torch.from_numpy(images)[:, None].expand(-1, 3, -1, -1)
    scores: Tensor = model(input_ids=torch.tensor([ids]), pixel_values=pixels).logits[0, prompt - 1 : -1].float()
    return scores
