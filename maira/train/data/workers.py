"""Work done ahead of time in other processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing import connection, util
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import torch

from radfact.errors import InputError, RunError

_NOTICES = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C and a scheduler's notice go to all processes; the main one still needs samples to end its step."""

JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")


def map_in_workers(
    work: Callable[[JobT], ResultT], jobs: Iterable[JobT], workers: int, *, ahead: int = 2
) -> Generator[ResultT]:
    """Results of jobs in their order, from processes that live as long as the iterator and work ahead of it.

    They end with the process that started them, whatever its end, and leave its signals to it. Results travel through
    pipes and not through shared memory, of which containers have little: 64 MB by default in Docker.

    Args:
        work: done for each job; its results are no tensors.
        jobs: taken as they are needed.
        workers: processes.
        ahead: jobs for each of them that may be done before they are asked for.

    Raises:
        InputError: a job's.
        RunError: a job's, or a worker process died.
    """
    crew: list[_Worker[JobT, ResultT]] = []
    # Also where nobody closes the iterator before the interpreter waits for its processes.
    end = util.Finalize(None, _end, args=(crew,), exitpriority=0)
    try:
        for _ in range(workers):
            crew.append(_Worker(work))
        upcoming, asked = iter(jobs), deque[_Worker[JobT, ResultT]]()

        def ask(worker: _Worker[JobT, ResultT]) -> None:
            for job in islice(upcoming, 1):
                worker.ask(job)
                asked.append(worker)

        for worker in crew * ahead:
            ask(worker)
        while asked:
            worker = asked.popleft()
            result = worker.result()
            ask(worker)
            yield result
    finally:
        end()


class _Worker(Generic[JobT, ResultT]):
    """A process that does jobs one by one, and this end of the line to it.

    Nobody but the process has the other end, so that whatever ends the process closes it, be it in the middle of a
    result. That of a queue or pool of multiprocessing would stay open, and the rest of the result be waited for.
    """

    def __init__(self, work: Callable[[JobT], ResultT]) -> None:
        self._line, theirs = multiprocessing.Pipe()
        try:
            self.process = multiprocessing.Process(target=_serve, args=(work, theirs), daemon=True)
            with _unheard():
                self.process.start()
        finally:
            theirs.close()

    def ask(self, job: JobT) -> None:
        """Give it a job."""
        try:
            self._line.send(job)
        except OSError:
            raise _killed() from None

    def result(self) -> ResultT:
        """The result of the job that has waited longest."""
        try:
            content = self._line.recv_bytes()
        except (EOFError, OSError):
            raise _killed() from None
        outcome = pickle.loads(content)
        if isinstance(outcome, Exception):
            raise outcome
        result: ResultT = outcome
        return result


@contextmanager
def _unheard() -> Iterator[None]:
    """Let no notice reach this thread; a process that it starts has that from it until it can see to it itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOTICES)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(crew: Sequence[_Worker[Any, Any]]) -> None:
    # They hold nothing that would have to be put in order, and do not listen to SIGTERM.
    for worker in crew:
        worker.process.kill()
    for worker in crew:
        worker.process.join()


def _killed() -> RunError:
    return RunError(
        "a process that prepares samples was killed, most likely for want of memory; give the run more, or fewer "
        "workers, and start the same command again"
    )


def _serve(work: Callable[[Any], Any], line: Connection) -> None:
    """Do jobs as they come in; a thread hands over what is done while the next one is at work."""
    _settle()
    done = SimpleQueue[bytes]()
    threading.Thread(target=_hand_over, args=(done, line), daemon=True).start()
    with suppress(EOFError, OSError):  # the main process is gone
        while True:
            done.put(_outcome(work, line.recv()))


def _hand_over(done: SimpleQueue[bytes], line: Connection) -> None:
    with suppress(OSError):
        while True:
            line.send_bytes(done.get())


def _outcome(work: Callable[[Any], Any], job: Any) -> bytes:
    """The result of a job, or its error."""
    try:
        # Of this protocol on, arrays are copied once and not twice.
        return pickle.dumps(work(job), 5)
    except (InputError, RunError) as error:
        return pickle.dumps(error)
    except Exception:  # as text: a traceback does not travel, nor does every error
        return pickle.dumps(RuntimeError(f"in a process that prepares samples:\n{traceback.format_exc()}"))


def _settle() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    # Threads beside the other workers would be in their way, and those of a forked process's parent are not there.
    torch.set_num_threads(1)
    # One text at a time has no use for the tokenizer's threads, of which there would be one a core and worker.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for notice in _NOTICES:
        signal.signal(notice, signal.SIG_IGN)


def _end_with(parent: int) -> None:
    """End this process as soon as its parent is gone.

    Of itself it would wait for ever to hand over a result, and hold open what it inherited: by the connections to the
    other processes of a run they would take the parent for alive.
    """
    connection.wait([parent])
    os._exit(1)
