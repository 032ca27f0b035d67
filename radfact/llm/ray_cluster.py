"""One model in process, on many machines: questions to it, spread over a Ray cluster by Ray Data."""

from __future__ import annotations

import logging
import os
import pickle
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from math import prod
from pathlib import Path
from typing import Any

from radfact.errors import InputError, RunError

ROUNDS = 4
"""Portions that each worker gets, so that the last to finish is not much behind the others."""
ATTEMPTS = 3
"""Times that a portion is begun before the run fails: a machine may be taken away, and Ray then tries for ever."""

_OWN_CLUSTER = {
    # A cluster that this process starts for itself listens on the loopback address alone: Ray asks nobody for a key.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}
_OBJECT_STORE_BYTES = 512 * 1024**2


@dataclass
class Spread:
    """Work for workers that each load the same judge, splitter or engine.

    Where answers are kept, each worker keeps them in a store of its own, as `radfact.llm.shared_cache` has them.

    Args:
        load: makes what is asked from `name` and `options`, and from `cache` where answers are kept; a function or
            class of a module, so that workers find it. What it makes has `usage`, counts of what it did so far.
        method: the name of the method that takes a list of questions, and gives an answer to each in order.
        name: of what is asked.
        options: further arguments of `load`, all but `cache`.
        cache: folder of the main store, if answers are kept.
        workers: how many; by default one for each `gpus` GPUs, or for each CPU.
        gpus: GPUs that one worker takes where the cluster has any.
        fill: questions that a worker answers no slower than one; portions hold a multiple, if that leaves none idle.
        largest: most questions in a portion, for progress in a large run.

    Attributes:
        planned, done: questions that were given so far, and that are answered.
    """

    load: Callable[..., Any]
    method: str
    name: str
    options: Mapping[str, Any]
    cache: Path | None = None
    workers: int | None = None
    gpus: int = 0
    fill: int = 4
    largest: int = 8192
    planned: int = 0
    done: int = 0
    _accounts: dict[str, Mapping[str, int]] = field(default_factory=dict)

    def run(self, items: Sequence[Any], together: Callable[[Any], Any]) -> list[Any]:
        """An answer to each item, in order; arguments and errors as of `stream`."""
        answers = dict(self.stream(items, together))
        return [answers[index] for index in range(len(items))]

    def stream(
        self, items: Sequence[Any], together: Callable[[Any], Any] | None = None
    ) -> Generator[tuple[int, Any], None, None]:
        """Each item's answer with its index, as the portions are done; closed early, it ends the work.

        Args:
            items: questions; they travel pickled.
            together: neighbours for which this is equal are given to the same worker at once.

        Raises:
            InputError: Ray is not installed, or a worker cannot use its options.
            RunError: the cluster or a worker cannot do its work; answers so far are in the main store.
        """
        self.planned += len(items)
        if not items:
            return
        with self._stores() as stores, cluster(self.workers) as resources:
            workers, gpus = self._places(resources)
            portions = list(_portions(items, together, self._portion_size(len(items), workers)))
            starts = [0, *accumulate(map(len, portions))]
            for portion, answers in self._map(portions, stores, workers, gpus):
                self.done += len(answers)
                yield from enumerate(answers, starts[portion])

    def usage(self) -> dict[str, int]:
        """The workers' usage_by_role added up, with the questions `planned` and `done`."""
        total: Counter[str] = Counter()
        for usage in self._accounts.values():
            total.update({name: count for name, count in usage.items() if name not in ("planned", "done")})
        return {**total, "planned": self.planned, "done": self.done}

    def _places(self, resources: Mapping[str, float]) -> tuple[int, int]:
        """How many workers there are, and how many GPUs each takes."""
        in_cluster = int(resources.get("GPU", 0))
        gpus = self.gpus if in_cluster else 0
        if gpus > in_cluster:
            raise RunError(f"{self.name}: a worker takes {gpus} GPUs, the cluster has {in_cluster}")
        most = in_cluster // gpus if gpus else int(resources.get("CPU", 1))
        return self.workers or max(most, 1), gpus

    def _portion_size(self, items: int, workers: int) -> int:
        share, wanted = -(-items // workers), -(-items // (workers * ROUNDS))
        return min(-(-wanted // self.fill) * self.fill, share, self.largest)

    def _stores(self) -> AbstractContextManager[Path | None]:
        if self.cache is None:
            return nullcontext()
        from radfact.llm.shared_cache import worker_stores

        return worker_stores(self.cache)

    def _map(
        self, portions: Sequence[Sequence[Any]], stores: Path | None, workers: int, gpus: int
    ) -> Iterator[tuple[int, list[Any]]]:
        import ray.data
        from ray.exceptions import RayError

        attempts = ray.remote(num_cpus=0)(_Attempts).remote()
        rows = [{"portion": index, "items": pickle.dumps(list(one))} for index, one in enumerate(portions)]
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _Worker,
            fn_constructor_args=(self.load, self.method, self.name, dict(self.options), self.cache, stores, attempts),
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(rows))),
            batch_size=1,
            num_cpus=1,
            num_gpus=gpus,
        )
        try:
            for row in dataset.iter_rows():
                outcome: _Outcome = pickle.loads(row["outcome"])
                if outcome.fault is not None:
                    raise outcome.fault
                # Portions need not come back in the order in which a worker took them; its counts only grow.
                before = self._accounts.get(outcome.worker, {})
                self._accounts[outcome.worker] = {
                    name: max(count, before.get(name, 0)) for name, count in outcome.usage.items()
                }
                yield int(row["portion"]), outcome.answers
        except RayError as error:
            lines = str(error).strip().splitlines()
            raise RunError(f"{self.name}: the Ray cluster failed: {lines[-1] if lines else ''}") from None


@dataclass(frozen=True)
class _Outcome:
    """What a worker makes of one portion: answers, and its usage so far; or why there are none."""

    worker: str
    answers: list[Any] = field(default_factory=list)
    usage: Mapping[str, int] = field(default_factory=dict)
    fault: InputError | RunError | None = None


class _Attempts:
    """Lives in a process of the cluster, outlives workers, and counts how often each portion was begun."""

    def __init__(self) -> None:
        self.begun: Counter[int] = Counter()

    def begin(self, portion: int) -> int:
        """Which attempt at a portion this is, from 1."""
        self.begun[portion] += 1
        return self.begun[portion]


class _Worker:
    """Lives in a process of the cluster; it loads what it asks with the first portion."""

    def __init__(
        self,
        load: Callable[..., Any],
        method: str,
        name: str,
        options: Mapping[str, Any],
        cache: Path | None,
        stores: Path | None,
        attempts: Any,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.load, self.method, self.name, self.options = load, method, name, options
        self.cache, self.stores, self.attempts = cache, stores, attempts
        self.loaded: Any = None

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        portions = zip(batch["portion"], batch["items"], strict=True)
        outcomes = [pickle.dumps(self.answer(int(portion), pickle.loads(items))) for portion, items in portions]
        return {"portion": batch["portion"], "outcome": outcomes}

    def answer(self, portion: int, items: Sequence[Any]) -> _Outcome:
        """The answers to a portion; what ends the run travels as a fault, since not every exception can."""
        import ray

        try:
            if ray.get(self.attempts.begin.remote(portion)) > ATTEMPTS:
                raise RunError(
                    f"{self.name}: a worker of the Ray cluster died {ATTEMPTS} times at the same questions; it may "
                    "have run out of memory"
                )
            if self.loaded is None:
                self.loaded = self.load(self.name, **self.options, **self._store())
            answers = getattr(self.loaded, self.method)(items)
        except (InputError, RunError) as error:
            return _Outcome(self.id, fault=error)
        except Exception as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())
            return _Outcome(self.id, fault=RunError(f"{self.name}: a worker of the Ray cluster failed: {said}"))
        return _Outcome(self.id, answers, self.loaded.usage())

    def _store(self) -> dict[str, Path]:
        """A store of its own that knows the answers of the main one, as an argument; none where none are kept."""
        if self.cache is None or self.stores is None:
            return {}
        from radfact.llm import ResponseCache

        folder = self.stores / self.id
        if (self.cache / "answers.sqlite").exists():
            with closing(ResponseCache(self.cache)) as main, closing(ResponseCache(folder)) as store:
                store.merge(main)
        return {"cache": folder}


def _portions(items: Sequence[Any], together: Callable[[Any], Any] | None, size: int) -> Iterator[list[Any]]:
    """Items in order, about `size` at a time; neighbours that belong together are not parted."""
    portion: list[Any] = []
    groups = ([item] for item in items) if together is None else (group for _, group in groupby(items, together))
    for group in groups:
        portion += group
        if len(portion) >= size:
            yield portion
            portion = []
    if portion:
        yield portion


@contextmanager
def cluster(workers: int | None = None) -> Iterator[Mapping[str, float]]:
    """The resources of the cluster that is connected already, of that in RAY_ADDRESS, or of one on this machine.

    Args:
        workers: CPUs of a cluster that is started on this machine, where it listens on the loopback address alone;
            None takes all.

    Raises:
        InputError: Ray is not installed.
        RunError: there is no cluster at RAY_ADDRESS, or none could be started.
    """
    try:
        # Before Ray is imported: it reads them then.
        if not os.environ.get("RAY_ADDRESS"):
            for name, value in _OWN_CLUSTER.items():
                os.environ.setdefault(name, value)
        import ray
        import ray.data
    except ImportError:
        raise InputError('--engine ray needs Ray: pip install "maira-radfact[ray]"', field="engine") from None
    # What ends the work is raised as one line, so that nothing has to be said here.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    ray.data.DataContext.get_current().enable_progress_bars = False
    ours = not ray.is_initialized()
    if ours:
        _connect(workers)
    # Ray gives this function no types.
    resources: Callable[[], dict[str, float]] = ray.cluster_resources
    try:
        yield resources()
    finally:
        if ours:
            ray.shutdown()


def _connect(workers: int | None) -> None:
    import ray

    try:
        if os.environ.get("RAY_ADDRESS"):
            ray.init(log_to_driver=False, logging_level=logging.ERROR)
        else:
            ray.init(
                address="local",
                num_cpus=workers,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address="127.0.0.1",
            )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise RunError(f"no Ray cluster: {' '.join(str(error).split())}") from None


def in_process(name: str, what: str) -> None:
    """Refuse what sends its questions elsewhere: it needs no cluster, only more calls in flight.

    Raises:
        InputError: `name` is a model behind an address or at a provider; `what` names the option.
    """
    kind, _, rest = name.partition(":")
    if name != "offline" and kind not in ("vllm", "python") and rest:
        raise InputError(
            f"--engine ray spreads what runs in process (offline, vllm:PATH, python:MODULE:OBJECT); {name} answers "
            "elsewhere, so use --engine local with more --concurrency",
            field=what,
        )


def gpus_of(name: str, arguments: Mapping[str, Any] | None) -> int:
    """GPUs that one worker with this judge or splitter takes: as many as its tensor parallelism."""
    return parallel_size(arguments or {}) if name.startswith("vllm:") else 0


def parallel_size(arguments: Mapping[str, Any]) -> int:
    """GPUs that one vLLM engine with these arguments takes."""
    sizes = (str(arguments.get(f"{kind}_parallel_size", 1)) for kind in ("tensor", "pipeline"))
    return prod(int(size) if size.isdecimal() else 1 for size in sizes)
