"""Drafting on a Ray cluster of two workers on this machine: the drafts and failures of one process."""

from pathlib import Path

import pytest
from draft_files import without_time
from error_checks import raises_code

from maira.data.study import Study
from maira.generate.drafts import generate_drafts
from maira.generate.engine import EngineOptions, GenerationOptions
from maira.generate.ray_engine import RayEngine
from radfact.errors import ErrorCode
from radfact.llm.ray_cluster import connect_cluster

pytest.importorskip("ray", reason="Ray is not installed: pip install ray")
pytestmark = [pytest.mark.server, pytest.mark.slow]

TWO_WORKERS = EngineOptions(engine="ray", batch_size=1, workers=2)


def test_two_workers_draft_as_one_process(studies: list[Study], checkpoint: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(studies[0].frontal.read_bytes()[:200])
    requested = [studies[0].model_copy(update={"sample_id": "broken", "frontal": broken}), *studies]
    spread, local = tmp_path / "spread" / "drafts.jsonl", tmp_path / "local" / "drafts.jsonl"
    short = GenerationOptions(max_new_tokens=12)
    with connect_cluster(2):
        outcome = generate_drafts(requested, checkpoint, spread, options=short, engine=TWO_WORKERS)
    assert outcome == generate_drafts(requested, checkpoint, local, options=short, engine=EngineOptions(batch_size=2))
    assert outcome[0] == len(studies)
    assert [failure.sample_id for failure in outcome[1]] == ["broken"]
    assert without_time(spread) == without_time(local)
    assert without_time(spread.with_name("failures.jsonl")) == without_time(local.with_name("failures.jsonl"))


def test_one_gpu_for_all_workers_is_refused(checkpoint: Path) -> None:
    with raises_code(ErrorCode.CONFLICTING_OPTIONS, field="device"):
        RayEngine(checkpoint, EngineOptions(engine="ray", device="cuda:1"))
