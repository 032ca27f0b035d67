"""How good a model in training is by now: losses on answers that it does not learn from, drafts, the best so far."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from maira.model.processor import MairaProcessor
from maira.train.config.run_config import BaseTrainConfig, TrainConfig
from maira.train.data.batches import SkippedSample, collate_row, encode_row
from maira.train.data.dataset import StudyDataset, open_dataset
from maira.train.data.packing import ALL_TASKS, PackedBatch, SampleDataset, StepTotals, pack
from maira.train.data.workers import map_in_workers
from maira.train.draft_validation import DraftEvaluator
from maira.train.logging import MetricsLogger, MetricValues
from maira.train.parallel import DistributedContext, ParallelModel
from radfact.errors import InputError
from radfact.io.jsonl import read_json, write_json

_DRAW = (0, 0)
"""Sets the draw apart from the others of a run's seed."""


class Validator:
    """What a recipe wants measured while a run goes on.

    All processes make and call it alike. Nothing of the training is touched: the model comes back in the modes that it
    was in, and random numbers go on as if nothing had been drawn.

    Args:
        config: its `validation` counts.
        dataset: of its sources.
        context: of the run.
        log: takes the figures.
        steps: of the run; the last one is always measured.
        drafter: drafts reports every so often.

    Attributes:
        samples: of the draw.

    Raises:
        InputError: a sample does not fit in a row, or there is no figure of the name `best_by`.
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
        self._recipe, self._context, self._log, self._steps = config, context, log, steps
        self._corpus, self._drafter = dataset, drafter
        drawn = sample_answers(self._corpus, config)
        self.samples = len(drawn)
        self._tasks = [ALL_TASKS[i] for i in np.unique(self._corpus.table["task"][drawn])]
        self._rows, self._own = _shard_rows(self._corpus, drawn, config, context)
        undrawn = set(np.unique(self._corpus.table["task"])) - set(np.unique(self._corpus.table["task"][drawn]))
        measured_on = _validation_fingerprint(self._corpus, drawn, config)
        self._best = BestCheckpoint(config, self.names, {f"loss/{ALL_TASKS[task]}" for task in undrawn}, measured_on)
        if self._best.is_reset:
            log.info("what is validated on has changed: the next checkpoint that is measured is the best so far")

    @property
    def names(self) -> list[str]:
        """The figures that there are, in their order."""
        losses = [f"loss/{name}" for name in ("all", *self._tasks)]
        return losses + (self._drafter.names if self._drafter else [])

    def is_due(self, step: int) -> bool:
        """Whether anything is to be measured after a step."""
        return self._measures_losses(step) or self._drafts(step)

    def after_step(
        self,
        step: int,
        model: ParallelModel,
        write: Callable[[Path], None],
        record_skipped: Callable[[list[SkippedSample]], None],
    ) -> None:
        """Measure what is due after a step, if that is not done; the checkpoint is written if it is the best so far.

        Args:
            step: optimiser steps done.
            model: in training.
            write: writes the model as a checkpoint into a folder; all processes call it.
            record_skipped: takes the samples of all processes that cannot be read, if any, and may end the run for them,
                before any figure that lacks them stands anywhere.

        Raises:
            InputError: a sample cannot be read, and the recipe does not say that it may be left out.
        """
        if not self.is_due(step) or step == self._context.gather(self._log.validated)[0]:
            return
        figures = dict[str, float | None]()
        with self._log.pause():
            if self._measures_losses(step):
                figures, skipped = self.losses(model)
                if skipped:
                    record_skipped(skipped)
            if self._drafts(step):
                figures |= self.drafts(model, step)
            figures = self._finite(step, figures)
            # One process decides for all: others may see the folder as it was, and writing takes all of them.
            best = self._context.gather(self._best.is_beaten_by(figures))[0]
            if best and (reason := self._best.keep(step, figures, write, self._context)):
                self._log.info(f"the best checkpoint could not be written, the run goes on: {reason}")
            # Last, since it says that all of this is done.
            self._log.log_validation(step, figures)

    def losses(self, model: ParallelModel) -> tuple[dict[str, float | None], list[SkippedSample]]:
        """Mean cross-entropy over the answer tokens of the draw, over all of it and by task: `loss/all`, ...

        Returns:
            The figures, None where all samples are left out, and the samples of all processes that are.

        Raises:
            InputError: as `after_step`.
        """
        skipped: list[SkippedSample] = []
        # (summed cross-entropy, answer tokens) of each task
        sums = torch.zeros(2, len(ALL_TASKS), dtype=torch.float64, device=self._context.device)
        with evaluation_mode(model.wrapped), torch.no_grad():
            for batch, unread, counts in self._batches():
                # Here those processes that could not read a row say so, while no other waits for their tensors.
                skipped += [sample for part in self._context.gather(unread if counts else []) for sample in part]
                with self._context.collective_section():
                    found = model(batch.to(self._context.device))
                if counts:
                    numbers = [ALL_TASKS.index(task) for task in batch.tasks]
                    tasks = torch.tensor(numbers, dtype=torch.long, device=sums.device)
                    sums.index_add_(1, tasks, torch.stack([found.per_sample, found.tokens]).double())
        with self._context.collective_section():
            losses, tokens = self._context.sum(sums).tolist()
        by_name = {"all": (sum(losses), sum(tokens))} | dict(
            zip(ALL_TASKS, zip(losses, tokens, strict=True), strict=True)
        )
        means = {name: loss / count if count else None for name, (loss, count) in by_name.items()}
        return {f"loss/{name}": means[name] for name in ("all", *self._tasks)}, skipped

    def drafts(self, model: ParallelModel, step: int) -> dict[str, float | None]:
        """What drafts and box completions of the draw of studies score: `drafts/...`, `boxes/...`."""
        if self._drafter is None:
            return {}
        with evaluation_mode(model.training):
            made = self._drafter.ask(model, step)
        if made.unanswered:
            self._log.info(f"questions without an answer: {len(made.unanswered)}; the first: {made.unanswered[0]}")
        return made.figures

    def _measures_losses(self, step: int) -> bool:
        return self._is_time(step, self._recipe.validation.every)

    def _drafts(self, step: int) -> bool:
        return self._drafter is not None and self._is_time(step, self._drafter.every)

    def _is_time(self, step: int, every: int | None) -> bool:
        return every is not None and step > 0 and (step % every == 0 or step == self._steps)

    def _finite(self, step: int, figures: MetricValues) -> dict[str, float | None]:
        """Figures with None in the place of what is no number to compare others with, which is said."""
        lost = [name for name, value in figures.items() if value is not None and not math.isfinite(value)]
        if lost:
            self._log.info(f"{', '.join(lost)} after step {step}: not finite, and no value to choose a checkpoint by")
        return {name: None if name in lost else value for name, value in figures.items()}

    def _batches(self) -> Iterator[tuple[PackedBatch, list[SkippedSample], bool]]:
        """The rows of this process, what each goes without, and whether it counts."""
        none, skips = StepTotals(1, 1), self._recipe.faults.unreadable == "skip"
        work = partial(encode_row, self._corpus, skips, "validation")
        with closing(map_in_workers(work, self._rows, self._recipe.workers)) as encoded:
            for number, row in enumerate(encoded):
                yield collate_row(row, none, self._corpus), row.skipped, number < self._own


class BestCheckpoint:
    """The best checkpoint by a figure, in `checkpoint-best/` of the run's folder with `best.json` beside its files.

    Args:
        config: its `validation.best_by` and folder count.
        names: figures that there are.
        undrawn: figures that there would be if more samples were drawn.
        measured_on: names what the figures are of; those of something else are nothing to compare with.

    Attributes:
        is_reset: whether there is a best checkpoint by this figure, but of something else.

    Raises:
        InputError: there is no such figure.
    """

    def __init__(
        self, config: BaseTrainConfig, names: list[str], undrawn: Collection[str] = (), measured_on: str = ""
    ) -> None:
        self._name, self._folder = config.validation.best_by, config.out / "checkpoint-best"
        self._value: float | None = None
        if self._name in undrawn:
            raise InputError(
                f"there is no figure '{self._name}', since none of its samples is among the "
                f"{config.validation.samples} drawn; raise validation.samples",
                field="validation.best_by",
            )
        if self._name is not None and self._name not in names:
            raise InputError(
                f"there is no figure '{self._name}'; there are {', '.join(names)}", field="validation.best_by"
            )
        self._validation_fingerprint, self.is_reset = measured_on, False
        file = self._folder / "best.json"
        if file.exists() and (held := read_json(file)).get("figure") == self._name:
            self.is_reset = held.get("measured_on") != measured_on
            self._value = None if self.is_reset else held["value"]

    def is_beaten_by(self, figures: MetricValues) -> bool:
        """Whether figures are better than those of the checkpoint kept; equal ones are not."""
        value = figures.get(self._name) if self._name is not None else None
        if self._name is None or value is None:
            return False
        return self._value is None or (value < self._value if self._name.startswith("loss/") else value > self._value)

    def keep(
        self, step: int, figures: MetricValues, write: Callable[[Path], None], context: DistributedContext
    ) -> str | None:
        """Let the model take the place of the checkpoint kept; all processes call this.

        Returns:
            Why it could not be written, if so: the one before stays.
        """
        value, reason = figures[self._name or ""], None
        try:
            write(self._folder)
        except OSError as error:
            reason = str(error)
            context.wait()  # where the others, in `write`, wait for the one that writes
        if context.is_main and reason is None:
            try:
                record = {
                    "step": step,
                    "figure": self._name,
                    "value": value,
                    "measured_on": self._validation_fingerprint,
                }
                write_json(self._folder / "best.json", record)
            except OSError as error:
                reason = str(error)
        reasons = [one for one in context.gather(reason) if one]
        if not reasons:
            self._value = value
        return reasons[0] if reasons else None


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; afterwards its modules are in the modes that they were in, and so are the
    generators of random numbers."""
    modes = [(module, module.training) for module in model.modules()]
    python, numpy = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        model.eval()
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
            for module, mode in modes:
                module.training = mode


