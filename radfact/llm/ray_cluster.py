"""Distribute items over workers of a Ray cluster with Ray Data, for models in process on many machines."""

from __future__ import annotations

import logging
import os
import pickle
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, groupby
from math import prod
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, Failure, InputError, RunError
from radfact.llm.cache import ResponseCache
from radfact.llm.call_errors import option_error
from radfact.llm.protocol import CachedResponse, current_repeat, use_repeat
from radfact.progress import ServerActivity

CHUNKS_PER_WORKER = 4
"""Chunks per worker, so that all workers finish at about the same time."""
MAX_ATTEMPTS = 3
"""Attempts at one chunk before the run fails: Ray itself retries forever when workers die."""

_OWN_CLUSTER = {
    # A cluster of this process listens only on the loopback address: Ray has no authentication.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}
_OBJECT_STORE_BYTES = 512 * 1024**2
_DATA_THREAD = "StreamingExecutor"
"""Beginning of the name of Ray Data's thread that uses the cluster."""
_MAX_JOIN_SECONDS = 60.0


@dataclass
class RayWorkers:
    """Workers that each load the same judge, splitter or engine.

    Attributes:
        load: makes the object from `name` and `options`, and from `cache` if given; a function or class of a module, so
            that workers can import it. The object has a method `usage`.
        method: name of its method that takes a list of items and returns one result per item, in order.
        cache: folder of the response cache.
        workers: number of workers; by default one for each `gpus` GPUs, or for each CPU.
        gpus: GPUs per worker, if the cluster has any.
        batch: items that a worker processes as fast as one; chunks hold a multiple if that leaves no worker idle.
        max_chunk: largest number of items in a chunk, for progress in a large run.
        planned, done: items received and processed so far.
    """

    load: Callable[..., Any]
    method: str
    name: str
    options: Mapping[str, Any]
    cache: Path | None = None
    workers: int | None = None
    gpus: int = 0
    batch: int = 4
    max_chunk: int = 8192
    planned: int = 0
    done: int = 0
    _usage_by_worker: dict[str, Mapping[str, int]] = field(default_factory=dict)
    _activity: ServerActivity = field(init=False)

    def __post_init__(self) -> None:
        self._activity = ServerActivity(self.name)

    def run(self, items: Sequence[Any], group_key: Callable[[Any], Any]) -> list[Any]:
        """Return one result per item, in order. See `stream`."""
        results = dict(self.stream(items, group_key))
        return [results[index] for index in range(len(items))]

    def stream(
        self, items: Sequence[Any], group_key: Callable[[Any], Any] | None = None
    ) -> Generator[tuple[int, Any], None, None]:
        """Yield (index, result) of every item as chunks finish; closing the generator ends the work.

        Consecutive items with equal keys go to the same worker in one chunk. Items must be picklable. If the cluster or
        a worker fails, completed responses are in the cache.
        """
        self.planned += len(items)
        if not items:
            return
        with connect_cluster(self.workers) as resources:
            workers, gpus = self._plan_workers(resources)
            chunks = list(_split_chunks(items, group_key, self._chunk_size(len(items), workers)))
            starts = [0, *accumulate(map(len, chunks))]
            for chunk, results in self._map(chunks, workers, gpus):
                self.done += len(results)
                for failure in (result for result in results if isinstance(result, Failure)):
                    self._activity.fail(failure.reason)
                yield from enumerate(results, starts[chunk])

    def usage(self) -> dict[str, int]:
        """Return the sum of the workers' usage, with the items `planned` and `done`."""
        total: Counter[str] = Counter()
        for usage in self._usage_by_worker.values():
            total.update(usage)
        return {**total, "planned": self.planned, "done": self.done}

    def _plan_workers(self, resources: Mapping[str, float]) -> tuple[int, int]:
        """Return the number of workers and the GPUs of each."""
        in_cluster = int(resources.get("GPU", 0))
        gpus = self.gpus if in_cluster else 0
        if gpus > in_cluster:
            raise RunError(f"{self.name}: expected {gpus} GPUs for a worker, found {in_cluster} in the cluster")
        max_workers = in_cluster // gpus if gpus else int(resources.get("CPU", 1))
        return self.workers or max(max_workers, 1), gpus

    def _chunk_size(self, items: int, workers: int) -> int:
        share, size = -(-items // workers), -(-items // (workers * CHUNKS_PER_WORKER))
        return min(-(-size // self.batch) * self.batch, share, self.max_chunk)

    def _map(self, chunks: Sequence[Sequence[Any]], workers: int, gpus: int) -> Iterator[tuple[int, list[Any]]]:
        import ray.data
        from ray.exceptions import RayError

        attempts = ray.remote(num_cpus=0)(_Attempts).remote()
        rows = [{"chunk": index, "items": pickle.dumps(list(chunk))} for index, chunk in enumerate(chunks)]
        cache = {} if self.cache is None else {"cache": _ActorCache(self.cache)}
        load = partial(self.load, self.name, **self.options, **cache)
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _Worker,
            fn_constructor_args=(load, self.method, self.name, attempts, current_repeat()),
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(rows))),
            batch_size=1,
            num_cpus=1,
            num_gpus=gpus,
        )
        try:
            for row in dataset.iter_rows():
                worker, usage, results = pickle.loads(row["outcome"])
                if isinstance(results, Exception):
                    raise results
                # Chunks of a worker can return in another order; its counts only grow.
                before = self._usage_by_worker.get(worker, {})
                self._usage_by_worker[worker] = {name: max(n, before.get(name, 0)) for name, n in usage.items()}
                yield int(row["chunk"]), results
        except RayError as error:
            lines = str(error).strip().splitlines()
            raise RunError(f"{self.name}: the Ray cluster failed: {lines[-1] if lines else ''}") from None


class _Attempts:
    """Ray actor that outlives workers and counts the attempts at each chunk."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def begin(self, chunk: int) -> int:
        """Return the number of this attempt at a chunk, from 1."""
        self.counts[chunk] += 1
        return self.counts[chunk]


class _ActorCache(ResponseCache):
    """A response cache in an actor on this machine: SQLite files must not be shared over a network."""

    def __init__(self, folder: Path) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # A folder that is no cache is an error of the input, not of the cluster.
        ResponseCache(folder).close()
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        actor: Any = ray.remote(ResponseCache)
        # With threads, because reads do not wait for a commit.
        self._actor = actor.options(num_cpus=0, max_concurrency=16, scheduling_strategy=here).remote(folder)

    def get(self, key: str) -> CachedResponse | None:
        response: CachedResponse | None = self._call(self._actor.get, key)
        return response

    def put(self, responses: Iterable[tuple[str, CachedResponse]]) -> None:
        self._call(self._actor.put, list(responses))

    def close(self) -> None:
        """Do nothing: other workers use the actor, which ends with the run."""

    def _call(self, method: Any, argument: Any) -> Any:
        import ray
        from ray.exceptions import RayTaskError

        try:
            return ray.get(method.remote(argument))
        except RayTaskError as error:
            raise error.cause from None


class _Worker:
    """Ray actor that loads the object with its first chunk."""

    def __init__(self, load: Callable[[], Any], method: str, name: str, attempts: Any, repeat: int) -> None:
        self.id = uuid.uuid4().hex
        self.load, self.method, self.name, self.attempts, self.repeat = load, method, name, attempts, repeat
        self.loaded: Any = None

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        chunks = zip(batch["chunk"], batch["items"], strict=True)
        return {
            "chunk": batch["chunk"],
            "outcome": [pickle.dumps(self.process(int(chunk), items)) for chunk, items in chunks],
        }

    def process(self, chunk: int, items: bytes) -> tuple[str, Mapping[str, int], list[Any] | Exception]:
        """Return the worker, its usage so far, and the results of a chunk or the error that ends the run.

        Errors are values, since not every exception can be pickled.
        """
        import ray

        try:
            if ray.get(self.attempts.begin.remote(chunk)) > MAX_ATTEMPTS:
                message = f"a worker of the Ray cluster died {MAX_ATTEMPTS} times at the same chunk"
                raise RunError(f"{self.name}: {message}; it may have run out of memory")
            if self.loaded is None:
                self.loaded = self.load()
            with use_repeat(self.repeat):
                results = getattr(self.loaded, self.method)(pickle.loads(items))
        except (InputError, RunError) as error:
            return self.id, {}, error
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            return self.id, {}, RunError(f"{self.name}: a worker of the Ray cluster failed: {reason}")
        return self.id, self.loaded.usage(), results


def _split_chunks(items: Sequence[Any], group_key: Callable[[Any], Any] | None, size: int) -> Iterator[list[Any]]:
    """Yield consecutive items, about `size` at a time; groups stay together."""
    chunk: list[Any] = []
    groups = ([item] for item in items) if group_key is None else (group for _, group in groupby(items, group_key))
    for group in groups:
        chunk += group
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


@contextmanager
def connect_cluster(workers: int | None = None) -> Iterator[Mapping[str, float]]:
    """Yield the resources of the connected cluster, of the cluster at RAY_ADDRESS, or of one on this machine.

    A cluster that is started here has `workers` CPUs (None: all) and listens only on the loopback address.
    """
    try:
        # Ray reads them on import.
        if not os.environ.get("RAY_ADDRESS"):
            for name, value in _OWN_CLUSTER.items():
                os.environ.setdefault(name, value)
        import ray
        import ray.data
    except ImportError:
        message = '--engine ray needs Ray: pip install "maira-radfact[ray]"'
        raise option_error(message, "engine", ErrorCode.MISSING_REQUIREMENT) from None
    # Errors are raised as one line; Ray's own log would repeat them.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    ray.data.DataContext.get_current().enable_progress_bars = False
    is_own = not ray.is_initialized()
    if is_own:
        _init_ray(workers)
    # Ray has no types for this function.
    resources: Callable[[], dict[str, float]] = ray.cluster_resources
    try:
        yield resources()
    finally:
        if is_own:
            # If a thread of Ray Data still uses the cluster, `ray.shutdown` ends the whole process. Ray Data itself
            # waits for two seconds, which is too short on a busy machine.
            deadline = time.monotonic() + _MAX_JOIN_SECONDS
            for thread in threading.enumerate():
                if thread.name.startswith(_DATA_THREAD):
                    thread.join(max(0.0, deadline - time.monotonic()))
            ray.shutdown()


def _init_ray(workers: int | None) -> None:
    import ray

    local: dict[str, Any] = {
        "address": "local",
        "num_cpus": workers,
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE_BYTES,
        "_node_ip_address": "127.0.0.1",
    }
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **({} if os.environ.get("RAY_ADDRESS") else local))
    except (ConnectionError, RuntimeError, ValueError) as error:
        message = f"cannot connect to a Ray cluster: {' '.join(str(error).split())}"
        raise RunError(message, code=ErrorCode.SERVER_UNAVAILABLE) from None


def gpus_per_engine(arguments: Mapping[str, Any]) -> int:
    """Return the GPUs of one vLLM engine with these arguments: tensor times pipeline parallelism."""
    sizes = (str(arguments.get(f"{kind}_parallel_size", 1)) for kind in ("tensor", "pipeline"))
    return prod(int(size) if size.isdecimal() else 1 for size in sizes)
