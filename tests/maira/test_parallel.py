"""Two processes over gloo: whole runs, and gradients, collectives and states of FSDP2."""

import os
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
import torch
from packed_rows import KINDS, make_sample, pack, trainable
from ports import free_port
from test_train import Interrupted, interrupt_at
from tiny_runs import CASES, Command, metrics, minimal_config, quiet, train_config, values, write_damaged
from torch import Tensor
from torch.distributed.tensor import DTensor
from waiting import PATIENCE

from maira.model.config import MairaConfig
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.tokens import added_ids
from maira.runtime.processes import DistributedContext
from maira.train.checkpointing import CheckpointManager
from maira.train.data.packing import PackedBatch, StepTotals
from maira.train.loss import MairaLossModel
from maira.train.parallel import ParallelModel, init_distributed, make_optimizer, parallelize
from maira.train.report_training import train

pytestmark = pytest.mark.slow  # starts processes
STEPS = 16


def same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Lines of two logs agree to rounding."""
    assert [row["step"] for row in ours] == [row["step"] for row in theirs]
    for one, other in zip(ours, theirs, strict=True):
        for name in ("loss", "answer", "patches"):
            assert one[name] == pytest.approx(other[name], rel=0, abs=1e-5), (one["step"], name)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3), one["step"]


@pytest.fixture(scope="module")
def alone(phantoms: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone") / "run"
    train(train_config(phantoms, out, passes=STEPS * 4), quiet())
    return out


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def two_processes(request: pytest.FixtureRequest, phantoms: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run by two processes, both ways."""
    folder = tmp_path_factory.mktemp(request.param)
    command = Command(folder, 2, **values(phantoms, folder / "run", passes=STEPS * 4, parallel=request.param))
    assert command.end() == [0, 0], command.said
    assert "FutureWarning" not in command.said
    return folder / "run"


def test_two_processes_have_losses_and_checkpoint_of_one_process(alone: Path, two_processes: Path) -> None:
    same(metrics(two_processes), metrics(alone))
    ours, theirs = (
        MairaForConditionalGeneration.from_pretrained(out / "checkpoint").model.language_model.state_dict()
        for out in (two_processes, alone)
    )
    # On the mean: where a gradient is all rounding, Adam makes steps of it.
    assert max(float((ours[name] - weight).abs().mean()) for name, weight in theirs.items()) < 1e-5


