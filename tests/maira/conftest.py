"""A tiny MAIRA-2 and a few phantoms to train it on, shared by the tests of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_weights import draw_weights

from maira.data.images import Gray
from maira.data.manifest import read_manifest
from maira.data.phantoms import write_phantoms
from maira.data.study import Study
from maira.generate.engine import GenerationRequest
from maira.generate.transformers_engine import TransformersEngine
from maira.model.config import MairaConfig
from maira.model.image_processor import MairaImageProcessor
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.model.tokens import IMAGE
from maira.train.components import train_tokenizer
from maira.train.config.run_config import TrainConfig

TEXTS = ["The lungs are clear.", "There is a small left pleural effusion.", "No pneumothorax. Heart size is normal."]
VISION: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


@pytest.fixture(scope="session")
def processor() -> MairaProcessor:
    """Images of 32 x 32 pixels, 16 tokens each; a tokenizer trained on a few sentences."""
    return MairaProcessor(MairaImageProcessor(size=32), train_tokenizer(TEXTS, 300), image_seq_length=16)


@pytest.fixture(scope="session")
def config(processor: MairaProcessor) -> MairaConfig:
    """Two blocks of the encoder and two of the language model, for the processor's tokens."""
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": len(processor.tokenizer)}
    return MairaConfig(
        vision_config=VISION,
        text_config=TEXT | ids,
        image_token_index=processor.tokenizer.convert_tokens_to_ids(IMAGE),
        projector_n_layers=2,
    )


@pytest.fixture(scope="session")
def model(config: MairaConfig) -> MairaForConditionalGeneration:
    """Random weights, ten times as large as initial ones, so that every attended token affects the logits.

    The end token is never the most likely one, so that no response is empty.
    """
    made = MairaForConditionalGeneration(config).eval()
    draw_weights(made, seed=0)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(10)
        made.get_output_embeddings().weight[made.config.text_config.eos_token_id] = 0
    return made


@pytest.fixture(scope="session")
def radiographs() -> list[Gray]:
    """Three images of gray noise, (40, 32)."""
    return list(np.random.default_rng(0).random((3, 40, 32), np.float32))


@pytest.fixture(scope="session")
def phantoms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifest of 14 phantoms at 64 pixels."""
    folder = tmp_path_factory.mktemp("phantoms")
    list(write_phantoms(folder, 14, seed=7, size=64, split="train"))
    return folder / "manifest.jsonl"


@pytest.fixture(scope="session")
def checkpoint(
    model: MairaForConditionalGeneration, processor: MairaProcessor, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with the model and its processor."""
    folder = tmp_path_factory.mktemp("checkpoint")
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def studies(phantoms: Path) -> list[Study]:
    """Five phantoms."""
    return read_manifest(phantoms)[:5]


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the studies that any engine receives."""
    ids: list[str] = []
    answers = TransformersEngine.generate

    def spy(self: TransformersEngine, requests: Sequence[GenerationRequest]) -> Any:
        ids.extend(request.example.sample_id for request in requests)
        return answers(self, requests)

    monkeypatch.setattr(TransformersEngine, "generate", spy)
    return ids


@pytest.fixture
def make_recipe(checkpoint: Path, tmp_path: Path) -> Callable[..., TrainConfig]:
    """Return a function that makes configs for the shared checkpoint; their studies are never read."""

    def make(**options: Any) -> TrainConfig:
        values: dict[str, Any] = {
            "model": checkpoint,
            "train": [{"manifest": "none.jsonl"}],
            "out": tmp_path / "run",
            "passes": 128,
            "precision": "no",
        }
        return TrainConfig.model_validate(values | options)

    return make
