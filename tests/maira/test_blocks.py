"""Recomputation of activations and compilation change what training costs, not what it computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from packed_rows import KINDS, gradients, make_sample, pack, trainable
from torch import Tensor, distributed
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from maira.model.config import MairaConfig
from maira.runtime.processes import DistributedContext
from maira.train import parallel
from maira.train.config.run_config import TrainConfig
from maira.train.loss import MairaLossModel
from maira.train.parallel import parallelize, prepare_blocks


def make_recipe(checkpointing: str, compiled: bool = False) -> TrainConfig:
    """With no more than what counts for blocks."""
    values: dict[str, Any] = {
        "model": Path("none"),
        "train": [{"manifest": "none.jsonl"}],
        "out": "none",
        "passes": 128,
        "activation_checkpointing": checkpointing,
        "compile": compiled,
    }
    return TrainConfig.model_validate(values)


class Alive(TorchDispatchMode):
    """Counts the bytes of live tensors that were created while it was active."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, operation: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = operation(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(output):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self.made[StorageWeakRef(storage)] = storage.nbytes()
        return output

    @property
    def count(self) -> int:
        """Bytes."""
        return sum(size for storage, size in self.made.items() if not storage.expired())


def computed(
    config: MairaConfig, train_config: TrainConfig | None, *, training: bool = True
) -> tuple[dict[str, Tensor], int]:
    """Gradients of a step with all parts trained, and the bytes that wait for the backward pass."""
    model = MairaLossModel(trainable(config), KINDS, 0.5).train(training)
    if train_config is not None:
        prepare_blocks(model, train_config)
    row = pack([make_sample(config, n, 20, 9, seed=n) for n in (1, 2)], padding=5)
    with Alive() if train_config is None or not train_config.compile else nullcontext() as alive:
        total = model(row).total(row.totals, 0.5)
    waiting = alive.count if alive is not None else 0
    total.backward()
    return gradients(model), waiting


def test_recomputation_keeps_gradients_and_saves_activations(config: MairaConfig) -> None:
    """Of all parts, the encoder's too; blocks in evaluation mode, as in generation, are unchanged."""
    plain, none = computed(config, None)
    waiting = []
    for kind in ("selective", "full"):
        recomputed, count = computed(config, make_recipe(kind))
        waiting.append(count)
        assert recomputed.keys() == plain.keys()
        for name, gradient in plain.items():
            assert torch.equal(recomputed[name], gradient), name
    assert 0 < 1.2 * waiting[1] < waiting[0] < none / 1.2
    assert computed(config, make_recipe("full"), training=False)[1] == computed(config, None, training=False)[1]


def test_compilation_keeps_gradients(config: MairaConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block as one graph, run as torch's own operations: code for them takes a compiler and a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager", fullgraph=True))
    plain, _ = computed(config, None)
    compiled, _ = computed(config, make_recipe("full", compiled=True))
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
    recipe = make_recipe(checkpointing, compiled=True)
    prepare_blocks(training, recipe)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(optimize_ddp=True):
        model = parallelize(training, recipe, DistributedContext(0, 1, torch.device("cpu"), group))
        # Buckets of DDP smaller than a block, as with 7B parameters.
        monkeypatch.setattr(distributed, "_DEFAULT_FIRST_BUCKET_BYTES", 2000)
        monkeypatch.setattr(model.wrapped, "bucket_bytes_cap", 4000, raising=False)
        for number in range(6):
            samples = [make_sample(config, 1 + i % 2, 10 + 3 * number, 6 + i, seed=i) for i in range(1 + number % 4)]
            row = pack(samples, padding=5 * (number % 3))
            model.backward(model(row).total(row.totals, 0.5))
    assert 1 <= len(graphs) <= 3
