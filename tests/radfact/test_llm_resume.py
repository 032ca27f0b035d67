"""Killed at any point and run again: what is on disk is not asked again, and the result is an undisturbed run's."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from chat_server import ChatServer, Reply, last

CONCURRENCY = 4
SAMPLES = 10
KILLED_AFTER = (0, 1, 25, 55)
"""Numbers of responses."""


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


def start(server: ChatServer, source: Path, out: Path) -> subprocess.Popen[str]:
    options = ["--judge", "openai:m", "--base-url", server.base_url, "--concurrency", str(CONCURRENCY)]
    command = [sys.executable, "-m", "radfact", "score", str(source), *options, "--out", str(out), "--bootstrap", "20"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def score(server: ChatServer, source: Path, out: Path) -> dict[str, bytes]:
    """Return the results of a run that is not disturbed."""
    with start(server, source, out) as process:
        _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return {name: (out / name).read_bytes() for name in ("scores.json", "samples.jsonl", "sentences.jsonl")}


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_resumes_with_equal_results(
    serve: Any, source: Path, tmp_path: Path
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
    for limit in KILLED_AFTER:
        with start(server, source, out) as process:
            # All that may be in flight is: what was answered before is on disk.
            for _ in range(CONCURRENCY):
                assert waiting.acquire(timeout=120)
            process.kill()
        dead.set()
        dead = threading.Event()
        with closing(sqlite3.connect(out / "cache" / "answers.sqlite")) as file:
            assert file.execute("SELECT count(*) FROM answers").fetchone() == (limit,)
    limit = 2 * requests
    resumed = score(server, source, out)
    assert len(server.requests) == requests + len(KILLED_AFTER) * CONCURRENCY
    assert resumed == score(server, source, tmp_path / "undisturbed")
