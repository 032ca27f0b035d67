"""`radfact doctor`: its results on working and on broken installations, and that no check raises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from radfact.cli.main import app
from radfact.doctor import CheckResult, diagnose, machine, packages, run_checks
from radfact.doctor.evaluation import COMMAND_REQUIREMENTS, KEYS, check_judges, check_metrics
from radfact.llm.langchain import PARTNERS
from radfact.metrics.registry import MetricEntry


def _doctor(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments])


def _results(*arguments: str) -> dict[str, Any]:
    """Return the results of `radfact doctor --json` by section and name."""
    report = json.loads(_doctor("--json", *arguments).output)
    sections = report["sections"] | {"Commands": report["commands"]}
    return {title: {result["name"]: result for result in results} for title, results in sections.items()}


def _version(folder: Path, name: str, version: str) -> None:
    """Write a distribution with another version, found before the installed one."""
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def _in_a_process(*places: Path, code: str = "") -> subprocess.CompletedProcess[str]:
    """Run `python -m radfact.doctor` with folders before everything that is installed."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*places, root)))}
    run = f"{code}\nimport runpy; runpy.run_module('radfact.doctor', run_name='__main__')"
    return subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, env=environment, check=False)


def test_a_working_installation_is_exit_code_0_and_every_command_is_listed() -> None:
    result = _doctor()
    assert result.exit_code == 0
    assert "ready   radfact score" in result.output
    assert "ready   radfact meta ensemble apply" in result.output


def test_json_has_all_sections_and_commands() -> None:
    results = _results()
    assert set(results) == {"Packages", "Machine", "Judges", "Metrics", "Commands"}
    assert results["Packages"]["basic"]["details"]["packages"]["typer"]["required"].startswith(">=")
    assert {"radfact score", "radfact doctor"} <= results["Commands"].keys()


def test_a_basic_package_outside_its_range_is_named_and_is_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _version(tmp_path, "langchain-core", "0.3.1")
    monkeypatch.syspath_prepend(tmp_path)
    result = _doctor()
    assert result.exit_code == 1
    assert "langchain-core 0.3.1 is outside <2,>=1.0" in result.output
    assert "-> pip install --upgrade maira-radfact" in result.output
    assert "missing radfact score" in result.output


def test_a_package_of_an_extra_outside_its_range_concerns_its_commands_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _version(tmp_path, "scipy", "1.0")
    monkeypatch.syspath_prepend(tmp_path)
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
    assert packages.installed("rich") is None
    assert packages.installed("no-such-distribution") is None


def test_a_basic_package_that_cannot_be_imported_is_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy/__init__.py").write_text("raise ImportError('built for another\\nprocessor')")
    process = _in_a_process(tmp_path)
    assert process.returncode == 1
    assert "wrong   numpy" in process.stdout
    assert "cannot be imported (ImportError: built for another processor)" in process.stdout
    assert "-> pip install --force-reinstall numpy" in process.stdout
    assert process.stderr == ""


@pytest.mark.parametrize("gone", ["packaging", "yaml", "pydantic"])
def test_a_missing_basic_package_is_reported_without_a_traceback(gone: str) -> None:
    hide = (
        "import sys\n"
        "class Hidden:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == '{gone}':\n"
        f"            raise ModuleNotFoundError('gone', name='{gone}')\n"
        "sys.meta_path.insert(0, Hidden())\n"
    )
    process = _in_a_process(code=hide)
    assert process.returncode == 1
    assert gone in process.stdout
    assert "Traceback" not in process.stdout + process.stderr


def test_torch_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    assert "torch was imported" not in _in_a_process(tmp_path).stderr


def test_a_check_that_raises_is_a_result_and_the_others_run() -> None:
    def check_broken_disk() -> list[CheckResult]:
        raise OSError("no\nsuch disk")

    section = run_checks("Machine", check_broken_disk, lambda: [CheckResult("cores", "note", "2")])
    assert [(result.name, result.status) for result in section.results] == [("broken disk", "wrong"), ("cores", "note")]
    assert section.results[0].message == "check failed (OSError: no such disk)"


def test_keys_are_named_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-also-secret")
    monkeypatch.setenv("RADFACT_JUDGE", "openai:gpt")
    for arguments in ((), ("--json",)):
        output = _doctor(*arguments).output
        assert "OPENAI_API_KEY" in output
        assert "secret" not in output
    (openai,) = (result for result in check_judges() if result.name == "openai")
    assert openai.status == "ok"


