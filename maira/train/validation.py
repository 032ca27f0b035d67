"""Validation during training: losses on held-out samples, scores of drafts, and the best checkpoint."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from maira.model.processor import MairaProcessor
from maira.runtime.processes import DistributedContext
from maira.train.config.run_config import BaseTrainConfig, TrainConfig
from maira.train.data.batches import SkippedSample, collate_row, encode_row
from maira.train.data.dataset import open_dataset
from maira.train.data.packing import ALL_TASKS, SampleDataset, StepTotals, check_lengths, pack
from maira.train.data.workers import map_in_workers
from maira.train.draft_validation import DraftEvaluator
from maira.train.generation import evaluation_mode
from maira.train.logging import MetricsLogger, MetricValues
from maira.train.parallel import ParallelModel, main_process_first
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_json, write_json

_SEED_KEY = (0, 0)
"""Distinguishes this draw from others with a run's seed."""


class Validator:
    """Validates a model during a run; all processes make and call it alike.

    The training is not affected: the modes of the modules and the states of random number generators are restored.
    """

    def __init__(
        self,
        config: BaseTrainConfig,
        dataset: SampleDataset,
        context: DistributedContext,
        log: MetricsLogger,
        steps: int,
        drafter: DraftEvaluator | None = None,
    ) -> None:
        self._config, self._context, self._log, self._steps = config, context, log, steps
        self._dataset, self._drafter = dataset, drafter
        drawn = sample_answers(dataset, config)
        self.samples = len(drawn)
        self._rows, self._own = _shard_rows(dataset, drawn, config, context)
        self._tasks = [ALL_TASKS[task] for task in np.unique(dataset.table["task"][drawn])]
        names = [f"loss/{name}" for name in ("all", *self._tasks)] + (drafter.names if drafter else [])
        self._best = BestCheckpoint(config, names, _validation_fingerprint(dataset, drawn, config))

    def start(self, step: int) -> None:
        """Start after a number of optimizer steps; checkpoints of later steps are not compared with."""
        if message := self._best.start(step):
            self._log.info(message)

    def is_due(self, step: int) -> bool:
        """Return whether the model is validated after a step."""
        return self._is_time(step, self._config.validation.every) or self._are_drafts_due(step)

    def after_step(
        self,
        step: int,
        model: ParallelModel,
        write: Callable[[Path], None],
        record_skipped: Callable[[list[SkippedSample]], None],
    ) -> None:
        """Validate if that is due after a step, and write the checkpoint if it is the best one."""
        if not self.is_due(step) or step == self._context.gather(self._log.validated)[0]:
            return
        metrics = dict[str, float | None]()
        with self._log.pause():
            if self._is_time(step, self._config.validation.every):
                metrics, skipped = self.losses(model)
                if skipped:
                    record_skipped(skipped)
            if self._are_drafts_due(step):
                metrics |= self.drafts(model, step)
            invalid = [name for name, value in metrics.items() if value is not None and not math.isfinite(value)]
            if invalid:
                self._log.info(f"{', '.join(invalid)} after step {step}: not finite, not used to choose a checkpoint")
            metrics |= dict.fromkeys(invalid)
            # One process decides for all, since others may read an outdated folder.
            is_best = self._context.gather(self._best.is_beaten_by(metrics))[0]
            if is_best and (reason := self._best.replace(step, metrics, write, self._context)):
                self._log.info(f"the best checkpoint could not be written, the run continues: {reason}")
            # Last, since it marks the validation as complete.
            self._log.log_validation(step, metrics)

    def losses(self, model: ParallelModel) -> tuple[dict[str, float | None], list[SkippedSample]]:
        """Compute the mean cross-entropy over answer tokens, of all samples and by task: `loss/all`, ..."""
        skipped: list[SkippedSample] = []
        # (summed cross-entropy, answer tokens) of each task
        sums = torch.zeros(2, len(ALL_TASKS), dtype=torch.float64, device=self._context.device)
        encode = partial(encode_row, self._dataset, self._config.faults, "validation")
        with (
            evaluation_mode(model.wrapped),
            torch.no_grad(),
            closing(map_in_workers(encode, self._rows, self._config.workers)) as encoded,
        ):
            for number, row in enumerate(encoded):
                counts = number < self._own
                batch = collate_row(row, StepTotals(1, 1), self._dataset)
                # Processes that could not read a row report it here, where no other process waits for their tensors.
                skipped += [sample for part in self._context.gather(row.skipped if counts else []) for sample in part]
                with self._context.collective_section():
                    batch_losses = model(batch.to(self._context.device))
                if counts:
                    numbers = [ALL_TASKS.index(task) for task in batch.tasks]
                    tasks = torch.tensor(numbers, dtype=torch.long, device=sums.device)
                    sums.index_add_(1, tasks, torch.stack([batch_losses.per_sample, batch_losses.tokens]).double())
        with self._context.collective_section():
            losses, tokens = self._context.sum(sums).tolist()
        by_name = {"all": (sum(losses), sum(tokens))}
        by_name |= {task: (losses[ALL_TASKS.index(task)], tokens[ALL_TASKS.index(task)]) for task in self._tasks}
        return {f"loss/{name}": loss / count if count else None for name, (loss, count) in by_name.items()}, skipped

    def drafts(self, model: ParallelModel, step: int) -> dict[str, float | None]:
        """Return the scores of drafts and box completions: `drafts/...`, `boxes/...`."""
        if self._drafter is None:
            return {}
        with evaluation_mode(model.training):
            scores, failures = self._drafter.evaluate(model, step)
        if failures:
            self._log.info(f"requests without a response: {len(failures)}; the first: {failures[0]}")
        return scores

    def _are_drafts_due(self, step: int) -> bool:
        return self._drafter is not None and self._is_time(step, self._drafter.every)

    def _is_time(self, step: int, every: int | None) -> bool:
        return every is not None and step > 0 and (step % every == 0 or step == self._steps)


