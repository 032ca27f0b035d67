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
"""Limits of additional memory, tried in this order until a batch or a run does not fit."""
STUDIES = 64


def measure(case: str, setup: Setup) -> Iterator[Measurement]:
    """Provoke an out-of-memory error, and yield the outcome."""
    if setup.device.type != "cuda":
        raise SkipCase("needs a GPU, whose memory can be limited")
    yield from _generation(setup) if case == "generation" else _training(setup)


@contextmanager
def _limited(mib: int) -> Iterator[None]:
    """Limit the additional memory of this process."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties().total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (mib << 20)) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


def _generation(setup: Setup) -> Iterator[Measurement]:
    """Measure how a batch that does not fit is halved, and compare the responses."""
    studies = make_phantoms(setup.folder / "phantoms", STUDIES)
    requests = [report_request(make_example(study, "findings")) for study in studies]
    engine = TransformersEngine(CHECKPOINT, EngineOptions(batch_size=1))
    expected = dict(engine.generate(requests))
    del engine
    for mib in BATCH_LIMITS_MIB:
        engine = TransformersEngine(CHECKPOINT, EngineOptions(batch_size=STUDIES))
        with _limited(mib):
            responses = dict(engine.generate(requests))
        if engine._batch_share == 1.0:
            continue
        generated = [index for index, response in responses.items() if isinstance(response, Response)]
        texts = [(getattr(responses[i], "text", None), getattr(expected[i], "text", None)) for i in generated]
        yield Measurement("additional memory", mib, "MiB")
        yield Measurement("batch size after halving", engine._batch_share * STUDIES, at_most=STUDIES / 2)
        yield Measurement("requests with a response", len(generated) / len(requests), at_least=1.0)
        # In bfloat16 another batch may round differently.
        yield Measurement("texts equal to those of batch size 1", sum(a == b for a, b in texts) / max(1, len(texts)))
        return
    raise ValueError(f"a batch of {STUDIES} fits even in {BATCH_LIMITS_MIB[-1]} MiB")


def _training(setup: Setup) -> Iterator[Measurement]:
    """Train with too little memory, which must end with an out-of-memory error, and then with enough."""
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
    error = "none: the run fits in every limit"
    for mib in RUN_LIMITS_MIB:
        config = config.model_copy(update={"out": setup.folder / f"run-{mib}"})
        try:
            with _limited(mib):
                train(config, Console(file=StringIO()))
        except (RunError, torch.OutOfMemoryError) as caught:
            # The training loop reports exhausted memory as an error with a code.
            error = str(getattr(caught, "code", type(caught).__name__))
            break
    yield Measurement("error", error)
    yield Measurement("is an out-of-memory error", float(error == ErrorCode.OUT_OF_MEMORY), at_least=1.0)
    folder = train(config, Console(file=StringIO()))
    yield Measurement("checkpoint of the same run", float((folder / "config.json").exists()), at_least=1.0)
