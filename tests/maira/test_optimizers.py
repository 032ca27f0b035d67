"""AdamW: weight decay, schedule and 8-bit states that a run resumes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from maira.runtime.processes import DistributedContext
from maira.train.checkpointing import CheckpointManager
from maira.train.config.run_config import TrainConfig
from maira.train.parallel import make_lr_schedule, make_optimizer


def train_config(**options: Any) -> TrainConfig:
    """With no more than what counts for optimizers."""
    values: dict[str, Any] = {"model": Path("none"), "train": [{"manifest": "none.jsonl"}], "out": "none"}
    return TrainConfig.model_validate(values | {"passes": 128} | options)


def layers() -> nn.Sequential:
    """Matrices large enough for 8-bit states, vectors, and a frozen layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64))
    model[2].requires_grad_(False)
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """One step towards nothing; returns the loss before it."""
    loss = model(torch.linspace(-1, 1, 64 * 8).view(8, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def test_weight_decay_applies_to_matrices_only() -> None:
    """Frozen parameters are excluded."""
    model = layers()
    optimizer = make_optimizer(model, train_config(weight_decay=0.1))
    decay = {p: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decay == {model[0].weight: 0.1, model[0].bias: 0.0, model[1].weight: 0.0, model[1].bias: 0.0}


@given(st.integers(1, 5000), st.floats(0, 1))
@settings(deadline=None)
def test_the_learning_rate_warms_up_and_decays_as_a_cosine(steps: int, warmup: float) -> None:
    """It is never 0 in the run, its peak is the recipe's, and from there it only falls."""
    factor = make_lr_schedule(train_config(warmup=warmup), steps)
    rates = [factor(s) for s in range(steps)]
    peak = max(1, round(warmup * steps)) - 1
    assert rates[peak] == 1
    assert all(0 < rate <= 1 for rate in rates)
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU nothing is compiled, which would take most of a minute."""
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", None)


@pytest.mark.usefixtures("no_compiler")
def test_eight_bit_states_are_saved_and_resumed(tmp_path: Path) -> None:
    """The losses after it are those of a run that was not interrupted."""
    optim = pytest.importorskip("torchao.optim")
    eight_bit = train_config(optimizer="adamw_8bit", learning_rate=0.01)
    model = layers()
    optimizer = make_optimizer(model, eight_bit)
    for _ in range(2):
        step(model, optimizer)
    states = CheckpointManager(tmp_path, 1, DistributedContext(0, 1, torch.device("cpu")), print, only_trained=False)
    states.save(2, model, optimizer, {})
    assert states.finish()
    after = [step(model, optimizer) for _ in range(3)]

    resumed = layers()
    again = make_optimizer(resumed, eight_bit)
    states.load(states.find()[0], resumed, again)
    states.close()
    assert isinstance(again.state[resumed[0].weight]["exp_avg"], optim.subclass_8bit.OptimState8bit)
    assert [step(resumed, again) for _ in range(3)] == after


@pytest.mark.usefixtures("no_compiler")
def test_bfloat16_weights_accumulate_updates_below_their_precision() -> None:
    """On average: rounded stochastically, steps of a thousandth of a weight are not lost."""
    pytest.importorskip("torchao.optim")
    model = nn.Linear(256, 64, bias=False).to(torch.bfloat16)
    nn.init.ones_(model.weight)
    optimizer = make_optimizer(model, train_config(optimizer="adamw_8bit", weights="bfloat16", learning_rate=1e-3))
    torch.manual_seed(0)
    for _ in range(4):
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
    assert model.weight.float().mean().item() == pytest.approx(1 - 4e-3, abs=5e-4)
