"""Assembly of a MAIRA-2 from RAD-DINO and a Llama with its tokenizer, such as Vicuna."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from maira.encoders import Encoder, load_encoder
from maira.model.checkpoint import checkpoint_folder, raise_mismatch
from maira.model.config import MairaConfig, read_model_type
from maira.model.image_processor import MairaImageProcessor
from maira.model.modeling import Adapter, MairaForConditionalGeneration
from maira.model.processor import MairaProcessor, load_tokenizer
from maira.model.tokens import IMAGE, add_tokens
from maira.model.weight_index import check_indexes
from radfact.errors import ErrorCode, InputError
from radfact.io.outputs import Output, lock_output

ROPE_FACTOR = 1.5
"""Linear scaling of the rotary embedding: extends the context window for the tokens of three images."""


def assemble(
    encoder: Path,
    language_model: Path,
    out: Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    rope_factor: float = ROPE_FACTOR,
    projector_n_layers: int = 4,
) -> MairaConfig:
    """Write a model of published parts and a random adapter; the embedding of a new token is the mean of all others."""
    new_folder = Output("new folder", is_private=False)
    with lock_output(out, new_folder), checkpoint_folder(out) as made, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            vision = load_encoder(encoder)
        except (ValueError, TypeError, OSError) as error:
            raise InputError(str(error), code=ErrorCode.FILE_UNREADABLE, file=encoder) from None
        tokenizer, base_size = build_tokenizer(language_model)
        language = _language_model(language_model, dtype, rope_factor)
        _grow(language, base_size, len(tokenizer), file=language_model)
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            setattr(language.config, name, getattr(tokenizer, name))
        config = MairaConfig(
            vision_config=vision.options,
            text_config=language.config,
            image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
            projector_n_layers=projector_n_layers,
        )
        model = _join(config, vision, language).to(dtype)
        model.save_pretrained(made, max_shard_size="5GB")
        images = MairaImageProcessor(size=config.vision_config.image_size)
        MairaProcessor(images, tokenizer, image_seq_length=config.image_seq_length).save_pretrained(made)
    return config


def build_tokenizer(folder: Path) -> tuple[Any, int]:
    """Load a Llama tokenizer and append MAIRA-2's tokens; return it and its original number of tokens."""
    tokenizer = load_tokenizer(folder)
    if tokenizer.unk_token is not None:
        tokenizer.pad_token = tokenizer.unk_token
    if None in (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id):
        message = "the tokenizer needs tokens for the beginning, the end and padding"
        raise InputError(message, code=ErrorCode.MISMATCH, file=folder)
    base_size = len(tokenizer)
    add_tokens(tokenizer)
    if tokenizer.convert_tokens_to_ids(IMAGE) < base_size:
        message = f"the tokenizer already has {IMAGE}; name the folder of a plain language model"
        raise InputError(message, code=ErrorCode.MISMATCH, file=folder)
    return tokenizer, base_size


def _language_model(folder: Path, dtype: torch.dtype, rope_factor: float) -> Any:
    read_model_type(folder, "language model", "llama")
    check_indexes(folder)
    config = LlamaConfig.from_pretrained(folder)
    rope = {"rope_type": "linear", "factor": rope_factor} if rope_factor != 1 else {"rope_type": "default"}
    config.rope_parameters = {"rope_theta": config.rope_parameters["rope_theta"], **rope}
    try:
        language, info = LlamaForCausalLM.from_pretrained(folder, config=config, dtype=dtype, output_loading_info=True)
    except (RuntimeError, ValueError, OSError) as error:
        message = f"the language model cannot be read: {str(error).splitlines()[0]}"
        raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=folder) from None
    raise_mismatch(info["missing_keys"], info["unexpected_keys"], info["mismatched_keys"], file=folder)
    return language


@torch.no_grad()
def _grow(language: Any, base_size: int, rows: int, *, file: Path) -> None:
    """Resize embeddings and head to `rows`; rows from `base_size` on are the mean of those before."""
    for module in (language.get_input_embeddings(), language.get_output_embeddings()):
        if len(module.weight) < base_size:
            message = f"the tokenizer has {base_size} tokens and the language model {len(module.weight)}"
            raise InputError(message, code=ErrorCode.MISMATCH, file=file)
        old = module.weight[:base_size]
        mean = old.float().mean(0, keepdim=True).to(old.dtype)
        module.weight = nn.Parameter(torch.cat([old, mean.expand(rows - base_size, -1)]))
    language.get_input_embeddings().num_embeddings = language.get_output_embeddings().out_features = rows
    language.config.vocab_size = rows
    # Embeddings and head have separate weights now.
    language.config.tie_word_embeddings = False


def _join(config: MairaConfig, vision: Encoder, language: Any) -> Any:
    # The large parts exist, so the model is created without memory and only the adapter is initialized.
    with torch.device("meta"):
        model = MairaForConditionalGeneration(config)
    body = model.model
    body.vision_tower, body.language_model, model.lm_head = vision, language.model, language.lm_head
    body.multi_modal_projector = Adapter(config)
    body.multi_modal_projector.apply(model._init_weights)
    return model.eval()
