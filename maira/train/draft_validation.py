"""Scores of the reports and boxes that a model in training writes for a fixed draw of studies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from maira.data.study import Study
from maira.generate.drafts import GenerationItem, Row, make_draft, without_references
from maira.generate.engine import FailedRequest, length_key, report_request
from maira.generate.transformers_engine import TransformersEngine
from maira.grounding.boxes import Overlap, summarize_overlaps
from maira.grounding.evaluation import completion_items, has_reference_boxes
from maira.model.parser import split_sentences
from maira.model.processor import MairaProcessor
from maira.model.prompts import NEW_TOKENS, Task
from maira.model.task_examples import drop_inputs, make_example
from maira.runtime.processes import DistributedContext
from maira.train.config.run_config import TrainConfig
from maira.train.data.dataset import StudyDataset
from maira.train.data.packing import TASKS
from maira.train.data.sources import check_images, skipping_unreadable
from maira.train.generation import generation_engine, keep_task_report, parse_draft, study_on_disk
from maira.train.parallel import ParallelModel
from radfact.api import RadFact
from radfact.errors import InputError
from radfact.io.jsonl import write_jsonl
from radfact.metrics.radfact.scores import SCORES
from radfact.reader.polarity import read_polarity
from radfact.records import Pair, Report, Sentence, narrative
from radfact.rewards import load_reward

BOXES = {"precision": "precision", "recall": "recall", "mean_iou": "iou"}
"""Scores of box completion, and their names in the metrics of a run."""
_SEED_KEY = (0, 1)
"""Distinguishes this draw from others with a run's seed."""

_SCORES_IF_INSTALLED = ("findings", "rouge_l")
"""Scores in addition to those of RadFact, as far as their packages are installed."""
_SENTENCE_STATISTICS = ("words", "normal_sentence_share", "repeated_sentence_share", "boxes_per_sentence")
MONITORED = tuple(f"drafts/{name}" for name in (*_SCORES_IF_INSTALLED, *_SENTENCE_STATISTICS))
"""Names of the values in the metrics of a run."""


class DraftEvaluator:
    """Drafts the reports of some studies, and completes the boxes of their reference reports.

    Each process handles its share with all weights: sharded ones are gathered once for the round, in the type of the
    computation (14 GB of a 7B model, while no activations are held). Gathering them block by block would send all
    weights over the network for every token, and synchronize the processes at every step.
    """

    def __init__(
        self, config: TrainConfig, dataset: StudyDataset, processor: MairaProcessor, context: DistributedContext
    ) -> None:
        self._config, self._processor, self._context = config, processor, context
        self.every = config.validation.drafts_every
        self._failures: list[str] = []  # reasons why studies of this process have no requests
        drawn = sample_studies(dataset, config)
        studies: list[Study] = []
        for source, number, task in drawn:
            # A study that cannot be read is reported by the process that drafts it.
            with skipping_unreadable(config.faults, "the drafts"):
                studies.append(keep_task_report(dataset.study(source, number), task))
        self._references: dict[str, Report] = {
            study.sample_id: study.grounded_findings or study.findings or "" for study in studies
        }
        self.names = [f"drafts/{name}" for name in SCORES] if studies else []
        if any(has_reference_boxes(study) for study in studies):
            self.names += [f"boxes/{name}" for name in BOXES.values()]
        self._radiographs = TemporaryDirectory(prefix="maira-radiographs-")
        self._items: list[GenerationItem] = []
        for source, number, task in drawn[context.rank :: context.size]:
            with skipping_unreadable(config.faults, "the drafts") as reasons:
                study = study_on_disk(dataset.sources[source].read(number), Path(self._radiographs.name) / str(source))
                shown = drop_inputs(keep_task_report(study, task), config.drop)
                if errors := check_images(shown)[1]:
                    raise errors[0]
                self._items += list(_requests(shown, task, config))
            self._failures += reasons
        self._items.sort(key=lambda item: length_key(item.request))

    def evaluate(self, model: ParallelModel, step: int) -> tuple[dict[str, float | None], list[str]]:
        """Draft with the current weights, save the drafts to `drafts/step-N.jsonl`, and score them.

        All processes call this. The scores are `drafts/...` by RadFact with the offline judge, `boxes/...` by box
        completion, and in post-training those of `monitor_drafts`, None if undefined; then come the reasons why
        requests have no response.
        """
        with generation_engine(model, self._processor, self._config.faults.image_check) as engine:
            drafts, boxes, failures = self._generate(engine, f"step-{step}")
        parts = self._context.gather((drafts, boxes, failures))
        scores: dict[str, float | None] = {}
        if self._context.is_main:
            by_id = {row["sample_id"]: row for part in parts for row in part[0]}
            ordered = [by_id[sample_id] for sample_id in self._references if sample_id in by_id]
            write_jsonl(self._config.out / "drafts" / f"step-{step:06}.jsonl", ordered)
            scores = self._score(ordered, [row for part in parts for row in part[1]])
        return self._context.gather(scores)[0], [reason for part in parts for reason in part[2]]

    def _generate(self, engine: TransformersEngine, name: str) -> tuple[list[Row], list[Row], list[str]]:
        drafts: list[Row] = []
        boxes: list[Row] = []
        failures = [*self._failures]
        for index, response in engine.generate([item.request for item in self._items]):
            item = self._items[index]
            if isinstance(response, FailedRequest):
                failures.append(f"{item.sample_id}: {response.reason}")
            else:
                (boxes if item.request.form == "boxes" else drafts).append(item.row(response, name))
        return drafts, boxes, failures

    def _score(self, drafts: Sequence[Row], boxes: Sequence[Row]) -> dict[str, float | None]:
        from radfact.judges.offline import OfflineJudge

        pairs = [
            Pair(row["sample_id"], parse_draft(row["report"]), self._references[row["sample_id"]]) for row in drafts
        ]
        scored = RadFact(OfflineJudge(), bootstrap=0).score(pairs).scores
        scores: dict[str, float | None] = {f"drafts/{name}": scored.get(name) for name in SCORES}
        if self._config.is_post_training and pairs:
            scores |= monitor_drafts(pairs)
        overlaps = [Overlap(*(row[name] for name in Overlap._fields)) for row in boxes if row["iou"] is not None]
        if f"boxes/{BOXES['mean_iou']}" in self.names:
            box_scores = summarize_overlaps(overlaps, replicates=0)
            scores |= {f"boxes/{ours}": box_scores[name].point for name, ours in BOXES.items()}
        return {name: None if value is None or math.isnan(value) else value for name, value in scores.items()}


