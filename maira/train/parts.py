"""What a training run starts from: a checkpoint, or a fresh model with a tokenizer of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import LlamaConfig

from data.study import Study
from maira.config import MairaConfig
from maira.examples import make_example
from maira.model import MairaForConditionalGeneration
from maira.processor import MairaImageProcessor, MairaProcessor
from maira.tokens import IMAGE
from maira.train.recipe import FromScratch, Recipe
from maira.train.tokenizer import train_tokenizer, words_of
from radfact.errors import InputError

TOKENIZER_STUDIES = 4000
"""Studies whose texts shape the vocabulary of a tokenizer trained from scratch."""


def load_parts(recipe: Recipe, studies: Sequence[Study]) -> tuple[MairaForConditionalGeneration, MairaProcessor]:
    """The model and processor that a recipe starts from.

    Raises:
        InputError: there is no checkpoint, or the parts of a fresh model do not fit each other.
    """
    if isinstance(recipe.model, FromScratch):
        return build_fresh(recipe, recipe.model, studies)
    if not (recipe.model / "config.json").exists():
        raise InputError("no checkpoint here (config.json is missing)", file=recipe.model)
    model = MairaForConditionalGeneration.from_pretrained(recipe.model, dtype=torch.float32)
    return model, MairaProcessor.from_pretrained(recipe.model)


def build_fresh(
    recipe: Recipe, parts: FromScratch, studies: Sequence[Study]
) -> tuple[MairaForConditionalGeneration, MairaProcessor]:
    """A model with random weights, and a processor with a tokenizer trained on the studies' texts.

    The weights come from torch's generator, which the caller seeds.

    Raises:
        InputError: the parts do not fit each other, or a study cannot be made an example.
    """
    if unknown := sorted(set(parts.text_config) - set(LlamaConfig().to_dict())):
        raise InputError("unknown key; leave it out or mend its name", field=f"model.text_config.{unknown[0]}")
    texts = []
    for study in studies[:TOKENIZER_STUDIES]:
        for task in ("findings", "grounded"):
            example = make_example(study, task, preset=recipe.preset)
            texts.append(words_of(example.prompt + (example.target or "")))
    tokenizer = train_tokenizer(texts, parts.vocab_size)
    text_config: dict[str, Any] = parts.text_config | {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    try:
        config = MairaConfig(
            vision_config=parts.vision_config.model_dump(exclude_unset=True),
            text_config=text_config,
            image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
            image_merge=parts.image_merge,
            projector_n_layers=parts.projector_n_layers,
        )
        model = MairaForConditionalGeneration(config)
    except (ValueError, StrictDataclassError) as error:
        raise InputError(str(error).splitlines()[-1].strip(), field="model") from None
    images = MairaImageProcessor(size=config.vision_config.image_size)
    return model, MairaProcessor(images, tokenizer, image_seq_length=config.image_seq_length)
