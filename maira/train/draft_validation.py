"""Reports and boxes that a model in training writes for a fixed draw of studies, and what they score."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from data.shards import PackedSample
from data.study import Study
from maira.generate.drafts import make_draft, without_references
from maira.generate.engine import FailedRequest, length_key, report_request
from maira.generate.options import EngineOptions
from maira.generate.response_file import GenerationItem, Row
from maira.generate.transformers_engine import TransformersEngine
from maira.grounding.boxes import Overlap, box_completions, summarize_overlaps
from maira.grounding.evaluation import completion_item, has_reference_boxes
from maira.model.processor import MairaProcessor
from maira.model.prompts import NEW_TOKENS, Task
from maira.model.task_examples import UnusedInputWarning, drop_inputs, make_example
from maira.train.config.run_config import TrainConfig
from maira.train.data.batches import unreadable_sample_error
from maira.train.data.dataset import StudyDataset
from maira.train.data.packing import TASKS
from maira.train.data.sources import UnreadableSample, check_images
from maira.train.parallel import DistributedContext, ParallelModel
from radfact.io.jsonl import write_jsonl
from radfact.pipeline import RadFact
from radfact.records import Pair, Report, Sentence
from radfact.scoring.radfact import SCORES

BOXES = {"precision": "precision", "recall": "recall", "mean_iou": "iou"}
"""Figures of box completion, and what they are called while a model is trained."""
_DRAW = (0, 1)
"""Sets the draw apart from the others of a run's seed."""


class DraftRound(NamedTuple):
    """What came of one round of drafts.

    Attributes:
        figures: `drafts/...` by RadFact with the offline judge, `boxes/...` by box completion; None has no value.
        unanswered: why questions had no answer.
    """

    figures: dict[str, float | None]
    unanswered: list[str]


