"""Small models with random weights."""

import copy
from typing import Any
from unittest.mock import patch

import torch
from transformers import LlamaForCausalLM

from maira.encoders import Encoder
from maira.model.config import MairaConfig
from maira.model.image_processor import MairaImageProcessor
from maira.model.modeling import Adapter, MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.model.tokens import IMAGE
from maira.train.components import train_tokenizer

TEXTS = ["The lungs are clear.", "There is a small left pleural effusion.", "No pneumothorax. Heart size is normal."]
VISION = {"image_size": 32, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


def make_processor() -> MairaProcessor:
    """Images of 32 x 32 pixels, 16 tokens each; a tokenizer trained on a few sentences."""
    return MairaProcessor(MairaImageProcessor(size=32), train_tokenizer(TEXTS, 300), image_seq_length=16)


def make_config(processor: MairaProcessor, **text: Any) -> MairaConfig:
    """Two blocks of the encoder and two of the language model, for the processor's tokens."""
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": len(processor.tokenizer)}
    return MairaConfig(
        vision_config=VISION,
        text_config=TEXT | ids | {"max_position_embeddings": 512} | text,
        image_token_index=processor.tokenizer.convert_tokens_to_ids(IMAGE),
        projector_n_layers=2,
    )


def make_model(config: MairaConfig, seed: int) -> Any:
    """Random weights, ten times as large as initial ones, so that every attended token affects the logits."""
    model: Any = MairaForConditionalGeneration(config).eval()
    torch.manual_seed(seed)
    # Before torch 2.15 this draws other numbers.
    with patch("torch.nn.init.trunc_normal_", torch.nn.init.normal_):
        encoder, adapter = Encoder(**config.encoder_options()), Adapter(config)
        llama = LlamaForCausalLM(copy.deepcopy(config.text_config))
        for part in (encoder, adapter):
            part.apply(model._init_weights)
    model.model.vision_tower.load_state_dict(encoder.state_dict())
    model.model.multi_modal_projector.load_state_dict(adapter.state_dict())
    model.model.language_model.load_state_dict(llama.model.state_dict())
    model.lm_head.load_state_dict(llama.lm_head.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(10)
    return model
