"""The checkpoint that the repository ships does what the README says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from data.manifest import read_manifest
from data.phantoms import write_phantoms
from maira.generate.drafts import generate_drafts
from maira.grounding.labels import evaluate_labels
from radfact import RadFact, load_judge
from radfact.io.pairs import read_candidates_and_references, read_drafts

CHECKPOINT = Path(__file__).resolve().parents[1] / "checkpoints" / "phantom"


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) <= 20_000_000


@pytest.fixture(scope="module")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(drafts, manifest) of 24 studies of a series that is used nowhere else."""
    folder = tmp_path_factory.mktemp("held-out")
    list(write_phantoms(folder, 24, seed=5, size=224))
    manifest, drafts = folder / "manifest.jsonl", folder / "drafts.jsonl"
    generate_drafts(read_manifest(manifest), CHECKPOINT, drafts)
    return drafts, manifest


# On 24 studies figures scatter by about 0.1, so the floors lie below the README's figures for 200.
def test_it_finds_what_is_there(drafted: tuple[Path, Path]) -> None:
    drafts, manifest = drafted
    figures = evaluate_labels(read_drafts(drafts), read_manifest(manifest), replicates=10)
    assert (figures["f1"].point or 0) >= 0.6
    assert (figures["mean_iou"].point or 0) >= 0.5


def test_its_reports_score(drafted: tuple[Path, Path]) -> None:
    result = RadFact(judge=load_judge("offline"), bootstrap=0).score(read_candidates_and_references(*drafted))
    assert (result.figures["logical_f1"].point or 0) >= 0.75
    assert (result.figures["spatial_f1"].point or 0) >= 0.5
