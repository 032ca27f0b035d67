"""Worker processes: order of results, errors, and cleanup after a worker or the parent dies."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from maira.train.data.schedule import map_in_workers
from radfact.errors import ErrorCode, InputError, RunError

LONG = 10**6
"""Bytes, far more than a pipe holds."""
FORKED: type[BaseProcess] = multiprocessing.get_context("fork").Process


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """Fail instead of waiting forever."""

    def late(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def workers() -> list[BaseProcess]:
    """Running worker processes, unlike the servers of other tests."""
    return [process for process in multiprocessing.active_children() if isinstance(process, FORKED)]


def square(number: int) -> int:
    return number * number


def test_results_keep_the_order_of_items_read_ahead() -> None:
    items_taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            items_taken.append(number)
            yield number

    results = map_in_workers(square, items(), 2, prefetch=3)
    assert next(results) == 0
    assert len(items_taken) == 2 * 3 + 1
    assert list(results) == [number * number for number in range(1, 100)]
    assert not workers()


def raise_input_error(_item: int) -> list[int]:
    raise InputError("gone", code=ErrorCode.FILE_NOT_FOUND, file="radiograph.png", line=3)


def test_input_errors_keep_their_fields_and_end_the_workers() -> None:
    with pytest.raises(InputError) as raised:
        list(map_in_workers(raise_input_error, range(100), 2))
    assert (raised.value.code, raised.value.file, raised.value.line) == (ErrorCode.FILE_NOT_FOUND, "radiograph.png", 3)
    assert not workers()


def pid_of(_item: int) -> int:
    time.sleep(0.01)
    return os.getpid()


def test_a_killed_worker_ends_the_map() -> None:
    results = map_in_workers(pid_of, iter(range(1000)), 2)
    os.kill(next(results), signal.SIGKILL)
    with pytest.raises(RunError) as raised:
        list(results)
    assert raised.value.code is ErrorCode.OUT_OF_MEMORY
    wait_until(lambda: not workers())


def alarm(_item: int) -> float:
    """Seconds until an alarm ends this process; 0 for never."""
    return signal.getitimer(signal.ITIMER_REAL)[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_workers_ignore_termination_signals(number: signal.Signals) -> None:
    results = map_in_workers(alarm, iter(range(50)), 2)
    next(results)
    for worker in workers():
        os.kill(worker.pid or 0, number)
    assert set(results) == {0}


def long_result(_item: int) -> tuple[int, bytes]:
    return os.getpid(), bytes(LONG)


def hold(parent: Connection) -> None:
    """Take one result, send the id of its worker, and leave the others."""
    results = map_in_workers(long_result, range(100), 2)
    parent.send(next(results)[0])
    signal.pause()


def test_workers_end_with_their_parent() -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=hold, args=(theirs,))
    process.start()
    worker = ours.recv()
    process.kill()
    process.join()
    wait_until(lambda: not is_alive(worker))


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
