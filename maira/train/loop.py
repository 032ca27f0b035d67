"""The training loop (MAIRA-2, appendix B.2), in one process or those that `accelerate launch` or `torchrun` start."""

from __future__ import annotations

import hashlib
import shlex
import shutil
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from rich.console import Console
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

from maira.runtime.processes import DistributedContext, TerminationSignal
from maira.train import attention, parallel
from maira.train.anomalies import AnomalyDetector, Kind, describe_row, stop_error
from maira.train.checkpointing import CheckpointManager
from maira.train.config.check import check_packages
from maira.train.config.run_config import BaseTrainConfig
from maira.train.config.run_folder import changed_settings, lock_run_folder, resume_fields
from maira.train.data.packing import PackedBatch, SampleDataset, StepTotals
from maira.train.data.schedule import DataSchedule, Phase, SkippedSample, StepBatches, iterate_steps
from maira.train.logging import MetricsLogger
from maira.train.loss import PackedLossModel
from maira.train.parallel import ParallelModel, parallelize
from maira.train.post.plot import PLOT_FILE, plot_rewards
from maira.train.record import RECORD_FILE, make_record
from maira.train.validation import Validator
from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.hub import resolve_model
from radfact.io.jsonl import write_json

ConfigT = TypeVar("ConfigT", bound=BaseTrainConfig)


class StepResult(NamedTuple):
    """Losses and gradient of a step, over all processes."""

    losses: dict[str, float]  # `loss`, and its terms if it has several
    norm: Tensor  # () norm of the gradient that the parameters now hold, before clipping
    norm_value: float  # the same as a number
    sample_ids: list[str]  # samples of this process's rows


class Objective(Protocol):
    """Training objective other than the cross-entropy on the data; yields the rows and computes the metrics."""

    statistics: Sequence[str]  # names of `Losses.statistics`

    def iterate(self, first_step: int, termination: TerminationSignal) -> Generator[StepBatches]:
        """Yield the steps of a run with the rows of this process."""

    def after_backward(
        self, loss: float, metrics: Mapping[str, float], statistics: Sequence[float], log_probs: Sequence[Tensor]
    ) -> dict[str, float]:
        """Return the metrics of a step, `loss` first, after the backward pass."""


@dataclass(frozen=True)
class TrainingSetup:
    """What differs between the kinds of models that are trained."""

    training: PackedLossModel  # model with loss, on the CPU; `requires_grad` marks what is trained
    dataset: SampleDataset
    write_checkpoint: Callable[[Path], None]  # writes the current model to a folder; all processes call it
    only_trained: bool  # omit weights from training states that are not trained, since a checkpoint has them
    # `model`, a fingerprint of the checkpoint to start from (None: a fresh model), and others; empty in processes other
    # than the main one.
    origin: dict[str, Any]
    # Makes the validator from the logger and the number of steps; None without validation data.
    make_validator: Callable[[MetricsLogger, int], Validator] | None = None
    # None for the cross-entropy on the data.
    make_objective: Callable[[ParallelModel, DataSchedule, MetricsLogger], Objective] | None = None


