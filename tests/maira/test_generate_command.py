"""`maira generate` as a user types it: what cannot be drafted, and runs that are killed."""

import json
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from draft_files import read_rows, without_time
from PIL import Image
from typer.testing import CliRunner, Result

from maira.cli.main import app
from maira.data.manifest import Failure, read_failures, read_manifest, write_failures, write_manifest
from maira.data.study import Study
from radfact.records import Box, Sentence


def _arguments(checkpoint: Path, manifest: Path, out: Path, *more: str) -> list[str]:
    paths = ["--checkpoint", str(checkpoint), "--manifest", str(manifest), "--out", str(out)]
    return ["generate", *paths, "--max-new-tokens", "12", "--device", "cpu", *more]


# Kills its own process when answers are on disk and half of the next one is too.
KILLED = """
import os, runpy, signal, sys
from maira.generate.drafts import ResponseFile
append = ResponseFile.append

def dying(file, key, row):
    append(file, key, row)
    if len(file.rows) == 3:
        with file.partial.open("a") as handle:
            handle.write('{"sample_id": "phan')
        os.kill(os.getpid(), signal.SIGKILL)

ResponseFile.append = dying
runpy.run_module("maira", run_name="__main__")
"""


@pytest.mark.slow
def test_a_killed_run_is_finished_by_the_same_command(checkpoint: Path, phantoms: Path, tmp_path: Path) -> None:
    manifest, complete = tmp_path / "set" / "manifest.jsonl", tmp_path / "whole" / "drafts.jsonl"
    write_manifest(manifest, read_manifest(phantoms)[:6])
    out = tmp_path / "drafts.jsonl"
    command = _arguments(checkpoint, manifest, out, "--batch", "2")
    killed = subprocess.run([sys.executable, "-c", KILLED, *command], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not out.exists()
    remaining = [json.loads(line) for line in (tmp_path / "drafts.jsonl.partial").read_text().splitlines()[:-1]]
    assert len(remaining) == 3
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    CliRunner().invoke(app, _arguments(checkpoint, manifest, complete))
    assert without_time(out) == without_time(complete)
    assert [row for row in read_rows(out) if row in remaining] == sorted(remaining, key=read_rows(out).index)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drafts.jsonl", "drafts.run.json", "set", "whole"]


@pytest.fixture
def mixed(studies: list[Study], tmp_path: Path) -> Path:
    """A manifest of six: a missing radiograph, an invalid image, no image, and a valid study before each."""
    (tmp_path / "radiograph1.png").write_bytes(b"no radiograph")
    bad = [
        study.model_copy(update={"sample_id": f"bad{number}", "frontal": tmp_path / f"radiograph{number}.png"})
        for number, study in enumerate(studies[:2])
    ]
    path = tmp_path / "manifest.jsonl"
    write_manifest(path, [studies[0], bad[0], studies[1], bad[1], studies[2]])
    with path.open("a") as handle:
        handle.write('{"sample_id": "bad2", "indication": "Cough."}\n')
    return path


def _generate(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_unusable_studies_are_listed_and_drafted_alone_once_they_are_fixed(
    checkpoint: Path, studies: list[Study], mixed: Path, tmp_path: Path, requested: list[str]
) -> None:
    out = tmp_path / "drafts.jsonl"
    result = _generate(*_arguments(checkpoint, mixed, out))
    assert result.exit_code == 3, result.output
    assert "3 of 6 studies drafted" in result.output
    before = read_rows(out)
    assert [row["sample_id"] for row in before] == [study.sample_id for study in studies[:3]]
    reasons = {failure.sample_id: failure.reason for failure in read_failures(tmp_path / "failures.jsonl")}
    places = {"bad0": "radiograph0.png: ", "bad1": "radiograph1.png: ", "bad2": "manifest.jsonl:6: frontal: "}
    assert reasons.keys() == places.keys()
    assert all(place in reasons[key] and reasons[key] in result.output for key, place in places.items())

    for number in range(2):
        (tmp_path / f"radiograph{number}.png").write_bytes(studies[3].frontal.read_bytes())
    mixed.write_text(mixed.read_text().replace('"bad2", ', f'"bad2", "frontal": "{studies[4].frontal}", '))
    requested.clear()
    result = _generate(*_arguments(checkpoint, mixed, out))
    assert result.exit_code == 0, result.output
    assert sorted(requested) == ["bad0", "bad1", "bad2"]
    assert [row for row in read_rows(out) if row["sample_id"] not in requested] == before
    assert [row["sample_id"] for row in read_rows(out)] == [study.sample_id for study in read_manifest(mixed)]
    assert not (tmp_path / "failures.jsonl").exists()


@pytest.mark.parametrize(("option", "code"), [((), 3), (("--image-check", "off"), 0)])
def test_a_black_image_is_a_failure_unless_the_check_is_off(
    checkpoint: Path, studies: list[Study], tmp_path: Path, option: tuple[str, ...], code: int
) -> None:
    Image.new("L", (64, 64)).save(tmp_path / "black.png")
    black = studies[1].model_copy(update={"frontal": tmp_path / "black.png"})
    write_manifest(tmp_path / "set.jsonl", [studies[0], black])
    result = _generate(*_arguments(checkpoint, tmp_path / "set.jsonl", tmp_path / "drafts.jsonl", *option))
    assert result.exit_code == code, result.output
    failures = read_failures(tmp_path / "failures.jsonl")
    assert [failure.sample_id for failure in failures] == ([black.sample_id] if code else [])
    assert all("black.png: expected a chest radiograph" in failure.reason for failure in failures)


def test_failures_of_unrequested_studies_remain(
    checkpoint: Path, mixed: Path, studies: list[Study], tmp_path: Path
) -> None:
    others = [
        Failure(source="1.dcm", stage="dicom", reason="has no pixels"),
        Failure(sample_id="bad0", source="other.jsonl", stage="generate", reason="no such file"),
    ]
    write_failures(tmp_path / "failures.jsonl", others)
    for _ in range(2):
        _generate(*_arguments(checkpoint, mixed, tmp_path / "drafts.jsonl"))
        failures = read_failures(tmp_path / "failures.jsonl")
        assert failures[:2] == others
        assert [(one.sample_id, one.source) for one in failures[2:]] == [
            (f"bad{number}", "drafts.jsonl") for number in (2, 0, 1)
        ]
    write_manifest(mixed, studies[:3])
    _generate(*_arguments(checkpoint, mixed, tmp_path / "drafts.jsonl"))
    assert read_failures(tmp_path / "failures.jsonl") == others


@pytest.mark.parametrize("drops", [("prior", "lateral"), ("lateral+prior",)])
def test_dropped_inputs_are_joined_or_repeated(
    drops: tuple[str, ...], checkpoint: Path, phantoms: Path, tmp_path: Path
) -> None:
    words = [word for drop in drops for word in ("--drop", drop)]
    result = _generate(*_arguments(checkpoint, phantoms, tmp_path / "drafts.jsonl", *words))
    assert result.exit_code in (0, 3), result.output
    assert json.loads((tmp_path / "drafts.run.json").read_text())["drop"] == ["lateral", "prior"]


def test_studies_with_unused_inputs_and_changed_studies_are_counted(
    checkpoint: Path, studies: list[Study], tmp_path: Path
) -> None:
    wide = Sentence(text="Arm.", boxes=(Box(x_min=0, y_min=0, x_max=1, y_max=1),))
    unused = studies[1].model_copy(
        update={"prior_report": "Clear.", "prior_frontal": None, "grounded_findings": [wide]}
    )
    write_manifest(tmp_path / "set.jsonl", [studies[0], unused])
    command = _arguments(checkpoint, tmp_path / "set.jsonl", tmp_path / "drafts.jsonl")
    with warnings.catch_warnings(action="error"):
        result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert f"1 of 2 studies, such as {unused.sample_id}: a prior report without a prior image" in result.stdout
    assert "Warning" not in result.output
    assert "changed" not in result.stderr
    write_manifest(tmp_path / "set.jsonl", [studies[0].model_copy(update={"indication": "Another reason."}), unused])
    result = CliRunner().invoke(app, command)
    assert "studies changed since the last run and drafted again: 1" in result.stderr
