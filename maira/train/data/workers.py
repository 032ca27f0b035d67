"""A map over worker processes that keeps the order of its items, by torch's DataLoader.

Three things are added to the DataLoader. Errors travel as values, since it would rebuild them from their text and lose
file and line. Workers ignore SIGINT and SIGTERM, which schedulers send to all processes of a job, because the main
process still needs samples to finish its step. And they end at once when the main process is gone: the DataLoader's own
workers would wait forever to hand over a result, and keep inherited connections to other training processes open.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable
from functools import partial
from multiprocessing import connection, util
from multiprocessing.synchronize import Event
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from maira.data.processes import ignore_signals, signals_blocked
from radfact.errors import ErrorCode, InputError, RunError

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def map_in_workers(
    function: Callable[[ItemT], ResultT], items: Iterable[ItemT], workers: int, *, prefetch: int = 2
) -> Generator[ResultT]:
    """Yield the results of a function in the order of its items, computed ahead of time by worker processes.

    Results are pickled through pipes, not shared memory, of which containers have little (64 MB in Docker).

    Args:
        function: applied to each item in a worker; its results hold no tensors.
        items: taken one by one as they are needed.
        workers: number of processes; they end with the generator.
        prefetch: items per worker that may be computed ahead.

    Raises:
        InputError: raised by the function.
        RunError: raised by the function, or a worker was killed.
    """
    ended = multiprocessing.Event()
    # Runs at the exit of the interpreter before multiprocessing waits for its processes.
    end = util.Finalize(None, ended.set, exitpriority=0)
    # Until a worker ignores the signals itself it inherits that they are blocked.
    with signals_blocked(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores, as configured
        loader: Any = DataLoader(
            _FunctionDataset(function),
            batch_size=None,
            sampler=items,
            num_workers=workers,
            collate_fn=_identity,
            worker_init_fn=partial(_init_worker, ended),
            prefetch_factor=prefetch,
            # Its own, since the DataLoader draws a seed, which must not advance the generator of the training.
            generator=torch.Generator(),
        )
        results = iter(loader)
    try:
        while True:
            is_killed = False
            result: Any = None
            try:
                result = next(results)
            except StopIteration:
                return
            except RuntimeError as error:
                if not (is_killed := is_worker_killed(error)):
                    raise
            # Outside of the handler, whose traceback would keep the workers alive.
            if is_killed:
                raise worker_killed()
            if isinstance(result, _Failed):
                raise result.error
            yield result
    finally:
        end()
        del results


def is_worker_killed(error: BaseException) -> bool:
    """Return whether an error is that of the DataLoader for a dead worker; its signal handler raises it anywhere."""
    return "DataLoader worker" in str(error)


def worker_killed() -> RunError:
    """Return the error for a worker process that died."""
    return RunError(
        "a process that prepares samples was killed, most likely because memory ran out; give the run more memory or "
        "fewer workers, and start the same command again",
        code=ErrorCode.OUT_OF_MEMORY,
    )


class _Failed(NamedTuple):
    """An error of a worker; a named tuple, so that no result of the function can be mistaken for it."""

    error: Exception


class _FunctionDataset(Dataset[Any], Generic[ItemT, ResultT]):
    def __init__(self, function: Callable[[ItemT], ResultT]) -> None:
        self._function = function

    def __getitem__(self, item: Any) -> ResultT | _Failed:
        try:
            return self._function(item)
        except (InputError, RunError) as error:
            return _Failed(error.with_traceback(None))
        except Exception:  # as text: not every error can be pickled
            return _Failed(RuntimeError(f"in a process that prepares samples:\n{traceback.format_exc()}"))


def _identity(result: ResultT) -> ResultT:
    return result


def _init_worker(ended: Event, _worker: int) -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_exit_after, args=(parent.sentinel, ended), daemon=True).start()
    # Texts come one at a time; the tokenizer would start a thread for each core in each worker.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    ignore_signals()


def _exit_after(parent: int, ended: Event) -> None:
    """End this process when its parent is gone or needs no more results."""
    while not connection.wait([parent], timeout=1) and not ended.is_set():
        pass
    os._exit(0)
