"""The command `maira`, as a user types it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from data.manifest import read_manifest
from maira.cli.main import app
from radfact.errors import ErrorCode, InputError

MAIRA = [sys.executable, "-m", "maira"]


def _maira(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MAIRA, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_phantoms_become_a_manifest_with_files(tmp_path: Path) -> None:
    done = _maira("prepare", "phantom", "--count", "3", "--seed", "5", "--size", "64", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    studies = read_manifest(tmp_path / "manifest.jsonl")
    assert len(studies) == 3
    assert all(study.frontal.is_file() for study in studies)


def test_a_radiograph_becomes_a_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from data.dicom.reader import example_radiograph

    monkeypatch.chdir(tmp_path)
    done = _maira("prepare", "dicom", example_radiograph(), "--out", "radiograph")
    assert done.returncode == 0, done.stderr
    (study,) = read_manifest(tmp_path / "radiograph" / "manifest.jsonl")
    assert study.frontal.is_file()


def test_radiographs_that_cannot_be_read_are_listed_beside_the_others(tmp_path: Path) -> None:
    from data.dicom.reader import example_radiograph

    (tmp_path / "text.dcm").write_text("no radiograph")
    done = _maira("prepare", "dicom", tmp_path / "text.dcm", example_radiograph(), "--out", tmp_path / "out")
    assert done.returncode == 3
    (failure,) = (tmp_path / "out" / "failures.jsonl").read_text().splitlines()
    assert json.loads(failure)["source"].endswith("text.dcm")
    assert len(read_manifest(tmp_path / "out" / "manifest.jsonl")) == 1


def test_other_phantoms_do_not_replace_those_that_are_there(tmp_path: Path) -> None:
    command = ("prepare", "phantom", "--size", "64", "--out", tmp_path / "set", "--count", "2")
    assert _maira(*command, "--seed", "5").returncode == 0
    manifest = (tmp_path / "set/manifest.jsonl").read_bytes()
    assert _maira(*command, "--seed", "5").returncode == 0
    other = _maira(*command, "--seed", "6")
    assert (other.returncode, other.stderr.count("\n")) == (2, 1)
    assert "holds radiographs prepared otherwise (other seed)" in other.stderr
    assert (tmp_path / "set/manifest.jsonl").read_bytes() == manifest


def test_other_radiographs_do_not_replace_those_that_are_there(tmp_path: Path) -> None:
    from data.dicom.reader import example_radiograph

    (tmp_path / "radiographs").mkdir()
    shutil.copy(example_radiograph(), tmp_path / "radiographs/other")
    assert _maira("prepare", "dicom", example_radiograph(), "--out", tmp_path / "out").returncode == 0
    assert _maira("prepare", "dicom", example_radiograph(), "--out", tmp_path / "out").returncode == 0
    other = _maira("prepare", "dicom", tmp_path / "radiographs", "--out", tmp_path / "out")
    assert other.returncode == 2
    assert "(other radiographs)" in other.stderr
    assert [s.sample_id for s in read_manifest(tmp_path / "out/manifest.jsonl")] == [example_radiograph().stem]


def test_radiographs_of_no_size_are_refused(tmp_path: Path) -> None:
    done = _maira("prepare", "dicom", "radiograph.dcm", "--size", "0", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("prepare", "dicom", "none.dcm", "--out", "out"), "none.dcm: no such file"),
        (("prepare", "phantom", "--count", "0", "--out", "out"), "at least 1 study"),
        (("train", "none.yaml"), "none.yaml: no such file"),
        (
            ("generate", "--checkpoint", "none", "--manifest", "none.jsonl", "--out", "drafts.jsonl"),
            "none.jsonl: no such file",
        ),
        (("evaluate", "labels", "none.jsonl", "--manifest", "none.jsonl"), "none.jsonl: no such file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = _maira(*arguments)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("maira: ")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        ("--workers", "2"),
        ("--worker-engine", "vllm"),
        ("--engine-arg", "seed=1"),
        ("--language-model", "folder", "--engine", "ray"),
        ("--cache", "static", "--engine", "vllm"),
    ],
)
def test_an_option_that_the_engine_does_not_have_is_refused(options: tuple[str, ...]) -> None:
    required = ("--checkpoint", "none", "--manifest", "none.jsonl", "--out", "boxes.jsonl")
    with pytest.raises(InputError) as error:
        CliRunner().invoke(app, ["boxes", *required, *options], catch_exceptions=False)
    assert (error.value.code, error.value.field) == (ErrorCode.CONFLICTING_OPTIONS, options[0])


def test_the_baseline_says_the_same_of_every_study(tmp_path: Path) -> None:
    _maira("prepare", "phantom", "--count", "6", "--size", "64", "--out", tmp_path / "set")
    manifest = tmp_path / "set" / "manifest.jsonl"
    done = _maira("evaluate", "baseline", "--manifest", manifest, "--out", tmp_path / "drafts.jsonl")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "drafts.jsonl").read_text().splitlines()]
    assert [row["sample_id"] for row in rows] == [study.sample_id for study in read_manifest(manifest)]
    assert len({json.dumps(row["report"]) for row in rows}) == 1
    shown = _maira(
        "evaluate", "labels", tmp_path / "drafts.jsonl", "--manifest", manifest, "--out", tmp_path / "f.json"
    )
    assert shown.returncode == 0, shown.stderr
    assert set(json.loads((tmp_path / "f.json").read_text())["figures"]) == {"precision", "recall", "f1", "mean_iou"}


def test_help_does_not_load_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "maira", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert "maira.cli" in imported
    assert not imported & {"torch", "transformers"}
