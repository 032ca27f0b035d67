"""A map over worker processes that keeps the order of its items."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any, TypeVar

import torch

from maira.data.processes import process_pool
from radfact.errors import ErrorCode, RunError

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
_function: Callable[[Any], Any]
"""What this worker does with an item; forked with the process, since it may refer to gigabytes of data."""


def map_in_workers(
    function: Callable[[ItemT], ResultT], items: Iterable[ItemT], workers: int, *, prefetch: int = 2
) -> Generator[ResultT]:
    """Yield the results of a function in the order of its items, computed ahead of time by worker processes.

    Up to `prefetch` items per worker are computed ahead. The workers end with the generator. Results are pickled
    through pipes, not shared memory, of which containers have little (64 MB in Docker). Without workers the function is
    called in this process.

    Raises:
        RunError: raised by the function, or a worker was killed.
    """
    if not workers:
        yield from map(function, items)
        return
    pending: deque[Future[Any]] = deque()
    try:
        with process_pool(workers, start_method="fork", prepare=partial(_prepare, function)) as pool:
            for item in items:
                pending.append(pool.submit(_call, item))
                if len(pending) > workers * prefetch:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
    except BrokenProcessPool:
        raise RunError(
            "a process that prepares samples was killed, most likely because memory ran out; give the run more memory "
            "or fewer workers, and start the same command again",
            code=ErrorCode.OUT_OF_MEMORY,
        ) from None


def _prepare(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    # Work comes item by item; threads of torch and of the tokenizer would compete with the other workers.
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _call(item: Any) -> Any:
    return _function(item)
