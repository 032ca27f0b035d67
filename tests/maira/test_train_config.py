import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from error_checks import raises, raises_code, summary
from long_values import DATA
from rich.console import Console
from tiny_runs import CASES

from maira.cli.show import warn_of_bfloat16
from maira.judge.run_config import read_judge_config
from maira.train.config.run_config import AnomalyConfig, FromScratch, read_train_config
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import write_jsonl

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SMALLEST: dict[str, Any] = {"model": "checkpoint", "train": "manifest.jsonl", "out": "run", "passes": 1000}


def write(folder: Path, **changes: object) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(SMALLEST | changes), encoding="utf-8")
    return path


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configs_are_valid(path: Path) -> None:
    read_judge_config(path) if path.parent.name == "judges" else read_train_config(path)


def test_defaults_match_the_paper(tmp_path: Path) -> None:
    train_config = read_train_config(write(tmp_path))
    # MAIRA-2, B.2.
    assert (train_config.learning_rate, train_config.warmup, train_config.global_batch) == (2e-5, 0.03, 128)
    assert train_config.preset == "release"


def test_a_config_overrides_its_base(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    base = write(tmp_path, faults={"spike": 3.0, "most_skipped": 5}, betas=[0.9, 0.95])
    middle, top = tmp_path / "rows" / "middle.yaml", tmp_path / "rows" / "top.yaml"
    middle.write_text("base: ../config.yaml\nfaults: {most_skipped: 7}\nbetas: [0.8, 0.9]\n", encoding="utf-8")
    top.write_text("base: middle.yaml\ndrop: [prior]\n", encoding="utf-8")
    train_config, plain = read_train_config(top, ["seed=3"]), read_train_config(base)
    changed = {"faults": AnomalyConfig(spike=3.0, most_skipped=7), "betas": (0.8, 0.9), "drop": ("prior",), "seed": 3}
    assert train_config == plain.model_copy(update=changed)


def test_overrides_reach_into_nested_keys_and_lists(tmp_path: Path) -> None:
    sources = write(tmp_path, train=[{"shards": "a"}, {"shards": "b"}])
    assert [source.split for source in read_train_config(sources, ["train.1.split=dev"]).train] == [None, "dev"]
    model = {"vision_config": {"image_size": 70}, "text_config": {"hidden_size": 32}}
    overrides = ["model.text_config.hidden_size=48", "passes=3e2", "precision=no", "learning_rate=1.0e-3"]
    train_config = read_train_config(write(tmp_path, model=model), overrides)
    assert isinstance(train_config.model, FromScratch)
    assert train_config.model.text_config == {"hidden_size": 48}
    assert train_config.model.vision_config.image_size == 70
    assert (train_config.passes, train_config.precision, train_config.learning_rate) == (300, "no", 1e-3)


@pytest.mark.parametrize(("content", "error"), CASES["invalid content"])
def test_invalid_content_names_file_line_and_field(tmp_path: Path, content: dict[str, Any] | str, error: str) -> None:
    path = write(tmp_path, **(content if isinstance(content, dict) else {}))
    if isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    with raises(f"config.yaml{error}"):
        read_train_config(path)


@pytest.mark.parametrize(("changes", "message"), CASES["contradictions"])
def test_contradictory_values_are_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with raises_code(ErrorCode.INVALID_VALUE, rf"config\.yaml: .*{message}"):
        read_train_config(write(tmp_path, **changes))


@pytest.mark.parametrize(("override", "error"), CASES["overrides"])
def test_a_wrong_override_is_refused(tmp_path: Path, override: str, error: str) -> None:
    with raises(f"the command line: {error}"):
        read_train_config(write(tmp_path, betas=[0.9, 0.95], train=[{"shards": "a"}]), [override])


def test_an_error_names_the_file_that_contains_it(tmp_path: Path) -> None:
    write(tmp_path, pases=3, faults={"spike": 1.0}, train=[{"manifest": "m", "splitt": "a"}])
    top = tmp_path / "top.yaml"

    def error(text: str, *overrides: str) -> str:
        top.write_text(f"base: config.yaml\n{text}\n", encoding="utf-8")
        with pytest.raises(InputError) as caught:
            read_train_config(top, list(overrides))
        return summary(caught.value)

    assert error("") == "config.yaml: train[0].splitt: unknown-field"
    assert error("train: [{manifest: m, spilt: a}]") == "top.yaml: train[0].spilt: unknown-field"
    assert error("train: m") == "config.yaml: faults.spike: invalid-value"
    assert error("train: m\nfaults: {spike: 0.5}") == "top.yaml: faults.spike: invalid-value"
    assert error("train: m", "faults.spike=3") == "config.yaml: pases: unknown-field"


def test_a_wrong_config_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    for folder in ("own", "checkpoint", "files"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text("{}")
    rows = [{"sample_id": s, "findings": "Clear.", "split": s} for s in ("train", "train", "test")]
    write_jsonl(tmp_path / "own/manifest.jsonl", rows)
    write_jsonl(tmp_path / "samples.jsonl", [{"task": "vert"}] * 2)
    write_jsonl(tmp_path / "pairs.jsonl", [{"sample_id": "train", "chosen": "Clear.", "rejected": "Mass."}])
    for name, values in CASES["configs of refused runs"].items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(values))
    before, cases = {*tmp_path.rglob("*")}, CASES["refused runs"]
    lines = "".join(f"{command}\n" for command, _ in cases)
    options: dict[str, Any] = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(CONFIGS.parent)}, "text": True}
    ended = subprocess.run([sys.executable, "-c", DATA["refused runs"]], input=lines, capture_output=True, **options)
    printed = iter(ended.stderr.splitlines())
    for (command, error), message, end in zip(cases, printed, printed, strict=True):
        assert (error in message, end) == (True, "2 False False"), f"{command}: {message}"
    assert {*tmp_path.rglob("*")} == before


@pytest.mark.parametrize(("precision", "machine", "instructions", "is_warned"), CASES["warnings of bfloat16"])
def test_bfloat16_without_instructions_is_a_warning(
    precision: str, machine: str, instructions: list[str], is_warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("avx512_bf16", "amx_tile"):
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", partial(bool, name in instructions), raising=False)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    console = Console(record=True, width=200)
    warn_of_bfloat16(console, precision)
    assert ("precision=no" in console.export_text()) is is_warned
