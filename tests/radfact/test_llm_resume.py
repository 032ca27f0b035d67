"""Killed at any point and run again: what is on disk is not asked again, and the result is an undisturbed run's."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from chat_server import ChatServer, Reply, last

CONCURRENCY = 4
SAMPLES = 10
COMMAND = "from radfact.cli.main import main; main()"


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


def pairs(path: Path) -> Path:
    """Grounded pairs of three sentences a side, all of them different."""

    def report(sample: int, side: str) -> list[dict[str, Any]]:
        box = {"x_min": 0.1, "y_min": 0.1, "x_max": 0.4 + sample / 50, "y_max": 0.5}
        return [{"text": f"{side} {'x' * (sample + i)} {sample} {i}.", "boxes": [box]} for i in range(3)]

    samples = [
        {"example_id": f"s{i}", "prediction": report(i, "Candidate"), "target": report(i, "Reference")}
        for i in range(SAMPLES)
    ]
    path.write_text(json.dumps(samples))
    return path


def command(server: ChatServer, source: Path, out: Path) -> list[str]:
    options = ["--judge", "openai:m", "--base-url", server.base_url, "--concurrency", str(CONCURRENCY)]
    return [sys.executable, "-c", COMMAND, "score", str(source), *options, "--out", str(out), "--bootstrap", "20"]


def score(server: ChatServer, source: Path, out: Path) -> dict[str, bytes]:
    """The files of results of a run that is left in peace."""
    done = subprocess.run(command(server, source, out), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: (out / name).read_bytes() for name in ("scores.json", "samples.jsonl", "sentences.jsonl")}


def kept(out: Path) -> int:
    """How many answers are on disk."""
    with sqlite3.connect(out / "cache" / "answers.sqlite") as file:
        number = int(file.execute("SELECT count(*) FROM answers").fetchone()[0])
    file.close()
    return number


@pytest.mark.parametrize("answered", [0, 1, 25, 55])
@pytest.mark.slow
def test_a_killed_run_resumes_with_equal_results(serve: Any, tmp_path: Path, answered: int) -> None:
    source = pairs(tmp_path / "pairs.json")
    waiting, dead = threading.Semaphore(0), threading.Event()

    def reply(body: dict[str, Any], number: int) -> Reply:
        if number > answered and not dead.is_set():
            waiting.release()
            dead.wait()
            return b""
        return verdict_reply(body)

    server = serve(reply)
    out = tmp_path / "out"
    with subprocess.Popen(command(server, source, out), stdout=subprocess.DEVNULL) as process:
        # All that may be in flight is: what was answered before is on disk or counts among it.
        for _ in range(CONCURRENCY):
            assert waiting.acquire(timeout=20)
        os.kill(process.pid, signal.SIGKILL)
    dead.set()
    on_disk, asked = kept(out), len(server.requests)
    resumed = score(server, source, out)
    requests = 6 * SAMPLES
    assert on_disk == answered
    assert len(server.requests) - asked == requests - on_disk
    assert asked <= answered + CONCURRENCY
    assert resumed == score(server, source, tmp_path / "undisturbed")
