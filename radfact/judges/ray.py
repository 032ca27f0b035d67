"""Judges and splitters in process on a Ray cluster: the same results from many workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, Failure
from radfact.judges import default_splitter, load_judge, load_splitter
from radfact.judges.protocol import EntailmentQuery, Splitter, SplittingJudge, Verdict
from radfact.llm.call_errors import option_error
from radfact.llm.ray_cluster import RayWorkers, gpus_per_engine


class _Distributed:
    """Workers of a cluster, with the description of what each of them loads: the place of work changes no result."""

    def __init__(self, workers: RayWorkers, description: dict[str, Any]) -> None:
        self.name = workers.name
        self._workers, self._description = workers, description

    def describe(self) -> dict[str, Any]:
        """Return the description in one process."""
        return dict(self._description)

    def usage(self) -> dict[str, int]:
        """Return the sum of the workers' usage."""
        return self._workers.usage()


class RayJudge(_Distributed):
    """A judge on a cluster; queries with the same premises stay together."""

    def judge(self, queries: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
        """Return one verdict or failure per query, in order."""
        return self._workers.run(queries, group_key=attrgetter("premises"))


class SplittingRayJudge(RayJudge):
    """A judge on a cluster with a splitter of the same model or rules."""

    def make_splitter(self) -> RaySplitter:
        """Return the judge's splitter on as many workers."""
        judge = self._workers
        description = load_default_splitter(judge.name, **judge.options).describe()
        workers = RayWorkers(
            load_default_splitter, "split", judge.name, judge.options, judge.cache, judge.workers, judge.gpus
        )
        return RaySplitter(workers, description)


class RaySplitter(_Distributed):
    """A splitter on a cluster."""

    def split(self, narratives: Sequence[str]) -> list[list[str] | Failure]:
        """Return the sentences of each narrative, in order."""
        return self._workers.run(narratives, group_key=str)


def load_default_splitter(name: str, **options: Any) -> Splitter:
    """Return the default splitter of the judge that `load_judge` makes of these arguments."""
    return default_splitter(load_judge(name, **options))


def load_ray_judge(name: str, *, workers: int | None = None, cache: Path | None = None, **options: Any) -> RayJudge:
    """Load a judge in process on the Ray cluster of RAY_ADDRESS, or on a cluster that is started on this machine.

    All machines must see its folders and files. The default number of workers is that of the CPUs, or of the GPUs for
    vLLM. The options are those of `load_judge`.
    """
    gpus = _gpus_per_worker(name, "judge", options.get("judge_args"))
    # A local judge checks the options at once and provides the description; it is never queried.
    judge = load_judge(name, **options)
    judge_type = SplittingRayJudge if isinstance(judge, SplittingJudge) else RayJudge
    return judge_type(RayWorkers(load_judge, "judge", name, options, cache, workers, gpus), judge.describe())


def load_ray_splitter(
    name: str, *, workers: int | None = None, cache: Path | None = None, **options: Any
) -> RaySplitter:
    """Load a splitter on a Ray cluster as `load_ray_judge` loads a judge."""
    gpus = _gpus_per_worker(name, "splitter", options.get("splitter_args"))
    description = load_splitter(name, **options).describe()
    return RaySplitter(RayWorkers(load_splitter, "split", name, options, cache, workers, gpus), description)


def _gpus_per_worker(name: str, option: str, arguments: Mapping[str, Any] | None) -> int:
    """Return the GPUs of one worker; refuse a server or provider, which needs no cluster, only concurrency."""
    kind, _, rest = name.partition(":")
    if rest and kind not in ("vllm", "python"):
        message = f"expected offline, vllm:PATH or python:MODULE:OBJECT with --engine ray, found {name}"
        hint = "use --engine local with more --concurrency"
        raise option_error(f"{message}; {hint}", option, ErrorCode.CONFLICTING_OPTIONS)
    return gpus_per_engine(arguments or {}) if kind == "vllm" else 0
