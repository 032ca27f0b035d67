"""Judges and splitters in process on a Ray cluster: the same results from many workers.

The cluster is that of RAY_ADDRESS, or one that is started on this machine. All machines must see its folders and files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, Failure, option_error
from radfact.judges.options import JudgeOptions
from radfact.judges.protocol import EntailmentQuery, Judge, Splitter, Verdict
from radfact.llm.ray_cluster import RayWorkers, gpus_per_engine


class _Distributed:
    """Workers of a cluster that each load the same judge or splitter: the place of work changes no result."""

    def __init__(
        self,
        load: Callable[..., Judge | Splitter],
        name: str,
        arguments: Mapping[str, Any],
        options: JudgeOptions,
        cache: Path | None,
    ) -> None:
        """Take what to load; by default a worker for each CPU, or for the GPUs of each vLLM engine."""
        field, method = ("judge", "judge") if load is _load_judge else ("splitter", "split")
        kind, _, rest = name.partition(":")
        if rest and kind not in ("vllm", "python"):
            message = f"expected offline, vllm:PATH or python:MODULE:OBJECT with --engine ray, found {name}"
            hint = "use --engine local with more --concurrency"
            raise option_error(f"{message}; {hint}", field, ErrorCode.CONFLICTING_OPTIONS)
        gpus = gpus_per_engine(arguments) if kind == "vllm" else 0
        local = options.model_copy(update={"engine": "local", "workers": None})
        self.name, self._options, self._cache = name, options, cache
        # Loaded here too, which checks the options at once and provides the description; it is never queried.
        self._description = load(name, options=local).describe()
        self._workers = RayWorkers(load, method, name, {"options": local}, cache, options.workers, gpus)

    def describe(self) -> dict[str, Any]:
        return dict(self._description)

    def usage(self) -> dict[str, int]:
        return self._workers.usage()


class RayJudge(_Distributed):
    """A judge on a cluster; queries with the same premises stay together."""

    def __init__(self, options: JudgeOptions, cache: Path | None = None) -> None:
        super().__init__(_load_judge, options.required_judge, options.judge_args, options, cache)

    def judge(self, queries: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
        return self._workers.run(queries, group_key=attrgetter("premises"))

    def make_splitter(self) -> RaySplitter:
        """Return the splitter of the options, which is by default the judge's, on as many workers."""
        return RaySplitter(self._options, self._cache)


class RaySplitter(_Distributed):
    """A splitter on a cluster, by default that of the judge."""

    def __init__(self, options: JudgeOptions, cache: Path | None = None) -> None:
        name = options.splitter or options.judge or "offline"
        arguments = {**(options.judge_args if name == options.judge else {}), **options.splitter_args}
        super().__init__(_load_splitter, name, arguments, options, cache)

    def split(self, narratives: Sequence[str]) -> list[list[str] | Failure]:
        return self._workers.run(narratives, group_key=str)


def _load_judge(_: str, *, options: JudgeOptions, cache: Path | None = None) -> Judge:
    return options.load(cache)


def _load_splitter(name: str, *, options: JudgeOptions, cache: Path | None = None) -> Splitter:
    return options.load_splitter(options.load(cache) if name == options.judge else None, cache)
