"""Killed or interrupted and run again: what is on disk is not asked again, and the result is an undisturbed run's."""

import json
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from chat_server import ChatServer, Reply, last
from waiting import PATIENCE

CONCURRENCY = 4
SAMPLES = 10
STOPPED_AFTER = {1: signal.SIGKILL, 40: signal.SIGINT}
"""Signals by the number of responses."""
PROGRAM = yaml.safe_load(Path(__file__).with_name("llm_faults.yaml").read_text("utf-8"))["program"]


def verdict_reply(body: dict[str, Any]) -> Reply:
    """A verdict that depends on nothing but the request: entailed by the last sentence if its length is even."""
    asked = yaml.safe_load(last(body))
    entailed = len(asked["hypothesis"]) % 2 == 0
    answer = {
        "phrase": asked["hypothesis"],
        "evidence": asked["reference"][-1:] if entailed else [],
        "status": "entailment" if entailed else "not_entailment",
    }
    return 200, {}, yaml.safe_dump(answer, sort_keys=False)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Grounded pairs of three sentences a side, all of them different."""

    def report(sample: int, side: str) -> list[dict[str, Any]]:
        box = {"x_min": 0.1, "y_min": 0.1, "x_max": 0.4 + sample / 50, "y_max": 0.5}
        return [{"text": f"{side} {'x' * (sample + i)} {sample} {i}.", "boxes": [box]} for i in range(3)]

    sides = {"prediction": "Candidate", "target": "Reference"}
    rows = [{"example_id": f"s{i}"} | {key: report(i, side) for key, side in sides.items()} for i in range(SAMPLES)]
    path = tmp_path / "pairs.json"
    path.write_text(json.dumps(rows))
    return path


def score(server: ChatServer, source: Path, out: Path) -> list[str]:
    options = ["--judge", "openai:m", "--base-url", server.base_url, "--concurrency", str(CONCURRENCY)]
    return ["score", str(source), *options, "--out", str(out), "--bootstrap", "20"]


@pytest.mark.slow
def test_a_run_that_is_killed_and_interrupted_resumes_with_equal_results(
    serve: Any, source: Path, tmp_path: Path, run_radfact: Callable[..., tuple[int, str, str]]
) -> None:
    waiting, dead, lock = threading.Semaphore(0), threading.Event(), threading.Lock()
    answered = limit = 0

    def reply(body: dict[str, Any], _: int) -> Reply:
        nonlocal answered
        with lock:
            is_answered = answered < limit
            answered += is_answered
        if is_answered:
            return verdict_reply(body)
        client_is_dead = dead
        waiting.release()
        client_is_dead.wait()
        return b""

    server = serve(reply)
    out, requests = tmp_path / "out", 6 * SAMPLES
    for limit, stop in STOPPED_AFTER.items():
        command = [sys.executable, "-c", PROGRAM, *score(server, source, out)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            # All that may be in flight is: what was answered before is on disk.
            for _ in range(CONCURRENCY):
                assert waiting.acquire(timeout=PATIENCE)
            process.send_signal(stop)
            _, error = process.communicate(timeout=PATIENCE)
        dead.set()
        dead = threading.Event()
        with closing(sqlite3.connect(out / "cache" / "answers.sqlite")) as file:
            assert file.execute("SELECT count(*) FROM answers").fetchone() == (limit,)
    assert (process.returncode, error.count("\n")) == (1, 1)
    assert error.startswith("radfact: interrupted")
    assert not (out / "scores.json").exists()
    limit = 2 * requests
    folders = (out, tmp_path / "undisturbed")
    assert run_radfact(*score(server, source, folders[0]))[0] == 0
    assert len(server.requests) == requests + len(STOPPED_AFTER) * CONCURRENCY
    assert run_radfact(*score(server, source, folders[1]))[0] == 0
    for name in ("scores.json", "samples.jsonl", "sentences.jsonl"):
        resumed, undisturbed = ((folder / name).read_bytes() for folder in folders)
        assert resumed == undisturbed
