"""`radfact doctor`: its results on working and on broken installations."""

import json
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


def _results(*arguments: str, exit_code: int = 0) -> dict[str, Any]:
    """Return the results of `radfact doctor --json` by section and name, and check its exit code."""
    result = _doctor("--json", *arguments)
    assert result.exit_code == exit_code
    report = json.loads(result.output)
    sections = report["sections"] | {"Commands": report["commands"]}
    return {title: {result["name"]: result for result in results} for title, results in sections.items()}


def test_a_working_installation_is_exit_code_0_and_every_command_is_listed() -> None:
    results = _results()
    assert set(results) == {"Packages", "GPUs", "Judges", "Metrics", "Commands"}
    commands = {"radfact score", "radfact doctor", "radfact meta ensemble apply"}
    assert {results["Commands"][name]["status"] for name in commands} == {"ok"}


@pytest.mark.parametrize(
    ("package", "exit_code", "command", "fix"),
    [
        ("langchain-core", 1, "radfact score", "pip install --upgrade maira-radfact"),
        ("scipy", 0, "radfact meta agreement", 'pip install "maira-radfact[meta]"'),
    ],
)
def test_a_package_outside_its_range_concerns_the_commands_that_import_it(
    package: str, exit_code: int, command: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"{package.replace('-', '_')}-0.3.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.3.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    commands = _results(exit_code=exit_code)["Commands"]
    assert (commands[command]["status"], commands[command]["fix"]) == ("missing", fix)
    assert commands[command]["message"].startswith(f"{package} 0.3.1 is outside ")
    assert commands["radfact score"]["status"] == ("missing" if exit_code else "ok")
    printed = _doctor().output
    assert f"{package} 0.3.1 is outside " in printed
    assert f" -> {fix}" in printed


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
    results = _results()
    assert results["Judges"]["openai"]["status"] == "ok"
    for output in (json.dumps(results), _doctor().output):
        assert "AZURE_OPENAI_API_KEY" in output
        assert "secret" not in output


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
