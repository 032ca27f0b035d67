"""The examples of CONTRIBUTING.md work, and the files that its guides name exist."""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]


@cache
def _sections() -> dict[str, str]:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.M | re.S))


def _run_example(title: str) -> dict[str, Any]:
    """Execute the example of a guide and return its names."""
    (example,) = re.findall(r"^```python\n(.*?)^```$", _sections()[title], re.M | re.S)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "CONTRIBUTING.md", "exec"), names)
    return names


@pytest.mark.parametrize("title", [title for title in _sections() if title.startswith("Add a")])
def test_the_files_of_a_guide_exist(title: str) -> None:
    paths = re.findall(r"`((?:radfact|maira|data|docs|tests)/[\w./]+|pyproject\.toml)`", _sections()[title])
    existing = [path for path in paths if "NAME" not in path]
    assert existing
    assert [path for path in existing if not (ROOT / path).exists()] == []


def test_a_new_metric_scores_pairs() -> None:
    from radfact import Pair, evaluate

    metric = _run_example("Add a metric")["LengthRatio"]()
    pairs = [Pair("1", "Clear lungs.", "The lungs are clear."), Pair("2", "Clear lungs.", "")]
    result = evaluate(pairs, [metric], bootstrap=0)
    assert result.scores["length_ratio"] == 0.5
    assert result.summaries["length_ratio"].n == 1
    assert result.failures[1] == {"length_ratio": "empty reference"}


def test_a_new_backend_answers_through_the_client() -> None:
    assert _run_example("Add a judge provider")["responses"] == ["NO EFFUSION"]


def test_a_new_reader_prepares_an_archive(tmp_path: Path) -> None:
    from maira.data.manifest import read_manifest
    from maira.data.pairing import Rules, make_samples
    from maira.data.preparation import Conversion, prepare

    archive, out = tmp_path / "archive", tmp_path / "out"
    archive.mkdir()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64), np.uint8)).save(archive / "a.png")
    table = "study,patient,image,findings\ns1,p1,a.png,The lungs are clear.\ns2,p1,gone.png,Small effusion.\n"
    (archive / "reports.csv").write_text(table)
    read = _run_example("Add an archive reader")["read_clinic"](archive)
    result = prepare(
        "clinic",
        str(archive),
        lambda broken: make_samples(read, Rules(), broken),
        out,
        Conversion(size=32),
        unread=read.failures,
    )
    (study,) = read_manifest(out / "manifest.jsonl")
    assert (study.study_id, study.findings) == ("s1", "The lungs are clear.")
    assert [failure.source for failure in result.failures] == ["s2"]


def test_a_new_engine_drafts_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from maira.data.manifest import read_manifest
    from maira.data.phantoms import write_phantoms
    from maira.generate import drafts
    from maira.generate.engine import GenerationOptions
    from radfact.io.pairs import read_drafts

    example = _run_example("Add a generation engine")
    monkeypatch.setattr(drafts, "start_engine", example["ConstantEngine"])
    list(write_phantoms(tmp_path / "phantoms", count=2, seed=0, size=64))
    studies = read_manifest(tmp_path / "phantoms" / "manifest.jsonl")
    out = tmp_path / "drafts.jsonl"
    options = GenerationOptions(task="findings")
    count, failures = drafts.generate_drafts(studies, ROOT / "checkpoints/phantom", out, options)
    assert (count, failures) == (2, [])
    assert set(read_drafts(out).values()) == {"The lungs are clear."}


def test_a_failed_test_is_repeated_by_the_command_that_pytest_prints(tmp_path: Path) -> None:
    (tmp_path / "test_sum.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('number', [2, 3], ids=['right', \"it's wrong\"])\n"
        "def test_sum(number):\n    assert 1 + 1 == number\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "test_sum.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    printed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
    assert "1 failed, 1 passed" in printed
    (repeat,) = re.findall(r"^env PYTHONPATH=.*", printed, re.M)
    repeated = subprocess.run(repeat, shell=True, cwd=tmp_path, capture_output=True, text=True).stdout
    assert "1 failed in" in repeated
    assert "it's wrong" in repeated
