"""Judges and splitters in process on a Ray cluster: the same results from many workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from radfact.errors import Failure
from radfact.judges import default_splitter, load_judge, load_splitter
from radfact.judges.protocol import EntailmentQuery, Splitter, SplittingJudge, Verdict
from radfact.llm.ray_cluster import RayWorkers, check_in_process, gpus_per_worker


class RayJudge:
    """A judge on a cluster; queries with the same premises stay together."""

    def __init__(self, workers: RayWorkers, description: dict[str, Any]) -> None:
        """Take the workers and the description of the judge that each of them loads."""
        self.name = workers.name
        self._workers, self._description = workers, description

    def judge(self, queries: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
        """Return one verdict or failure per query, in order.

        Raises:
            InputError: Ray is not installed.
            RunError: the cluster or a worker fails.
        """
        return self._workers.run(queries, group_key=lambda query: query.premises)

    def describe(self) -> dict[str, Any]:
        """Return the description of the judge in one process: the place of work changes no verdict."""
        return dict(self._description)

    def usage(self) -> dict[str, int]:
        """Return the sum of the workers' usage."""
        return self._workers.usage()


class SplittingRayJudge(RayJudge):
    """A judge on a cluster with a splitter of the same model or rules."""

    def make_splitter(self) -> RaySplitter:
        """Return the judge's splitter on as many workers.

        Raises:
            InputError: something that the splitter needs is missing.
        """
        judge = self._workers
        description = load_default_splitter(judge.name, **judge.options).describe()
        workers = RayWorkers(
            load_default_splitter, "split", judge.name, judge.options, judge.cache, judge.workers, judge.gpus
        )
        return RaySplitter(workers, description)


class RaySplitter:
    """A splitter on a cluster."""

    def __init__(self, workers: RayWorkers, description: dict[str, Any]) -> None:
        """Take the workers and the description of the splitter that each of them loads."""
        self.name = workers.name
        self._workers, self._description = workers, description

    def split(self, narratives: Sequence[str]) -> list[list[str] | Failure]:
        """Return the sentences of each narrative, in order.

        Raises:
            InputError: Ray is not installed.
            RunError: the cluster or a worker fails.
        """
        return self._workers.run(narratives, group_key=str)

    def describe(self) -> dict[str, Any]:
        """Return the description of the splitter in one process: the place of work changes no sentence."""
        return dict(self._description)

    def usage(self) -> dict[str, int]:
        """Return the sum of the workers' usage."""
        return self._workers.usage()


def load_default_splitter(name: str, **options: Any) -> Splitter:
    """Return the default splitter of the judge that `load_judge` makes of these arguments."""
    return default_splitter(load_judge(name, **options))


def load_ray_judge(name: str, *, workers: int | None = None, cache: Path | None = None, **options: Any) -> RayJudge:
    """Load a judge on the Ray cluster of RAY_ADDRESS, or on a cluster that is started on this machine.

    Args:
        name: "offline", "vllm:PATH" or "python:MODULE:OBJECT"; all machines must see its folders and files.
        workers: number of processes; by default the number of CPUs, or of GPUs for vLLM.
        cache: folder of the response cache of a model.
        options: further arguments of `load_judge`.

    Raises:
        InputError: a judge that is not in process, or an option that does not fit it.
    """
    check_in_process(name, "judge")
    # A local judge checks the options at once and provides the description; it is never queried.
    judge = load_judge(name, **options)
    judge_type = SplittingRayJudge if isinstance(judge, SplittingJudge) else RayJudge
    gpus = gpus_per_worker(name, options.get("judge_args"))
    return judge_type(RayWorkers(load_judge, "judge", name, options, cache, workers, gpus), judge.describe())


def load_ray_splitter(
    name: str, *, workers: int | None = None, cache: Path | None = None, **options: Any
) -> RaySplitter:
    """Load a splitter on a Ray cluster as `load_ray_judge` loads a judge.

    Args:
        name: "offline" or "vllm:PATH"; all machines must see its folders and files.
        workers: number of processes.
        cache: folder of the response cache of a model.
        options: further arguments of `load_splitter`.

    Raises:
        InputError: a splitter that is not in process, or an option that does not fit it.
    """
    check_in_process(name, "splitter")
    description = load_splitter(name, **options).describe()
    gpus = gpus_per_worker(name, options.get("splitter_args"))
    return RaySplitter(RayWorkers(load_splitter, "split", name, options, cache, workers, gpus), description)
