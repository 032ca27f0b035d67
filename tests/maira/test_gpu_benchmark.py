"""The benchmark for a GPU: its results file, what happens to cases that end early, and all stages with tiny models."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import gpu
import pytest
from gpu_stages.results import FAILED, MEASURED, OUT_OF_MEMORY, SKIPPED, Measurement, Results
from long_values import DATA

SCRIPT = Path(gpu.__file__)
WORKER = DATA["worker"]
"""A process that runs cases by the same protocol as `gpu.run_worker`, without importing torch."""


def _cases(*names: str, limit: float = 1000) -> list[gpu.Case]:
    return [gpu.Case("train", name, limit) for name in names]


def _run(folder: Path, cases: list[gpu.Case], *, seconds: float = 600) -> tuple[list[gpu.Case], Results]:
    """Run cases with the worker above; return those that are left, and the results."""
    results = Results(folder)
    left = gpu.run_cases(results, cases, time.time() + seconds, command=(sys.executable, "-c", WORKER))
    return left, Results(folder)


def test_a_case_that_the_deadline_or_another_device_ends_is_left(tmp_path: Path) -> None:
    for name, seconds in (("hang", 0.6), ("other device", 600)):
        cases = _cases(name, "last")
        left, results = _run(tmp_path, cases, seconds=seconds)
        assert left == cases
        assert results.outcome(("train", name)) is None


def test_a_crash_timeout_or_missing_package_ends_its_case_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu.CASE_NEEDS, "method=rare", "no_such_module")
    cases = [*_cases("first", "crash"), *_cases("hang", limit=0.5), *_cases("method=rare", "last")]
    left, results = _run(tmp_path, cases)
    assert left == []
    outcomes = {"first": MEASURED, "crash": FAILED, "hang": FAILED, "method=rare": SKIPPED, "last": MEASURED}
    assert {case: results.outcome((stage, case)) for stage, case in results.last_runs()} == outcomes
    speed, outcome = results.last_runs()["train", "crash"]
    assert speed["value"] == 1.0  # measured before the crash
    assert "SIGABRT" in outcome["reason"]
    assert results.last_runs()["train", "hang"][-1]["reason"] == "time limit of 0.5 s; see log.txt"


def test_finished_cases_do_not_run_again_and_others_come_last(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for case, outcome in {"failed": FAILED, "skipped": SKIPPED, "done": MEASURED, "too large": OUT_OF_MEMORY}.items():
        results.add(("train", case), Measurement(gpu.OUTCOME, outcome), started=case)
    with results.path.open("a") as file:
        file.write('{"stage": "train", "case": "cut o')
    again = Results(tmp_path)
    cases = _cases("failed", "skipped", "done", "too large", "new")
    assert gpu.select_pending(cases, again) == _cases("new", "failed", "skipped")
    again.add(("train", "failed"), Measurement("speed", 2.0), started="later")
    assert Results(tmp_path).outcome(("train", "failed")) is None
    again.add(("train", "failed"), Measurement(gpu.OUTCOME, MEASURED), started="later")
    assert gpu.select_pending(cases, Results(tmp_path)) == _cases("new", "skipped")
    assert Results(tmp_path).value(("train", "failed"), "speed") == 2.0


def test_a_worker_ends_with_its_parent_and_if_packages_are_broken(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError")
    order = json.dumps({"cases": [], "deadline": time.time() + 600, "tiny": True})
    command = [sys.executable, str(SCRIPT), "--worker", str(tmp_path), order]
    for path, code in (("", 1), (str(tmp_path), 3)):
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path}) as worker:
            if code == 1:
                worker.stdin.close()  # type: ignore[union-attr]  # as the death of the parent does
            assert worker.wait() == code


@pytest.mark.parametrize(
    ("value", "passed"), [(0.5, True), (0.4, False), (0.7, False), (math.nan, False), (None, None), ("fast", None)]
)
def test_only_numbers_within_the_target_pass(value: float | str | None, passed: bool | None) -> None:
    row = Measurement("speed", value, at_least=0.45, at_most=0.6).row()
    assert row["passed"] is passed
    json.dumps(row, allow_nan=False)


def test_cases_are_distinct_and_every_stage_has_a_tiny_one() -> None:
    for is_tiny in (False, True):
        tasks = [(case.stage, case.options) for case in gpu.list_cases(is_tiny=is_tiny)]
        assert len(set(tasks)) == len(tasks)
        assert {stage for stage, _ in tasks} == set(gpu.MODULES)


@pytest.mark.slow
def test_all_stages_run_without_a_gpu_and_without_optional_packages(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({DATA['packages that a GPU machine may lack'].split()}))\n"
    )
    out = tmp_path / "results"
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, SCRIPT, "--tiny", "--out", out], env=environment, cwd=tmp_path, check=True)
    results = Results(out)
    needs = {"method=8bit", "engine=vllm"}
    assert {task: results.outcome(task) for task in results.last_runs()} == {
        (case.stage, case.options): SKIPPED if needs & {*case.options.split()} else MEASURED
        for case in gpu.list_cases(is_tiny=True)
    }
    assert not [row["name"] for row in results.rows if row["passed"] is False and row["stage"] == "correctness"]
    rows = results.last_runs()["generate", "engine=transformers cache=auto batch=4"]
    values = {row["name"]: row["value"] for row in rows}
    assert values["tokens of a prompt, shortest"] < values["tokens of a prompt, longest"]
    assert "| correctness packed |" in (out / "table.md").read_text(encoding="utf-8")
