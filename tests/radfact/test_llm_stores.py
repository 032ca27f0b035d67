"""Stores of workers: a run merges its own and those of the dead, and leaves those of the living alone."""

from __future__ import annotations

import errno
import fcntl
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

import pytest

from radfact.errors import RunError
from radfact.llm import CachedResponse, ResponseCache
from radfact.llm.cache import worker_caches

ANSWER = CachedResponse("text", 1, 2)


def keep(folder: Path, key: str) -> None:
    with closing(ResponseCache(folder)) as store:
        store.put([(key, ANSWER)])


def kept(cache: Path, *keys: str) -> list[str]:
    with closing(ResponseCache(cache)) as main:
        return [key for key in keys if main.get(key) == ANSWER]


PROGRAM = """
import sys
from pathlib import Path
from radfact.llm import ResponseCache, CachedResponse
from radfact.llm.cache import worker_caches
with worker_caches(Path(sys.argv[1])) as stores:
    store = ResponseCache(stores / "worker")
    for key in ("early", "late"):
        store.put([(key, CachedResponse("text", 1, 2))])
        print(key, flush=True)
        sys.stdin.readline()
    store.close()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run of another process, which has kept `early` and keeps `late` when it is told to go on."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "early\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("ends_in", [nullcontext(), pytest.raises(RunError)], ids=["done", "failed"])
def test_a_run_always_merges_the_stores_of_its_workers(tmp_path: Path, ends_in: AbstractContextManager[object]) -> None:
    with ends_in, worker_caches(tmp_path) as stores:
        for name in "ab":
            keep(stores / name, name)
        if not isinstance(ends_in, nullcontext):
            raise RunError("enough")
    assert kept(tmp_path, "a", "b") == ["a", "b"]
    assert not list((tmp_path / "workers").iterdir())


def test_stores_of_an_active_run_are_not_merged(other: subprocess.Popen[str], tmp_path: Path) -> None:
    with worker_caches(tmp_path) as stores:
        keep(stores / "worker", "own")
    assert kept(tmp_path, "own", "early") == ["own"]
    other.communicate("\n\n", timeout=60)
    assert other.returncode == 0
    assert kept(tmp_path, "own", "early", "late") == ["own", "early", "late"]
    assert not list((tmp_path / "workers").iterdir())


def test_two_runs_of_one_process_do_not_interfere(tmp_path: Path) -> None:
    with worker_caches(tmp_path) as first:
        with worker_caches(tmp_path) as second:
            keep(first / "worker", "first")
            keep(second / "worker", "second")
        assert kept(tmp_path, "first", "second") == ["second"]
    assert kept(tmp_path, "first", "second") == ["first", "second"]


def test_stores_of_a_killed_run_are_merged(other: subprocess.Popen[str], tmp_path: Path) -> None:
    other.send_signal(signal.SIGKILL)
    other.wait(timeout=60)
    with worker_caches(tmp_path) as stores:
        assert kept(tmp_path, "early") == ["early"]
        assert [path.name for path in (tmp_path / "workers").iterdir() if path.is_dir()] == [stores.name]
    assert not list((tmp_path / "workers").iterdir())


def test_without_locks_stores_of_other_runs_are_not_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    keep(tmp_path / "workers" / "other" / "worker", "other")
    with worker_caches(tmp_path) as stores:
        keep(stores / "worker", "own")
    assert kept(tmp_path, "own", "other") == ["own"]
    assert (tmp_path / "workers" / "other" / "worker" / "answers.sqlite").is_file()
