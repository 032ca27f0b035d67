"""`radfact doctor`: what it finds, what it says of broken installations, and that it never falls ill itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from radfact.cli.main import app
from radfact.doctor import Item, accelerators, examine, looked_at, machine, packages
from radfact.doctor.evaluation import KEYS, NEEDS, judge_items, metric_items
from radfact.llm.langchain import PARTNERS
from radfact.metrics.registry import Entry


def _doctor(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments])


def _version(folder: Path, name: str, version: str) -> None:
    """Another version of a distribution, found before the installed one."""
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def _in_a_process(*places: Path, code: str = "") -> subprocess.CompletedProcess[str]:
    """`python -m radfact.doctor` with folders before everything that is installed."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*places, root)))}
    run = f"{code}\nimport runpy; runpy.run_module('radfact.doctor', run_name='__main__')"
    return subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, env=environment, check=False)


def test_what_is_in_order_is_exit_code_0_and_every_command_is_listed() -> None:
    result = _doctor()
    assert result.exit_code == 0
    assert "ready   radfact score" in result.output
    assert "ready   radfact meta ensemble apply" in result.output


def test_json_says_the_same_to_programs() -> None:
    found = json.loads(_doctor("--json").output)
    assert found["sound"] is True
    assert set(found["sections"]) == {"Packages", "Machine", "Judges", "Metrics"}
    basic = next(item for item in found["sections"]["Packages"] if item["name"] == "basic")
    assert basic["details"]["packages"]["typer"]["wanted"].startswith(">=")
    assert {"radfact score", "radfact doctor"} <= {item["name"] for item in found["commands"]}


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
    found = json.loads(_doctor("--json").output)
    states = {item["name"]: item for item in found["commands"]}
    assert found["sound"] is True
    assert states["radfact meta agreement"]["state"] == "missing"
    assert states["radfact meta agreement"]["mend"] == 'pip install "maira-radfact[meta]"'
    assert states["radfact score"]["state"] == "ok"


def test_what_a_failed_installation_left_behind_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rich-99.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert packages.installed("rich") is None
    assert packages.installed("no-such-distribution") is None


def test_a_basic_package_that_cannot_be_imported_is_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy/__init__.py").write_text("raise ImportError('built for another\\nprocessor')")
    done = _in_a_process(tmp_path)
    assert done.returncode == 1
    assert "wrong   numpy" in done.stdout
    assert "cannot be imported (ImportError: built for another processor)" in done.stdout
    assert "-> pip install --force-reinstall numpy" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("gone", ["packaging", "yaml", "pydantic"])
def test_a_basic_package_that_is_gone_is_said_without_a_traceback(gone: str) -> None:
    hide = (
        "import sys\n"
        "class Hidden:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == '{gone}':\n"
        f"            raise ModuleNotFoundError('gone', name='{gone}')\n"
        "sys.meta_path.insert(0, Hidden())\n"
    )
    done = _in_a_process(code=hide)
    assert done.returncode == 1
    assert gone in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_torch_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    assert "torch was imported" not in _in_a_process(tmp_path).stderr


def test_a_look_that_fails_is_an_item_and_the_others_go_on() -> None:
    def _broken_disk() -> list[Item]:
        raise OSError("no\nsuch disk")

    section = looked_at("Machine", _broken_disk, lambda: [Item("cores", "note", "2")])
    assert [(item.name, item.state) for item in section.items] == [("broken disk", "wrong"), ("cores", "note")]
    assert section.items[0].text == "cannot be looked at (OSError: no such disk)"


def test_keys_are_named_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-also-secret")
    monkeypatch.setenv("RADFACT_JUDGE", "openai:gpt")
    for arguments in ((), ("--json",)):
        said = _doctor(*arguments).output
        assert "OPENAI_API_KEY" in said
        assert "secret" not in said
    (openai,) = (item for item in judge_items() if item.name == "openai")
    assert openai.state == "ok"


def test_a_key_without_its_package_is_missing_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radfact.doctor.evaluation.importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv("MISTRAL_API_KEY", "x")
    (mistral,) = (item for item in judge_items() if item.name == "mistralai")
    assert (mistral.state, mistral.mend) == ("missing", 'pip install "maira-radfact[mistralai]"')


def test_the_keys_of_every_provider_are_known() -> None:
    assert KEYS.keys() == PARTNERS.keys()


