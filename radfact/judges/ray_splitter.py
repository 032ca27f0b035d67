"""A splitter in process on a Ray cluster: the same sentences, from many workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from radfact.errors import Failure
from radfact.judges import load_splitter
from radfact.llm.ray_cluster import Spread, gpus_of, in_process


class RaySplitter:
    """A splitter whose narratives are spread over a cluster."""

    def __init__(self, spread: Spread, description: dict[str, Any]) -> None:
        """Take the work to be spread, and what the splitter that each worker loads says of itself."""
        self.name = spread.name
        self._spread, self._description = spread, description

    def split(self, narratives: Sequence[str]) -> list[list[str] | Failure]:
        """The sentences of each narrative, in order.

        Raises:
            InputError: Ray is not installed.
            RunError: the cluster or a worker cannot do its work.
        """
        return self._spread.run(narratives, together=str)

    def describe(self) -> dict[str, Any]:
        """As the splitter describes itself in one process: where it runs changes no sentence."""
        return dict(self._description)

    def usage(self) -> dict[str, int]:
        """The workers' usage_by_role added up."""
        return self._spread.usage()


def ray_splitter(name: str, *, workers: int | None = None, cache: Path | None = None, **options: Any) -> RaySplitter:
    """A splitter in process, spread over a Ray cluster as `radfact.judges.ray_judge.ray_judge` spreads a judge.

    Args:
        name: "offline" or "vllm:PATH"; folders and files must be seen by all machines.
        workers: how many processes split.
        cache: folder for the answers of a model.
        options: further arguments of `radfact.judges.load_splitter`.

    Raises:
        InputError: a splitter that is not in process, or an option that does not fit it.
    """
    in_process(name, "splitter")
    description = load_splitter(name, **options).describe()
    gpus = gpus_of(name, options.get("splitter_args"))
    return RaySplitter(Spread(load_splitter, "split", name, options, cache, workers, gpus), description)
