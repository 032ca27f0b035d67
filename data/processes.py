"""Pools of processes that always end with their parent, even if it is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process
from typing import Literal

TERMINATION_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def process_pool(
    workers: int, *, start_method: Literal["spawn", "fork"] = "spawn", prepare: Callable[[], None] | None = None
) -> Iterator[ProcessPoolExecutor]:
    """Open a pool of processes, which first call `prepare`; forked ones share the memory that it refers to.

    The processes ignore Ctrl-C and SIGTERM, which terminals and schedulers send to all processes of a job: this process
    decides when they end. An error in the block cancels waiting tasks and waits for running ones, so that nothing is
    written later. If this process is killed, the pool ends within a second.
    """
    # Spawned unless the work needs the memory: this process may have threads, whose locks a fork would copy.
    context = get_context(start_method)
    with _Pool(workers, mp_context=context, initializer=_init_worker, initargs=(prepare,)) as pool:
        try:
            yield pool
        except BrokenProcessPool:
            # The pool would end the others by SIGTERM, which they ignore.
            for process in list(pool._processes.values()):
                process.kill()
            raise
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


class _Pool(ProcessPoolExecutor):
    def _spawn_process(self) -> None:
        # A signal while the process starts would break the pool; the mask is inherited until it ignores signals.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION_SIGNALS)
        try:
            super()._spawn_process()  # type: ignore[misc] # not in typeshed
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _init_worker(prepare: Callable[[], None] | None) -> None:
    for number in TERMINATION_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if prepare is not None:
        prepare()
    if (parent := parent_process()) is not None:
        threading.Thread(target=_exit_with, args=(parent.sentinel,), daemon=True).start()


def _exit_with(parent: int) -> None:
    connection.wait([parent])
    os._exit(0)
