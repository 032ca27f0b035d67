"""How commands end on bad input and on signals: a part of the matrix of `tests/benchmarks/faults.py`."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from chat_server import ChatServer
from fault_inputs import write_inputs, write_reports
from faults import ALLOWED, PRELOAD, Run, plan_runs, run_all
from waiting import wait_until

QUICK = yaml.safe_load(Path(__file__).with_name("quick_faults.yaml").read_text("utf-8"))
STRIDE = 89
"""Every STRIDE-th run of the whole matrix is a slow test."""


def _faults(runs: Sequence[Run], inputs: Path, preload: Sequence[str]) -> list[str]:
    return [str(outcome) for outcome in run_all(runs, inputs, preload=preload) if outcome.kind not in ALLOWED]


def test_bad_input_is_one_clear_line(tmp_path: Path) -> None:
    write_reports(tmp_path)
    runs = {f"{run.command}: {run.case}": run for run in plan_runs(tmp_path)}
    assert _faults([runs[name] for name in QUICK], tmp_path, PRELOAD[:2]) == []


@pytest.mark.slow
def test_a_sample_of_the_matrix_ends_clearly(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    assert _faults([*plan_runs(tmp_path)][::STRIDE], tmp_path, PRELOAD) == []


def _start(*words: object) -> subprocess.Popen[str]:
    """Start a command in a new process group, which SIGINT ends even if a shell runs these tests in the background."""
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    command = [sys.executable, "-m", *map(str, words)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=listen)


def _alive(group: int) -> list[str]:
    """Return the processes of a group that are no zombies."""
    alive = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, number = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(number) == group and state != "Z":
            alive.append(path.parent.name)
    return alive


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_command(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = _start("maira", "prepare", "phantom", "--count", 9999, "--size", 64, "--workers", 2, "--out", out)
    wait_until(lambda: any((out / "frontal").glob("*.png")))
    # A terminal sends Ctrl-C to all processes of the group, and a scheduler SIGTERM.
    (os.kill if number == signal.SIGKILL else os.killpg)(process.pid, number)
    _, error = process.communicate(timeout=60)
    wait_until(lambda: not _alive(process.pid))
    if number != signal.SIGKILL:
        assert process.returncode == 1
        assert error.endswith("[interrupted]\n")
        assert "Traceback" not in error


def test_a_signal_ends_a_run_that_waits_for_a_server(tmp_path: Path) -> None:
    """SIGINT does too, which `test_a_run_that_is_killed_and_interrupted_resumes_with_equal_results` sends."""
    write_reports(tmp_path)
    ended = False

    def reply(*_: Any) -> bytes:
        wait_until(lambda: ended)
        return b""

    server = ChatServer(reply)
    judge = ("--judge", "openai:m", "--base-url", server.base_url)
    process = _start("radfact", "score", tmp_path / "pairs.json", *judge, "--out", tmp_path / "out")
    try:
        wait_until(lambda: server.requests)
        process.terminate()
        _, error = process.communicate(timeout=60)
    finally:
        ended = True
        server.close()
    assert process.returncode == 1
    assert error.splitlines()[-1].endswith("[interrupted]")
    assert "Traceback" not in error
