"""Validation during training: losses on held-out samples, scores of drafts, and the best checkpoint."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from maira.data.image_check import ImageCheck
from maira.data.shards import PackedSample
from maira.data.study import Study
from maira.generate.drafts import GenerationItem, Row, make_draft, without_references
from maira.generate.engine import EngineOptions, FailedRequest, report_request
from maira.generate.transformers_engine import TransformersEngine
from maira.grounding.boxes import Overlap, summarize_overlaps
from maira.grounding.evaluation import completion_items, has_reference_boxes
from maira.model.parser import split_sentences
from maira.model.processor import MairaProcessor
from maira.model.prompts import NEW_TOKENS, Task
from maira.model.task_examples import drop_inputs, make_example
from maira.runtime.processes import DistributedContext, copy_to_device
from maira.train.config.run_config import ALL_TASKS, TASKS, BaseTrainConfig, TrainConfig
from maira.train.data.dataset import StudyDataset, open_dataset
from maira.train.data.packing import SampleDataset, StepTotals, check_lengths, pack
from maira.train.data.schedule import SkippedSample, collate_row, encode_row, map_in_workers
from maira.train.data.sources import check_images, skipping_unreadable
from maira.train.logging import MetricsLogger, MetricValues
from maira.train.parallel import ParallelModel, main_process_first
from radfact.api import RadFact
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_json, write_json, write_jsonl
from radfact.metrics.radfact.scores import SCORES
from radfact.reader.facts import read_polarity
from radfact.records import Pair, Report, Sentence, narrative
from radfact.rewards import load_reward

BOXES = {"precision": "precision", "recall": "recall", "mean_iou": "iou"}
"""Scores of box completion, and their names in the metrics of a run."""
_SCORES_IF_INSTALLED = ("findings", "rouge_l")
"""Scores in addition to those of RadFact, as far as their packages are installed."""
_SENTENCE_STATISTICS = ("words", "normal_sentence_share", "repeated_sentence_share", "boxes_per_sentence")
MONITORED = tuple(f"drafts/{name}" for name in (*_SCORES_IF_INSTALLED, *_SENTENCE_STATISTICS))
"""Names of the values in the metrics of a run."""


@dataclass
class Validator:
    """Validates a model during a run, without an effect on the training; all processes make and call it alike."""

    config: BaseTrainConfig
    dataset: SampleDataset
    context: DistributedContext
    log: MetricsLogger
    steps: int  # of the run
    drafter: DraftEvaluator | None = None

    def __post_init__(self) -> None:
        drawn = sample_answers(self.dataset, self.config)
        self.samples = len(drawn)
        self._rows, self._own = _shard_rows(self.dataset, drawn, self.config, self.context)
        self._tasks = [ALL_TASKS[task] for task in np.unique(self.dataset.table["task"][drawn])]
        names = [f"loss/{name}" for name in ("all", *self._tasks)] + (self.drafter.names if self.drafter else [])
        digest = hashlib.sha256(self.dataset.table.tobytes())
        digest.update(json.dumps([self.dataset.sample_id(int(row)) for row in drawn]).encode())
        digest.update(str(getattr(self.config.validation, "drafts", None)).encode())
        self._best = BestCheckpoint(self.config, names, digest.hexdigest()[:16])

    def start(self, step: int) -> None:
        """Start after a number of optimizer steps; checkpoints of later steps are not compared with."""
        if message := self._best.start(step):
            self.log.info(message)

    def is_due(self, step: int) -> bool:
        return self._is_time(step, self.config.validation.every) or self._are_drafts_due(step)

    def after_step(
        self,
        step: int,
        model: ParallelModel,
        write: Callable[[Path], None],
        record_skipped: Callable[[list[SkippedSample]], None],
    ) -> None:
        """Validate if that is due after a step, and write the checkpoint if it is the best one."""
        if not self.is_due(step) or step == self.context.gather(self.log.validated)[0]:
            return
        metrics = dict[str, float | None]()
        with self.log.pause():
            if self._is_time(step, self.config.validation.every):
                metrics, skipped = self.losses(model)
                if skipped:
                    record_skipped(skipped)
            if self._are_drafts_due(step):
                metrics |= self.drafts(model, step)
            invalid = [name for name, value in metrics.items() if value is not None and not math.isfinite(value)]
            if invalid:
                self.log.info(f"{', '.join(invalid)} after step {step}: not finite, not used to choose a checkpoint")
            metrics |= dict.fromkeys(invalid)
            # One process decides for all, since others may read an outdated folder.
            is_best = self.context.gather(self._best.is_beaten_by(metrics))[0]
            if is_best and (reason := self._best.replace(step, metrics, write, self.context)):
                self.log.info(f"the best checkpoint could not be written, the run continues: {reason}")
            # Last, since it marks the validation as complete.
            self.log.log_validation(step, metrics)

    def losses(self, model: ParallelModel) -> tuple[dict[str, float | None], list[SkippedSample]]:
        """Compute the mean cross-entropy over answer tokens, of all samples and by task: `loss/all`, ..."""
        skipped: list[SkippedSample] = []
        # (summed cross-entropy, answer tokens) of each task
        sums = torch.zeros(2, len(ALL_TASKS), dtype=torch.float64, device=self.context.device)
        encode = partial(encode_row, self.dataset, self.config.faults, "validation")
        with (
            evaluation_mode(model.wrapped),
            torch.no_grad(),
            closing(map_in_workers(encode, self._rows, self.config.workers)) as encoded,
        ):
            for number, row in enumerate(encoded):
                counts = number < self._own
                batch = collate_row(row, StepTotals(1, 1), self.dataset)
                # Processes that could not read a row report it here, where no other process waits for their tensors.
                skipped += [sample for part in self.context.gather(row.skipped if counts else []) for sample in part]
                with self.context.collective_section():
                    batch_losses = model(batch.to(self.context.device))
                if counts:
                    numbers = [ALL_TASKS.index(task) for task in batch.tasks]
                    tasks = copy_to_device(torch.tensor(numbers, dtype=torch.long), sums.device)
                    sums.index_add_(1, tasks, torch.stack([batch_losses.per_sample, batch_losses.tokens]).double())
        with self.context.collective_section():
            losses, tokens = self.context.sum(sums).tolist()
        by_name = {"all": (sum(losses), sum(tokens))}
        by_name |= {task: (losses[ALL_TASKS.index(task)], tokens[ALL_TASKS.index(task)]) for task in self._tasks}
        return {f"loss/{name}": loss / count if count else None for name, (loss, count) in by_name.items()}, skipped

    def drafts(self, model: ParallelModel, step: int) -> dict[str, float | None]:
        """Return the scores of drafts and box completions: `drafts/...`, `boxes/...`."""
        if self.drafter is None:
            return {}
        with evaluation_mode(model.training):
            scores, failures = self.drafter.evaluate(model, step)
        if failures:
            self.log.info(f"requests without a response: {len(failures)}; the first: {failures[0]}")
        return scores

    def _are_drafts_due(self, step: int) -> bool:
        return self.drafter is not None and self._is_time(step, self.drafter.every)

    def _is_time(self, step: int, every: int | None) -> bool:
        return every is not None and step > 0 and (step % every == 0 or step == self.steps)


class BestCheckpoint:
    """The best checkpoint by a metric, in `checkpoint-best/` with `best.json`; `measured_on` identifies the data."""

    def __init__(self, config: BaseTrainConfig, names: list[str], measured_on: str = "") -> None:
        self._name, self._measured_on = config.validation.best_by, measured_on
        self._folder = config.out / "checkpoint-best"
        self._value: float | None = None
        if self._name is not None and self._name not in names:
            reason = f"unknown metric '{self._name}'; with the samples that are drawn, there are {', '.join(names)}"
            raise InputError(reason, code=ErrorCode.UNKNOWN_NAME, field="validation.best_by")

    def start(self, step: int) -> str | None:
        """Compare with the best checkpoint of the run so far, or return why it is not compared with."""
        file = self._folder / "best.json"
        if not file.exists() or (record := read_json(file)).get("figure") != self._name:
            return None
        if record.get("measured_on") != self._measured_on:
            return "the validation data has changed: the next checkpoint that is validated becomes the best"
        if record["step"] > step:
            earlier = f"{self._folder} is of step {record['step']} of an earlier run"
            return f"{earlier}, and this one starts from step {step}: the next checkpoint that is validated replaces it"
        self._value = record["value"]
        return None

    def is_beaten_by(self, metrics: MetricValues) -> bool:
        value = None if self._name is None else metrics.get(self._name)
        if self._name is None or value is None or self._value is None:
            return value is not None
        return value < self._value if self._name.startswith("loss/") else value > self._value

    def replace(
        self, step: int, metrics: MetricValues, write: Callable[[Path], None], context: DistributedContext
    ) -> str | None:
        """Replace the best checkpoint by the current model; all processes call this."""
        value, reason = metrics[self._name or ""], ""
        try:
            write(self._folder)
        except OSError as error:
            reason = str(error)
            context.wait()  # the other processes wait in `write`
        try:
            if context.is_main and not reason:
                record = {"step": step, "figure": self._name, "value": value, "measured_on": self._measured_on}
                write_json(self._folder / "best.json", record)
        except OSError as error:
            reason = str(error)
        failure = next((text for text in context.gather(reason) if text), None)
        if failure is None:
            self._value = value
        return failure


def make_report_validator(
    config: TrainConfig, processor: MairaProcessor, context: DistributedContext, log: MetricsLogger, steps: int
) -> Validator:
    """Make the validator of a MAIRA-2: losses, and drafts if the configuration has them."""
    open_studies = partial(open_dataset, config, config.validation.sources, processor, config.out / "tables", None)
    dataset = main_process_first(context, "reading validation studies", open_studies)
    has_drafts = config.validation.drafts_every is not None
    drafter = DraftEvaluator(config, dataset, processor, context) if has_drafts else None
    return Validator(config, dataset, context, log, steps, drafter)


def sample_answers(dataset: SampleDataset, config: BaseTrainConfig) -> npt.NDArray[np.int64]:
    """Draw the validation samples, rows of the table, by their shares, as a function of the seed and the data."""
    table = dataset.table
    shares = np.zeros(len(table))
    for index, source in enumerate(config.validation.sources):
        for task, share in config.shares(source).items():
            shares[(table["source"] == index) & (table["task"] == ALL_TASKS.index(task))] = share
    return _draw(config, 0, len(table), config.validation.samples, shares / shares.sum())


def _draw(
    config: BaseTrainConfig, number: int, size: int, count: int, shares: npt.NDArray[np.float64] | None = None
) -> npt.NDArray[np.int64]:
    """Draw indices below a size, sorted; the number of a draw distinguishes it from others with a run's seed."""
    rng = np.random.default_rng(np.random.SeedSequence((config.seed, 0, number)))
    return np.sort(rng.choice(size, min(count, size), replace=False, p=shares))


