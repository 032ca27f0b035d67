"""A judge in process on a Ray cluster: the same verdicts, from many workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from radfact.errors import Failure
from radfact.judges import Splitter, load_judge, splitter_of
from radfact.judges.protocol import EntailmentQuery, SplittingJudge, Verdict
from radfact.judges.ray_splitter import RaySplitter
from radfact.llm.ray_cluster import Spread, gpus_of, in_process


class RayJudge:
    """A judge whose questions are spread over a cluster; those with the same premises stay together."""

    def __init__(self, spread: Spread, description: dict[str, Any]) -> None:
        """Take the work to be spread, and what the judge that each worker loads says of itself."""
        self.name = spread.name
        self._spread, self._description = spread, description

    def judge(self, questions: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
        """One answer a question, in order.

        Raises:
            InputError: Ray is not installed.
            RunError: the cluster or a worker cannot do its work.
        """
        return self._spread.run(questions, together=lambda question: question.premises)

    def describe(self) -> dict[str, Any]:
        """As the judge describes itself in one process: where it runs changes no answer."""
        return dict(self._description)

    def usage(self) -> dict[str, int]:
        """The workers' usage_by_role added up."""
        return self._spread.usage()


class SplittingRayJudge(RayJudge):
    """One that splits as well."""

    def make_splitter(self) -> RaySplitter:
        """Who splits beside the judge, spread as the judge is.

        Raises:
            InputError: what it needs is not there.
        """
        judge = self._spread
        description = splitter_beside(judge.name, **judge.options).describe()
        name, options, cache, workers, gpus = judge.name, judge.options, judge.cache, judge.workers, judge.gpus
        return RaySplitter(Spread(splitter_beside, "split", name, options, cache, workers, gpus), description)


def splitter_beside(name: str, **options: Any) -> Splitter:
    """Who splits beside the judge that `radfact.load_judge` makes of these arguments."""
    return splitter_of(load_judge(name, **options))


def ray_judge(name: str, *, workers: int | None = None, cache: Path | None = None, **options: Any) -> RayJudge:
    """A judge in process, spread over the Ray cluster of RAY_ADDRESS, or over one that is started on this machine.

    Args:
        name: "offline", "vllm:PATH" or "python:MODULE:OBJECT"; folders and files must be seen by all machines.
        workers: how many processes judge; by default as many as there are CPUs, or GPUs for vLLM.
        cache: folder for the answers of a model.
        options: further arguments of `radfact.load_judge`.

    Raises:
        InputError: a judge that is not in process, or an option that does not fit it.
    """
    in_process(name, "judge")
    # Only to find out at once whether the options fit, what describes the judge and whether it splits; it is not asked.
    alone = load_judge(name, **options)
    kind = SplittingRayJudge if isinstance(alone, SplittingJudge) else RayJudge
    gpus = gpus_of(name, options.get("judge_args"))
    return kind(Spread(load_judge, "judge", name, options, cache, workers, gpus), alone.describe())
