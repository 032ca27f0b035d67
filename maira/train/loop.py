"""The training loop, on one CPU or GPU, or in the processes that `accelerate launch` or `torchrun` start.

Source: MAIRA-2, appendix B.2.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from maira.runtime.signals import TerminationSignal
from maira.train import attention
from maira.train.anomalies import (
    AnomalyDetector,
    Kind,
    anomaly_file,
    describe_anomaly,
    describe_step,
    step_error,
    unreadable_error,
)
from maira.train.blocks import prepare_blocks
from maira.train.checkpointing import CheckpointManager, check_same_run, read_record, resume_fields
from maira.train.config.run_config import BaseTrainConfig
from maira.train.data.batches import Phase, SkippedSample, StepBatches, iterate_steps
from maira.train.data.packing import PackedBatch, SampleDataset, StepTotals
from maira.train.data.schedule import DataSchedule
from maira.train.data.workers import is_worker_killed, worker_killed
from maira.train.logging import MetricsLogger
from maira.train.loss import PackedLossModel
from maira.train.optimizers import make_lr_schedule, make_optimizer
from maira.train.parallel import DistributedContext, ParallelModel, init_distributed, parallelize, sharding
from maira.train.post.plot import PLOT_FILE, plot_rewards
from maira.train.record import RECORD_FILE, make_record
from maira.train.validation import Validator
from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.hub import resolve_model
from radfact.io.jsonl import append_jsonl, write_json
from radfact.io.outputs import Output, lock_output
from radfact.progress import ProgressDisplay

ConfigT = TypeVar("ConfigT", bound=BaseTrainConfig)
OpenedT = TypeVar("OpenedT")
_FOLDER = Output("folder", content="training", is_private=False)


class StepResult(NamedTuple):
    """Losses and gradient of a step, over all processes.

    Attributes:
        losses: `loss`, and its terms if it has several.
        norm: () tensor, norm of the gradient that the parameters now hold, before clipping.
        norm_value: the same as a number.
        sample_ids: samples of this process's rows.
    """

    losses: dict[str, float]
    norm: Tensor
    norm_value: float
    sample_ids: list[str]


class Objective(Protocol):
    """Training objective other than the cross-entropy on the data; yields the rows and computes the metrics.

    Attributes:
        statistics: names of `Losses.statistics`.
    """

    statistics: Sequence[str]

    def iterate(self, first_step: int, termination: TerminationSignal) -> Generator[StepBatches]:
        """Yield the steps of a run with the rows of this process.

        Args:
            first_step: from 0.
            termination: ends work before the first step once any process has received it.

        Raises:
            InputError: a sample cannot be read.
            RunError: the rows cannot be made, or the run was terminated before its first step.
        """

    def after_backward(
        self, loss: float, metrics: Mapping[str, float], statistics: Sequence[float], log_probs: Sequence[Tensor]
    ) -> dict[str, float]:
        """Return the metrics of a step, `loss` first, after the backward pass.

        Args:
            loss: of the step, over all processes.
            metrics: metrics of its samples (`StepBatches`).
            statistics: sums of `Losses.statistics` over all processes.
            log_probs: `Losses.log_probs` of each row of this process that has them.
        """


@dataclass
class Trainer:
    """A training run in progress.

    Attributes:
        config: of the run.
        context: processes of the run.
        model: as this process computes with it.
        write_checkpoint: writes the current model as a checkpoint to a folder; all processes call it.
        optimizer: of the trained weights.
        lr_factor: factor of the learning rate by step.
        dataset: samples to train on.
        schedule: their order.
        checkpoints: training states to resume from.
        log: metrics and messages.
        anomalies: detector of anomalies.
        origin: fingerprints of model and data, as in `TrainingSetup`.
        validator: validates during the run; None without validation data.
        objective: training objective; None for the cross-entropy on the data.
        step: optimizer steps done.
    """

    config: BaseTrainConfig
    context: DistributedContext
    model: ParallelModel
    write_checkpoint: Callable[[Path], None]
    optimizer: torch.optim.Optimizer
    lr_factor: Callable[[int], float]
    dataset: SampleDataset
    schedule: DataSchedule
    checkpoints: CheckpointManager
    log: MetricsLogger
    anomalies: AnomalyDetector
    origin: dict[str, Any]
    validator: Validator | None = None
    objective: Objective | None = None
    step: int = 0

    def train(self, termination: TerminationSignal) -> None:
        """Train from the current step to the last one.

        Args:
            termination: once any process has received it, all processes save the state and end.

        Raises:
            InputError: a sample cannot be read, here or in another process.
            RunError: an anomaly ended the run, a process received a termination signal, or a process died.
        """
        config, context = self.config, self.context
        with closing(self._iterate_steps(termination)) as steps:
            self.model.wrapped.train()
            self._validate()
            while self.step < self.schedule.steps:
                started = time.perf_counter()
                _, batches, skipped, metrics = next(steps)
                waited = time.perf_counter() - started
                # Processes that have failed report it here, where no other process waits for their tensors.
                reports = context.gather((termination.is_received, skipped))
                # A state is saved before new answers are sampled, since it does not contain them.
                if self.step % config.steps_per_draw == 0 and any(is_terminated for is_terminated, _ in reports):
                    self._terminate()
                batches = self._exclude_skipped([sample for _, samples in reports for sample in samples], batches)
                with context.collective_section():
                    result = self._compute_gradient(batches, waited, metrics)
                if (kind := self.anomalies.check(result.losses["loss"], result.norm_value)) is None:
                    with context.collective_section():
                        self._update(result)
                else:
                    self._skip(kind, result)
                # Also before a validation: if it is interrupted, the resumed run repeats it.
                is_validated = self.validator is not None and self.validator.is_due(self.step)
                if is_validated or self.step % config.save_every == 0 or self.step == self.schedule.steps:
                    self._save()
                self._validate()

    def finish(self) -> Path:
        """Write the final checkpoint and return its folder.

        Raises:
            RunError: the checkpoint or the last training state could not be saved.
        """
        is_saved, folder = self.checkpoints.finish(), self.config.out / "checkpoint"
        try:
            self._write_checkpoint(folder)
        except OSError as error:
            raise RunError(
                f"{error.filename or folder}: {error.strerror or error}; the checkpoint could not be written, and "
                f"{self.checkpoints.resume_hint}",
                code=ErrorCode.WRITE_FAILED,
            ) from None
        if not is_saved:
            raise RunError(
                f"the checkpoint is written ({folder}), but the last training state could not be saved, and "
                f"{self.checkpoints.resume_hint}",
                code=ErrorCode.WRITE_FAILED,
            )
        return folder

    def close(self) -> None:
        """Write all pending states and metrics."""
        self.checkpoints.close()
        self.log.close()

    def resume(self) -> None:
        """Load the last complete state of an interrupted run, if there is one, and start logging from there.

        Raises:
            InputError: the folder holds a run of another configuration, of other data, of more steps or of another
                version, all its states are damaged, or a tracker cannot be started.
        """
        record: dict[str, Any] = {"step": 0}
        states = self.checkpoints.find()
        for state in states:
            candidate = read_record(state)
            check_same_run(state, candidate, self.config)
            self._check_same_data(state, candidate)
            try:
                self.checkpoints.load(state, self.model.training, self.optimizer)
            except RunError as error:
                self.log.info(f"{error}; falling back to the previous state")
                continue
            record = candidate
            break
        if states and self.checkpoints.last is None:
            raise self.checkpoints.damaged_error()
        self.step = record["step"]
        self.log.start(self.step)
        if self.validator:
            self.validator.start(self.step)
        if self.step == 0:
            return
        self.anomalies.load_state_dict(record["watch"])
        self.log.load_state_dict(record["log"])
        self.log.info(f"Resuming {self.config.out} at step {self.step} of {self.schedule.steps}")
        if record["steps"] != self.schedule.steps:
            self.log.info(
                f"the run was planned with {record['steps']} steps; the learning rate follows the new number of steps"
            )

    def _write_checkpoint(self, folder: Path) -> None:
        """Write the current model with the record of its training; all processes call this."""
        self.write_checkpoint(folder)
        if self.context.is_main:
            record = make_record(self.config, self.origin, self.dataset.table, self.step)
            write_json(folder / RECORD_FILE, record.model_dump(mode="json"))

    def _save(self) -> None:
        """Save the training state in the background."""
        record = {
            "recipe": resume_fields(self.config),
            "steps": self.schedule.steps,
            "length": [self.config.epochs, self.config.passes],
            "data": self._data_fingerprint,
            "origin": self.origin,
            "watch": self.anomalies.state_dict(),
            "log": self.log.state_dict(),
        }
        self.checkpoints.save(self.step, self.model.training, self.optimizer, record)

    def _check_same_data(self, state: Path, record: dict[str, Any]) -> None:
        if record["data"] != self._data_fingerprint:
            start = self.config.model if isinstance(self.config.model, Path) else "random weights"
            raise InputError(
                f"the training samples have changed since {state.name} was saved; restore them (set "
                f"faults.unreadable=skip to skip those that cannot be read), or start from {start} in "
                "another `out`",
                code=ErrorCode.MISMATCH,
                field="train",
            )
        # States lack the weights that are not trained; the final checkpoint takes them from the model of the start.
        if self.context.is_main and record["origin"]["model"] != self.origin["model"]:
            raise InputError(
                f"{self.config.model} has changed since {state.name} was saved; restore it, or set another `out`",
                code=ErrorCode.MISMATCH,
                field="model",
            )
        if record["step"] > self.schedule.steps:
            length = "epochs" if self.config.passes is None else "passes"
            raise InputError(
                f"expected at most {self.schedule.steps} steps, found a state at step {record['step']}; increase "
                f"`{length}` or set another `out`",
                code=ErrorCode.OUTPUT_CONFLICT,
                field=length,
            )

    def _exclude_skipped(self, skipped: list[SkippedSample], batches: list[PackedBatch]) -> list[PackedBatch]:
        """Return the rows with the totals of the readable samples of their step."""
        if not skipped:
            return batches
        tokens, samples = batches[0].totals
        totals = StepTotals(tokens - sum(sample.answer_tokens for sample in skipped), samples - len(skipped))
        self._record_skipped(self.step + 1, skipped, "training", of=samples)
        return [replace(batch, totals=totals) for batch in batches]

    def _record_skipped(self, step: int, skipped: list[SkippedSample], phase: Phase, *, of: int) -> None:
        """Write unreadable samples to the list of anomalies, and end the run if there are too many."""
        out, known = self.config.out, len(self.anomalies.unreadable)
        row = self.anomalies.record_skipped(step, skipped, phase, of=of)
        self._write_anomaly(row)
        if row["action"] == "stop":
            self.checkpoints.finish()
            raise unreadable_error(row, out, self.checkpoints.resume_hint)
        if len(self.anomalies.unreadable) > known:
            self.log.info(
                f"{describe_step(row)} excludes {len(skipped)} of {of} samples, listed in {anomaly_file(out)}: "
                f"{row['reasons'][0]}"
            )

    def _write_anomaly(self, row: dict[str, Any]) -> None:
        if self.context.is_main:
            self.config.out.mkdir(parents=True, exist_ok=True)
            append_jsonl(anomaly_file(self.config.out), [row])

    def _validate(self) -> None:
        """Validate if that is due after the current step."""
        if validator := self.validator:
            validator.after_step(
                self.step,
                self.model,
                self._write_checkpoint,
                lambda skipped: self._record_skipped(self.step, skipped, "validation", of=validator.samples),
            )
            if self.objective is not None and self.context.is_main and validator.is_due(self.step):
                try:
                    plot_rewards(self.config.out / "metrics.jsonl", self.config.out / PLOT_FILE)
                except (InputError, OSError) as error:  # training continues without the plot
                    self.log.info(f"{PLOT_FILE} is not drawn: {error}")

    def _iterate_steps(self, termination: TerminationSignal) -> Generator[StepBatches]:
        if self.objective is not None:
            return self.objective.iterate(self.step, termination)
        return iterate_steps(
            self.dataset,
            self.schedule,
            self.step,
            rank=self.context.rank,
            world_size=self.context.size,
            workers=self.config.workers,
        )

    def _compute_gradient(
        self, batches: list[PackedBatch], waited: float, metrics: Mapping[str, float] = MappingProxyType({})
    ) -> StepResult:
        """Compute losses and gradient of a step from the rows of all processes.

        Args:
            batches: rows of this process.
            waited: seconds that this process has waited for them.
            metrics: metrics of their samples.
        """
        totals, weight = batches[0].totals, self.model.training.patch_weight
        log_probs: list[Tensor] = []
        count = 2 + (len(self.objective.statistics) if self.objective is not None else 0)
        sums = torch.zeros(count, dtype=torch.float64, device=self.context.device)
        for number, batch in enumerate(batches, start=1):
            self.log.count_row(batch, waited if number == 1 else 0.0)
            with self.model.accumulate(is_last=number == len(batches)):
                losses = self.model(batch.to(self.context.device))
                self.model.backward(losses.total(totals, weight))
            sums[:2] += torch.stack([losses.answer.detach(), losses.patches.detach()])
            if losses.statistics is not None:
                sums[2:] += losses.statistics
            if losses.log_probs is not None:
                log_probs.append(losses.log_probs)
        norm = self.model.gradient_norm()
        # The only synchronization with the device, apart from the checks of a row's tokens.
        answer, patches, *statistics, norm_value = torch.stack([*self.context.sum(sums), norm.double()]).tolist()
        terms = {"answer": answer / totals.answer_tokens, "patches": patches / totals.samples}
        loss = terms["answer"] + weight * terms["patches"]
        losses_by_name = {"loss": loss} | (terms if weight else {})
        if self.objective is not None:
            losses_by_name = self.objective.after_backward(loss, metrics, statistics, log_probs)
        sample_ids = [sample_id for batch in batches for sample_id in batch.sample_ids]
        return StepResult(losses_by_name, norm, norm_value, sample_ids)

    def _update(self, result: StepResult) -> None:
        """Clip the gradient and take an optimizer step."""
        learning_rate = self.config.learning_rate * self.lr_factor(self.step)
        self.model.clip(result.norm, self.config.clip)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                # Of optimizers with a compiled step, which another number would compile again.
                group["lr"].fill_(learning_rate)
            else:
                group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        epoch = self.schedule.epoch(self.step - 1)
        self.log.log_step(self.step, epoch, result.losses, lr=learning_rate, grad_norm=result.norm_value)

    def _skip(self, kind: Kind, result: StepResult) -> None:
        """Skip the update of an anomalous step, list its samples, and end the run if the configuration says so."""
        sample_ids = sorted(sample_id for part in self.context.gather(result.sample_ids) for sample_id in part)
        row = self.anomalies.make_row(kind, self.step + 1, result.losses["loss"], result.norm_value, sample_ids)
        self._write_anomaly(row)
        if row["action"] == "stop":
            self.checkpoints.finish()
            raise step_error(row, self.config.out, self.checkpoints.resume_hint)
        self.log.info(
            f"step {row['step']} is skipped: {describe_anomaly(row)}; its samples are listed in "
            f"{anomaly_file(self.config.out)}"
        )
        self.optimizer.zero_grad()
        self.step += 1

    def _terminate(self) -> None:
        """Save the state and raise the error of a terminated run."""
        self.checkpoints.finish()
        if self.checkpoints.last != self.step:
            self._save()
            self.checkpoints.finish()
        raise RunError(
            f"terminated at step {self.step} of {self.schedule.steps}; {self.checkpoints.resume_hint}",
            code=ErrorCode.INTERRUPTED,
        )

    @property
    def _data_fingerprint(self) -> str:
        return hashlib.sha256(self.dataset.table.tobytes()).hexdigest()[:16]


@dataclass(frozen=True)
class TrainingSetup:
    """What differs between the kinds of models that are trained.

    Attributes:
        training: model with loss, on the CPU; `requires_grad` marks what is trained.
        dataset: samples to train on.
        model_config: configuration of the model.
        write_checkpoint: writes the current model as a checkpoint to a folder; all processes call it.
        only_trained: omit weights from training states that are not trained, since a checkpoint has them.
        origin: `model`, a fingerprint of the checkpoint to start from (None: a fresh model), and others; empty in
            processes other than the main one.
        make_validator: makes the validator from the logger and the number of steps; None without validation data.
        make_objective: makes the objective from model, schedule and logger; None for the cross-entropy on the data.
    """

    training: PackedLossModel
    dataset: SampleDataset
    model_config: Any
    write_checkpoint: Callable[[Path], None]
    only_trained: bool
    origin: dict[str, Any]
    make_validator: Callable[[MetricsLogger, int], Validator] | None = None
    make_objective: Callable[[ParallelModel, DataSchedule, MetricsLogger], Objective] | None = None


def run_training(
    config: ConfigT,
    make_setup: Callable[[ConfigT, DistributedContext, Console], TrainingSetup],
    console: Console | None = None,
    *,
    overwrite: bool = False,
) -> Path:
    """Train to the end, resuming an interrupted run, and return the folder of the checkpoint.

    Args:
        config: of the run.
        make_setup: makes model, data and the rest, in all processes alike.
        console: for messages.
        overwrite: whether the folder may hold files of another origin.

    Raises:
        InputError: the configuration or what it names cannot be used, another run is active in the folder, or the
            folder holds files of another origin or a run of another configuration.
        RunError: an anomaly ended the run, it was terminated (SIGTERM, Ctrl-C), or its end could not be saved.
    """
    config.check_sources()
    if isinstance(config.model, Path):
        config = config.model_copy(update={"model": resolve_model(config.model, field="model")})
    context, console = init_distributed(), console or Console()
    _seed(config.seed)
    with _lock_run_folder(config, overwrite) if context.is_main else nullcontext() as is_new:
        try:
            context.wait()  # until the main process holds the lock; the folder is read from here on
            trainer = _make_trainer(config, make_setup(config, context, console), context, console)
            try:
                trainer.resume()
            except InputError:
                trainer.close()
                raise
        except InputError:
            if is_new:
                for name in ("tables", "tensorboard"):
                    shutil.rmtree(config.out / name, ignore_errors=True)
            raise
        try:
            with TerminationSignal() as termination:
                trainer.train(termination)
                return trainer.finish()
        except RuntimeError as error:
            if is_worker_killed(error):
                raise worker_killed() from None
            raise
        finally:
            trainer.close()


@contextmanager
def _lock_run_folder(config: BaseTrainConfig, overwrite: bool) -> Iterator[bool]:
    """Lock the folder of a run; yield whether it was empty, so that a refused run can remove what it has written."""
    sources = (*config.train, *config.validation.sources)
    inputs = [path for source in sources for _, path in source if isinstance(path, Path)]
    with lock_output(config.out, _FOLDER, inputs=inputs, overwrite=overwrite) as is_locked:
        yield is_locked and all(path.name.startswith(".") for path in config.out.iterdir())


def _make_trainer(
    config: BaseTrainConfig, setup: TrainingSetup, context: DistributedContext, console: Console
) -> Trainer:
    schedule = DataSchedule(setup.dataset.table, config)
    schedule.check(setup.dataset.sample_id, context.size)
    prepare_blocks(setup.training, config)
    with context.collective_section():
        model = parallelize(setup.training, config, context)
    optimizer = make_optimizer(setup.training, config)
    # All processes have the same weights, but each its own dropout.
    _seed(config.seed + context.rank)
    log = MetricsLogger(config, setup.model_config, context, console, schedule.steps)
    log.log_setup(schedule, setup.training, sharding(config, context), setup.training.kernel)
    return Trainer(
        config=config,
        context=context,
        model=model,
        write_checkpoint=setup.write_checkpoint,
        optimizer=optimizer,
        lr_factor=make_lr_schedule(config, schedule.steps),
        dataset=setup.dataset,
        schedule=schedule,
        checkpoints=CheckpointManager(config.out, config.keep, context, log.info, only_trained=setup.only_trained),
        log=log,
        anomalies=AnomalyDetector(config.faults),
        origin=setup.origin,
        validator=setup.make_validator(log, schedule.steps) if setup.make_validator else None,
        objective=setup.make_objective(model, schedule, log) if setup.make_objective else None,
    )


def attention_kernel(config: BaseTrainConfig, context: DistributedContext) -> str:
    """Return the name of the attention kernel that a configuration asks for, or that is available.

    Args:
        config: of the training.
        context: device of this process.
    """
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    return attention.select_kernel(config.attention, context.device, dtype)


def main_process_first(
    context: DistributedContext, title: str, function: Callable[[Callable[[int, int], None] | None], OpenedT]
) -> OpenedT:
    """Call a function in the main process, with progress, then in the others, which use the files it has written.

    Args:
        context: processes of the run.
        title: of the progress.
        function: takes a callback for (done, total).
    """
    if context.is_main:
        usage: dict[str, int] = {}
        with ProgressDisplay(Console(stderr=True), {title: usage.copy}):
            result = function(lambda done, planned: usage.update(done=done, planned=planned))
        context.wait()
    else:
        context.wait()
        result = function(None)
    # A run that is refused after this removes the files, so the other processes must have read them.
    context.wait()
    return result


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
