"""Blocks, whose recomputation and compilation do not change what is computed, and AdamW with its 8-bit states."""

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_rows import KINDS, gradients, make_sample, pack, trainable
from tiny_runs import minimal_config
from torch import Tensor, distributed, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from maira.model.config import MairaConfig
from maira.runtime.processes import DistributedContext
from maira.train import parallel
from maira.train.checkpointing import CheckpointManager
from maira.train.config.run_config import TrainConfig
from maira.train.loss import MairaLossModel
from maira.train.parallel import make_lr_schedule, make_optimizer, parallelize, prepare_blocks

Gradients = dict[str, Tensor]


class Alive(TorchDispatchMode):
    """Notes the bytes of tensors that are created while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.created: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, operation: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = operation(*args, **(kwargs or {}))
        storages = [leaf.untyped_storage() for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
        self.created |= {StorageWeakRef(storage): storage.nbytes() for storage in storages}
        return output


def computed(config: MairaConfig, train_config: TrainConfig | None, training: bool = True) -> tuple[Gradients, int]:
    """Gradients of a step with all parts trained, and the bytes that wait for the backward pass."""
    model = MairaLossModel(trainable(config), KINDS, 0.5).train(training)
    if train_config is not None:
        prepare_blocks(model, train_config)
    row = pack([make_sample(config, n, 20, 9, seed=n) for n in (1, 2)], padding=5)
    alive = Alive()
    with alive if train_config is None or not train_config.compile else nullcontext():
        total = model(row).total(row.totals, 0.5)
    waiting = sum(size for storage, size in alive.created.items() if not storage.expired())
    total.backward()
    return gradients(model), waiting


def test_recomputation_keeps_gradients_and_saves_activations(config: MairaConfig) -> None:
    plain, waiting_without = computed(config, None)
    waiting = []
    for kind in ("selective", "full"):
        recomputed, count = computed(config, train_config := minimal_config(activation_checkpointing=kind))
        waiting.append(count)
        assert recomputed.keys() == plain.keys()
        for name, gradient in plain.items():
            assert torch.equal(recomputed[name], gradient), name
    assert 0 < 1.2 * waiting[1] < waiting[0] < waiting_without / 1.2
    # In evaluation mode, as in generation, blocks are unchanged.
    assert computed(config, None, training=False)[1] == computed(config, train_config, training=False)[1]


def test_compilation_keeps_gradients(config: MairaConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block as one graph, run as torch's own operations: code for them takes a compiler and a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager", fullgraph=True))
    plain, _ = computed(config, None)
    compiled, _ = computed(config, minimal_config(activation_checkpointing="full", compile=True))
    assert compiled.keys() == plain.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(compiled[name], gradient, atol=1e-5, rtol=1e-5, msg=name)


@pytest.fixture
def group() -> Iterator[Any]:
    """A process group of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield distributed.group.WORLD
    finally:
        distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "checkpointing"), [("ddp", "full"), ("fsdp", "selective")])
def test_distributed_blocks_compile_to_one_graph_each(
    kind: str, checkpointing: str, config: MairaConfig, group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which all blocks share, and which is compiled again only until the sizes that change are known to change."""
    graphs: list[torch.fx.GraphModule] = []

    def record(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=record, fullgraph=True))
    monkeypatch.setattr(parallel, "sharding", lambda *_: kind)
    training = MairaLossModel(trainable(config, num_hidden_layers=3), KINDS, 0.5).train()
    training.model.model.vision_tower.vit.mask_token.requires_grad_(False)
    train_config = minimal_config(activation_checkpointing=checkpointing, compile=True)
    prepare_blocks(training, train_config)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(optimize_ddp=True):
        model = parallelize(training, train_config, DistributedContext(0, 1, torch.device("cpu"), group))
        # Buckets of DDP smaller than a block, as with 7B parameters.
        monkeypatch.setattr(distributed, "_DEFAULT_FIRST_BUCKET_BYTES", 2000)
        monkeypatch.setattr(model.wrapped, "bucket_bytes_cap", 4000, raising=False)
        for number in range(6):
            samples = [make_sample(config, 1 + i % 2, 10 + 3 * number, 6 + i, seed=i) for i in range(1 + number % 4)]
            row = pack(samples, padding=5 * (number % 3))
            model.backward(model(row).total(row.totals, 0.5))
    assert 1 <= len(graphs) <= 3


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
    model = layers()
    optimizer = make_optimizer(model, minimal_config(weight_decay=0.1))
    decay = {p: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decay == {model[0].weight: 0.1, model[0].bias: 0.0, model[1].weight: 0.0, model[1].bias: 0.0}


@given(st.integers(1, 5000), st.floats(0, 1))
@settings(deadline=None)
def test_the_learning_rate_warms_up_and_decays_as_a_cosine(steps: int, warmup: float) -> None:
    factor = make_lr_schedule(minimal_config(warmup=warmup), steps)
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
    optim = pytest.importorskip("torchao.optim")
    eight_bit = minimal_config(optimizer="adamw_8bit", learning_rate=0.01)
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
    optimizer = make_optimizer(model, minimal_config(optimizer="adamw_8bit", weights="bfloat16", learning_rate=1e-3))
    torch.manual_seed(0)
    for _ in range(4):
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
    assert model.weight.float().mean().item() == pytest.approx(1 - 4e-3, abs=5e-4)
