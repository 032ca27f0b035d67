"""One engine a worker on a Ray cluster: the same answers, from many machines."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from maira.generate.engine import FailedRequest, GenerationRequest, Response, length_key, start_engine
from maira.generate.options import EngineOptions
from maira.model.checkpoint import fingerprint
from radfact.errors import InputError
from radfact.llm.ray_cluster import RayWorkers, gpus_per_engine

_FILL = 32
"""Requests in a portion where no batch size is asked for: what memory allows of a 7B model is seldom more."""
_LARGEST = 512
"""Most requests in a portion: what a worker that is stopped has to answer again, some minutes of its work."""


class RayEngine:
    """A checkpoint whose requests are spread over the Ray cluster of RAY_ADDRESS, or over one on this machine.

    Each worker starts `options.worker_engine` with its first portion; checkpoint and images must be seen by all
    machines. Where the cluster has GPUs, a worker takes one, or as many as vLLM's arguments spread a model over.

    Args:
        checkpoint: folder with the model and its processor.
        options: see there.

    Raises:
        InputError: the folder is no checkpoint, or the options name one GPU for all workers.
    """

    def __init__(self, checkpoint: Path, options: EngineOptions) -> None:
        if ":" in (options.device or ""):
            raise InputError(
                f"'{options.device}' is one GPU, and Ray gives each worker its own: leave it out", field="device"
            )
        self.name = f"{checkpoint.resolve().name}@{fingerprint(checkpoint)}"
        self.checkpoint, self.options = checkpoint.absolute(), options
        self._running: Generator[tuple[int, Response | FailedRequest], None, None] | None = None

    def generate(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Response | FailedRequest]]:
        """Each request's answer, as the portions are done; requests of like length share one, the longest first.

        Raises:
            InputError: Ray is not installed, or the engine of a worker refuses the checkpoint or the options.
            RunError: the cluster or a worker cannot do its work.
        """
        order = sorted(range(len(requests)), key=lambda index: length_key(requests[index]), reverse=True)
        self._running = self._spread().stream([_anywhere(requests[index]) for index in order])
        for place, answer in self._running:
            yield order[place], answer

    def close(self) -> None:
        """End what still runs, and the cluster if it was started for this engine."""
        if self._running is not None:
            self._running.close()

    def _spread(self) -> RayWorkers:
        kind, options = self.options.worker_engine, self.options
        folder = options.language_model and options.language_model.absolute()
        update = {"engine": kind, "workers": None, "worker_engine": "transformers", "language_model": folder}
        gpus = gpus_per_engine(options.engine_args) if kind == "vllm" else int(options.device != "cpu")
        return RayWorkers(
            _WorkerEngine,
            "answer",
            kind,
            {"checkpoint": self.checkpoint, "options": options.model_copy(update=update)},
            workers=options.workers,
            gpus=gpus,
            batch=options.batch_size or _FILL,
            max_chunk=_LARGEST,
        )


class _WorkerEngine:
    """The engine in a worker's process."""

    def __init__(self, _kind: str, *, checkpoint: Path, options: EngineOptions) -> None:
        self.engine = start_engine(checkpoint, options)

    def answer(self, requests: Sequence[GenerationRequest]) -> list[Response | FailedRequest]:
        """Answers in the order of the requests."""
        answers = dict(self.engine.generate(requests))
        return [answers[index] for index in range(len(requests))]

    def usage(self) -> dict[str, int]:
        """Nothing is counted but what the driver counts."""
        return {}


def _anywhere(request: GenerationRequest) -> GenerationRequest:
    """The request with paths that do not depend on the folder that a process was started in."""
    images = tuple(image.absolute() for image in request.example.images)
    return replace(request, example=replace(request.example, images=images))
