"""Distribute items over workers of a Ray cluster, for models in process on many machines."""

from __future__ import annotations

import logging
import os
import uuid
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, groupby
from math import prod
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, Failure, InputError, RunError, option_error
from radfact.llm.cache import ResponseCache
from radfact.llm.protocol import CachedResponse, current_repeat, use_repeat
from radfact.progress import ServerActivity

CHUNKS_PER_WORKER = 4
"""Chunks per worker, so that all workers finish at about the same time."""
MAX_ATTEMPTS = 3  # at one chunk

# A cluster of this process listens only on the loopback address: Ray has no authentication.
_ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}
_OWN_CLUSTER = {"include_dashboard": False, "object_store_memory": 512 * 1024**2, "_node_ip_address": "127.0.0.1"}


@dataclass
class RayWorkers:
    """Workers that load the same judge, splitter or engine: `load(name, **options)`, which has a method `usage`."""

    load: Callable[..., Any]  # of a module, so that workers can import it
    method: str  # takes a list of items and returns one result per item, in order
    name: str
    options: Mapping[str, Any]
    cache: Path | None = None  # folder of the response cache, an argument of `load`
    workers: int | None = None  # by default one for each `gpus` GPUs, or for each CPU
    gpus: int = 0  # of each worker, if the cluster has any
    batch: int = 4  # items that a worker processes as fast as one
    max_chunk: int = 8192  # items, for progress in a large run
    planned: int = 0
    done: int = 0
    _usage_by_worker: dict[str, Mapping[str, int]] = field(default_factory=dict)
    _activity: ServerActivity = field(init=False)

    def __post_init__(self) -> None:
        self._activity = ServerActivity(self.name)

    def run(self, items: Sequence[Any], group_key: Callable[[Any], Any]) -> list[Any]:
        results = dict(self.stream(items, group_key))
        return [results[index] for index in range(len(items))]

    def stream(
        self, items: Sequence[Any], group_key: Callable[[Any], Any] | None = None
    ) -> Generator[tuple[int, Any], None, None]:
        """Yield (index, result) of every item as chunks finish; consecutive items with equal keys stay together."""
        self.planned += len(items)
        if not items:
            return
        with connect_cluster(self.workers) as resources:
            in_cluster = int(resources.get("GPU", 0))
            gpus = self.gpus if in_cluster else 0
            if gpus > in_cluster:
                raise RunError(f"{self.name}: expected {gpus} GPUs for a worker, found {in_cluster} in the cluster")
            workers = self.workers or max(in_cluster // gpus if gpus else int(resources.get("CPU", 1)), 1)
            share, size = -(-len(items) // workers), -(-len(items) // (workers * CHUNKS_PER_WORKER))
            size = min(-(-size // self.batch) * self.batch, share, self.max_chunk)
            chunks = list(split_chunks(items, group_key, size))
            starts = [0, *accumulate(map(len, chunks))]
            with closing(self._map(chunks, workers, gpus)) as finished:
                for chunk, results in finished:
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

    def _map(
        self, chunks: Sequence[list[Any]], workers: int, gpus: int
    ) -> Generator[tuple[int, list[Any]], None, None]:
        """Yield the number and the results of each chunk; a chunk whose worker died goes to another worker."""
        import ray
        from ray.exceptions import OutOfMemoryError, RayActorError, RayError

        cache = {} if self.cache is None else {"cache": _ActorCache(self.cache)}
        load = partial(self.load, self.name, **self.options, **cache)
        actor: Any = ray.remote(_Worker)
        waiting, deaths, left = deque(range(len(chunks))), Counter[int | None](), len(chunks)
        running: dict[Any, tuple[Any, int | None]] = {}

        def start() -> None:
            worker = actor.options(num_cpus=1, num_gpus=gpus).remote(load, self.method, self.name, current_repeat())
            # It gets its first chunk when the cluster has found a place for it.
            running[worker.usage.remote()] = worker, None

        try:
            for _ in range(min(workers, left)):
                start()
            while left:
                (task,), _ = ray.wait(list(running))
                worker, chunk = running.pop(task)
                try:
                    outcome = ray.get(task)
                except (RayActorError, OutOfMemoryError):
                    deaths[chunk] += 1
                    if deaths[chunk] < MAX_ATTEMPTS:
                        waiting.extendleft([] if chunk is None else [chunk])
                        start()
                        continue
                    if chunk is None:
                        raise
                    message = f"a worker of the Ray cluster died {MAX_ATTEMPTS} times at the same chunk"
                    raise RunError(f"{self.name}: {message}; it may have run out of memory") from None
                if isinstance(outcome, Exception):
                    raise outcome
                # Before the results are used, so that the worker goes on.
                if waiting:
                    following = waiting.popleft()
                    running[worker.process.remote(chunks[following])] = worker, following
                if chunk is None:
                    del deaths[None]  # Workers can start.
                else:
                    name, usage, results = outcome
                    self._usage_by_worker[name] = usage
                    left -= 1
                    yield chunk, results
        except RayError as error:
            lines = str(error).strip().splitlines()
            raise RunError(f"{self.name}: the Ray cluster failed: {lines[-1] if lines else ''}") from None
        finally:
            for worker, _ in running.values():
                ray.kill(worker)


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

    def __init__(self, load: Callable[[], Any], method: str, name: str, repeat: int) -> None:
        self.id = uuid.uuid4().hex
        self.load, self.method, self.name, self.repeat = load, method, name, repeat
        self.loaded: Any = None

    def usage(self) -> Mapping[str, int]:
        return {} if self.loaded is None else self.loaded.usage()

    def process(self, items: list[Any]) -> tuple[str, Mapping[str, int], list[Any]] | Exception:
        """Return the worker, its usage so far and the results of a chunk; or an error, as not every one is pickled."""
        try:
            if self.loaded is None:
                self.loaded = self.load()
            with use_repeat(self.repeat):
                results = getattr(self.loaded, self.method)(items)
        except (InputError, RunError) as error:
            return error
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            return RunError(f"{self.name}: a worker of the Ray cluster failed: {reason}")
        return self.id, self.usage(), results


def split_chunks(items: Sequence[Any], group_key: Callable[[Any], Any] | None, size: int) -> Iterator[list[Any]]:
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
    """Yield the resources of the connected cluster, of that at RAY_ADDRESS, or of one here with `workers` CPUs."""
    local: dict[str, Any] = {}
    if not os.environ.get("RAY_ADDRESS"):
        local = {"address": "local", "num_cpus": workers, **_OWN_CLUSTER}
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
    try:
        # Ray reads the environment on import.
        import ray
    except ImportError:
        message = '--engine ray needs Ray: pip install "maira-radfact[ray]"'
        raise option_error(message, "engine", ErrorCode.MISSING_REQUIREMENT) from None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, **local}
    try:
        context = nullcontext() if ray.is_initialized() else ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        message = f"cannot connect to a Ray cluster: {' '.join(str(error).split())}"
        raise RunError(message, code=ErrorCode.SERVER_UNAVAILABLE) from None
    # Ray has no types for this function.
    resources: Callable[[], dict[str, float]] = ray.cluster_resources
    with context:
        yield resources()


def gpus_per_engine(arguments: Mapping[str, Any]) -> int:
    """Return the GPUs of one vLLM engine with these arguments: tensor times pipeline parallelism."""
    sizes = (str(arguments.get(f"{kind}_parallel_size", 1)) for kind in ("tensor", "pipeline"))
    return prod(int(size) if size.isdecimal() else 1 for size in sizes)
