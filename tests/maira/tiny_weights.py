"""Random weights of small models."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import LlamaForCausalLM

from maira.encoders import Encoder
from maira.model.modeling import Adapter


def draw_weights(model: Any, seed: int) -> None:
    """Draw the weights of a model part by part: those that the expectations of the tests were written for."""
    torch.manual_seed(seed)
    encoder, adapter = Encoder(**model.config.encoder_options()), Adapter(model.config)
    llama = LlamaForCausalLM(copy.deepcopy(model.config.text_config))
    for part in (encoder, adapter):
        part.apply(model._init_weights)
    model.model.vision_tower.load_state_dict(encoder.state_dict())
    model.model.multi_modal_projector.load_state_dict(adapter.state_dict())
    model.model.language_model.load_state_dict(llama.model.state_dict())
    model.lm_head.load_state_dict(llama.lm_head.state_dict())
