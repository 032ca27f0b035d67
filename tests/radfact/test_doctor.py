"""`radfact doctor`: its results on working and on broken installations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from radfact import machine
from radfact.cli.doctor import COMMAND_EXTRAS, KEYS, check_all, run_checks
from radfact.cli.main import app
from radfact.llm.langchain import PARTNERS
from radfact.metrics.registry import MetricEntry


def _doctor(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments])


def _results(*arguments: str) -> dict[str, Any]:
    """Return the results of `radfact doctor --json` by section and name."""
    report = json.loads(_doctor("--json", *arguments).output)
    sections = report["sections"] | {"Commands": report["commands"]}
    return {title: {result["name"]: result for result in results} for title, results in sections.items()}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Write a distribution with another version, found before the installed one."""

    def write(name: str, version: str) -> None:
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        monkeypatch.syspath_prepend(tmp_path)

    return write


def test_a_working_installation_is_exit_code_0_and_every_command_is_listed() -> None:
    assert _doctor().exit_code == 0
    results = _results()
    assert set(results) == {"Packages", "GPUs", "Judges", "Metrics", "Commands"}
    commands = {"radfact score", "radfact doctor", "radfact meta ensemble apply"}
    assert {results["Commands"][name]["status"] for name in commands} == {"ok"}


def test_a_basic_package_outside_its_range_is_named_and_is_exit_code_1(install: Callable[[str, str], None]) -> None:
    install("langchain-core", "0.3.1")
    result = _doctor()
    assert result.exit_code == 1
    assert "langchain-core 0.3.1 is outside <2,>=1.0 -> pip install --upgrade maira-radfact" in result.output
    assert "missing radfact score" in result.output


def test_a_package_of_an_extra_outside_its_range_concerns_its_commands_alone(
    install: Callable[[str, str], None],
) -> None:
    install("scipy", "1.0")
    assert _doctor().exit_code == 0
    commands = _results()["Commands"]
    assert commands["radfact meta agreement"]["status"] == "missing"
    assert commands["radfact meta agreement"]["fix"] == 'pip install "maira-radfact[meta]"'
    assert commands["radfact score"]["status"] == "ok"


@pytest.mark.parametrize("reader", ["importlib.metadata", "importlib_metadata"])
def test_an_empty_folder_of_a_distribution_is_not_installed(
    reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(reader)
    (tmp_path / "rich-99.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert machine.installed_version("rich") is None
    assert machine.installed_version("no-such-distribution") is None


def test_a_check_that_raises_is_a_result_in_one_line_and_the_others_run() -> None:
    def check_broken_driver() -> list[Any]:
        raise OSError("no\nsuch driver")

    sections = run_checks(GPUs=check_broken_driver, Judges=list)
    assert [result.message for result in sections["GPUs"]] == ["check failed (OSError: no such driver)"]
    assert sections["Judges"] == []


def test_keys_are_named_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    for arguments in ((), ("--json",)):
        output = _doctor(*arguments).output
        assert "AZURE_OPENAI_API_KEY" in output
        assert "secret" not in output
    assert _results()["Judges"]["openai"]["status"] == "ok"


def test_a_key_without_its_package_is_missing_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radfact.cli.doctor.importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv("MISTRAL_API_KEY", "x")
    mistral = _results()["Judges"]["mistralai"]
    assert (mistral["status"], mistral["fix"]) == ("missing", 'pip install "maira-radfact[mistralai]"')


def test_providers_and_extras_of_the_tables_exist() -> None:
    assert KEYS.keys() <= PARTNERS.keys()
    assert {*COMMAND_EXTRAS.values()} <= machine.requirements().keys()


def test_weights_are_looked_for_as_the_metrics_do(tmp_path: Path) -> None:
    (tmp_path / "chexbert").mkdir()
    (tmp_path / "chexbert/vocab.txt").touch()
    results = _results("--weights", str(tmp_path))["Metrics"]
    assert results["rouge_l"]["status"] == "ok"
    assert results["green"]["status"] == "note"
    assert results["chexbert"]["status"] == "missing"
    assert f"{tmp_path / 'chexbert'} has no chexbert.pth" in results["chexbert"]["message"]


def test_a_metric_that_cannot_be_loaded_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radfact.cli.doctor.entries", lambda: {"lost": MetricEntry("lost", "nowhere:Metric")})
    lost = _results()["Metrics"]["lost"]
    assert (lost["status"], "nowhere:Metric" in lost["message"]) == ("wrong", True)


@pytest.mark.parametrize(
    ("script", "status"),
    [("echo '0, NVIDIA H100, 81559 MiB, 570.1'", "ok"), ("echo 'version mismatch'; exit 18", "wrong")],
)
def test_gpus_are_those_of_the_driver(
    script: str, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (gpu,) = check_all()["GPUs"]
    assert (gpu.status, gpu.message in script) == (status, True)