def make_report_validator(
    config: TrainConfig, processor: MairaProcessor, context: DistributedContext, log: MetricsLogger, steps: int
) -> Validator:
    """What measures a MAIRA-2 in training: losses, and drafts where the recipe wants them.

    Raises:
        InputError: a source cannot be read or has no answers, or as `Validator`.
    """
    dataset = _open(config, processor, context)
    wants_drafts = config.validation.drafts_every is not None
    drafter = DraftEvaluator(config, dataset, processor, context) if wants_drafts else None
    return Validator(config, dataset, context, log, steps, drafter)


def _open(config: TrainConfig, processor: MairaProcessor, context: DistributedContext) -> StudyDataset:
    """The corpus; the main process makes its table while the others wait."""
    folder, sources = config.out / "tables", config.validation.sources
    if not context.is_main:
        context.wait()
    dataset = open_dataset(config, sources, processor, folder)
    if context.is_main:
        context.wait()
    return dataset


def sample_answers(dataset: SampleDataset, config: BaseTrainConfig) -> npt.NDArray[np.int64]:
    """The answers whose losses are taken, as places in the table; a function of the seed and the data.

    They are drawn by their shares, so that the loss over all is that of the mix that is trained.
    """
    table = dataset.table
    shares = np.zeros(len(table))
    for place, source in enumerate(config.validation.sources):
        for task, share in config.shares(source).items():
            shares[(table["source"] == place) & (table["task"] == ALL_TASKS.index(task))] = share
    rng = np.random.default_rng(np.random.SeedSequence((config.seed, *_DRAW)))
    count = min(config.validation.samples, len(table))
    return np.sort(rng.choice(len(table), count, replace=False, p=shares / shares.sum()))


