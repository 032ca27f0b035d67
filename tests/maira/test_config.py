from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from maira.model.config import RAD_DINO, MairaConfig
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


def test_configs_do_not_share_mutable_parts() -> None:
    first, second = MairaConfig(), MairaConfig()
    first.text_config.vocab_size = 1
    first.vision_config.image_size = 14
    assert (second.text_config.vocab_size, second.vision_config.image_size) == (32207, 518)


@pytest.mark.parametrize(("merge", "tokens"), [(1, 64), (2, 16), (4, 4)])
def test_patch_merging_reduces_image_tokens(merge: int, tokens: int) -> None:
    vision = {"image_size": 64, "patch_size": 8}
    assert MairaConfig(vision_config=vision, image_merge=merge).image_seq_length == tokens


def test_a_patch_merge_that_does_not_divide_the_grid_is_refused() -> None:
    with pytest.raises(ValueError, match=r"image_merge: .* 37 patches per side, found 3"):
        MairaConfig(image_merge=3)


def test_save_and_load_round_trip(config: MairaConfig, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(loaded, MairaConfig)
    assert loaded.text_config.to_dict() == config.text_config.to_dict()
    assert loaded.vision_config.to_dict() == config.vision_config.to_dict()
    assert loaded.image_token_index == config.image_token_index
    assert loaded.projector_n_layers == config.projector_n_layers
