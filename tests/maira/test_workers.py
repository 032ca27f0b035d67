"""Processes that work ahead: what they give back, and that nothing is left waiting or running, whoever dies."""

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

from maira.train.data.workers import map_in_workers
from radfact.errors import InputError, RunError

LONG = 10**6
"""Bytes; a pipe holds far fewer."""
PATIENCE = 60
KILLED = r"a process that prepares samples was killed.*start the same command again"


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """What would wait for ever is an error."""

    def late(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def workers() -> list[BaseProcess]:
    """Those that run; daemons, as the servers of other tests are not."""
    return [process for process in multiprocessing.active_children() if process.daemon]


def square(job: int) -> int:
    return job * job


def test_results_come_in_the_order_of_their_jobs() -> None:
    for jobs in (0, 1, 20):
        assert list(map_in_workers(square, iter(range(jobs)), 3)) == [job * job for job in range(jobs)]
    assert not workers()


def test_no_more_jobs_are_taken_than_may_be_done_ahead() -> None:
    taken: list[int] = []

    def jobs() -> Iterator[int]:
        for job in range(100):
            taken.append(job)
            yield job

    results = map_in_workers(square, jobs(), 2, ahead=3)
    assert next(results) == 0
    assert len(taken) == 2 * 3 + 1
    results.close()
    assert not workers()


def gone(_job: int) -> list[int]:
    raise InputError("gone", file="radiograph.png")


def test_processes_end_with_an_error() -> None:
    with pytest.raises(InputError, match=r"^radiograph\.png: gone$") as raised:
        list(map_in_workers(gone, range(100), 2))
    assert raised.value.file == "radiograph.png"
    assert not workers()


def stumble(job: int) -> int:
    return [1, 2][job]


def test_an_error_that_nobody_foresaw_says_where_it_was() -> None:
    results = map_in_workers(stumble, range(3), 1)
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(RuntimeError, match=r"in stumble\n(.*\n)+IndexError: list index out of range"):
        next(results)


def pid_of(_job: int) -> int:
    return os.getpid()


def test_a_process_that_is_killed_ends_the_run_with_one_line() -> None:
    results = map_in_workers(pid_of, iter(range(1000)), 2)
    os.kill(next(results), signal.SIGKILL)
    with pytest.raises(RunError, match=KILLED):
        list(results)
    assert not workers()


def killed_in_a_result(job: int) -> bytes:
    """Two long results, and death while nobody takes the second."""
    while job == 2:
        if any(frame.f_code.co_name == "_send" for frame in sys._current_frames().values()):
            os.kill(os.getpid(), signal.SIGKILL)
    return bytes(LONG)


def test_a_process_that_is_killed_in_the_middle_of_a_result_ends_the_run_with_one_line() -> None:
    results = map_in_workers(killed_in_a_result, iter(range(6)), 1)
    next(results)
    (worker,) = workers()
    worker.join()
    with pytest.raises(RunError, match=KILLED):
        next(results)


def alarm(_job: int) -> float:
    """Seconds until an alarm ends this process; 0 for never."""
    return signal.getitimer(signal.ITIMER_REAL)[0]


@pytest.mark.parametrize("notice", [signal.SIGTERM, signal.SIGINT])
def test_processes_outlive_a_notice_to_all_for_as_long_as_they_are_needed(notice: signal.Signals) -> None:
    results = map_in_workers(alarm, iter(range(50)), 2)
    next(results)
    for worker in workers():
        os.kill(worker.pid or 0, notice)
    assert set(results) == {0}


def long_result(_job: int) -> tuple[int, bytes]:
    return os.getpid(), bytes(LONG)


def hold(told: Connection) -> None:
    """Take one result, tell whose it was, and leave the others."""
    results = map_in_workers(long_result, range(100), 2)
    told.send(next(results)[0])
    signal.pause()


kept: list[Any] = []


def forget(told: Connection) -> None:
    """As `hold`, but come to an end, where the iterator is open and known to somebody."""
    kept.append(map_in_workers(long_result, range(100), 1))
    told.send(next(kept[0])[0])


@pytest.mark.parametrize(("holder", "code"), [(hold, -signal.SIGKILL), (forget, 0)])
def test_processes_end_with_the_one_that_they_work_for(holder: Callable[[Connection], None], code: int) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=holder, args=(theirs,))
    process.start()
    worker = ours.recv()
    if code:
        process.kill()
    process.join()
    assert process.exitcode == code
    until = time.monotonic() + PATIENCE
    while is_alive(worker):
        assert time.monotonic() < until, "a worker process outlives the one that it works for"


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has asked about since it ended does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
