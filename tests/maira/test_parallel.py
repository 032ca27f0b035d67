from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import Command, metrics, quiet, train_config, values

from maira.data.manifest import read_manifest, write_manifest
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.tokens import added_ids
from maira.train.report_training import train

pytestmark = pytest.mark.slow  # starts processes
STEPS = 20


def run(phantoms: Path, out: Path, world_size: int = 1, **changes: Any) -> Path:
    """The folder of a run of the command that went well."""
    command = Command(
        out.with_name(f"{out.name}-said"), world_size, **values(phantoms, out, passes=STEPS * 4, **changes)
    )
    assert command.end() == [0] * world_size, command.said
    assert "FutureWarning" not in command.said
    return out


def same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Lines of two logs agree to rounding."""
    assert [row["step"] for row in ours] == [row["step"] for row in theirs]
    for one, other in zip(ours, theirs, strict=True):
        for name in ("loss", "answer", "patches"):
            assert one[name] == pytest.approx(other[name], rel=0, abs=1e-5), (one["step"], name)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3), one["step"]


@pytest.fixture(scope="module")
def alone(phantoms: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process."""
    return run(phantoms, tmp_path_factory.mktemp("alone") / "run")


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def two_processes(request: pytest.FixtureRequest, phantoms: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run by two processes, both ways."""
    return run(phantoms, tmp_path_factory.mktemp(request.param) / "run", 2, parallel=request.param)


def test_two_processes_have_the_losses_of_one_process(alone: Path, two_processes: Path) -> None:
    same(metrics(two_processes), metrics(alone))


def test_two_processes_write_the_checkpoint_of_one_process(alone: Path, two_processes: Path) -> None:
    ours, theirs = (
        MairaForConditionalGeneration.from_pretrained(out / "checkpoint").model.language_model.state_dict()
        for out in (two_processes, alone)
    )
    # On the mean: where a gradient is all rounding, Adam makes steps of it.
    apart = [float((ours[name] - weight).abs().mean()) for name, weight in theirs.items()]
    assert max(apart) < 1e-5


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_run_resumes_with_another_number_of_processes(
    before: int, after: int, phantoms: Path, alone: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    first = Command(
        tmp_path / "first", before, **values(phantoms, out, passes=STEPS * 4, parallel="fsdp", save_every=4)
    )
    first.when(lambda: (out / "states" / "step-000008").exists(), lambda process: process.kill())
    for process in first.processes:
        process.kill()
        process.join()
    run(phantoms, out, after, parallel="fsdp")
    same(metrics(out), metrics(alone))


def test_sharded_adapters_and_token_rows_train_as_in_one_process(phantoms: Path, alone: Path, tmp_path: Path) -> None:
    checkpoint, empty = alone / "checkpoint", tmp_path / "empty"
    shutil.copytree(checkpoint, empty, ignore=shutil.ignore_patterns("*.safetensors"))
    changes: dict[str, Any] = {
        "model": str(checkpoint),
        "trained": ["adapter", "language_model"],
        "lora": {"rank": 2, "added_tokens": True},
        "patch_loss": 0,
        "precision": "bf16",
        "activation_checkpointing": "full",
        "validation": {"sources": [{"manifest": str(phantoms)}], "every": 2},
        "passes": 16,
    }
    train(train_config(phantoms, tmp_path / "one", **changes), quiet())
    rows, before = token_rows(tmp_path / "one"), token_rows(checkpoint.parent)
    assert not torch.equal(rows, before)
    # Only the first process reads the weights of a model that is sharded.
    for parallel, others in (("ddp", {}), ("fsdp", {"model": str(empty)})):
        out = tmp_path / parallel
        recipe_of_all = values(phantoms, out, parallel=parallel, **changes)
        command = Command(tmp_path / f"said-{parallel}", 2, others, **recipe_of_all)
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


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_unreadable_input_of_one_process_ends_both_with_one_line(parallel: str, phantoms: Path, tmp_path: Path) -> None:
    studies, bad = read_manifest(phantoms), tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    broken = next(study for study in studies if study.lateral is not None)
    manifest = tmp_path / "manifest.jsonl"
    write_manifest(manifest, [s.model_copy(update={"lateral": bad}) if s is broken else s for s in studies])
    command = Command(tmp_path / "said", 2, **values(manifest, tmp_path / "out", passes=400, parallel=parallel))
    assert command.end() == [2, 2], command.said
    assert command.said.count("bad.png") == 1, command.said
    assert "Traceback" not in command.said


def test_a_process_that_dies_ends_the_other_with_one_line(phantoms: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = Command(tmp_path / "said", 2, **values(phantoms, out, passes=40_000, parallel="fsdp"))
    command.when(lambda: (out / "metrics.jsonl").exists(), lambda _: command.processes[1].kill())
    assert command.end() == [1, -signal.SIGKILL], command.said
    assert "another process of the run" in command.said
    assert "Traceback" not in command.said
