"""The training loop: one process on a CPU or GPU, or as many as `accelerate launch` or `torchrun` start (paper B.2)."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from maira.runtime.locks import FolderLock
from maira.runtime.signals import notices
from maira.train import attention
from maira.train.anomalies import (
    AnomalyDetector,
    Kind,
    anomaly_error,
    anomaly_file,
    append_anomaly,
    describe,
    place,
    unreadable,
)
from maira.train.blocks import prepare_blocks
from maira.train.checkpointing import CheckpointManager, check_same_run, read_record, resume_fields
from maira.train.components import check_context
from maira.train.config.run_config import BaseTrainConfig
from maira.train.data.batches import Phase, SkippedSample, stream
from maira.train.data.packing import PackedBatch, SampleDataset, StepTotals
from maira.train.data.schedule import DataSchedule
from maira.train.logging import MetricsLogger
from maira.train.loss import PackedLossModel
from maira.train.optimizers import make_lr_schedule, make_optimizer
from maira.train.parallel import DistributedContext, ParallelModel, init_distributed, parallelize, sharding
from maira.train.validation import Validator
from radfact.errors import InputError, RunError
from radfact.progress import ProgressDisplay

ConfigT = TypeVar("ConfigT", bound=BaseTrainConfig)
OpenedT = TypeVar("OpenedT")


class StepResult(NamedTuple):
    """What a step's rows gave, over all processes.

    Attributes:
        losses: `loss`, and its parts if it has several.
        norm: of the gradient that the parameters now hold, before clipping.
        sample_ids: of this process's rows.
    """

    losses: dict[str, float]
    norm: Tensor
    length: float
    sample_ids: list[str]


@dataclass
class Trainer:
    """A run that is under way.

    Attributes:
        config, world: what is run, and by whom.
        model: as this process computes with it.
        write: writes the model as it is now as a checkpoint into a folder; all processes call it.
        optimizer: of its trained weights.
        rate: factor of the learning rate by step.
        dataset, schedule: what it learns from, in which order.
        states: where it goes on from.
        log: what it says.
        watch: what it makes of faults.
        origin: what it began with, as in `TrainingSetup`.
        validator: measures it while it goes on; None without anything to validate on.
        step: optimiser steps done.
    """

    config: BaseTrainConfig
    world: DistributedContext
    model: ParallelModel
    write: Callable[[Path], None]
    optimizer: torch.optim.Optimizer
    rate: Callable[[int], float]
    dataset: SampleDataset
    schedule: DataSchedule
    checkpoints: CheckpointManager
    log: MetricsLogger
    watch: AnomalyDetector
    origin: dict[str, Any]
    validator: Validator | None = None
    step: int = 0

    def go(self, is_told_to_stop: Callable[[], bool]) -> None:
        """Train from where the run stands to its end.

        Args:
            is_told_to_stop: whether this process is to end soon; the state is saved then, in all processes.

        Raises:
            InputError: a sample cannot be read, here or in another process.
            RunError: a fault that ends the run, a notice to stop, or a process is gone.
        """
        config, world = self.config, self.world
        rows = stream(
            self.dataset, self.schedule, self.step, rank=world.rank, world_size=world.size, workers=config.workers
        )
        with closing(rows):
            self.model.wrapped.train()
            self._validate()
            while self.step < self.schedule.steps:
                asked = time.perf_counter()
                _, batches, skipped = next(rows)
                waited = time.perf_counter() - asked
                # Here those processes that have failed say so, while no other waits for their tensors.
                words = world.gather((is_told_to_stop(), skipped))
                if any(told for told, _ in words):
                    self._leave()
                batches = self._without([sample for _, samples in words for sample in samples], batches)
                with world.collective_section():
                    gradient = self._gradient(batches, waited)
                if (kind := self.watch.judge(gradient.losses["loss"], gradient.length)) is None:
                    with world.collective_section():
                        self._update(gradient)
                else:
                    self._skip(kind, gradient)
                # Before a measurement too: whatever ends it, the next start of the run makes up for it.
                is_measured = self.validator is not None and self.validator.is_due(self.step)
                if is_measured or self.step % config.save_every == 0 or self.step == self.schedule.steps:
                    self.save()
                self._validate()

    def save(self) -> None:
        """Save the state in the background."""
        record = {
            "recipe": resume_fields(self.config),
            "steps": self.schedule.steps,
            "length": [self.config.epochs, self.config.passes],
            "data": self._data,
            "origin": self.origin,
            "watch": self.watch.state_dict(),
            "log": self.log.state_dict(),
        }
        self.checkpoints.save(self.step, self.model.training, self.optimizer, record)

    def end(self) -> Path:
        """Write the finished checkpoint; returns its folder.

        Raises:
            RunError: it, or the last state, could not be saved.
        """
        is_saved, folder = self.checkpoints.finish(), self.config.out / "checkpoint"
        try:
            self.write(folder)
        except OSError as error:
            raise RunError(
                f"{error.filename or folder}: {error.strerror or error}; the checkpoint could not be written, and "
                f"{self.checkpoints.resume_hint}"
            ) from None
        if not is_saved:
            raise RunError(
                f"the checkpoint is written ({folder}), but the last state could not be saved, and {self.checkpoints.resume_hint}"
            )
        return folder

    def close(self) -> None:
        """Have everything written that is on its way."""
        self.checkpoints.close()
        self.log.close()

    def resume(self) -> None:
        """Go back to the last whole state of an interrupted run, if there is one, and begin to log from there.

        Raises:
            InputError: the folder holds a run of another recipe, of other data, of more steps or of another version,
                its states are all damaged, or a tracker cannot be started.
        """
        record: dict[str, Any] = {"step": 0}
        states = self.checkpoints.found()
        for state in states:
            held = read_record(state)
            check_same_run(state, held, self.config)
            self._check_same_course(state, held)
            try:
                self.checkpoints.load(state, self.model.training, self.optimizer)
            except RunError as error:
                self.log.say(f"{error}; the state before it is taken")
                continue
            record = held
            break
        if states and self.checkpoints.last is None:
            raise self.checkpoints.lost()
        self.step = record["step"]
        self.log.start(self.step)
        if self.step == 0:
            return
        self.watch.load_state_dict(record["watch"])
        self.log.load_state_dict(record["log"])
        self.log.say(f"Resuming {self.config.out} at step {self.step} of {self.schedule.steps}")
        if record["steps"] != self.schedule.steps:
            self.log.say(f"it was to have {record['steps']} steps; the learning rate goes on by the other length")

    def _check_same_course(self, state: Path, held: dict[str, Any]) -> None:
        if held["data"] != self._data:
            raise InputError(
                f"the samples to train on are others than when {state.name} was saved. Put them back as they were "
                "(faults.unreadable=skip leaves out those that cannot be read), or train on these in "
                f"another folder, from {self.config.model if isinstance(self.config.model, Path) else 'the start'}",
                field="train",
            )
        # States lack what is not trained, and so does the run when it is over: the checkpoint takes it from there.
        if self.world.is_main and held["origin"]["model"] != self.origin["model"]:
            raise InputError(
                f"{self.config.model} is another checkpoint than when {state.name} was saved. Put it back as it was, "
                "or train from this one in another folder",
                field="model",
            )
        if held["step"] > self.schedule.steps:
            raise InputError(
                f"the run is already past {self.schedule.steps} steps: {state.name} is saved in {self.config.out}; make it "
                "longer, or name another folder",
                field="epochs" if self.config.passes is None else "passes",
            )

    def _without(self, skipped: list[SkippedSample], batches: list[PackedBatch]) -> list[PackedBatch]:
        """Rows whose losses are divided by what is left of their step, where samples of any process cannot be read."""
        if not skipped:
            return batches
        tokens, samples = batches[0].totals
        totals = StepTotals(tokens - sum(sample.answer_tokens for sample in skipped), samples - len(skipped))
        self._leave_out(self.step + 1, skipped, "training", of=samples)
        return [replace(batch, totals=totals) for batch in batches]

    def _leave_out(self, step: int, skipped: list[SkippedSample], part: Phase, *, of: int) -> None:
        """Write down samples that cannot be read, and end the run if it is to end."""
        out, known = self.config.out, len(self.watch.unreadable)
        row = self.watch.record_skipped(step, skipped, part, of=of)
        if self.world.is_main:
            append_anomaly(out, row)
        if row["action"] == "stop":
            self.checkpoints.finish()
            raise unreadable(row, out, self.checkpoints.resume_hint)
        if len(self.watch.unreadable) > known:
            self.log.say(
                f"{place(row)} goes without {len(skipped)} of {of} samples, listed in {anomaly_file(out)}: "
                f"{row['reasons'][0]}"
            )

    def _validate(self) -> None:
        """Measure what is due after the last step."""
        if validator := self.validator:
            validator.after_step(
                self.step,
                self.model,
                self.write,
                lambda skipped: self._leave_out(self.step, skipped, "validation", of=validator.samples),
            )

    def _gradient(self, batches: list[PackedBatch], waited: float) -> StepResult:
        """Losses of a step and their gradient, from this process's rows and the others'."""
        totals, weight = batches[0].totals, self.model.training.patch_weight
        sums = torch.zeros(2, dtype=torch.float64, device=self.world.device)
        for number, batch in enumerate(batches, start=1):
            self.log.row(batch, waited if number == 1 else 0.0)
            with self.model.row(last=number == len(batches)):
                losses = self.model(batch.to(self.world.device))
                self.model.backward(losses.total(totals, weight))
            sums += torch.stack([losses.answer.detach(), losses.patches.detach()])
        norm = self.model.gradient_norm()
        # Nothing but this and the checks of a row's tokens waits for the device.
        answer, patches, length = torch.stack([*self.world.sum(sums), norm.double()]).tolist()
        parts = {"answer": answer / totals.answer_tokens, "patches": patches / totals.samples}
        loss = parts["answer"] + weight * parts["patches"]
        sample_ids = [sample_id for batch in batches for sample_id in batch.sample_ids]
        return StepResult({"loss": loss} | (parts if weight else {}), norm, length, sample_ids)

    def _update(self, gradient: StepResult) -> None:
        rate = self.config.learning_rate * self.rate(self.step)
        self.model.clip(gradient.norm, self.config.clip)
        _set_rate(self.optimizer, rate)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.log.step(self.step, self._epoch, gradient.losses, lr=rate, grad_norm=gradient.length)

    def _skip(self, kind: Kind, gradient: StepResult) -> None:
        """Leave weights and optimizer as they are, write down which samples it was, and end the run if it is to end."""
        sample_ids = sorted(sample_id for part in self.world.gather(gradient.sample_ids) for sample_id in part)
        row = self.watch.record(kind, self.step + 1, gradient.losses["loss"], gradient.length, sample_ids)
        out = self.config.out
        if self.world.is_main:
            append_anomaly(out, row)
        if row["action"] == "stop":
            self.checkpoints.finish()
            raise anomaly_error(row, out, self.checkpoints.resume_hint)
        self.log.say(f"step {row['step']} is skipped: {describe(row)}; its samples are listed in {anomaly_file(out)}")
        self.optimizer.zero_grad()
        self.step += 1

    def _leave(self) -> None:
        self.checkpoints.finish()
        if self.checkpoints.last != self.step:
            self.save()
            self.checkpoints.finish()
        raise RunError(f"told to stop at step {self.step} of {self.schedule.steps}; {self.checkpoints.resume_hint}")

    @property
    def _data(self) -> str:
        """Fingerprint of the answers that the steps are taken from."""
        return hashlib.sha256(self.dataset.table.tobytes()).hexdigest()[:16]

    @property
    def _epoch(self) -> int:
        return self.schedule.epoch(self.step - 1)


@dataclass(frozen=True)
class TrainingSetup:
    """What a run begins with: all in which kinds of models differ.

    Attributes:
        training: the model that reads packed rows, on the CPU, what of it is trained marked.
        dataset: what it learns from.
        model_config: of the model.
        write: writes the model as it is by then as a checkpoint into a folder; all processes call it.
        only_trained: leave out of the states what is not trained, since a checkpoint has it.
        origin: what lay on disk under the recipe's names: `model`, a fingerprint of the checkpoint to start from (None:
            a fresh one), and perhaps more; of the main process, of others nothing.
        validate: makes what measures the run, of its log and steps; None without anything to validate on.
    """

    training: PackedLossModel
    dataset: SampleDataset
    model_config: Any
    write: Callable[[Path], None]
    only_trained: bool
    origin: dict[str, Any]
    validate: Callable[[MetricsLogger, int], Validator] | None = None


def run_training(
    config: ConfigT,
    start: Callable[[ConfigT, DistributedContext, Console], TrainingSetup],
    console: Console | None = None,
) -> Path:
    """Run a recipe to its end, from where it stopped if it was started before; returns the folder of the checkpoint.

    Args:
        config: of the run.
        start: makes what it begins with, in all processes alike.
        console: where lines go.

    Raises:
        InputError: the recipe or what it names cannot be used, another run is under way in the folder, or it holds one
            of another recipe.
        RunError: a fault of a step ended the run, it was told to stop (SIGTERM, Ctrl-C), or its end could not be
            saved.
    """
    if config.out.exists() and not config.out.is_dir():
        raise InputError("is a file; name a folder", file=config.out, field="out")
    config.check_sources()
    world, console = init_distributed(), console or Console()
    _seed(config.seed)
    with _claimed(config.out, world) as claim:
        try:
            world.wait()  # until nobody else trains there: what stands in the folder is read from here on
            run = _begin(config, start, world, console)
        except InputError:
            if claim is not None:
                claim.undo()
            raise
        try:
            with notices() as is_told_to_stop:
                run.go(is_told_to_stop)
                return run.end()
        finally:
            run.close()


@contextmanager
def _claimed(out: Path, world: DistributedContext) -> Iterator[FolderLock | None]:
    """The folder of a run, claimed by the main process for all of them; None in the others."""
    if not world.is_main:
        yield None
        return
    with closing(FolderLock(out)) as claim:
        yield claim


def _begin(
    config: ConfigT,
    start: Callable[[ConfigT, DistributedContext, Console], TrainingSetup],
    world: DistributedContext,
    console: Console,
) -> Trainer:
    """A run where it stands: at its beginning, or at its last state."""
    run = _prepare(config, start(config, world, console), world, console)
    try:
        run.resume()
    except InputError:
        run.close()
        raise
    return run


def attention_kernel(config: BaseTrainConfig, world: DistributedContext) -> str:
    """The attention within samples that a recipe wants, or that runs here."""
    half = config.precision == "bf16"
    return attention.choose(config.attention, world.device, torch.bfloat16 if half else torch.float32)


def _prepare(config: BaseTrainConfig, start: TrainingSetup, world: DistributedContext, console: Console) -> Trainer:
    """Everything of a run but its first step, the same in all processes."""
    schedule = DataSchedule(start.dataset.table, config)
    schedule.check(start.dataset.sample_id, world.size)
    check_context(start.dataset.table, start.model_config, start.dataset.sample_id)
    prepare_blocks(start.training, config)
    with world.collective_section():
        dealt = parallelize(start.training, config, world)
    optimizer = make_optimizer(start.training, config)
    # Weights are the same in all processes, what is dropped out is not.
    _seed(config.seed + world.rank)
    log = MetricsLogger(config, start.model_config, world, console, schedule.steps)
    log.log_setup(schedule, start.training, sharding(config, world), start.training.kernel)
    states = CheckpointManager(config.out, config.keep, world, log.say, only_trained=start.only_trained)
    watch = AnomalyDetector(config.faults)
    rate = make_lr_schedule(config, schedule.steps)
    validator = start.validate(log, schedule.steps) if start.validate else None
    return Trainer(
        config,
        world,
        dealt,
        start.write,
        optimizer,
        rate,
        start.dataset,
        schedule,
        states,
        log,
        watch,
        start.origin,
        validator,
    )


def main_process_first(
    world: DistributedContext, title: str, open_it: Callable[[Callable[[int, int], None] | None], OpenedT]
) -> OpenedT:
    """Open what the main process has to prepare while the others wait.

    Args:
        world: of the run.
        title: of the progress that is shown.
        open_it: opens it, and calls what it is given with how much is done and of how much.
    """
    if not world.is_main:
        world.wait()
        return open_it(None)
    usage: dict[str, int] = {}
    with ProgressDisplay(Console(stderr=True), {title: usage.copy}):
        opened = open_it(lambda done, planned: usage.update(done=done, planned=planned))
    world.wait()
    return opened


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            # Of optimizers whose step is compiled: another number would be another program.
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
