from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from maira.model.config import RAD_DINO, MairaConfig, context_window
from maira.model.modeling import MairaForConditionalGeneration


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
    assert config.encoder_options() == RAD_DINO | {"stem": "patch"}
    assert not config.tie_word_embeddings
    assert context_window(config.text_config) == 6144


@pytest.mark.parametrize(("merge", "tokens"), [(1, 64), (2, 16), (4, 4)])
def test_patch_merging_reduces_image_tokens(merge: int, tokens: int) -> None:
    vision = {"image_size": 64, "patch_size": 8}
    assert MairaConfig(vision_config=vision, image_merge=merge).image_seq_length == tokens


def test_a_patch_merge_that_does_not_divide_the_grid_is_refused() -> None:
    with pytest.raises(ValueError, match=r"image_merge: .* 37 patches per side, found 3"):
        MairaConfig(image_merge=3)


@pytest.mark.parametrize(
    ("rope", "room"),
    [
        ({"rope_type": "default"}, 100),
        ({"rope_type": "linear", "factor": 1.25}, 125),
        ({"rope_type": "dynamic", "factor": 2.0}, 200),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 50}, 100),
    ],
)
def test_only_position_scaling_extends_the_context_window(rope: dict[str, Any], room: int) -> None:
    config = LlamaConfig(max_position_embeddings=100, rope_parameters={"rope_theta": 10000.0, **rope})
    assert context_window(config) == room
