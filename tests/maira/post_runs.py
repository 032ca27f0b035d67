"""Runs of post-training from the tiny checkpoint, and log-probabilities by the model's plain forward pass."""

from pathlib import Path
from typing import Any

import tiny_runs
import torch

from maira.data.study import Study
from maira.model.processor import MairaProcessor
from maira.model.task_examples import make_example
from maira.train.config.run_config import TrainConfig
from maira.train.report_training import train


def post_values(checkpoint: Path, manifest: Path, out: Path, **changes: Any) -> dict[str, Any]:
    """A config of a run that starts from a checkpoint, as YAML has it."""
    own = {
        "model": str(checkpoint),
        "trained": ["adapter", "language_model"],
        "tasks": {"grounded": 1},
        "learning_rate": 1e-3,
        "warmup": 0.0,
        "save_every": 2,
        "patch_loss": 0.0,
    }
    return tiny_runs.values(manifest, out, **(own | changes))


def start(recipe: dict[str, Any]) -> str:
    """Train in this process; returns what the console shows."""
    console = tiny_runs.quiet()
    train(TrainConfig.model_validate(recipe), console)
    return tiny_runs.said(console)


def encode_prompt(study: Study, processor: MairaProcessor) -> tuple[list[int], Any]:
    """The tokens and images, (images, size, size), of the prompt of a grounded report."""
    example = make_example(study, "grounded")
    images = processor.image_processor(list(example.images))["pixel_values"][:, 0].numpy()
    return processor.encode_example(example), images


def answer_scores(model: Any, ids: list[int], prompt: int, images: Any) -> torch.Tensor:
    """The logits of each token of an answer, by the model's plain forward pass."""
    pixels = torch.from_numpy(images)[:, None].expand(-1, 3, -1, -1)
    scores: torch.Tensor = model(input_ids=torch.tensor([ids]), pixel_values=pixels).logits[0, prompt - 1 : -1].float()
    return scores
