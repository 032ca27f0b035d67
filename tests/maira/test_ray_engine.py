"""Drafting on a Ray cluster of two workers on this machine: the drafts of one process, failures, resume."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from draft_files import without_time
from error_checks import raises_code

from maira.data.study import Study
from maira.generate.drafts import generate_drafts
from maira.generate.engine import EngineOptions, GenerationOptions
from maira.generate.ray_engine import RayEngine
from radfact.errors import ErrorCode, InputError
from radfact.llm.ray_cluster import connect_cluster

pytest.importorskip("ray", reason="Ray is not installed: pip install ray")
pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
]

ONE_WORKER, TWO_WORKERS = (EngineOptions(engine="ray", batch_size=1, workers=workers) for workers in (1, 2))


@pytest.fixture(scope="module", autouse=True)
def two_workers() -> Iterator[None]:
    with connect_cluster(2):
        yield


def _run(studies: Sequence[Study], checkpoint: Path, out: Path, **options: Any) -> tuple[int, list[Any]]:
    settings: dict[str, Any] = {"options": GenerationOptions(max_new_tokens=12), "engine": ONE_WORKER}
    return generate_drafts(studies, checkpoint, out, **settings | options)


def test_two_workers_draft_as_one_process(studies: list[Study], checkpoint: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(studies[0].frontal.read_bytes()[:200])
    requested = [studies[0].model_copy(update={"sample_id": "broken", "frontal": broken}), *studies]
    spread, local = tmp_path / "spread" / "drafts.jsonl", tmp_path / "local" / "drafts.jsonl"
    outcome = _run(requested, checkpoint, spread, engine=TWO_WORKERS)
    assert outcome == _run(requested, checkpoint, local, engine=EngineOptions(batch_size=2))
    assert outcome[0] == len(studies)
    assert [failure.sample_id for failure in outcome[1]] == ["broken"]
    assert without_time(spread) == without_time(local)
    assert without_time(spread.with_name("failures.jsonl")) == without_time(local.with_name("failures.jsonl"))


def test_a_checkpoint_that_no_worker_can_load_is_an_input_error(
    studies: list[Study], checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="no tokenizer here"):
        _run(studies, folder, tmp_path / "drafts.jsonl")


def test_one_gpu_for_all_workers_is_refused(checkpoint: Path) -> None:
    with raises_code(ErrorCode.CONFLICTING_OPTIONS, field="device"):
        RayEngine(checkpoint, EngineOptions(engine="ray", device="cuda:1"))