class Trainer:
    """A training run in progress."""

    step = 0  # optimizer steps done
    has_begun = False
    command: Sequence[str] = ()  # command line, for advice

    def __init__(
        self, config: BaseTrainConfig, setup: TrainingSetup, context: DistributedContext, console: Console
    ) -> None:
        self.config, self.setup, self.context = config, setup, context
        self._changes: list[dict[str, Any]] = []  # with which the run was resumed
        self._data_fingerprint = hashlib.sha256(setup.dataset.table.tobytes()).hexdigest()[:16]
        self.schedule = DataSchedule(setup.dataset.table, config)
        self.schedule.check(setup.dataset.sample_id, context.size)
        parallel.prepare_blocks(setup.training, config)
        with context.collective_section():
            self.model = parallelize(setup.training, config, context)
        self.optimizer = parallel.make_optimizer(setup.training, config)
        # All processes have the same weights, but each its own dropout.
        torch.manual_seed(config.seed + context.rank)
        steps = self.schedule.steps
        self.lr_factor = parallel.make_lr_schedule(config, steps)
        self.log = MetricsLogger(config, setup.training.model.config, context, console, steps)
        self.log.log_setup(self.schedule, setup.training, parallel.sharding(config, context), setup.training.kernel)
        self.checkpoints = CheckpointManager(config.out, config.keep, context, self.log.info, setup.only_trained)
        self._anomaly_file = config.out / "faults.jsonl"
        self.anomalies = AnomalyDetector(config.faults, self._anomaly_file if context.is_main else None)
        self.validator = setup.make_validator(self.log, steps) if setup.make_validator else None
        make = setup.make_objective
        self.objective = make(self.model, self.schedule, self.log) if make else None

    def train(self, termination: TerminationSignal) -> None:
        config, context = self.config, self.context
        self.has_begun = True
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
                # Also before a validation: if it is interrupted, the resumed run repeats it. Not between skipped steps,
                # which may fail because of the weights: the states from before them stay.
                is_validated = self.validator is not None and self.validator.is_due(self.step)
                is_due = (is_validated or self.step % config.save_every == 0) and not self.anomalies.skipped
                if is_due or self.step == self.schedule.steps:
                    self._save()
                self._validate()

    def finish(self) -> Path:
        """Write the final checkpoint and return its folder."""
        is_saved, folder = self.checkpoints.finish(), self.config.out / "checkpoint"
        failure = f"the checkpoint is written ({folder}), but the last training state could not be saved"
        try:
            self._write_checkpoint(folder)
        except OSError as error:
            is_saved = False
            failure = f"{error.filename or folder}: {error.strerror or error}; the checkpoint could not be written"
        if not is_saved:
            raise RunError(f"{failure}, and {self.checkpoints.resume_hint}", code=ErrorCode.WRITE_FAILED)
        return folder

    def close(self) -> None:
        """Write all pending states and metrics."""
        self.checkpoints.close()
        self.log.close()

    def resume(self) -> None:
        """Load the last complete state of an interrupted run, if there is one, and start logging from there."""
        record = self.checkpoints.resume(self.model.training, self.optimizer, self._is_usable)
        self.step = record["step"] if record else 0
        self.log.start(self.step)
        if self.validator:
            self.validator.start(self.step)
        if record is None:
            return
        self.anomalies.load_state_dict(record["watch"])
        self.log.load_state_dict(record["log"])
        self.log.info(f"Resuming {self.config.out} at step {self.step} of {self.schedule.steps}")
        self._changes = record.get("changes", [])
        if changes := changed_settings(self.config, record, self.config.out.name):
            self._changes.append({"step": self.step, "settings": changes})
            settings = (f"{name} {old} -> {new}" for name, (old, new) in changes.items())
            self.log.info(f"changed from step {self.step} on: {', '.join(settings)}")
        if (planned := record["steps"]) != self.schedule.steps:
            follows = "the learning rate follows the new number of steps"
            self.log.info(f"the run was planned with {planned} steps; {follows}")

    def _write_checkpoint(self, folder: Path) -> None:
        """Write the current model with the record of its training; all processes call this."""
        self.setup.write_checkpoint(folder)
        if self.context.is_main:
            record = make_record(self.config, self.setup.origin, self.setup.dataset.table, self.step)
            write_json(folder / RECORD_FILE, {**record.model_dump(mode="json"), "changes": self._changes})

    def _save(self) -> None:
        """Save the training state in the background."""
        record = {
            "recipe": resume_fields(self.config),
            "faults": self.config.faults.model_dump(mode="json"),
            "changes": self._changes,
            "steps": self.schedule.steps,
            "length": [self.config.epochs, self.config.passes],
            "data": self._data_fingerprint,
            "origin": self.setup.origin,
            "watch": self.anomalies.state_dict(),
            "log": self.log.state_dict(),
        }
        self.checkpoints.save(self.step, self.model.training, self.optimizer, record)

    def _is_usable(self, state: Path, record: dict[str, Any]) -> bool:
        """Return whether a state of this run leads on, and refuse those of other runs."""
        config, name, steps = self.config, state.name, self.schedule.steps
        length = "epochs" if config.passes is None else "passes"
        changed = [field for field in changed_settings(config, record, name) if not field.startswith("faults.")]
        message, code, field = "", ErrorCode.MISMATCH, ""
        if record["data"] != self._data_fingerprint:
            start = config.model if isinstance(config.model, Path) else "random weights"
            message = f"the training samples have changed since {name} was saved; restore them (set faults.unreadable="
            message += f"skip to skip those that cannot be read), or start from {start} in another `out`"
            field = "train"
        # States lack the weights that are not trained; the final checkpoint takes them from the model of the start.
        elif self.context.is_main and record["origin"]["model"] != self.setup.origin["model"]:
            message = f"{config.model} has changed since {name} was saved; restore it, or set another `out`"
            field = "model"
        elif record["step"] > steps:
            message = f"expected at most {steps} steps, found a state at step {record['step']}; increase `{length}` or "
            message, code, field = f"{message}set another `out`", ErrorCode.OUTPUT_CONFLICT, length
        elif changed and record["step"] == steps:
            message = f"the run in {config.out} is complete, without another {', '.join(changed)}; set another `out`"
            code, field = ErrorCode.OUTPUT_CONFLICT, "out"
        if message:
            raise InputError(message, code=code, field=field)
        if leads_to_anomaly := bool(changed and record.get("leads_to_anomaly")):
            self.log.info(f"{state} leads to the same anomaly again, and is not resumed")
        return not leads_to_anomaly

    def _exclude_skipped(self, skipped: list[SkippedSample], batches: list[PackedBatch]) -> list[PackedBatch]:
        """Return the rows with the totals of the readable samples of their step."""
        if not skipped:
            return batches
        tokens, samples = batches[0].totals
        totals = StepTotals(tokens - sum(sample.answer_tokens for sample in skipped), samples - len(skipped))
        self._record_skipped(self.step + 1, skipped, "training", of=samples)
        return [replace(batch, totals=totals) for batch in batches]

    def _record_skipped(self, step: int, skipped: list[SkippedSample], phase: Phase, *, of: int) -> None:
        """List unreadable samples, and end the run if there are too many."""
        known = len(self.anomalies.unreadable)
        row = self.anomalies.record_skipped(step, skipped, phase, of=of)
        self._stop_if_told(row)
        if len(self.anomalies.unreadable) > known:
            self.log.info(f"{describe_row(row)}; they are excluded, and listed in {self._anomaly_file}")

    def _stop_if_told(self, row: dict[str, Any]) -> None:
        if row["action"] == "stop":
            self.checkpoints.finish()
            advice = ""
            if row["fault"] != "unreadable":
                state = self.checkpoints.mark_anomaly(self.step + 1 - self.anomalies.skipped)
                kept = [word for word in self.command if not word.startswith("learning_rate=")]
                command = shlex.join([*kept, f"learning_rate={self.config.learning_rate / 2:.3g}"])
                action = "start again" if state is None else f"resume from the state of step {state}"
                advice = f"To {action} with a lower learning rate: {command}"
            raise stop_error(row, self._anomaly_file, self.checkpoints.resume_hint, advice)

    def _validate(self) -> None:
        if validator := self.validator:
            record_skipped = partial(self._record_skipped, self.step, phase="validation", of=validator.samples)
            validator.after_step(self.step, self.model, self._write_checkpoint, record_skipped)
            if self.objective is not None and self.context.is_main and validator.is_due(self.step):
                try:
                    plot_rewards(self.config.out / "metrics.jsonl", self.config.out / PLOT_FILE)
                except (InputError, OSError) as error:  # training continues without the plot
                    self.log.info(f"{PLOT_FILE} is not drawn: {error}")

    def _iterate_steps(self, termination: TerminationSignal) -> Generator[StepBatches]:
        if self.objective is not None:
            return self.objective.iterate(self.step, termination)
        return iterate_steps(self.setup.dataset, self.schedule, self.step, self.context, self.config.workers)

    def _compute_gradient(self, batches: list[PackedBatch], waited: float, metrics: Mapping[str, float]) -> StepResult:
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
        epoch = self.step // self.schedule.steps_per_epoch
        self.step += 1
        self.log.log_step(self.step, epoch, result.losses, lr=learning_rate, grad_norm=result.norm_value)

    def _skip(self, kind: Kind, result: StepResult) -> None:
        """Skip the update of an anomalous step, list its samples, and end the run if the configuration says so."""
        sample_ids = sorted(sample_id for part in self.context.gather(result.sample_ids) for sample_id in part)
        row = self.anomalies.record_step(kind, self.step + 1, result.losses["loss"], result.norm_value, sample_ids)
        self._stop_if_told(row)
        listed = f"its samples are listed in {self._anomaly_file}"
        self.log.info(f"step {row['step']} is skipped: {describe_row(row)}; {listed}")
        self.optimizer.zero_grad()
        self.step += 1

    def _terminate(self) -> None:
        """Save the state and raise the error of a terminated run."""
        self.checkpoints.finish()
        if self.checkpoints.last != self.step:
            self._save()
            self.checkpoints.finish()
        message = f"terminated at step {self.step} of {self.schedule.steps}; {self.checkpoints.resume_hint}"
        raise RunError(message, code=ErrorCode.INTERRUPTED)


