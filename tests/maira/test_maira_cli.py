"""The command `maira`, as a user types it."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from dicom_files import write_dicom
from releases import write_release

from maira.data.manifest import read_failures, read_manifest
from maira.data.sources.dicom import example_radiograph

RunMaira = Callable[..., tuple[int, str, str]]
REFUSED = yaml.safe_load(Path(__file__).with_name("refused_commands.yaml").read_text("utf-8"))


def test_samples_are_named_without_the_file_name_unless_asked(run_maira: RunMaira, tmp_path: Path) -> None:
    shutil.copy(example_radiograph(), tmp_path / "Doe^Jane.dcm")
    assert run_maira("prepare", "dicom", "Doe^Jane.dcm", "--out", "a")[0] == 0
    (study,) = read_manifest(tmp_path / "a" / "manifest.jsonl")
    uid = b"1.3.6.1.4.1.5962.1.1.9.1.1.20040826185059.5457"
    assert study.sample_id == hashlib.sha256(uid).hexdigest()[:16]
    named = [path for path in (tmp_path / "a").rglob("*") if "Doe" in path.name]
    named += [path for path in (tmp_path / "a").rglob("*.*") if path.is_file() and b"Doe" in path.read_bytes()]
    assert [path.name for path in named] == ["source_files.jsonl"]
    assert named[0].stat().st_mode & 0o077 == 0
    assert run_maira("prepare", "dicom", "Doe^Jane.dcm", "--file-names", "--out", "b")[0] == 0
    assert [study.sample_id for study in read_manifest(tmp_path / "b" / "manifest.jsonl")] == ["Doe^Jane"]


@pytest.mark.slow
def test_the_same_instance_and_other_body_parts_are_skipped(run_maira: RunMaira, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 4096, (64, 48)).astype(np.uint16)
    for name, part in (("chest", "CHEST"), ("hand", "HAND")):
        write_dicom(tmp_path / f"{name}.dcm", noise, BodyPartExamined=part)
    shutil.copy(tmp_path / "chest.dcm", tmp_path / "copy.dcm")
    options = ("--size", 48, "--workers", 2, "--out")
    assert run_maira("prepare", "dicom", "chest.dcm", "copy.dcm", "hand.dcm", *options, "out")[0] == 3
    reasons = [failure.reason for failure in read_failures(tmp_path / "out" / "failures.jsonl")]
    assert [("same SOP instance" in reason, "HAND" in reason) for reason in reasons] == [(True, False), (False, True)]
    assert run_maira("prepare", "dicom", "hand.dcm", "--image-check", "off", *options, "hand")[0] == 0


def test_other_settings_do_not_replace_prepared_radiographs(run_maira: RunMaira, tmp_path: Path) -> None:
    shutil.copy(example_radiograph(), tmp_path / "other")
    for command, same, other in (
        (("phantom", "--size", 64, "--count", 2, "--out", "phantoms"), ("--seed", 5), ("--seed", 6)),
        (("dicom", "--out", "dicom"), (example_radiograph(),), ("other",)),
    ):
        assert run_maira("prepare", *command, *same)[0] == 0
        prepared = (tmp_path / str(command[-1]) / "manifest.jsonl").read_bytes()
        assert run_maira("prepare", *command, *same)[0] == 0
        code, _, error = run_maira("prepare", *command, *other)
        assert (code, error.count("\n"), error.endswith("[output-conflict]\n")) == (2, 1, True)
        assert (tmp_path / str(command[-1]) / "manifest.jsonl").read_bytes() == prepared


@pytest.mark.parametrize(("command", "message", "code"), REFUSED)
def test_a_refused_command_is_a_one_line_error_and_writes_nothing(
    run_maira: RunMaira, command: str, message: str, code: str | None, tmp_path: Path
) -> None:
    write_release(tmp_path, {"files": {"export/studies.csv": "sample_id,frontal,findings\n1,1.png,Clear.\n"}})
    before = {*tmp_path.rglob("*")}
    exit_code, _, error = run_maira(*command.split())
    assert (exit_code, message in error, "Traceback" in error) == (2, True, False)
    # Typer's own errors have more lines and no code.
    assert code is None or (error.count("\n"), error[:7], error.split()[-1]) == (1, "maira: ", f"[{code}]")
    assert {*tmp_path.rglob("*")} == before


def test_the_baseline_repeats_the_most_frequent_report(run_maira: RunMaira, tmp_path: Path) -> None:
    run_maira("prepare", "phantom", "--count", 6, "--size", 64, "--out", "set")
    assert run_maira("evaluate", "baseline", "--manifest", "set/manifest.jsonl", "--out", "drafts.jsonl")[0] == 0
    rows = [json.loads(line) for line in (tmp_path / "drafts.jsonl").read_text().splitlines()]
    assert [row["sample_id"] for row in rows] == [s.sample_id for s in read_manifest(tmp_path / "set/manifest.jsonl")]
    assert len({json.dumps(row["report"]) for row in rows}) == 1
    labels = "evaluate labels drafts.jsonl --manifest set/manifest.jsonl --out scores.json"
    assert run_maira(*labels.split())[0] == 0
    scores = json.loads((tmp_path / "scores.json").read_text())["scores"]
    assert set(scores) == {"precision", "recall", "f1", "mean_iou"}
