import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import CASES
from torch import Tensor

from maira.data.images import Gray
from maira.model.config import MairaConfig
from maira.model.modeling import Adapter, MairaForConditionalGeneration
from maira.model.processor import MairaProcessor

PROMPTS = ("one <image> The lungs", "two <image> and <image> are", "three <image><image> No <image> Heart size")


@pytest.fixture(scope="module")
def alone(processor: MairaProcessor, radiographs: list[Gray]) -> list[dict[str, Tensor]]:
    shown = (radiographs[:1], radiographs[1:], radiographs)
    return [dict(processor([images], [prompt])) for prompt, images in zip(PROMPTS, shown, strict=True)]


def test_the_placeholder_is_never_generated(model: MairaForConditionalGeneration, alone: Any) -> None:
    """A generated placeholder would require an image in the next step."""
    eager = copy.deepcopy(model)
    with torch.no_grad():
        # Whatever the hidden state, the placeholder's logit or its opposite's is the largest.
        eager.lm_head.weight[model.config.image_token_index] *= 100
        eager.lm_head.weight[5] = -eager.lm_head.weight[model.config.image_token_index]
    for single in alone:
        written = eager.generate(**single, max_new_tokens=12, do_sample=False, eos_token_id=None)[0, -12:]
        assert model.config.image_token_index not in written.tolist()


@pytest.mark.parametrize(("text", "images", "message"), CASES["placeholders"])
def test_placeholders_and_images_that_differ_are_an_error_with_both_numbers(
    model: MairaForConditionalGeneration, processor: MairaProcessor, alone: Any, text: str, images: int, message: str
) -> None:
    ids = torch.tensor([processor.encode_prompt(text, text.count("<image>"))])
    with pytest.raises(ValueError, match=message):
        model(input_ids=ids, pixel_values=alone[2]["pixel_values"][:images] if images else None)


def test_a_model_with_tied_embeddings_is_saved_with_its_head(config: MairaConfig, tmp_path: Path) -> None:
    tied = config.text_config.to_dict() | {"tie_word_embeddings": True}
    fresh = MairaForConditionalGeneration(MairaConfig(**config.to_dict() | {"text_config": tied}))
    fresh.save_pretrained(tmp_path)
    loaded = MairaForConditionalGeneration.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.get_input_embeddings().weight
    assert torch.equal(loaded.lm_head.weight, fresh.lm_head.weight)


def test_gradients_reach_the_adapter_and_the_language_model_but_no_frozen_encoder(
    config: MairaConfig, processor: MairaProcessor, radiographs: list[Gray]
) -> None:
    batch = dict(processor([radiographs[:1], radiographs[1:], radiographs], PROMPTS))
    torch.manual_seed(1)
    fresh = MairaForConditionalGeneration(copy.deepcopy(config)).train()
    fresh(**batch, labels=batch["input_ids"]).loss.backward()
    without = {name for name, p in fresh.named_parameters() if p.grad is None}
    assert without == {name for name, _ in fresh.named_parameters() if name.startswith("model.vision_tower.")}


def test_every_parameter_of_a_new_model_is_initialized(config: MairaConfig) -> None:
    torch.manual_seed(1)
    for name, parameter in MairaForConditionalGeneration(copy.deepcopy(config)).named_parameters():
        assert parameter.isfinite().all(), name
        assert parameter.abs().max() <= 2, name


def test_merged_patches_are_neighbors(config: MairaConfig) -> None:
    changes = {"image_seq_length": 0, "image_merge": 2, "projector_n_layers": 1}
    # Copies: a config takes its parts over, and with them how the model that they belong to attends.
    built = Adapter(MairaConfig(**copy.deepcopy(config).to_dict() | changes))
    # The first outputs of the one layer copy the first feature of each patch of a square.
    torch.nn.init.zeros_(built.layers[0].weight)
    torch.nn.init.zeros_(built.layers[0].bias)
    with torch.no_grad():
        for i in range(4):
            built.layers[0].weight[i, i * 16] = 1
    patches = torch.zeros(1, 16, 16)
    patches[0, :, 0] = torch.arange(16)
    merged = built(patches)[0, :, :4]
    assert merged.tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
