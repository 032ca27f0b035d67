"""Judges and splitters in process on a Ray cluster: the same results from many workers.

The cluster is that of RAY_ADDRESS, or one that is started on this machine. All machines must see its folders and files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, Failure
from radfact.judges.options import JudgeOptions
from radfact.judges.protocol import EntailmentQuery, Judge, Splitter, Verdict
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

    def __init__(self, options: JudgeOptions, cache: Path | None = None) -> None:
        """Take the options; by default a worker for each CPU, or for the GPUs of each vLLM engine."""
        name, self._options, self._cache = options.required_judge, options, cache
        gpus = _gpus_per_worker(name, "judge", options.judge_args)
        local = _in_process(options)
        workers = RayWorkers(_load_judge, "judge", name, {"options": local}, cache, options.workers, gpus)
        # A local judge checks the options at once and provides the description; it is never queried.
        super().__init__(workers, local.load().describe())

    def judge(self, queries: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
        """Return one verdict or failure per query, in order."""
        return self._workers.run(queries, group_key=attrgetter("premises"))

    def make_splitter(self) -> RaySplitter:
        """Return the splitter of the options, which is by default the judge's, on as many workers."""
        return RaySplitter(self._options, self._cache)


class RaySplitter(_Distributed):
    """A splitter on a cluster."""

    def __init__(self, options: JudgeOptions, cache: Path | None = None) -> None:
        """Take the options, with the judge whose splitter it is by default."""
        name, arguments = options.splitter or options.judge or "offline", dict(options.splitter_args)
        if name == options.judge:
            arguments = {**options.judge_args, **arguments}
        gpus = _gpus_per_worker(name, "splitter", arguments)
        local = _in_process(options)
        workers = RayWorkers(_load_splitter, "split", name, {"options": local}, cache, options.workers, gpus)
        super().__init__(workers, _load_splitter(name, options=local).describe())

    def split(self, narratives: Sequence[str]) -> list[list[str] | Failure]:
        """Return the sentences of each narrative, in order."""
        return self._workers.run(narratives, group_key=str)


def _in_process(options: JudgeOptions) -> JudgeOptions:
    return options.model_copy(update={"engine": "local", "workers": None})


def _load_judge(_: str, *, options: JudgeOptions, cache: Path | None = None) -> Judge:
    return options.load(cache)


def _load_splitter(name: str, *, options: JudgeOptions, cache: Path | None = None) -> Splitter:
    return options.load_splitter(options.load(cache) if name == options.judge else None, cache)


def _gpus_per_worker(name: str, option: str, arguments: Mapping[str, Any]) -> int:
    """Return the GPUs of one worker; refuse a server or provider, which needs no cluster, only concurrency."""
    kind, _, rest = name.partition(":")
    if rest and kind not in ("vllm", "python"):
        message = f"expected offline, vllm:PATH or python:MODULE:OBJECT with --engine ray, found {name}"
        hint = "use --engine local with more --concurrency"
        raise option_error(f"{message}; {hint}", option, ErrorCode.CONFLICTING_OPTIONS)
    return gpus_per_engine(arguments) if kind == "vllm" else 0
