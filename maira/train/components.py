"""The components of a model in training: building and loading, selecting trained weights, and exporting."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from huggingface_hub.errors import StrictDataclassError
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from transformers import LlamaConfig, PretrainedConfig, PreTrainedTokenizerFast

from maira.model.checkpoint import checkpoint_folder
from maira.model.config import MairaConfig, context_window, read_config
from maira.model.image_processor import MairaImageProcessor
from maira.model.modeling import MODULES, CheckpointWeights, MairaForConditionalGeneration, expected_shapes, modules_of
from maira.model.processor import MairaProcessor
from maira.model.prompts import GROUNDING, RELEASE_FINDINGS, RELEASE_PHRASE, SYSTEM
from maira.model.tokens import IMAGE, add_tokens
from maira.runtime.processes import DistributedContext
from maira.train import lora
from maira.train.config.run_config import BaseTrainConfig, Component, FromScratch, TrainConfig
from maira.train.data.packing import check_lengths
from radfact.errors import ErrorCode, InputError

ModelAndProcessor = tuple[MairaForConditionalGeneration, MairaProcessor]
TOKENIZER_STUDIES = 4000
"""Studies whose texts shape the vocabulary of a tokenizer trained from scratch."""


def load_model(config: TrainConfig, texts: Iterable[str], *, empty: bool = False) -> ModelAndProcessor:
    """Load or build the model and processor of a training configuration, with the weight types of the training."""
    if isinstance(config.model, FromScratch):
        model, processor = build_from_scratch(config.model, texts)
        set_weight_types(model, config)
        return model, processor
    if not (config.model / "config.json").exists():
        message = "expected a checkpoint, found no config.json"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=config.model)
    processor = MairaProcessor.from_pretrained(config.model)
    if empty:
        model_config = read_config(config.model)
        with torch.device("meta"):
            model = MairaForConditionalGeneration(model_config)
        set_weight_types(model, config)
    else:
        model = _read_model(config, config.model)
    if config.lora and config.lora.added_tokens:
        lora.check_tokens(processor.tokenizer, model.config, config.model)
    return model, processor


def weight_dtype(config: BaseTrainConfig, part: Component) -> torch.dtype:
    """Return the type of a component's weights: `weights` if it is trained, else that of the computation."""
    if part in config.trains and not (part == "language_model" and config.lora):
        return torch.bfloat16 if config.weights == "bfloat16" else torch.float32
    return torch.bfloat16 if config.precision == "bf16" else torch.float32


def _read_model(config: TrainConfig, folder: Path) -> MairaForConditionalGeneration:
    main_dtype = weight_dtype(config, "language_model")
    model: MairaForConditionalGeneration = MairaForConditionalGeneration.from_pretrained(folder, dtype=main_dtype)
    weights: CheckpointWeights | None = None
    for part, prefixes in MODULES.items():
        if (dtype := weight_dtype(config, part)) == main_dtype:
            continue
        # Read these weights again: converting rounded weights does not restore their precision.
        weights = weights or CheckpointWeights(folder, model.config)
        for module in modules_of(model, part):
            module.to(dtype)
        own = dict(weights.read([key for key in weights.shapes if key.startswith(prefixes)], dtype))
        model.load_state_dict(own, strict=False)
    return model


def set_weight_types(model: MairaForConditionalGeneration, config: TrainConfig) -> None:
    for part in MODULES:
        for module in modules_of(model, part):
            module.to(weight_dtype(config, part))


def build_from_scratch(parts: FromScratch, texts: Iterable[str]) -> ModelAndProcessor:
    """Build a model with random weights of PyTorch's global generator, and a processor with a trained tokenizer."""
    if unknown := sorted(set(parts.text_config) - set(LlamaConfig().to_dict())):
        raise InputError("unknown key; correct or remove it", field=f"model.text_config.{unknown[0]}")
    tokenizer = train_tokenizer(map(words_of, texts), parts.vocab_size)
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    text_config = parts.text_config | {"vocab_size": len(tokenizer)} | ids
    model_config = make_model_config(parts, text_config, tokenizer.convert_tokens_to_ids(IMAGE))
    with _model_config_errors():
        model = MairaForConditionalGeneration(model_config)
    images = MairaImageProcessor(size=model_config.vision_config.image_size)
    return model, MairaProcessor(images, tokenizer, image_seq_length=model_config.image_seq_length)


def make_model_config(parts: FromScratch, text_config: dict[str, Any], image_token: int) -> MairaConfig:
    with _model_config_errors():
        return MairaConfig(
            vision_config=parts.vision_config.model_dump(),
            text_config=text_config,
            image_token_index=image_token,
            image_merge=parts.image_merge,
            projector_n_layers=parts.projector_n_layers,
        )


