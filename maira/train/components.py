"""The components of a model in training: loading, selecting trained weights, and exporting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import LlamaConfig, PretrainedConfig

from maira.model.config import MairaConfig, context_window, read_config
from maira.model.modeling import CheckpointWeights, MairaForConditionalGeneration, expected_shapes
from maira.model.processor import MairaImageProcessor, MairaProcessor
from maira.model.tokens import IMAGE
from maira.train import lora
from maira.train.config.run_config import BaseTrainConfig, Component, FromScratch, TrainConfig
from maira.train.data.packing import ALL_TASKS
from maira.train.data.tokenizer import train_tokenizer, words_of
from radfact.errors import ErrorCode, InputError

TOKENIZER_STUDIES = 4000
"""Studies whose texts shape the vocabulary of a tokenizer trained from scratch."""
MODULES: dict[Component, str] = {
    "encoder": "vision_tower",
    "adapter": "multi_modal_projector",
    "language_model": "language_model",
}
"""Modules of a model by the names of its components in configurations."""


def load_model(
    config: TrainConfig, texts: Iterable[str], *, empty: bool = False
) -> tuple[MairaForConditionalGeneration, MairaProcessor]:
    """The model and processor that a recipe starts from, each part of the model in the type it is held in.

    Args:
        config: its model, and what it trains.
        texts: what a fresh model's tokenizer is trained on; not looked at where there is a checkpoint.
        empty: of a checkpoint's weights only names, shapes and types, for a process that gets them from another.

    Raises:
        InputError: there is no checkpoint, or its tokens are not where their rows are to be trained, or the parts of a
            fresh model do not fit each other.
    """
    if isinstance(config.model, FromScratch):
        model, processor = build_from_scratch(config.model, texts)
        for part, name in MODULES.items():
            getattr(model, name).to(weight_dtype(config, part))
        return model, processor
    if not (config.model / "config.json").exists():
        raise InputError("no checkpoint here (config.json is missing)", file=config.model)
    processor = MairaProcessor.from_pretrained(config.model)
    model = (_empty_model if empty else _read_model)(config, config.model)
    if config.lora and config.lora.added_tokens:
        lora.check_tokens(processor.tokenizer, model.config, config.model)
    return model, processor


def weight_dtype(config: BaseTrainConfig, part: Component) -> torch.dtype:
    """Return the type of a component's weights: the configured one if it is trained, else that of the computation.

    Args:
        config: of the run.
        part: the component.
    """
    if part in config.trains and not (part == "language_model" and config.lora):
        return torch.bfloat16 if config.weights == "bfloat16" else torch.float32
    return torch.bfloat16 if config.precision == "bf16" else torch.float32


def _read_model(config: TrainConfig, folder: Path) -> MairaForConditionalGeneration:
    most = weight_dtype(config, "language_model")
    model: MairaForConditionalGeneration = MairaForConditionalGeneration.from_pretrained(folder, dtype=most)
    weights: CheckpointWeights | None = None
    for part, name in MODULES.items():
        if (dtype := weight_dtype(config, part)) == most:
            continue
        # Read again rather than converted: what was rounded stays so.
        weights = weights or CheckpointWeights(folder, model.config)
        getattr(model, name).to(dtype)
        own = dict(weights.read([key for key in weights.shapes if key.startswith(f"{name}.")], dtype))
        model.load_state_dict(own, strict=False)
    return model


def _empty_model(config: TrainConfig, folder: Path) -> MairaForConditionalGeneration:
    model_config = read_config(folder)
    with torch.device("meta"):
        model = MairaForConditionalGeneration(model_config)
    for part, name in MODULES.items():
        getattr(model, name).to(weight_dtype(config, part))
    return model


def build_from_scratch(
    parts: FromScratch, texts: Iterable[str]
) -> tuple[MairaForConditionalGeneration, MairaProcessor]:
    """A model with random weights, and a processor with a tokenizer trained on some texts.

    The weights come from torch's generator, which the caller seeds.

    Args:
        parts: configurations of the model's.
        texts: prompts and answers.

    Raises:
        InputError: the parts do not fit each other, or a study cannot be made an example.
    """
    if unknown := sorted(set(parts.text_config) - set(LlamaConfig().to_dict())):
        raise InputError("unknown key; leave it out or mend its name", field=f"model.text_config.{unknown[0]}")
    tokenizer = train_tokenizer(map(words_of, texts), parts.vocab_size)
    text_config: dict[str, Any] = parts.text_config | {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    try:
        model_config = MairaConfig(
            vision_config=parts.vision_config.model_dump(exclude_unset=True),
            text_config=text_config,
            image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
            image_merge=parts.image_merge,
            projector_n_layers=parts.projector_n_layers,
        )
        model = MairaForConditionalGeneration(model_config)
    except (ValueError, StrictDataclassError) as error:
        raise invalid_model_config(error) from None
    images = MairaImageProcessor(size=model_config.vision_config.image_size)
    return model, MairaProcessor(images, tokenizer, image_seq_length=model_config.image_seq_length)


def invalid_model_config(error: Exception) -> InputError:
    """What a library says of a model's configuration, without the name of its exception."""
    said = str(error).splitlines()[-1].strip()
    return InputError(re.sub(r"^[A-Za-z]*Error: ", "", said), field="model")