def test_every_need_names_extras_that_there_are() -> None:
    assert {extra for need in NEEDS.values() for extra in need.extras} <= packages.requirements().keys()


def test_weights_are_looked_for_as_the_metrics_do(tmp_path: Path) -> None:
    (tmp_path / "chexbert").mkdir()
    (tmp_path / "chexbert/vocab.txt").touch()
    said = json.loads(_doctor("--json", "--weights", str(tmp_path)).output)
    states = {item["name"]: item for item in said["sections"]["Metrics"]}
    assert states["rouge_l"]["state"] == "ok"
    assert states["chexbert"]["state"] == "missing"
    chexbert = states["chexbert"]
    assert (chexbert["text"], chexbert["mend"]) == ("needs weights", f"{tmp_path / 'chexbert'} has no chexbert.pth")


def test_a_metric_that_is_there_and_cannot_be_loaded_is_wrong_and_its_reason_is_no_mend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = Entry("lost", "nowhere:Metric")
    monkeypatch.setattr("radfact.metrics.registry.entries", lambda: {"lost": lost})
    [item] = metric_items()
    assert (item.state, item.mend) == ("wrong", None)
    assert item.text.startswith("metric 'lost' cannot be loaded from nowhere:Metric: ")


@pytest.mark.parametrize(("judge", "said"), [("", "needs a language model"), ("openai:gpt", "asks openai:gpt")])
def test_what_asks_a_model_asks_the_one_of_the_environment(
    judge: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADFACT_JUDGE", judge)
    assert next(item.text for item in metric_items() if item.name == "green").startswith(said)


def _nvidia_smi(folder: Path, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "state", "said"),
    [
        (
            "echo '0, NVIDIA H100 80GB HBM3, 570.1, 81559, 1024, 9.0'",
            "ok",
            "NVIDIA H100 80GB HBM3, 80 GiB (1 in use), driver 570.1",
        ),
        ("echo '0, Tesla T4, 535.2, 15360, 0, 7.5'", "ok", "no bf16"),
        ("echo '0, NVIDIA GB10, 580.1, [N/A], [N/A], 12.1'", "ok", "? GiB"),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "wrong", "version mismatch"),
        ("echo 'something else'", "wrong", "cannot be looked at"),
    ],
)
def test_gpus_are_those_of_the_driver(
    script: str, state: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _nvidia_smi(tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    item = looked_at("Machine", accelerators.accelerator_items).items[0]
    assert (item.state, said in item.text) == (state, True)


def test_a_driver_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _nvidia_smi(tmp_path, "exec sleep 60")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(accelerators, "_PATIENCE", 0.05)
    assert "does not answer" in accelerators.accelerator_items()[0].text


@pytest.mark.parametrize(
    ("source", "built"),
    [
        ("__version__ = '2.9'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", "CUDA 12.8"),
        ("cuda: Optional[str] = None\nhip = '6.2'\n", "ROCm 6.2"),
        ("cuda: Optional[str] = None\n", "the CPU"),
    ],
)
def test_what_torch_was_built_for_is_read_and_not_imported(
    source: str, built: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "torch/version.py").write_text(source)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert accelerators.torch_build() == built


def test_a_torch_for_the_cpu_beside_a_gpu_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _nvidia_smi(tmp_path, "echo '0, Tesla T4, 535.2, 15360, 0, 7.5'")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(accelerators, "torch_build", lambda: "the CPU")
    torch = accelerators.accelerator_items()[-1]
    assert (torch.state, torch.mend is not None) == ("wrong", True)


def test_limits_of_a_container_count_before_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.setattr(machine, "usable_cores", lambda: 64)
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text(f"{64 << 20}\n")
    (tmp_path / "memory.current").write_text(f"{16 << 20}\n")
    cores, memory, _ = machine.machine_items()
    assert cores.text == "64, of which a limit leaves 1.5"
    assert memory.details == {"bytes": 64 << 20, "free_bytes": 48 << 20}
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    cores, memory, _ = machine.machine_items()
    assert cores.text == "64"
    assert memory.details["bytes"] > 64 << 20


def test_every_mend_is_one_line() -> None:
    found = examine.examine(["score", "meta agreement"])
    items = [item for section in found.sections for item in section.items]
    assert all("\n" not in f"{item.text}{item.mend}" for item in items)