def _validation_fingerprint(dataset: SampleDataset, drawn: npt.NDArray[np.int64], config: BaseTrainConfig) -> str:
    """A short hash of the answers whose losses are taken and of the draw of studies that are drafted."""
    digest = hashlib.sha256(dataset.table.tobytes())
    digest.update(json.dumps([dataset.sample_id(int(row)) for row in drawn]).encode())
    digest.update(str(getattr(config.validation, "drafts", None)).encode())
    return digest.hexdigest()[:16]


def _shard_rows(
    dataset: SampleDataset, drawn: npt.NDArray[np.int64], config: BaseTrainConfig, context: DistributedContext
) -> tuple[list[list[int]], int]:
    """The packed rows of this process, as many for each, and how many of them count; the rest keep step with others."""
    lengths = dataset.table["prompt"][drawn].astype(np.int64) + dataset.table["answer"][drawn]
    longest = int(lengths.argmax())
    if lengths[longest] > config.token_budget:
        raise InputError(
            f"sample '{dataset.sample_id(int(drawn[longest]))}' of the validation has {lengths[longest]} tokens, more "
            f"than the {config.token_budget} of a row; raise it, or leave the sample out",
            field="token_budget",
        )
    packed = [[int(drawn[i]) for i in row] for row in pack(lengths.tolist(), config.token_budget)]
    own = packed[context.rank :: context.size]
    rows = -(-len(packed) // context.size)
    return own + packed[:1] * (rows - len(own)), len(own)
