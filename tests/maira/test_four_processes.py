"""FSDP2 in four processes over gloo: gradients, collectives, states and a fault, in one start."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
import torch
from packed_rows import KINDS, make_sample, pack, trainable
from ports import free_port
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from maira.model.config import MairaConfig
from maira.runtime.processes import DistributedContext, exit_process
from maira.train.checkpointing import CheckpointManager
from maira.train.config.run_config import TrainConfig
from maira.train.data.packing import PackedBatch, StepTotals
from maira.train.loss import MairaLossModel
from maira.train.optimizers import make_optimizer
from maira.train.parallel import ParallelModel, init_distributed, parallelize
from radfact.errors import RunError

pytestmark = pytest.mark.slow  # starts processes
SIZE = 4
FAULTY = 2
PRECISIONS = ("bf16", "no")
Four = tuple[Path, list[int | None]]


class Run:
    """A tiny model in training: tied embeddings, a frozen encoder, two rows per process and step."""

    def __init__(self, config: MairaConfig, precision: str, context: DistributedContext) -> None:
        values: dict[str, Any] = {"model": Path("m"), "train": "t.jsonl", "out": "o", "passes": 1000}
        values |= {"precision": precision, "parallel": "fsdp", "weight_decay": 0.1, "learning_rate": 1e-3}
        recipe = TrainConfig.model_validate(values)
        model = trainable(config, frozen=True, tie_word_embeddings=True)
        model.model.vision_tower.requires_grad_(False)
        self.config, self.context = config, context
        self.model: ParallelModel = parallelize(MairaLossModel(model, KINDS, 0.0).train(), recipe, context)
        self.optimizer = make_optimizer(self.model.training, recipe)

    def rows(self, step: int) -> list[PackedBatch]:
        """The rows of this process, of one process all; the last row of the last process holds no sample."""
        seeds = range(100 * step, 100 * step + 2 * SIZE)
        samples = [make_sample(self.config, 1 + seed % 2, 10 + seed % 7, 5 + seed % 3, seed) for seed in seeds]
        totals = StepTotals(sum(len(s.ids) - s.prompt for s in samples[:-1]), len(samples) - 1)
        rows = [pack([sample], padding=seed % 5, totals=totals) for seed, sample in enumerate(samples)]
        rows[-1] = without_answers(rows[-1])
        return rows[self.context.rank :: self.context.size]

    def gradient(self, step: int) -> tuple[float, float]:
        """Compute the gradient of a step; returns loss and norm."""
        total, rows = torch.zeros(()), self.rows(step)
        for number, row in enumerate(rows, start=1):
            with self.model.accumulate(is_last=number == len(rows)):
                loss = self.model(row).total(row.totals, 0.0)
                self.model.backward(loss)
            total += loss.detach()
        return float(self.context.sum(total)), float(self.model.gradient_norm())

    def update(self, norm: float) -> None:
        """Clip the gradient and take a step."""
        self.model.clip(torch.tensor(norm), norm / 2)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def whole(self, *, gradients: bool = False) -> dict[str, Tensor]:
        """Trained weights or their gradients by name, unsharded."""
        parameters = self.model.training.named_parameters()
        return {name: full(p.grad if gradients else p) for name, p in parameters if p.requires_grad}


def full(tensor: Any) -> Tensor:
    whole: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach().clone()


def without_answers(row: PackedBatch) -> PackedBatch:
    """A row whose samples could not be read, as `collate_row` makes it."""
    none = {name: getattr(row, name)[:0] for name in ("answers", "targets", "answer_samples", "frontal_rows")}
    return replace(row, **none, coverage=None, sample_ids=(), tasks=())


class Collectives(TorchDispatchMode):
    """Records the collectives of this thread with the sizes of their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, operation: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation.namespace in ("c10d", "_c10d_functional"):
            sizes = [leaf.numel() for leaf in torch.utils._pytree.tree_leaves(args) if isinstance(leaf, Tensor)]
            self.calls.append(f"{operation} {sizes}")
        return operation(*args, **(kwargs or {}))