def check_context(table: npt.NDArray[Any], model_config: PretrainedConfig, sample_id: Callable[[int], str]) -> None:
    """See before the first step that the language model has a position for every token of every sample.

    Args:
        table: (answers,) of `maira.train.data.packing.SAMPLE_LENGTHS`.
        model_config: of the model, or of its language model.
        sample_id: names the study of a place in the table.

    Raises:
        InputError: a sample is longer.
    """
    lengths = table["prompt"].astype(np.int64) + table["answer"]
    longest, room = int(lengths.argmax()), context_window(model_config.get_text_config())
    if lengths[longest] > room:
        raise InputError(
            f"sample '{sample_id(longest)}' has {lengths[longest]} tokens (task {ALL_TASKS[table['task'][longest]]}), "
            f"more than the {room} positions of the language model; give it more (max_position_embeddings), or leave "
            "the sample out",
            field="model",
        )


def set_trainable(model: MairaForConditionalGeneration, config: TrainConfig) -> None:
    """Set which weights of a model are trained, and add low-rank adapters if the configuration has them.

    Args:
        model: changed in place.
        config: of the training.

    Raises:
        InputError: nothing is trained, or the adapters do not fit.
    """
    if not config.trained:
        raise InputError("names nothing to train; give encoder, adapter or language_model", field="trained")
    for part, name in MODULES.items():
        module: nn.Module = getattr(model, name)
        module.requires_grad_(part in config.trained)
    tower = model.vision_tower
    tower.frozen = tower.options["frozen"] = model.config.vision_config.frozen = "encoder" not in config.trained
    if (unused := tower.vit.mask_token) is not None:
        # Part of the published weights, but no part of the computation, so no gradient ever reaches it.
        unused.requires_grad_(False)
    if config.lora:
        if config.lora.quantize and isinstance(config.model, FromScratch):
            raise InputError(
                "weights in 4 bits need a checkpoint to read them from",
                code=ErrorCode.CONFLICTING_OPTIONS,
                field="lora.quantize",
            )
        dtype = torch.bfloat16 if config.weights == "bfloat16" else torch.float32
        lora.add(model.language_model, config.lora, dtype, lora.added_rows(config.lora, model.config))


def export_weights(weights: Mapping[str, Tensor], config: TrainConfig, model_config: MairaConfig) -> dict[str, Tensor]:
    """The weights of a model after training, as its checkpoint has them.

    Weights that were not trained come from the checkpoint that the run started from, which may have them in a finer
    type than the model in training; low-rank adapters are merged into them.

    Args:
        weights: of the model in training, by its names, whole; those that were trained are enough where the run
            started from a checkpoint.
        config: of the run.
        model_config: of the model.
    """
    dtype: torch.dtype = getattr(torch, config.checkpoint_dtype)
    whole = _unmerged(weights, config, model_config)
    if config.lora:
        whole = lora.merged(whole, weights, config.lora, lora.added_rows(config.lora, model_config))
    return {name: tensor.to(dtype) for name, tensor in whole}


def _unmerged(
    weights: Mapping[str, Tensor], config: TrainConfig, model_config: MairaConfig
) -> Iterator[tuple[str, Tensor]]:
    """Weights by the model's names, as float32 where they were not trained, low-rank adapters apart."""
    if isinstance(config.model, FromScratch):
        plain = {lora.plain_name(name): tensor for name, tensor in weights.items()}
        yield from ((name, plain[name]) for name in expected_shapes(model_config))
        return
    whole = tuple(f"{MODULES[part]}." for part in config.trained if not (part == "language_model" and config.lora))
    base = CheckpointWeights(config.model, model_config)
    for name in base.shapes:
        if name in weights and name.startswith(whole):
            yield name, weights[name]
        else:
            yield from base.read([name], torch.float32)