def run_training(
    config: ConfigT,
    make_setup: Callable[[ConfigT, DistributedContext, Console], TrainingSetup],
    console: Console | None = None,
    *,
    overwrite: bool = False,
    command: Sequence[str] = (),
) -> Path:
    """Train to the end, resuming an interrupted run, and return the checkpoint; `command` is for advice."""
    config.check_sources()
    check_packages(config)
    disable_progress_bar()
    if isinstance(config.model, Path):
        config = config.model_copy(update={"model": resolve_model(config.model, field="model")})
    context, console = parallel.init_distributed(), console or Console()
    torch.manual_seed(config.seed)
    with lock_run_folder(config, overwrite=overwrite) if context.is_main else nullcontext() as is_new:
        trainer: Trainer | None = None
        try:
            context.wait()  # until the main process holds the lock; the folder is read from here on
            trainer = Trainer(config, make_setup(config, context, console), context, console)
            trainer.command = command
            trainer.resume()
            with TerminationSignal() as termination:
                trainer.train(termination)
                return trainer.finish()
        except InputError:
            if is_new and not (trainer and trainer.has_begun):
                for name in ("tables", "tensorboard"):
                    shutil.rmtree(config.out / name, ignore_errors=True)
            raise
        finally:
            if trainer is not None:
                trainer.close()


def attention_kernel(config: BaseTrainConfig, context: DistributedContext) -> str:
    """Return the name of the attention kernel that a configuration asks for, or that is available."""
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    return attention.select_kernel(config.attention, context.device, dtype)