def _shard_rows(
    dataset: SampleDataset, drawn: npt.NDArray[np.int64], config: BaseTrainConfig, context: DistributedContext
) -> tuple[list[list[int]], int]:
    """Return the packed rows of this process and how many of them count; the rest keep it in step with the others."""
    table = dataset.table
    check_lengths(table, drawn, dataset.sample_id, config.token_budget, "token_budget")
    lengths = table["prompt"][drawn].astype(np.int64) + table["answer"][drawn]
    packed = [[int(drawn[i]) for i in row] for row in pack(lengths.tolist(), config.token_budget)]
    own = packed[context.rank :: context.size]
    rows = -(-len(packed) // context.size)
    return own + packed[:1] * (rows - len(own)), len(own)


class DraftEvaluator:
    """Drafts the reports of some studies, and completes the boxes of their reference reports."""

    # Each process handles its share with all weights: sharded ones are gathered once for the round, in the type of the
    # computation (14 GB of a 7B model, while no activations are held). Gathering them block by block would send all
    # weights over the network for every token, and synchronize the processes at every step.

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
                studies.append(keep_task_report(dataset.sources[source].read(number).study, task))
        self._references = {study.sample_id: study.grounded_findings or study.findings or "" for study in studies}
        self.names = [f"drafts/{name}" for name in SCORES] if studies else []
        if any(has_reference_boxes(study) for study in studies):
            self.names += [f"boxes/{name}" for name in BOXES.values()]
        self._radiographs = TemporaryDirectory(prefix="maira-radiographs-")
        self._items: list[GenerationItem] = []
        for source, number, task in drawn[context.rank :: context.size]:
            with skipping_unreadable(config.faults, "the drafts") as reasons:
                sample, folder = dataset.sources[source].read(number), Path(self._radiographs.name) / str(source)
                shown = shown_study(sample, task, config, folder)
                example = make_example(without_references(shown), task, preset=config.preset)
                self._items.append(GenerationItem(report_request(example), partial(make_draft, example)))
                self._items += completion_items(shown, NEW_TOKENS["phrase"], preset=config.preset)
            self._failures += reasons
        self._items.sort(key=lambda item: item.request.length_key)

    def evaluate(self, model: ParallelModel, step: int) -> tuple[dict[str, float | None], list[str]]:
        """Save drafts of the current weights to `drafts/step-N.jsonl`; return their scores, and failures."""
        drafts, boxes, failures = list[Row](), list[Row](), [*self._failures]
        with generation_engine(model, self._processor, self._config.faults.image_check) as engine:
            for index, response in engine.generate([item.request for item in self._items]):
                item = self._items[index]
                if isinstance(response, FailedRequest):
                    failures.append(f"{item.sample_id}: {response.reason}")
                else:
                    (boxes if item.request.form == "boxes" else drafts).append(item.row(response, f"step-{step}"))
        parts = self._context.gather((drafts, boxes, failures))
        scores: dict[str, float | None] = {}
        if self._context.is_main:
            by_id = {row["sample_id"]: row for part in parts for row in part[0]}
            ordered = [by_id[sample_id] for sample_id in self._references if sample_id in by_id]
            write_jsonl(self._config.out / "drafts" / f"step-{step:06}.jsonl", ordered)
            scores = self._score(ordered, [row for part in parts for row in part[1]])
        return self._context.gather(scores)[0], [reason for part in parts for reason in part[2]]

    def _score(self, drafts: Sequence[Row], boxes: Sequence[Row]) -> dict[str, float | None]:
        from radfact.judges.offline import OfflineJudge

        reports = {row["sample_id"]: parse_draft(row["report"]) for row in drafts}
        pairs = [Pair(sample_id, report, self._references[sample_id]) for sample_id, report in reports.items()]
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
    return [(*places[i], tasks[places[i]]) for i in _draw(config, 1, len(places), config.validation.drafts)]


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
    """Return the words of each report; of each sentence, whether it is normal or repeated, and its boxes."""
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
        yield TransformersEngine.from_model(maira, processor, EngineOptions(cache="dynamic", image_check=image_check))
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
    """Context with all weights of a sharded model on every process, in the type of the computation; all enter it."""
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


def shown_study(sample: PackedSample, task: Task, config: TrainConfig, folder: Path) -> Study:
    """Return what a request shows of a study, with the report of its task; images of shards are written to a folder."""
    paths = {}
    for column, content in sample.images.items():
        folder.mkdir(exist_ok=True)
        paths[column] = folder / getattr(sample.study, column).name
        paths[column].write_bytes(content)
    study = drop_inputs(keep_task_report(sample.study.model_copy(update=paths), task), config.drop)
    if errors := check_images(study)[1]:
        raise errors[0]
    return study


def keep_task_report(study: Study, task: Task) -> Study:
    return study.model_copy(update={"grounded_findings": None} if task == "findings" else {"findings": None})


def parse_draft(report: Any) -> Report:
    """Return the `report` of a draft, text or records of sentences, as a report."""
    return report if isinstance(report, str) else [Sentence.model_validate(sentence) for sentence in report]
