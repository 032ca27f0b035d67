"""Work done ahead of time in other processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterable
from multiprocessing import connection
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from radfact.errors import InputError, RunFailed

_GRACE = 30
"""Seconds that a worker lives on after it was told to end."""

JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")


class _Jobs(Dataset[Any], Generic[JobT, ResultT]):
    """Jobs as a data set: what it is asked for is the job, and what it gives the result.

    Input that cannot be used is returned instead of raised: raised in a worker process, an error reaches the user as
    that process's traceback.
    """

    def __init__(self, work: Callable[[JobT], ResultT]) -> None:
        self.work = work

    def __getitem__(self, job: JobT) -> ResultT | InputError:
        try:
            return self.work(job)
        except InputError as error:
            return error


def in_workers(
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
        RunFailed: a worker process died.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGCHLD) if is_main else None
    with warnings.catch_warnings():
        # Of more workers than cores, twice a loader, where nobody may have chosen their number: they take turns.
        warnings.filterwarnings("ignore", "This DataLoader will create")
        results = iter(_loader(work, jobs, workers, ahead))
    if is_main:
        # torch's own raises wherever the main process happens to be; the death shows at the next result as well.
        signal.signal(signal.SIGCHLD, handler)
    is_whole = True
    try:
        while is_whole:
            try:
                result = next(results)
            except StopIteration:
                return
            except RuntimeError as error:
                is_whole = "DataLoader worker" not in str(error)
                if is_whole:
                    raise
                continue
            if isinstance(result, InputError):
                raise result
            yield result
    finally:
        # Its processes end here, and not when the traceback of an error is thrown away.
        del results
    raise RunFailed(
        "a process that prepares samples was killed, most likely for want of memory; give the run more, or fewer "
        "workers, and start the same command again"
    )


def _loader(
    work: Callable[[JobT], ResultT], jobs: Iterable[JobT], workers: int, ahead: int
) -> DataLoader[ResultT | InputError]:
    return DataLoader(
        _Jobs(work),
        batch_size=None,
        sampler=jobs,
        num_workers=workers,
        prefetch_factor=ahead,
        collate_fn=_as_it_is,
        worker_init_fn=_settle,
        # The seed of the workers, which have no use for it, would be drawn from the generator of the training.
        generator=torch.Generator(),
    )


def _as_it_is(result: ResultT) -> ResultT:
    return result


def _settle(_worker: int) -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    # One text at a time has no use for the tokenizer's threads, of which there would be one a core and worker.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # Ctrl-C and a scheduler's notice go to all processes; the main one still needs samples to end its step.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_GRACE))


def _end_with(parent: int) -> None:
    """End this process as soon as its parent is gone.

    Of itself it would wait for ever to hand over a result, and hold open what it inherited: by the connections to the
    other processes of a run they would take the parent for alive.
    """
    connection.wait([parent])
    os._exit(1)
