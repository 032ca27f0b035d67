"""The parts of a model in training: dtypes, gradients and saved weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packed_rows import gradients, make_sample, pack
from safetensors.torch import load_file

from maira.model.config import MairaConfig
from maira.model.modeling import MODULES, modules_of
from maira.runtime.processes import DistributedContext
from maira.train.components import check_context, load_model, set_trainable, write_checkpoint
from maira.train.config.run_config import TrainConfig
from maira.train.data.packing import SAMPLE_LENGTHS
from maira.train.loss import MairaLossModel
from radfact.errors import InputError

MakeRecipe = Callable[..., TrainConfig]


@pytest.mark.parametrize(
    "trained", [["adapter"], ["adapter", "language_model"], ["encoder", "adapter", "language_model"]], ids=len
)
def test_only_trained_parts_receive_gradients(make_recipe: MakeRecipe, config: MairaConfig, trained: list[str]) -> None:
    model, _ = load_model(recipe := make_recipe(trained=trained), [])
    set_trainable(model, recipe)
    model.train()
    assert model.model.vision_tower.training == ("encoder" in trained)
    row = pack([make_sample(config, 2, 5, 6, seed=1)])
    MairaLossModel(model, 0, 0.0)(row).answer.backward()
    named_gradients = gradients(model)
    assert {part for part, names in MODULES.items() for name in named_gradients if name.startswith(names)} == {*trained}
    assert set(named_gradients) == {name for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize(
    ("options", "types"),
    [
        ({"precision": "bf16"}, {"encoder": torch.bfloat16, "adapter": torch.float32, "language_model": torch.float32}),
        (
            {"precision": "bf16", "trained": ["adapter"]},
            {"encoder": torch.bfloat16, "adapter": torch.float32, "language_model": torch.bfloat16},
        ),
        (
            {"precision": "bf16", "weights": "bfloat16", "optimizer": "adamw_8bit"},
            dict.fromkeys(MODULES, torch.bfloat16),
        ),
        ({"trained": ["adapter"]}, dict.fromkeys(MODULES, torch.float32)),
    ],
    ids=["paper", "adapter alone", "bfloat16", "float32"],
)
@pytest.mark.parametrize("empty", [False, True], ids=["read", "empty"])
def test_each_part_has_its_dtype(
    make_recipe: MakeRecipe, options: dict[str, Any], types: dict[str, torch.dtype], empty: bool
) -> None:
    model, _ = load_model(make_recipe(**options), [], empty=empty)
    for part in MODULES:
        dtypes = {parameter.dtype for module in modules_of(model, part) for parameter in module.parameters()}
        assert dtypes == {types[part]}, part


def test_frozen_weights_are_saved_unchanged(make_recipe: MakeRecipe, checkpoint: Path, tmp_path: Path) -> None:
    model, processor = load_model(recipe := make_recipe(precision="bf16", trained=["adapter"]), [])
    set_trainable(model, recipe)
    with torch.no_grad():
        for parameter in model.model.multi_modal_projector.parameters():
            parameter.add_(1)
    write_checkpoint(model, processor, recipe, DistributedContext(0, 1, torch.device("cpu")), tmp_path / "checkpoint")
    before, after = (load_file(folder / "model.safetensors") for folder in (checkpoint, tmp_path / "checkpoint"))
    for name, weight in before.items():
        assert torch.equal(after[name], weight + 1 if name.startswith("multi_modal_projector.") else weight), name


def test_a_sample_that_exceeds_the_context_window_is_named() -> None:
    config = MairaConfig()
    table = np.zeros(3, SAMPLE_LENGTHS)
    table["prompt"], table["answer"] = [100, 6000, 50], 144
    check_context(table, config, str)
    table["answer"][1] += 1
    with pytest.raises(InputError, match=r"6144 tokens.*6145 tokens in sample '1'"):
        check_context(table, config, str)