def test_a_key_without_its_package_is_missing_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radfact.doctor.evaluation.importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv("MISTRAL_API_KEY", "x")
    (mistral,) = (result for result in check_judges() if result.name == "mistralai")
    assert (mistral.status, mistral.fix) == ("missing", 'pip install "maira-radfact[mistralai]"')


def test_the_keys_of_every_provider_are_known() -> None:
    assert KEYS.keys() == PARTNERS.keys()


def test_the_extras_of_all_commands_exist() -> None:
    extras = {extra for requirement in COMMAND_REQUIREMENTS.values() for extra in requirement.extras}
    assert extras <= packages.requirements().keys()


def test_weights_are_looked_for_as_the_metrics_do(tmp_path: Path) -> None:
    (tmp_path / "chexbert").mkdir()
    (tmp_path / "chexbert/vocab.txt").touch()
    results = _results("--weights", str(tmp_path))["Metrics"]
    assert results["rouge_l"]["status"] == "ok"
    assert results["chexbert"]["status"] == "missing"
    assert f"{tmp_path / 'chexbert'} has no chexbert.pth" in results["chexbert"]["fix"]


def test_a_metric_that_cannot_be_loaded_has_no_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = MetricEntry("lost", "nowhere:Metric")
    monkeypatch.setattr("radfact.metrics.registry.entries", lambda: {"lost": lost})
    [result] = check_metrics()
    assert (result.status, result.fix) == ("wrong", None)
    assert "nowhere:Metric" in result.message


@pytest.mark.parametrize(("judge", "status"), [("", "note"), ("offline", "note"), ("openai:gpt", "ok")])
def test_llm_metrics_use_the_model_of_the_environment(judge: str, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADFACT_JUDGE", judge)
    assert next(result.status for result in check_metrics() if result.name == "green") == status


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Install a shell script as nvidia-smi."""

    def install(script: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    return install


@pytest.mark.parametrize(
    ("script", "status", "expected"),
    [
        ("echo '0, NVIDIA H100, 570.1, 81559, 1024, 9.0'", "ok", "NVIDIA H100, 80 GiB (1 in use), driver 570.1"),
        ("echo '0, Tesla T4, 535.2, 15360, 0, 7.5'", "ok", "no bf16"),
        ("echo '0, NVIDIA GB10, 580.1, [N/A], [N/A], 12.1'", "ok", "? GiB"),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "wrong", "version mismatch"),
        ("echo 'something else'", "wrong", "check failed"),
    ],
)
def test_gpus_are_those_of_the_driver(
    script: str, status: str, expected: str, nvidia_smi: Callable[[str], None]
) -> None:
    nvidia_smi(script)
    result = run_checks("Machine", machine.check_accelerators).results[0]
    assert (result.status, expected in result.message) == (status, True)


def test_a_driver_that_hangs_times_out(nvidia_smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi("exec sleep 60")
    monkeypatch.setattr(machine, "_TIMEOUT", 0.05)
    assert "does not answer" in machine.check_accelerators()[0].message


@pytest.mark.parametrize(
    ("source", "build"),
    [
        ("__version__ = '2.9'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", "CUDA 12.8"),
        ("cuda: Optional[str] = None\nhip = '6.2'\n", "ROCm 6.2"),
        ("cuda: Optional[str] = None\n", "the CPU"),
    ],
)
def test_the_build_of_torch_is_known_without_an_import(
    source: str, build: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "torch/version.py").write_text(source)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert machine.torch_build() == build


def test_a_torch_for_the_cpu_on_a_machine_with_a_gpu_is_wrong(
    nvidia_smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia_smi("echo '0, Tesla T4, 535.2, 15360, 0, 7.5'")
    monkeypatch.setattr(machine, "torch_build", lambda: "the CPU")
    torch = machine.check_accelerators()[-1]
    assert (torch.status, torch.fix is not None) == ("wrong", True)


def test_limits_of_a_container_count_before_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.setattr(machine, "usable_cores", lambda: 64)
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text(f"{64 << 20}\n")
    (tmp_path / "memory.current").write_text(f"{16 << 20}\n")
    cores, memory, _ = machine.check_machine()
    assert cores.details == {"cores": 64, "limit": 1.5}
    assert memory.details == {"bytes": 64 << 20, "free_bytes": 48 << 20}
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    cores, memory, _ = machine.check_machine()
    assert cores.details == {"cores": 64, "limit": None}
    assert memory.details["bytes"] > 64 << 20


def test_every_message_and_fix_is_one_line() -> None:
    report = diagnose(["score", "meta agreement"])
    results = [result for section in report.sections for result in section.results]
    assert all("\n" not in f"{result.message}{result.fix}" for result in results)
