"""The benchmark for a GPU: its results file, what happens to cases that end early, and all stages with tiny models."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import gpu
import pytest
from gpu_stages.cases import FAILED, MEASURED, OUT_OF_MEMORY, SKIPPED, CaseKey, Measurement, Results

SCRIPT = Path(gpu.__file__)
UNAVAILABLE = (
    "SimpleITK",
    "aiohttp",
    "bitsandbytes",
    "langchain_core",
    "langchain_openai",
    "pycocotools",
    "pydicom",
    "ray",
    "tensorboard",
    "torchao",
    "vllm",
)
"""Modules that a machine with torch, transformers, timm, accelerate and peft may lack."""
WORKER = """
import json, os, pathlib, sys, time
folder, order = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
for number, (stage, case) in enumerate(order["tasks"]):
    if case == "crash":
        os.abort()
    if case == "other device":
        sys.exit(3)
    if case == "hang":
        time.sleep(1000)
    row = {"stage": stage, "case": case, "outcome": "measured", "name": "speed", "value": 1.0}
    with open(folder / "results.jsonl", "a") as file:
        file.write(json.dumps(row) + "\\n")
    (folder / ".progress").write_text(str(number + 1))
"""
"""A process that runs cases by the same protocol as `gpu.run_worker`, without importing torch."""


def _runner(folder: Path, *, limit: float = 1000, minutes: float = 10) -> gpu.CaseRunner:
    stage = gpu.Stage("stage", "module", limit, (), ())
    deadline = time.monotonic() + 60 * minutes
    return gpu.CaseRunner(Results(folder), {"stage": stage}, False, deadline, (sys.executable, "-c", WORKER))


def _outcomes(folder: Path) -> dict[str, str]:
    return {case: rows[0]["outcome"] for (_, case), rows in Results(folder).last_runs().items()}


def _tasks(*cases: str) -> list[CaseKey]:
    return [("stage", case) for case in cases]


def test_a_crash_ends_its_case_only(tmp_path: Path) -> None:
    runner = _runner(tmp_path)
    assert runner.run(_tasks("first", "crash", "last")) == []
    assert _outcomes(tmp_path) == {"first": MEASURED, "crash": FAILED, "last": MEASURED}
    (row,) = Results(tmp_path).last_runs()["stage", "crash"]
    assert "SIGABRT" in row["reason"]


def test_a_case_beyond_its_time_limit_is_ended(tmp_path: Path) -> None:
    runner = _runner(tmp_path, limit=0.5)
    assert runner.run(_tasks("hang")) == []
    (row,) = Results(tmp_path).rows
    assert (row["outcome"], row["value"], row["reason"]) == (FAILED, None, "time limit of 0.5 s")


def test_the_deadline_of_a_call_records_nothing(tmp_path: Path) -> None:
    runner = _runner(tmp_path, minutes=0.01)
    assert runner.run(_tasks("hang", "last")) == _tasks("hang", "last")
    assert Results(tmp_path).rows == []


def test_results_of_another_device_end_the_call(tmp_path: Path) -> None:
    runner = _runner(tmp_path)
    assert runner.run(_tasks("other device", "last")) == _tasks("other device", "last")
    assert Results(tmp_path).rows == []


def test_a_case_without_its_package_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu.CASE_NEEDS, "method=rare", "no_such_module")
    runner = _runner(tmp_path)
    assert runner.run(_tasks("method=rare", "last")) == []
    assert _outcomes(tmp_path) == {"method=rare": SKIPPED, "last": MEASURED}


def test_finished_cases_do_not_run_again_and_others_come_last(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for case, outcome in {"failed": FAILED, "skipped": SKIPPED, "done": MEASURED, "too large": OUT_OF_MEMORY}.items():
        results.add(("stage", case), outcome, [Measurement("outcome", None, reason="why")], started=case)
    with results.path.open("a") as file:
        file.write('{"stage": "stage", "case": "cut o')
    again = Results(tmp_path)
    tasks = _tasks("failed", "skipped", "done", "too large", "new")
    assert gpu.select_pending(tasks, again) == _tasks("new", "failed", "skipped")
    again.add(("stage", "failed"), MEASURED, [Measurement("speed", 2.0)], started="later")
    assert gpu.select_pending(tasks, Results(tmp_path)) == _tasks("new", "skipped")
    assert Results(tmp_path).value(("stage", "failed"), "speed") == 2.0


@pytest.mark.parametrize(
    ("value", "passed"), [(0.5, True), (0.4, False), (0.7, False), (math.nan, False), (None, None), ("fast", None)]
)
def test_only_numbers_within_the_target_pass(value: float | str | None, passed: bool | None) -> None:
    row = Measurement("speed", value, at_least=0.45, at_most=0.6).row()
    assert row["passed"] is passed
    json.dumps(row, allow_nan=False)


def test_every_stage_has_distinct_cases() -> None:
    for is_tiny in (False, True):
        tasks = gpu.all_tasks(gpu.STAGES, is_tiny=is_tiny)
        assert len(set(tasks)) == len(tasks)
        assert {stage for stage, _ in tasks} == {stage.name for stage in gpu.STAGES}


@pytest.mark.slow
def test_all_stages_run_without_a_gpu_and_without_optional_packages(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({UNAVAILABLE!r}))\n", encoding="utf-8"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    out = tmp_path / "results"
    command = [sys.executable, str(SCRIPT), "--tiny", "--out", str(out)]
    printed = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "missing: torchao" in printed
    rows = Results(out).rows
    details = "\n".join(f"{row['stage']} {row['case']}: {row['reason']}" for row in rows if row["outcome"] == FAILED)
    assert not details, details
    outcomes = {task: task_rows[0]["outcome"] for task, task_rows in Results(out).last_runs().items()}
    assert set(outcomes) == set(gpu.all_tasks(gpu.STAGES, is_tiny=True))
    skipped = {task for task, outcome in outcomes.items() if outcome == SKIPPED}
    needs = {"method=8bit", "method=qlora", "engine=vllm"}
    without_package = {task for task in outcomes if needs & set(task[1].split())}
    assert skipped == without_package | {task for task in outcomes if task[0] == "memory"}
    missed = [row["name"] for row in rows if row["passed"] is False and row["stage"] in ("correctness", "state")]
    assert not missed
    assert "correctness" in (out / "page.html").read_text(encoding="utf-8").lower()
    assert set(gpu.select_pending(gpu.all_tasks(gpu.STAGES, is_tiny=True), Results(out))) == skipped