class BestCheckpoint:
    """The best checkpoint by a metric, in `checkpoint-best/` of the run's folder, with `best.json` in it.

    `names` are the metrics of the samples that are drawn, and `measured_on` is the fingerprint of the validation data:
    values on other data are not compared.
    """

    def __init__(self, config: BaseTrainConfig, names: list[str], measured_on: str = "") -> None:
        self._name, self._measured_on = config.validation.best_by, measured_on
        self._folder = config.out / "checkpoint-best"
        self._value: float | None = None
        if self._name is not None and self._name not in names:
            reason = f"unknown metric '{self._name}'; with the samples that are drawn, there are {', '.join(names)}"
            raise InputError(reason, code=ErrorCode.UNKNOWN_NAME, field="validation.best_by")

    def start(self, step: int) -> str | None:
        """Compare with the best checkpoint of the run so far, or return why it is not compared with.

        A checkpoint of a later step than the run starts from belongs to a run whose states were removed.
        """
        file = self._folder / "best.json"
        if not file.exists() or (record := read_json(file)).get("figure") != self._name:
            return None
        if record.get("measured_on") != self._measured_on:
            return "the validation data has changed: the next checkpoint that is validated becomes the best"
        if record["step"] > step:
            return (
                f"{self._folder} is of step {record['step']} of an earlier run, and this one starts from step {step}: "
                "the next checkpoint that is validated replaces it"
            )
        self._value = record["value"]
        return None

    def is_beaten_by(self, metrics: MetricValues) -> bool:
        """Return whether metrics are better than those of the best checkpoint."""
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
    open_studies = partial(open_dataset, config, config.validation.sources, processor, config.out / "tables")
    dataset = main_process_first(
        context, "reading validation studies", lambda on_progress: open_studies(on_progress=on_progress)
    )
    has_drafts = config.validation.drafts_every is not None
    drafter = DraftEvaluator(config, dataset, processor, context) if has_drafts else None
    return Validator(config, dataset, context, log, steps, drafter)


def sample_answers(dataset: SampleDataset, config: BaseTrainConfig) -> npt.NDArray[np.int64]:
    """Draw the validation samples, rows of the table, as a function of the seed and the data.

    They are drawn by their shares, so that the total loss is that of the mix that is trained on.
    """
    table = dataset.table
    shares = np.zeros(len(table))
    for index, source in enumerate(config.validation.sources):
        for task, share in config.shares(source).items():
            shares[(table["source"] == index) & (table["task"] == ALL_TASKS.index(task))] = share
    rng = np.random.default_rng(np.random.SeedSequence((config.seed, *_SEED_KEY)))
    count = min(config.validation.samples, len(table))
    return np.sort(rng.choice(len(table), count, replace=False, p=shares / shares.sum()))


def _validation_fingerprint(dataset: SampleDataset, drawn: npt.NDArray[np.int64], config: BaseTrainConfig) -> str:
    """Return a short hash of the samples and of the number of studies to draft."""
    digest = hashlib.sha256(dataset.table.tobytes())
    digest.update(json.dumps([dataset.sample_id(int(row)) for row in drawn]).encode())
    digest.update(str(getattr(config.validation, "drafts", None)).encode())
    return digest.hexdigest()[:16]


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
