"""`maira doctor`: folders of models, and the commands that need them."""

from __future__ import annotations

import json
import sys
import webbrowser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from maira.cli.main import app
from maira.doctor import NEEDS, examine, read_folder
from radfact.doctor import packages

PHANTOM = Path(__file__).parents[2] / "checkpoints/phantom"


def _model(folder: Path, model_type: str, **files: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def _states(**options: Any) -> dict[str, Any]:
    commands = {"maira": ["generate", "assemble", "prepare phantom", "review export"], "radfact": ["score"]}
    return {item.name: item for item in examine(commands, **options).commands}


def test_the_shipped_checkpoint_is_one_that_generates() -> None:
    states = _states(folders=[PHANTOM])
    assert states["maira generate"].state == "ok"
    assert f"--checkpoint {PHANTOM}" in states["maira generate"].text


def test_models_in_the_usual_places_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    _model(tmp_path / "runs/mine/checkpoint", "maira2", model__safetensors="x", tokenizer__json="{}")
    _model(tmp_path / "hub/models--microsoft--rad-dino/snapshots/abc", "dinov2", model__safetensors="x")
    _model(tmp_path / "models/vicuna", "llama", model__safetensors="x", tokenizer__model="x")
    states = _states()
    assert "--checkpoint runs/mine/checkpoint" in states["maira generate"].text
    assert "rad-dino/snapshots/abc --language-model models/vicuna" in states["maira assemble"].text


def test_without_models_the_commands_say_what_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    states = _states()
    assert states["maira generate"].state == states["maira assemble"].state == "missing"
    assert "--checkpoint FOLDER" in str(states["maira generate"].mend)
    assert "--encoder FOLDER" in str(states["maira assemble"].mend)
    assert states["maira prepare phantom"].state == "ok"


_INDEX = json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"model__safetensors": "x"}, "no tokenizer"),
        ({"tokenizer__json": "{}"}, "no weights"),
        ({"tokenizer__json": "{}", "pytorch_model__bin": "x"}, "no weights: expected model.safetensors or "),
        ({"tokenizer__json": "{}", "model__safetensors__index__json": _INDEX, "one__safetensors": "x"}, "1 of 2 files"),
        ({"tokenizer__json": "{}", "model__safetensors__index__json": "[]"}, "cannot be read"),
        ({"tokenizer__json": "{}", "model__safetensors__index__json": "{"}, "the index of its weights cannot be read"),
    ],
)
def test_a_checkpoint_that_lacks_files_is_wrong(files: dict[str, str], fault: str, tmp_path: Path) -> None:
    folder = _model(tmp_path / "maira-2", "maira2", **files)
    assert fault in str(read_folder(folder).fault)
    assert _states(folders=[folder])["maira generate"].state == "missing"


@pytest.mark.parametrize(
    ("model_type", "file", "is_loaded"),
    [
        ("dinov2", "backbone_compatible__safetensors", True),
        ("dinov2", "model__safetensors__index__json", False),
        ("llama", "pytorch_model__bin", True),
        ("llava", "model__safetensors", True),
    ],
)
def test_each_kind_has_its_own_weights(model_type: str, file: str, is_loaded: bool, tmp_path: Path) -> None:
    folder = _model(tmp_path / "model", model_type, tokenizer__json="{}", **{file: _INDEX})
    assert (read_folder(folder).fault is None) is is_loaded
    assert _states(folders=[folder])["maira generate"].state == "missing"


@pytest.mark.parametrize(
    ("screen", "opens", "said"),
    [
        (":0", "firefox", "firefox"),
        (":0", None, "none that Python's webbrowser finds; maira review says its address"),
        ("", "w3m", "no screen to open one on; maira review says its address"),
    ],
)
def test_the_browser_is_the_one_that_a_review_opens(
    screen: str, opens: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get() -> webbrowser.BaseBrowser:
        if opens is None:
            raise webbrowser.Error
        return webbrowser.GenericBrowser(opens)

    monkeypatch.setattr(webbrowser, "get", get)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("DISPLAY", screen)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    items = [item for section in examine().sections for item in section.items if item.name == "browser"]
    assert [item.text for item in items] == [said]


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        (None, "no config.json"),
        ("{", "config.json cannot be read"),
        ("[]", "config.json has no model_type"),
        ("{}", "config.json has no model_type"),
    ],
)
def test_a_folder_that_is_no_model_is_said(config: str | None, fault: str, tmp_path: Path) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert read_folder(tmp_path).fault == fault


def test_without_the_extra_its_commands_name_it_and_the_others_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    found = packages.installed
    monkeypatch.setattr(packages, "installed", lambda name: None if name == "torch" else found(name))
    states = _states(folders=[PHANTOM])
    assert states["maira generate"].text == "torch is not installed"
    assert states["maira generate"].mend == 'pip install "maira-radfact[model]"'
    for ready in ("maira prepare phantom", "maira review export", "radfact score"):
        assert states[ready].state == "ok"


def test_every_need_names_extras_that_there_are() -> None:
    assert {extra for need in NEEDS.values() for extra in need.extras} <= packages.requirements().keys()


def test_every_need_is_that_of_a_command() -> None:
    said = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).output)
    names = [item["name"] for item in said["commands"]]
    assert all(any(f"{name} ".startswith(f"maira {need} ") for name in names) for need in NEEDS)
    assert {"maira generate", "maira prepare dicom", "radfact score"} <= set(names)
