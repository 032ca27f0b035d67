from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import Command, metrics, values

from maira.model import MairaForConditionalGeneration

STEPS = 20


def run(phantoms: Path, out: Path, world: int = 1, **changes: Any) -> Path:
    """The folder of a run of the command that went well."""
    command = Command(out.with_name(f"{out.name}-said"), world, **values(phantoms, out, passes=STEPS * 4, **changes))
    assert command.end() == [0] * world, command.said
    return out


def same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Lines of two logs agree to rounding."""
    assert [row["step"] for row in ours] == [row["step"] for row in theirs]
    for one, other in zip(ours, theirs, strict=True):
        for name in ("loss", "answer", "patches"):
            assert one[name] == pytest.approx(other[name], rel=0, abs=1e-5), (one["step"], name)


@pytest.fixture(scope="module")
def alone(phantoms: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process."""
    return run(phantoms, tmp_path_factory.mktemp("alone") / "run")


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def two(request: pytest.FixtureRequest, phantoms: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run by two processes, both ways."""
    return run(phantoms, tmp_path_factory.mktemp(request.param) / "run", 2, parallel=request.param)


def test_two_processes_have_the_losses_of_one(alone: Path, two: Path) -> None:
    same(metrics(two), metrics(alone))


def test_two_processes_leave_the_weights_of_one(alone: Path, two: Path) -> None:
    ours, theirs = (
        MairaForConditionalGeneration.from_pretrained(out / "checkpoint").state_dict() for out in (two, alone)
    )
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_another_number_of_processes_goes_on_with_the_same_losses(
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
