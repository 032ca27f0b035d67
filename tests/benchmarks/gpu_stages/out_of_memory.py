"""Stage `memory`: generation and training with too little GPU memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO

import torch
from rich.console import Console

from gpu_stages.cases import Measurement, Setup, SkipCase
from gpu_stages.models import CHECKPOINT, make_phantoms
from maira.generate.engine import Response, report_request
from maira.generate.options import EngineOptions
from maira.generate.transformers_engine import TransformersEngine
from maira.model.task_examples import make_example
from maira.train.config.run_config import TrainConfig
from maira.train.report_training import train
from radfact.errors import ErrorCode, RunError

BATCH_LIMITS_MIB, RUN_LIMITS_MIB = (2048, 1024, 512, 256, 128, 64), (256, 32)
"""Memory in addition to what is allocated, until a batch or a run does not fit."""
STUDIES = 64


def measure(case: str, setup: Setup) -> Iterator[Measurement]:
    """Provoke an out-of-memory error, and yield the outcome."""
    if setup.device.type != "cuda":
        raise SkipCase("needs a GPU, whose memory can be limited")
    yield from _generation(setup) if case == "generation" else _training(setup)


@contextmanager
def _limited(mib: int) -> Iterator[None]:
    """Limit the memory of this process to what it has allocated and some more."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties().total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (mib << 20)) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


def _generation(setup: Setup) -> Iterator[Measurement]:
    """A batch that does not fit is halved, and the responses stay the same."""
    studies = make_phantoms(setup.folder / "phantoms", STUDIES)
    requests = [report_request(make_example(study, "findings")) for study in studies]
    alone = TransformersEngine(CHECKPOINT, EngineOptions(batch_size=1))
    expected = dict(alone.generate(requests))
    del alone
    for mib in BATCH_LIMITS_MIB:
        engine = TransformersEngine(CHECKPOINT, EngineOptions(batch_size=STUDIES))
        with _limited(mib):
            responses = dict(engine.generate(requests))
        if engine._batch_share == 1.0:
            continue
        answered = [index for index, response in responses.items() if isinstance(response, Response)]
        texts = [(getattr(responses[i], "text", None), getattr(expected[i], "text", None)) for i in answered]
        yield Measurement("additional memory", mib, "MiB")
        yield Measurement("batch size after halving", engine._batch_share * STUDIES, at_most=STUDIES / 2)
        yield Measurement("answered requests", len(answered) / len(requests), at_least=1.0)
        # In bfloat16 another batch may round differently.
        yield Measurement("texts equal to those alone", sum(a == b for a, b in texts) / max(1, len(texts)))
        return
    raise ValueError(f"a batch of {STUDIES} fits even in {BATCH_LIMITS_MIB[-1]} MiB")


def _training(setup: Setup) -> Iterator[Measurement]:
    """A run that does not fit ends with an error that says so; with more memory the same command trains."""
    make_phantoms(setup.folder / "phantoms", 16)
    config = TrainConfig.model_validate(
        {
            "model": str(CHECKPOINT),
            "train": str(setup.folder / "phantoms" / "manifest.jsonl"),
            "out": str(setup.folder / "run"),
            "tasks": {"findings": 1, "grounded": 1},
            "passes": 64,
            "global_batch": 32,
            "trackers": [],
        }
    )
    error = "none: every limit was enough"
    for mib in RUN_LIMITS_MIB:
        config = config.model_copy(update={"out": setup.folder / f"run-{mib}"})
        try:
            with _limited(mib):
                train(config, Console(file=StringIO()))
        except (RunError, torch.OutOfMemoryError) as caught:
            # The loop reports memory that runs out as an error with a code.
            error = str(getattr(caught, "code", type(caught).__name__))
            break
    yield Measurement("error", error)
    yield Measurement("is the error for memory", float(error == ErrorCode.OUT_OF_MEMORY), at_least=1.0)
    folder = train(config, Console(file=StringIO()))
    yield Measurement("checkpoint of the same run", float((folder / "config.json").exists()), at_least=1.0)