@contextmanager
def _model_config_errors() -> Iterator[None]:
    try:
        yield
    except (ValueError, StrictDataclassError) as error:
        # Without the name of the exception.
        message = re.sub(r"^[A-Za-z]*Error: ", "", str(error).splitlines()[-1].strip())
        raise InputError(message, field="model") from None


def check_context(table: npt.NDArray[Any], model_config: PretrainedConfig, sample_id: Callable[[int], str]) -> None:
    """Check before the first step that every sample fits in the context window of the language model."""
    window = context_window(model_config.get_text_config())
    check_lengths(table, np.arange(len(table)), sample_id, window, "model")


def set_trainable(model: MairaForConditionalGeneration, config: TrainConfig) -> None:
    """Set which weights of a model are trained, and add low-rank adapters if the configuration has them."""
    if config.lora:
        dtype = torch.bfloat16 if config.weights == "bfloat16" else torch.float32
        lora.add(model, config.lora, dtype, lora.added_rows(config.lora, model.config))
    for part in MODULES:
        for module in modules_of(model, part):
            if part != "language_model" or not config.lora:
                module.requires_grad_(part in config.trained)
    tower = model.model.vision_tower
    tower.frozen = "encoder" not in config.trained
    if (unused := tower.vit.mask_token) is not None:
        # The published weights contain it, but the model does not use it, so it never gets a gradient.
        unused.requires_grad_(False)


def gather_weights(model: nn.Module, *, only_trained: bool) -> dict[str, Tensor]:
    """Gather the weights of a model by name on the CPU of the main process; all processes call this."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=only_trained)
    return {n: w for n, w in get_model_state_dict(model, options=options).items() if isinstance(w, Tensor)}


def write_checkpoint(
    model: MairaForConditionalGeneration,
    processor: MairaProcessor,
    config: TrainConfig,
    context: DistributedContext,
    folder: Path,
) -> None:
    """Write a model and its processor atomically, with low-rank adapters merged; all processes call this."""
    # Weights that were not trained come from the initial checkpoint, which may have them in a more precise type.
    weights = gather_weights(model, only_trained=not isinstance(config.model, FromScratch))
    if context.is_main:
        dtype: torch.dtype = getattr(torch, config.checkpoint_dtype)
        plain = _plain(weights, config, model.config)
        if config.lora:
            plain = lora.merged(plain, weights, config.lora, lora.added_rows(config.lora, model.config))
        with torch.device("meta"):
            whole = MairaForConditionalGeneration(copy.deepcopy(model.config))
        whole.to(dtype)
        whole.generation_config = model.generation_config
        with checkpoint_folder(folder) as fresh:
            whole.save_pretrained(fresh, state_dict={name: tensor.to(dtype) for name, tensor in plain})
            processor.save_pretrained(fresh)
            if config.lora:
                lora.save_adapter(weights, config.lora, fresh / "lora", lora.added_rows(config.lora, model.config))
    context.wait()


def _plain(weights: dict[str, Tensor], config: TrainConfig, model_config: MairaConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights without low-rank adapters, by the names of the model; untrained weights as float32."""
    if isinstance(config.model, FromScratch):
        plain = {lora.plain_name(name): tensor for name, tensor in weights.items()}
        yield from ((name, plain[name]) for name in expected_shapes(model_config))
        return
    parts = (part for part in config.trained if not (part == "language_model" and config.lora))
    whole = tuple(prefix for part in parts for prefix in MODULES[part])
    base = CheckpointWeights(config.model, model_config)
    for name in base.shapes:
        if name in weights and name.startswith(whole):
            yield name, weights[name]
        else:
            yield from base.read([name], torch.float32)


CONSTANT_PASSAGES = (f"{SYSTEM} USER:", RELEASE_FINDINGS, GROUNDING, RELEASE_PHRASE.strip())
"""Passages that every prompt of a task repeats; as one token each they make a step of a small model a third cheaper."""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer and add MAIRA-2's tokens; any text can be encoded and decoded unchanged."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(list(CONSTANT_PASSAGES))
    begin = ("<s>", tokenizer.token_to_id("<s>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[begin])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    add_tokens(fast)
    return fast


def words_of(text: str) -> str:
    """Return a text without MAIRA-2's tokens and the constant passages, which must not shape the vocabulary."""
    for passage in CONSTANT_PASSAGES:
        text = text.replace(passage, " ")
    return re.sub(r"<[^<> ]+>", " ", text)
