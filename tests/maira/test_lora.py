"""Low-rank adapters: what is trained, and that merging them gives the model that was trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from packed_rows import make_sample, pack
from peft import PeftModel
from safetensors.torch import load_file

from maira.config import MairaConfig
from maira.model import MairaForConditionalGeneration
from maira.processor import MairaProcessor
from maira.train.export import write_checkpoint
from maira.train.objective import TrainingModel
from maira.train.optimizers import make_optimizer
from maira.train.parallel import World
from maira.train.parts import choose_trained, load_parts
from maira.train.recipe import Recipe
from radfact.errors import InputError

MakeRecipe = Callable[..., Recipe]
HERE = World(0, 1, torch.device("cpu"))


@pytest.fixture
def make_recipe(checkpoint: Path, tmp_path: Path) -> MakeRecipe:
    """Recipes with low-rank adapters over the shared checkpoint."""

    def make(**options: Any) -> Recipe:
        values: dict[str, Any] = {
            "model": checkpoint,
            "train": [{"manifest": "none.jsonl"}],
            "out": tmp_path / "run",
            "passes": 128,
            "precision": "no",
            "learning_rate": 0.05,
            "lora": {"rank": 4, "alpha": 8, "targets": ["q_proj", "down_proj"]},
        }
        return Recipe.model_validate(values | options)

    return make


def trained(recipe: Recipe, config: MairaConfig) -> tuple[MairaForConditionalGeneration, MairaProcessor, float]:
    """A model after three steps, its processor, and its loss of what it was trained on.

    The loss is taken in training mode: bitsandbytes' kernel for inference on CPUs wants layers of 64 and more.
    """
    model, processor = load_parts(recipe, [])
    torch.manual_seed(0)
    choose_trained(model, recipe)
    training = TrainingModel(model, 0, 0.0).to("cpu")
    optimizer = make_optimizer(training, recipe)
    row = pack([make_sample(config, 1, 5, 8, seed=i) for i in range(2)])
    for _ in range(3):
        training(row).total(row.totals, 0).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        return model, processor, training(row).total(row.totals, 0).item()


def loss_of(model: MairaForConditionalGeneration, config: MairaConfig) -> float:
    """Of the same samples."""
    row = pack([make_sample(config, 1, 5, 8, seed=i) for i in range(2)])
    with torch.no_grad():
        return TrainingModel(model.eval(), 0, 0.0)(row).total(row.totals, 0).item()


def test_only_adapters_of_the_targets_are_trained(make_recipe: MakeRecipe) -> None:
    """In the language model; the adapter between encoder and language model is trained whole."""
    model, _ = load_parts(recipe := make_recipe(), [])
    choose_trained(model, recipe)
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    language = {name for name in names if name.startswith("language_model.")}
    assert {name.split(".")[-4] for name in language} == {"q_proj", "down_proj"}
    assert len(language) == 2 * 2 * 2
    assert all(".lora_" in name for name in language)
    assert {name.split(".")[0] for name in names - language} == {"multi_modal_projector"}


def test_the_checkpoint_is_the_model_that_was_trained(
    make_recipe: MakeRecipe, config: MairaConfig, checkpoint: Path, tmp_path: Path
) -> None:
    """Merged: a whole checkpoint with the loss of the model in training, which is not that of the start."""
    model, processor, loss = trained(recipe := make_recipe(), config)
    write_checkpoint(model, processor, recipe, HERE, tmp_path / "checkpoint")
    merged = MairaForConditionalGeneration.from_pretrained(tmp_path / "checkpoint")
    start = MairaForConditionalGeneration.from_pretrained(checkpoint)
    assert loss_of(merged, config) == pytest.approx(loss, rel=1e-4)
    assert loss_of(start, config) != pytest.approx(loss, rel=0.05)


def test_the_adapters_alone_are_read_by_peft(
    make_recipe: MakeRecipe, config: MairaConfig, checkpoint: Path, tmp_path: Path
) -> None:
    """Over the language model of the start they give that of the checkpoint."""
    model, processor, _ = trained(recipe := make_recipe(), config)
    write_checkpoint(model, processor, recipe, HERE, tmp_path / "checkpoint")
    start = MairaForConditionalGeneration.from_pretrained(checkpoint)
    merged = MairaForConditionalGeneration.from_pretrained(tmp_path / "checkpoint")
    adapted = PeftModel.from_pretrained(start.language_model, tmp_path / "checkpoint" / "lora").merge_and_unload()
    for name, weight in merged.language_model.state_dict().items():
        torch.testing.assert_close(adapted.state_dict()[name], weight, atol=1e-5, rtol=1e-5)
    settings = json.loads((tmp_path / "checkpoint" / "lora" / "adapter_config.json").read_text(encoding="utf-8"))
    assert (settings["r"], settings["lora_alpha"]) == (4, 8)


def test_weights_in_4_bits_train_adapters_that_are_merged_into_whole_ones(
    make_recipe: MakeRecipe, config: MairaConfig, checkpoint: Path, tmp_path: Path
) -> None:
    """What is written are the unquantised weights of the start with the adapters' products."""
    pytest.importorskip("bitsandbytes")
    lora = {"rank": 4, "alpha": 8, "quantize": "nf4", "targets": ["q_proj"]}
    model, processor, loss = trained(recipe := make_recipe(lora=lora), config)
    assert model.language_model.model.layers[0].mlp.up_proj.weight.dtype == torch.uint8
    write_checkpoint(model, processor, recipe, HERE, tmp_path / "checkpoint")
    before, after = (load_file(folder / "model.safetensors") for folder in (checkpoint, tmp_path / "checkpoint"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    whole = {name for name in changed if name.startswith("multi_modal_projector.")}
    assert {name.split(".", 4)[4] for name in changed - whole} == {"self_attn.q_proj.weight"}
    merged = MairaForConditionalGeneration.from_pretrained(tmp_path / "checkpoint")
    # Rounding to 4 bits is all the difference.
    assert loss_of(merged, config) == pytest.approx(loss, rel=0.2)


def test_a_target_that_is_no_layer_is_an_error(make_recipe: MakeRecipe) -> None:
    """It names those that are."""
    model, _ = load_parts(recipe := make_recipe(lora={"targets": ["query"]}), [])
    with pytest.raises(InputError, match=r"no layer 'query'; there are down_proj, "):
        choose_trained(model, recipe)