def test_a_run_resumes_with_another_number_of_processes(
    phantoms: Path, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    changes: dict[str, Any] = {"passes": STEPS * 4, "parallel": "fsdp", "save_every": 4}
    interrupt_at(monkeypatch, 6)
    with pytest.raises(Interrupted):
        train(train_config(phantoms, out, **changes), quiet())
    monkeypatch.undo()
    command = Command(tmp_path / "said", 2, **values(phantoms, out, **changes))
    command.when(lambda: (out / "states" / "step-000008").exists(), lambda process: process.kill())
    for process in command.processes:
        process.kill()
        process.join()
    assert "Resuming" in command.said
    train(train_config(phantoms, out, **changes), quiet())
    same(metrics(out), metrics(alone))


def test_sharded_adapters_and_token_rows_train_as_in_one_process(phantoms: Path, alone: Path, tmp_path: Path) -> None:
    checkpoint, empty = alone / "checkpoint", tmp_path / "empty"
    shutil.copytree(checkpoint, empty, ignore=shutil.ignore_patterns("*.safetensors"))
    validation = {"sources": [{"manifest": str(phantoms)}], "every": 2}
    changes = CASES["sharded adapters"] | {"model": str(checkpoint), "validation": validation}
    train(train_config(phantoms, tmp_path / "one", **changes), quiet())
    rows, before = token_rows(tmp_path / "one"), token_rows(checkpoint.parent)
    assert not torch.equal(rows, before)
    # Only the first process reads the weights of a model that is sharded.
    for parallel, others in (("ddp", {}), ("fsdp", {"model": str(empty)})):
        out = tmp_path / parallel
        config = values(phantoms, out, parallel=parallel, **changes)
        command = Command(tmp_path / f"said-{parallel}", 2, others, **config)
        assert command.end() == [0, 0], command.said
        for ours, theirs in zip(metrics(out), metrics(tmp_path / "one"), strict=True):
            for name in ours.keys() & {"loss", "loss/all", "loss/findings", "loss/grounded"}:
                assert ours[name] == pytest.approx(theirs[name], abs=0.02), (parallel, ours["step"], name)
        assert float((token_rows(out) - rows).abs().mean()) < 0.1 * float((rows - before).abs().mean()), parallel


def token_rows(out: Path) -> torch.Tensor:
    """MAIRA-2's own tokens in the embeddings of a run's checkpoint."""
    model = MairaForConditionalGeneration.from_pretrained(out / "checkpoint")
    ids = added_ids(model.config.image_token_index)
    embeddings: torch.Tensor = model.model.language_model.get_input_embeddings().weight.detach()[ids.start : ids.stop]
    return embeddings


def test_unreadable_input_of_one_process_ends_both_with_one_line(phantoms: Path, tmp_path: Path) -> None:
    manifest = write_damaged(phantoms, tmp_path, 3)
    command = Command(tmp_path / "said", 2, **values(manifest, tmp_path / "out", passes=400, parallel="fsdp"))
    assert command.end() == [2, 2], command.said
    assert command.said.count("3.png") == 1, command.said
    assert "Traceback" not in command.said


def test_a_process_that_dies_ends_the_other_with_one_line(phantoms: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = Command(tmp_path / "said", 2, **values(phantoms, out, passes=40_000, parallel="fsdp"))
    command.when(lambda: (out / "metrics.jsonl").exists(), lambda _: command.processes[1].kill())
    assert command.end() == [1, -signal.SIGKILL], command.said
    assert "another process of the run" in command.said
    assert "Traceback" not in command.said


PRECISIONS = {"bf16": 0.03, "no": 1e-5}
"""Tolerances relative to one process."""
Results = list[dict[str, dict[str, Any]]]


class Run:
    """A tiny model in training: tied embeddings, a frozen encoder, four rows per step."""

    def __init__(self, config: MairaConfig, precision: str, context: DistributedContext) -> None:
        train_config = minimal_config(precision=precision, parallel="fsdp", weight_decay=0.1, learning_rate=1e-3)
        model = trainable(config, frozen=True, tie_word_embeddings=True)
        model.model.vision_tower.requires_grad_(False)
        self.config, self.context = config, context
        self.model: ParallelModel = parallelize(MairaLossModel(model, KINDS, 0.0).train(), train_config, context)
        self.optimizer = make_optimizer(self.model.training, train_config)

    def rows(self, step: int) -> list[PackedBatch]:
        """The rows of this process; the last one of all holds no readable sample, as `collate_row` makes it."""
        seeds = range(100 * step, 100 * step + 4)
        samples = [make_sample(self.config, 1 + seed % 2, 10 + seed % 7, 5 + seed % 3, seed) for seed in seeds]
        totals = StepTotals(sum(len(s.input_ids) - s.prompt_tokens for s in samples[:-1]), len(samples) - 1)
        *rows, last = [pack([sample], padding=seed % 5, totals=totals) for seed, sample in enumerate(samples)]
        none = {name: getattr(last, name)[:0] for name in ("answers", "targets", "answer_samples", "frontal_rows")}
        rows.append(replace(last, **none, coverage=None, sample_ids=(), tasks=()))
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
        trained = {name: p.grad if gradients else p for name, p in self.model.training.named_parameters()}
        known = {name: tensor for name, tensor in trained.items() if tensor is not None}
        tensors = {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in known.items()}
        return {name: t.detach().clone() for name, t in tensors.items() if "vision_tower" not in name}


def two_steps(config: MairaConfig, precision: str, context: DistributedContext, out: Path) -> dict[str, Any]:
    """Loss, norm and gradients of the first of two steps, between which a state is written."""
    run = Run(config, precision, context)
    manager = CheckpointManager(out, 1, context, print, only_trained=False)
    write, computed, overlaps = manager._write, threading.Event(), list[bool]()

    def write_late(*args: Any) -> None:
        """Write in the second process only after its next step is computed."""
        if context.rank == 1:
            overlaps.append(computed.wait(PATIENCE))
        write(*args)

    manager._write = write_late  # type: ignore[method-assign]
    loss, norm = run.gradient(0)
    result = {"loss": loss, "norm": norm, "gradients": run.whole(gradients=True)}
    result["sharded"] = {isinstance(parameter, DTensor) for parameter in run.model.training.parameters()}
    run.update(norm)
    manager.save(1, run.model.training, run.optimizer, {})
    _, norm = run.gradient(1)
    computed.set()
    run.update(norm)
    assert manager.finish()
    manager.close()
    return result | {"weights": run.whole(), "overlaps": overlaps, "states": len(run.optimizer.state)}


def work(rank: int, port: int, config: MairaConfig, out: Path) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in names.items()}
    torch.set_num_threads(1)
    context = init_distributed()
    torch.save({precision: two_steps(config, precision, context, out) for precision in PRECISIONS}, out / f"{rank}.pt")
    context.finish(0)


@pytest.fixture(scope="module")
def sharded(config: MairaConfig, tmp_path_factory: pytest.TempPathFactory) -> Results:
    out, port = tmp_path_factory.mktemp("sharded"), free_port()
    processes: list[Any] = [tiny_runs.servers.Process(target=work, args=(rank, port, config, out)) for rank in range(2)]
    for process in processes:
        process.start()
    tiny_runs.join_processes(processes)
    return [torch.load(out / f"{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def unsharded(config: MairaConfig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    context = DistributedContext(0, 1, torch.device("cpu"))
    return {kind: two_steps(config, kind, context, tmp_path_factory.mktemp("alone")) for kind in PRECISIONS}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_sharded_steps_equal_unsharded(precision: str, sharded: Results, unsharded: dict[str, dict[str, Any]]) -> None:
    tolerance, expected = PRECISIONS[precision], unsharded[precision]
    first, second = (result[precision] for result in sharded)
    assert second["overlaps"] == [True]
    assert (first["sharded"], second["sharded"], expected["sharded"]) == ({True}, {True}, {False})

    assert not [name for name in expected["weights"] if "lm_head" in name]
    for result in (first, second):
        # The head is the embeddings: one state for both, none for the encoder.
        assert result["states"] == len(expected["weights"])
        assert [result["loss"], result["norm"]] == pytest.approx([expected["loss"], expected["norm"]], rel=tolerance)
        assert result["gradients"].keys() == expected["gradients"].keys()
        for name, gradient in expected["gradients"].items():
            assert (result["gradients"][name] - gradient).norm() <= tolerance * gradient.norm(), name
        for name, weight in expected["weights"].items():
            if precision == "no":
                torch.testing.assert_close(result["weights"][name], weight, rtol=0, atol=2e-5, msg=name)