class DraftEvaluator:
    """Asks a model in training for the reports of some studies, and for the boxes of their reference reports.

    Each process asks its share with the whole weights at hand, which sharded ones are gathered to once for the round,
    in the type of the computation: 14 GB of a 7B model, while no activations are held. To gather them block by block
    would send all of them over the network for every token, and tie the processes together step by step.

    Args:
        config: its draw, seed and preset, and what it drops count.
        dataset: of the recipe's sources to validate on.
        processor: of the model.
        context: of the run.

    Raises:
        InputError: a source cannot be read, or a sample, and the recipe does not say that it may be left out.
    """

    def __init__(
        self, config: TrainConfig, dataset: StudyDataset, processor: MairaProcessor, context: DistributedContext
    ) -> None:
        self._recipe, self._processor, self._context = config, processor, context
        self.every = config.validation.drafts_every
        self._unread: list[str] = []
        drawn = sample_studies(dataset, config)
        studies: list[Study] = []
        for source, number, task in drawn:
            with self._reading():
                studies.append(_with_answer(dataset.study(source, number), task))
        self._unread.clear()  # the process that is to ask about it says so
        self._references: dict[str, Report] = {
            study.sample_id: study.grounded_findings or study.findings or "" for study in studies
        }
        self.names = [f"drafts/{name}" for name in SCORES] if studies else []
        if any(has_reference_boxes(study) for study in studies):
            self.names += [f"boxes/{name}" for name in BOXES.values()]
        self._radiographs = TemporaryDirectory(prefix="maira-radiographs-")
        self._items: list[GenerationItem] = []
        for source, number, task in drawn[context.rank :: context.size]:
            with self._reading():
                study = _on_disk(dataset.sources[source].read(number), Path(self._radiographs.name) / str(source))
                shown = drop_inputs(_with_answer(study, task), config.drop)
                if wrong := check_images(shown)[1]:
                    raise wrong[0]
                self._items += list(_questions(shown, task, config))
        self._items.sort(key=lambda item: length_key(item.request))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Where a study is read that the recipe may let a round go without, like those whose pixels turn out bad."""
        try:
            yield
        except UnreadableSample as error:
            if self._recipe.faults.unreadable == "stop":
                raise unreadable_sample_error(error, "a sample of the drafts") from None
            self._unread.append(str(error))

    def ask(self, model: ParallelModel, step: int) -> DraftRound:
        """One round with the weights as they are; the drafts are kept in `drafts/step-N.jsonl` of the run's folder.

        All processes call this.

        Args:
            model: in training; whoever calls puts it into evaluation mode.
            step: optimiser steps done.
        """
        maira: Any = model.training.model
        half = torch.autocast(self._context.device.type, torch.bfloat16, enabled=model.autocast)
        # Compiled blocks know packed rows; for prompts, caches and single tokens they would be compiled over and over.
        with gathered_weights(model), half, torch.compiler.set_stance("force_eager"):
            engine = TransformersEngine.from_model(maira, self._processor, EngineOptions())
            drafts, boxes, unanswered = self._answers(engine, f"step-{step}")
        if self._context.device.type == "cuda":
            torch.cuda.empty_cache()  # the cache of keys and values is no use to training
        parts = self._context.gather((drafts, boxes, unanswered))
        figures: dict[str, float | None] = {}
        if self._context.is_main:
            by_id = {row["sample_id"]: row for part in parts for row in part[0]}
            ordered = [by_id[sample_id] for sample_id in self._references if sample_id in by_id]
            write_jsonl(self._recipe.out / "drafts" / f"step-{step:06}.jsonl", ordered)
            figures = self._score(ordered, [row for part in parts for row in part[1]])
        return DraftRound(self._context.gather(figures)[0], [reason for part in parts for reason in part[2]])

    def _answers(self, engine: TransformersEngine, name: str) -> tuple[list[Row], list[Row], list[str]]:
        drafts: list[Row] = []
        boxes: list[Row] = []
        unanswered = [*self._unread]
        for index, answer in engine.generate([item.request for item in self._items]):
            item = self._items[index]
            if isinstance(answer, FailedRequest):
                unanswered.append(f"{item.sample_id}: {answer.reason}")
            else:
                (boxes if item.request.form == "boxes" else drafts).append(item.row(answer, name))
        return drafts, boxes, unanswered

    def _score(self, drafts: Sequence[Row], boxes: Sequence[Row]) -> dict[str, float | None]:
        from radfact.judges.offline.judge import OfflineJudge

        pairs = [Pair(row["sample_id"], _report(row["report"]), self._references[row["sample_id"]]) for row in drafts]
        scored = RadFact(OfflineJudge(), bootstrap=0).score(pairs).scores
        figures = {f"drafts/{name}": scored[name].point if name in scored else None for name in SCORES}
        overlaps = [Overlap(*(row[name] for name in Overlap._fields)) for row in boxes if row["iou"] is not None]
        if f"boxes/{BOXES['mean_iou']}" in self.names:
            of_boxes = summarize_overlaps(overlaps, replicates=0)
            figures |= {f"boxes/{ours}": of_boxes[name].point for name, ours in BOXES.items()}
        return {name: None if value is None or math.isnan(value) else value for name, value in figures.items()}


def sample_studies(dataset: StudyDataset, config: TrainConfig) -> list[tuple[int, int, Task]]:
    """The studies that are drafted, a function of the seed and the data.

    Returns:
        Of each the place of its source, its number there, and what is asked: the grounded report where the recipe
        trains such, and the study has one.
    """
    tasks: dict[tuple[int, int], Task] = {}
    for task in ("findings", "grounded"):
        rows = dataset.table[dataset.table["task"] == TASKS.index(task)]
        tasks |= dict.fromkeys(zip(rows["source"].tolist(), rows["number"].tolist(), strict=True), task)
    places = sorted(tasks)
    rng = np.random.default_rng(np.random.SeedSequence((config.seed, *_DRAW)))
    chosen = rng.choice(len(places), min(config.validation.drafts, len(places)), replace=False)
    return [(*places[i], tasks[places[i]]) for i in sorted(chosen.tolist())]


@contextmanager
def gathered_weights(model: ParallelModel) -> Iterator[None]:
    """Keep the weights of a sharded model together, on every process, in the type of its computation.

    All processes call this; what they compute in between is each one's own.
    """
    from torch.distributed.fsdp import FSDPModule

    sharded = {name: part for name, part in model.training.named_modules() if isinstance(part, FSDPModule)}
    with model.context.collective_section():
        for part in sharded.values():
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
    try:
        yield
    finally:
        for name, part in sharded.items():
            part.reshard()
            # The outermost keeps its weights after a forward pass anyway: the backward pass begins with them.
            part.set_reshard_after_forward(name != "", recurse=False)


def _on_disk(sample: PackedSample, folder: Path) -> Study:
    """The study with its images as files, which are written if they came with it."""
    paths = {}
    for column, content in sample.images.items():
        folder.mkdir(exist_ok=True)
        paths[column] = folder / getattr(sample.study, column).name
        paths[column].write_bytes(content)
    return sample.study.model_copy(update=paths)


def _with_answer(study: Study, task: Task) -> Study:
    """The study with the report of one task alone."""
    return study.model_copy(update={"grounded_findings": None} if task == "findings" else {"findings": None})


def _questions(study: Study, task: Task, config: TrainConfig) -> Iterator[GenerationItem]:
    """The report of a study, and the boxes of each sentence of a grounded reference."""
    with warnings.catch_warnings(action="ignore", category=UnusedInputWarning):
        example = make_example(without_references(study), task, preset=config.preset)
        yield GenerationItem((study.sample_id,), study.sample_id, report_request(example), partial(make_draft, example))
        for completion in box_completions(study, preset=config.preset):
            yield completion_item(study, completion, NEW_TOKENS["phrase"])


def _report(report: Any) -> Report:
    return report if isinstance(report, str) else [Sentence.model_validate(sentence) for sentence in report]
