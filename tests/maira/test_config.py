"""Defaults and tokens of the release."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import CASES
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, PreTrainedTokenizerFast

from maira.model.config import MairaConfig, context_window
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.tokens import IMAGE, SPARE_IMAGE_TOKENS, add_tokens
from maira.train.components import train_tokenizer
from maira.train.config.run_config import VisionOptions


def test_the_default_model_has_the_parameter_count_of_the_release() -> None:
    with torch.device("meta"):
        model = MairaForConditionalGeneration(MairaConfig())
    # "6.880 B parameters" (specification); by hand: 6,740,111,360 in the language model with 32,207 tokens,
    # 86,580,480 in the encoder, 53,493,760 in the adapter.
    assert sum(parameter.numel() for parameter in model.parameters()) == 6_880_185_600


def test_the_defaults_are_those_of_the_release() -> None:
    config = MairaConfig()
    assert config.image_seq_length == 1369
    assert config.text_config.vocab_size == 32207
    assert config.image_token_index == 32204
    assert config.text_config.rope_parameters == {"rope_type": "linear", "rope_theta": 10000.0, "factor": 1.5}
    assert config.encoder_options() == VisionOptions().model_dump()
    assert not config.tie_word_embeddings
    assert context_window(config.text_config) == 6144


@pytest.mark.parametrize(("merge", "tokens"), [(1, 64), (2, 16), (4, 4)])
def test_patch_merging_reduces_image_tokens(merge: int, tokens: int) -> None:
    vision = {"image_size": 64, "patch_size": 8}
    assert MairaConfig(vision_config=vision, image_merge=merge).image_seq_length == tokens


def test_a_patch_merge_that_does_not_divide_the_grid_is_refused() -> None:
    with pytest.raises(ValueError, match=r"image_merge: .* 37 patches per side, found 3"):
        MairaConfig(image_merge=3)


@pytest.mark.parametrize(("rope", "room"), CASES["context windows"])
def test_only_position_scaling_extends_the_context_window(rope: dict[str, Any], room: int) -> None:
    config = LlamaConfig(max_position_embeddings=100, rope_parameters={"rope_theta": 10000.0, **rope})
    assert context_window(config) == room


def test_ids_are_those_of_the_release() -> None:
    words = {f"w{i}": i for i in range(32000)}
    llama_sized = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")))
    assert add_tokens(llama_sized) == 207
    # The ids of the release for the 32,000 tokens of Llama (specification, "Architecture").
    tokens = ["<obj>", "</obj>", "<x0>", "<x99>", "<y0>", "<y99>", "<box>", "</box>", "<image>", *SPARE_IMAGE_TOKENS]
    ids = [32000, 32001, 32002, 32101, 32102, 32201, 32202, 32203, 32204, 32205, 32206]
    assert llama_sized.convert_tokens_to_ids(tokens) == ids
    assert len(llama_sized) == 32207


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(["The lungs are clear. A nodule."], 300)


def test_only_image_tokens_are_special(tokenizer: PreTrainedTokenizerFast) -> None:
    added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    special = set(tokenizer.all_special_tokens) | added
    assert special == {"<unk>", "<s>", "</s>", IMAGE, *SPARE_IMAGE_TOKENS}


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_encode_and_decode_round_trip(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