def sample_studies(dataset: StudyDataset, config: TrainConfig) -> list[tuple[int, int, Task]]:
    """Draw the studies to draft, as a function of the seed and the data."""
    tasks: dict[tuple[int, int], Task] = {}
    for task in ("findings", "grounded"):
        rows = dataset.table[dataset.table["task"] == TASKS.index(task)]
        tasks |= dict.fromkeys(zip(rows["source"].tolist(), rows["number"].tolist(), strict=True), task)
    places = sorted(tasks)
    rng = np.random.default_rng(np.random.SeedSequence((config.seed, *_SEED_KEY)))
    chosen = rng.choice(len(places), min(config.validation.drafts, len(places)), replace=False)
    return [(*places[i], tasks[places[i]]) for i in sorted(chosen.tolist())]


def _requests(study: Study, task: Task, config: TrainConfig) -> Iterator[GenerationItem]:
    """Yield the requests for the report of a study and for the boxes of each sentence of a grounded reference."""
    example = make_example(without_references(study), task, preset=config.preset)
    yield GenerationItem(report_request(example), partial(make_draft, example))
    yield from completion_items(study, NEW_TOKENS["phrase"], preset=config.preset)


def monitor_drafts(pairs: Sequence[Pair]) -> dict[str, float | None]:
    """Return the mean of each value over a round of drafts, None without one."""
    columns: dict[str, list[float | None]] = {}
    for name in _SCORES_IF_INSTALLED:
        columns[name] = []
        with suppress(InputError):  # a package is missing: the value stays unknown
            columns[name] = [reward.total for reward in load_reward(name)(pairs)]
    columns |= sentence_statistics([pair.candidate for pair in pairs])
    known = {name: [value for value in column if value is not None] for name, column in columns.items()}
    return {f"drafts/{name}": float(np.mean(column)) if column else None for name, column in known.items()}


def sentence_statistics(reports: Sequence[Report]) -> dict[str, list[Any]]:
    """Return the words of each report, and three values of each sentence.

    They are whether it only denies findings or states normality, whether it repeats an earlier one of its report, and
    its number of boxes.
    """
    columns: dict[str, list[Any]] = {name: [] for name in _SENTENCE_STATISTICS}
    for report in reports:
        columns["words"].append(len(narrative(report).split()))
        sentences = [Sentence(text=text) for text in split_sentences(report)] if isinstance(report, str) else report
        earlier: set[str] = set()
        for sentence in sentences:
            columns["normal_sentence_share"].append(read_polarity(sentence.text) == "negative")
            columns["repeated_sentence_share"].append(sentence.text in earlier)
            columns["boxes_per_sentence"].append(len(sentence.boxes or ()))
            earlier.add(sentence.text)
    return columns
