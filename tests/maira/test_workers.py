"""Worker processes: order of results, errors, and cleanup after a worker or the parent dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from maira.train.data.workers import is_worker_killed, map_in_workers
from radfact.errors import ErrorCode, InputError

LONG = 10**6
"""Bytes, far more than a pipe holds."""
PATIENCE = 60


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """Fail instead of waiting forever."""

    def late(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def workers() -> list[BaseProcess]:
    """Running worker processes: daemons, unlike the servers of other tests."""
    return [process for process in multiprocessing.active_children() if process.daemon]


def square(number: int) -> int:
    return number * number


def test_results_keep_item_order() -> None:
    for count in (0, 1, 20):
        assert list(map_in_workers(square, iter(range(count)), 3)) == [number * number for number in range(count)]
    assert not workers()


def test_items_are_read_ahead_up_to_prefetch() -> None:
    items_taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            items_taken.append(number)
            yield number

    results = map_in_workers(square, items(), 2, prefetch=3)
    assert next(results) == 0
    assert len(items_taken) == 2 * 3 + 1
    results.close()
    assert not workers()


def test_the_global_random_state_is_unchanged() -> None:
    before = torch.get_rng_state()
    list(map_in_workers(square, range(3), 1))
    assert torch.equal(torch.get_rng_state(), before)


def raise_input_error(_item: int) -> list[int]:
    raise InputError("gone", code=ErrorCode.FILE_NOT_FOUND, file="radiograph.png", line=3)


def test_input_errors_keep_their_fields_and_end_the_workers() -> None:
    with pytest.raises(InputError) as raised:
        list(map_in_workers(raise_input_error, range(100), 2))
    assert (raised.value.code, raised.value.file, raised.value.line) == (ErrorCode.FILE_NOT_FOUND, "radiograph.png", 3)
    assert not workers()


def raise_index_error(item: int) -> int:
    return [1, 2][item]


def test_unexpected_errors_carry_the_worker_traceback() -> None:
    results = map_in_workers(raise_index_error, range(3), 1)
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(RuntimeError, match=r"in raise_index_error\n(.*\n)+IndexError: list index out of range"):
        next(results)


def pid_of(_item: int) -> int:
    time.sleep(0.01)
    return os.getpid()


def test_a_killed_worker_ends_the_map() -> None:
    results = map_in_workers(pid_of, iter(range(1000)), 2)

    def kill_and_read() -> None:
        os.kill(next(results), signal.SIGKILL)
        list(results)

    # Either from the generator, or by the DataLoader's signal handler from wherever it interrupts.
    with pytest.raises(RuntimeError) as raised:
        kill_and_read()
    assert is_worker_killed(raised.value) or getattr(raised.value, "code", None) is ErrorCode.OUT_OF_MEMORY
    results.close()
    wait_until(lambda: not workers())


def die_in_a_result(item: int) -> bytes:
    """Return two long results, and die while the second waits to be read."""
    while item == 2:
        if any(frame.f_code.co_name == "_send" for frame in sys._current_frames().values()):
            os.kill(os.getpid(), signal.SIGKILL)
    return bytes(LONG)


def test_a_worker_killed_while_sending_ends_the_map() -> None:
    results = map_in_workers(die_in_a_result, iter(range(6)), 1)

    def read_after_its_death() -> None:
        next(results)
        (worker,) = workers()
        wait_until(lambda: not is_alive(worker.pid or 0))
        list(results)

    with pytest.raises(RuntimeError):
        read_after_its_death()
    results.close()
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


kept: list[Any] = []


def leave_open(parent: Connection) -> None:
    """As `hold`, but come to an end while the generator is open and referenced."""
    kept.append(map_in_workers(long_result, range(100), 1))
    parent.send(next(kept[0])[0])


@pytest.mark.parametrize(("holder", "code"), [(hold, -signal.SIGKILL), (leave_open, 0)])
def test_workers_end_with_their_parent(holder: Callable[[Connection], None], code: int) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=holder, args=(theirs,))
    process.start()
    worker = ours.recv()
    if code:
        process.kill()
    process.join()
    assert process.exitcode == code
    wait_until(lambda: not is_alive(worker))


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
