"""`maira doctor`: folders of models, and the commands that need them."""

import json
import sys
import webbrowser
from pathlib import Path
from typing import Any

import pytest
import yaml
from long_values import DATA
from releases import write_release
from typer.testing import CliRunner

from maira.cli.main import app
from maira.doctor import COMMAND_EXTRAS, check_folder, diagnose
from radfact import machine

CASES = yaml.safe_load(Path(__file__).with_name("model_folders.yaml").read_text("utf-8"))
PHANTOM = Path(__file__).parents[2] / "checkpoints/phantom"


def _model(folder: Path, model_type: str, files: dict[str, str | None]) -> Path:
    """Write a folder with the config of a model, and other files; one without a text is removed."""
    write_release(folder, {"files": {"config.json": {"model_type": model_type}}})
    return write_release(folder, {"files": files})


def _states(**options: Any) -> dict[str, Any]:
    model = ["generate", "assemble", "prepare phantom", "review export", "review summary"]
    commands = {"maira": model, "radfact": ["score"]}
    return {result.name: result for result in diagnose(commands, **options)["Commands"]}


def test_the_shipped_checkpoint_is_detected() -> None:
    states = _states(folders=[PHANTOM])
    assert states["maira generate"].status == "ok"
    assert f"--checkpoint {PHANTOM}" in states["maira generate"].message


def test_models_are_detected_in_standard_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    states = _states()
    assert states["maira generate"].status == states["maira assemble"].status == "missing"
    assert "--checkpoint FOLDER" in str(states["maira generate"].fix)
    assert "--encoder FOLDER" in str(states["maira assemble"].fix)
    assert states["maira prepare phantom"].status == "ok"
    weights: dict[str, str | None] = {"model.safetensors": "x"}
    _model(tmp_path / "runs/mine/checkpoint", "maira2", weights | {"tokenizer.json": "{}"})
    _model(tmp_path / "hub/models--microsoft--rad-dino/snapshots/abc", "dinov2", weights)
    _model(tmp_path / "models/vicuna", "llama", weights | {"tokenizer.model": "x"})
    states = _states()
    assert "--checkpoint runs/mine/checkpoint" in states["maira generate"].message
    assert "rad-dino/snapshots/abc --language-model models/vicuna" in states["maira assemble"].message


@pytest.mark.parametrize(("files", "problem"), CASES["unusable"])
def test_a_folder_that_cannot_be_used_is_reported(files: dict[str, str | None], problem: str, tmp_path: Path) -> None:
    folder = _model(tmp_path / "maira-2", "maira2", files)
    result = check_folder(folder)[1]
    assert (result.status, problem in result.message) == ("wrong", True)
    assert _states(folders=[folder])["maira generate"].status == "missing"


@pytest.mark.parametrize(("model_type", "files", "is_loaded"), CASES["weights"])
def test_kinds_have_own_weights(model_type: str, files: dict[str, str | None], is_loaded: bool, tmp_path: Path) -> None:
    folder = _model(tmp_path / "model", model_type, {"tokenizer.json": "{}"} | files)
    assert (check_folder(folder)[1].status == "ok") is is_loaded
    assert _states(folders=[folder])["maira generate"].status == "missing"


@pytest.mark.parametrize(("screen", "opens", "expected"), DATA["browsers"])
def test_the_browser_of_a_review_is_detected(
    screen: str, opens: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get() -> webbrowser.BaseBrowser:
        if opens is None:
            raise webbrowser.Error
        return webbrowser.GenericBrowser(opens)

    monkeypatch.setattr(webbrowser, "get", get)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("DISPLAY", screen)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    messages = [result.message for result in diagnose()["Browser"]]
    assert [message.partition(";")[0] for message in messages] == [expected]


def test_commands_name_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = machine.installed_version
    missing = ("torch", "statsmodels")
    monkeypatch.setattr(machine, "installed_version", lambda name: None if name in missing else installed(name))
    states = _states(folders=[PHANTOM])
    assert states["maira generate"].message == "torch is not installed"
    assert states["maira generate"].fix == 'pip install "maira-radfact[model]"'
    assert states["maira review summary"].message == "statsmodels is not installed"
    assert states["maira review summary"].fix == 'pip install "maira-radfact[review]"'
    for ready in ("maira prepare phantom", "maira review export", "radfact score"):
        assert states[ready].status == "ok"


def test_every_requirement_belongs_to_a_command() -> None:
    assert {*COMMAND_EXTRAS.values()} <= machine.requirements().keys()
    report = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).output)
    names = [item["name"] for item in report["commands"]]
    assert all(any(f"{name} ".startswith(f"maira {command} ") for name in names) for command in COMMAND_EXTRAS)
    assert {"maira generate", "maira prepare dicom", "radfact score"} <= set(names)


@pytest.mark.parametrize(("files", "origin"), CASES["chat templates"])
def test_the_chat_template_of_a_checkpoint_is_named(files: dict[str, str | None], origin: str, tmp_path: Path) -> None:
    folder = _model(tmp_path / "model", "maira2", {"model.safetensors": "", "tokenizer.json": "{}"} | files)
    (result,) = diagnose(folders=[folder])["Models"]
    assert result.message.startswith("MAIRA-2: ")
    assert f"; prompts by {origin} (" in result.message
