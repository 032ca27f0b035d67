"""An engine that distributes requests over a Ray cluster, with another engine in each worker."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from maira.generate.engine import EngineOptions, FailedRequest, GenerationRequest, Response, start_engine
from maira.model.checkpoint import checkpoint_name
from radfact.errors import ErrorCode, InputError
from radfact.llm.ray_cluster import RayWorkers, gpus_per_engine

_CHUNK_SIZE = 32
"""Requests per chunk without a batch size; the memory of a GPU rarely allows a larger batch of a 7B model."""
_LARGEST_CHUNK = 512
"""Most requests per chunk: what a stopped worker has to generate again, some minutes of work."""


class RayEngine:
    """An engine on the Ray cluster of RAY_ADDRESS, or of this machine; all machines must see checkpoint and images."""

    def __init__(self, checkpoint: Path, options: EngineOptions) -> None:
        if ":" in (options.device or ""):
            message = f"'{options.device}' is a single GPU, and Ray assigns one to each worker; leave it out"
            raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field="device")
        self.name = checkpoint_name(checkpoint)
        self.checkpoint, self.options = checkpoint.absolute(), options
        self._stream: Generator[tuple[int, Response | FailedRequest], None, None] | None = None

    def generate(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Response | FailedRequest]]:
        """Yield the index and the response of every request as chunks of requests of similar length finish."""
        order = sorted(range(len(requests)), key=lambda index: requests[index].length_key, reverse=True)
        self._stream = self._workers().stream([_with_absolute_paths(requests[index]) for index in order])
        for place, response in self._stream:
            yield order[place], response

    def close(self) -> None:
        """Stop running chunks, and the cluster if it was started for this engine."""
        if self._stream is not None:
            self._stream.close()

    def _workers(self) -> RayWorkers:
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
            batch=options.batch_size or _CHUNK_SIZE,
            max_chunk=_LARGEST_CHUNK,
        )


class _WorkerEngine:
    """The engine in the process of a worker."""

    def __init__(self, _kind: str, *, checkpoint: Path, options: EngineOptions) -> None:
        self.engine = start_engine(checkpoint, options)

    def answer(self, requests: Sequence[GenerationRequest]) -> list[Response | FailedRequest]:
        """Return the responses in the order of the requests."""
        responses = dict(self.engine.generate(requests))
        return [responses[index] for index in range(len(requests))]

    def usage(self) -> dict[str, int]:
        """Return no counts, because the workers have them."""
        return {}


def _with_absolute_paths(request: GenerationRequest) -> GenerationRequest:
    """Make image paths independent of the folder that a process was started in."""
    images = tuple(image.absolute() for image in request.example.images)
    return replace(request, example=replace(request.example, images=images))