def work(rank: int, port: int, config: MairaConfig, out: Path) -> None:
    """One of the processes."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": SIZE, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in names.items()}
    sys.stdout = sys.stderr = (out / f"said-{rank}").open("w", buffering=1)
    torch.set_num_threads(1)
    context, results = init_distributed(), dict[str, Any]()
    for precision in PRECISIONS:
        run = Run(config, precision, context)
        manager = CheckpointManager(out, 1, context, print, only_trained=False)
        assert manager._group not in (None, context.group, torch.distributed.group.WORLD)
        slow_down(manager, 0.1 * rank)
        with Collectives() as collectives:
            loss, norm = run.gradient(0)
        results[precision] = {"loss": loss, "norm": norm, "gradients": run.whole(gradients=True)}
        run.update(norm)
        manager.save(1, run.model.training, run.optimizer, {})
        assert manager._pending is not None
        is_overlapping = not manager._pending[1].done()
        with collectives:
            # While the state is written, by some processes later than by others.
            _, norm = run.gradient(1)
        run.update(norm)
        assert manager.finish()
        manager.close()
        results[precision] |= {
            "weights": run.whole(),
            "calls": collectives.calls,
            "is_overlapping": is_overlapping,
            "states": len(run.optimizer.state),
        }
    torch.save(results, out / f"{rank}.pt")
    context.wait()
    try:
        with context.collective_section():
            if rank == FAULTY:
                raise ValueError("a fault of one process")
            run.gradient(2)
    except RunError:
        exit_process(1)


def slow_down(manager: CheckpointManager, seconds: float) -> None:
    write = manager._write

    def later(*args: Any) -> None:
        time.sleep(seconds)
        write(*args)

    manager._write = later  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def four(config: MairaConfig, tmp_path_factory: pytest.TempPathFactory) -> Four:
    """The folder of the four processes, and their exit codes."""
    out = tmp_path_factory.mktemp("four")
    port = free_port()
    processes = [tiny_runs.servers.Process(target=work, args=(rank, port, config, out)) for rank in range(SIZE)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return out, codes


def said(out: Path) -> str:
    return "\n".join((out / f"said-{rank}").read_text("utf-8") for rank in range(SIZE))


def results(out: Path) -> list[dict[str, Any]]:
    missing = [rank for rank in range(SIZE) if not (out / f"{rank}.pt").exists()]
    assert not missing, said(out)
    return [torch.load(out / f"{rank}.pt") for rank in range(SIZE)]


@pytest.fixture(scope="module")
def alone(config: MairaConfig) -> dict[str, dict[str, Any]]:
    """Loss, norm and gradients of the first step in one process, and the weights after two."""
    made = {}
    for precision in PRECISIONS:
        run = Run(config, precision, DistributedContext(0, 1, torch.device("cpu")))
        loss, norm = run.gradient(0)
        made[precision] = {"loss": loss, "norm": norm, "gradients": run.whole(gradients=True)}
        run.update(norm)
        run.update(run.gradient(1)[1])
        made[precision]["weights"] = run.whole()
    return made


@pytest.mark.parametrize(("precision", "tolerance"), [("no", 1e-5), ("bf16", 0.03)])
def test_sharded_gradients_and_norm_are_those_of_one_process(
    precision: str, tolerance: float, four: Four, alone: dict[str, dict[str, Any]]
) -> None:
    expected = alone[precision]
    for result in (result[precision] for result in results(four[0])):
        assert result["loss"] == pytest.approx(expected["loss"], rel=tolerance)
        assert result["norm"] == pytest.approx(expected["norm"], rel=tolerance)
        assert result["gradients"].keys() == expected["gradients"].keys()
        for name, gradient in expected["gradients"].items():
            distance = float((result["gradients"][name] - gradient).norm())
            assert distance <= tolerance * float(gradient.norm()), name


def test_processes_call_the_same_collectives_in_the_same_order(four: Four) -> None:
    for precision in PRECISIONS:
        first, *others = [result[precision]["calls"] for result in results(four[0])]
        assert any("allgather" in call for call in first)
        assert any("reduce_scatter" in call for call in first)
        assert all(calls == first for calls in others)


def test_a_step_overlaps_with_the_writing_of_a_state(four: Four) -> None:
    assert all(result[precision]["is_overlapping"] for precision in PRECISIONS for result in results(four[0])[1:])


def test_clipped_steps_of_tied_and_frozen_weights_are_those_of_one_process(
    four: Four, alone: dict[str, dict[str, Any]]
) -> None:
    expected = alone["no"]["weights"]
    assert not [name for name in expected if "lm_head" in name or "vision_tower" in name]
    for result in (result["no"] for result in results(four[0])):
        # The head is the embeddings: one state for both, none for the encoder.
        assert result["states"] == len(expected)
        for name, weight in expected.items():
            torch.testing.assert_close(result["weights"][name], weight, rtol=0, atol=2e-5, msg=name)


def test_one_process_resumes_from_the_state_of_four(
    four: Four, config: MairaConfig, alone: dict[str, dict[str, Any]]
) -> None:
    results(four[0])
    context = DistributedContext(0, 1, torch.device("cpu"))
    run = Run(config, PRECISIONS[-1], context)
    manager = CheckpointManager(four[0], 1, context, print, only_trained=False)
    manager.load(manager.find()[0], run.model.training, run.optimizer)
    manager.close()
    run.update(run.gradient(1)[1])
    for name, weight in alone[PRECISIONS[-1]]["weights"].items():
        torch.testing.assert_close(run.whole()[name], weight, rtol=0, atol=2e-5, msg=name)


def test_a_fault_of_one_process_ends_all(four: Four) -> None:
    out, codes = four
    results(out)
    assert codes == [1] * SIZE, said(out)
    assert "a fault of one process" in (out / f"said-{FAULTY}").read_text("utf-8")
    others = [rank for rank in range(1, SIZE) if rank != FAULTY]
    # Of the first process, the command prints the error.
    assert all("another process of the run has died" in (out / f"said-{rank}").read_text("utf-8") for rank in others)
