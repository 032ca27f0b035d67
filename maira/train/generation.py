"""Generation with the current weights of a model in training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from maira.data.image_check import ImageCheck
from maira.data.shards import PackedSample
from maira.data.study import Study
from maira.generate.engine import EngineOptions
from maira.generate.transformers_engine import TransformersEngine
from maira.model.processor import MairaProcessor
from maira.model.prompts import Task
from maira.train.parallel import ParallelModel
from radfact.records import Report, Sentence


@contextmanager
def generation_engine(
    model: ParallelModel, processor: MairaProcessor, image_check: ImageCheck
) -> Iterator[TransformersEngine]:
    """Context with an engine of the current weights; all processes enter it, and generate independently."""
    maira: Any = model.training.model
    device = model.context.device
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=model.autocast)
    # Blocks are compiled for packed rows; prompts, caches and single tokens would compile them again and again.
    with gathered_weights(model), autocast, torch.compiler.set_stance("force_eager"):
        # A static cache would stay in memory during training, and autocast gives keys and values other types.
        options = EngineOptions(cache="dynamic", image_check=image_check)
        yield TransformersEngine.from_model(maira, processor, options)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the memory of the key-value cache


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Context with a model in evaluation mode; then restores the modes of its modules and torch's random generators."""
    modes = [(module, module.training) for module in model.modules()]
    with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else []):
        model.eval()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode


@contextmanager
def gathered_weights(model: ParallelModel) -> Iterator[None]:
    """Context with all weights of a sharded model on every process, in the type of the computation.

    All processes enter it; inside, they compute independently.
    """
    from torch.distributed.fsdp import FSDPModule

    root: Any = model.training
    if isinstance(root, FSDPModule):
        # Else, the first part that computes here would become FSDP2's root, unless the whole model has computed before.
        root._get_fsdp_state()._lazy_init()
    sharded = {name: part for name, part in root.named_modules() if isinstance(part, FSDPModule)}
    with model.context.collective_section():
        for part in sharded.values():
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
    try:
        yield
    finally:
        for name, part in sharded.items():
            part.reshard()
            # The root module keeps its weights after a forward pass, since the backward pass begins with them.
            part.set_reshard_after_forward(name != "", recurse=False)


def study_on_disk(sample: PackedSample, folder: Path) -> Study:
    """Return the study with its images as files; images of shards are written to a folder."""
    paths = {}
    for column, content in sample.images.items():
        folder.mkdir(exist_ok=True)
        paths[column] = folder / getattr(sample.study, column).name
        paths[column].write_bytes(content)
    return sample.study.model_copy(update=paths)


def keep_task_report(study: Study, task: Task) -> Study:
    """Return the study with only the report of a task."""
    return study.model_copy(update={"grounded_findings": None} if task == "findings" else {"findings": None})


def parse_draft(report: Any) -> Report:
    """Return the `report` of a draft, text or records of sentences, as a report."""
    return report if isinstance(report, str) else [Sentence.model_validate(sentence) for sentence in report]
