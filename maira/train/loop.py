"""The training loop: one process on a CPU or GPU, or as many as `accelerate launch` or `torchrun` start (paper B.2)."""

from __future__ import annotations

import hashlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from maira.train import attention
from maira.train.batches import stream
from maira.train.blocks import prepare_blocks
from maira.train.corpus import open_corpus, texts
from maira.train.export import write_checkpoint
from maira.train.faults import FaultWatch, Kind, describe, fault_file, stopped, write_fault
from maira.train.items import PackedBatch, Samples
from maira.train.logs import Log
from maira.train.objective import Objective, TrainingModel
from maira.train.optimizers import make_optimizer, schedule
from maira.train.parallel import Distributed, World, distribute, join_world, sharding
from maira.train.parts import TOKENIZER_STUDIES, choose_trained, load_parts
from maira.train.plan import Plan
from maira.train.recipe import Course, FromScratch, Recipe
from maira.train.states import States, check_same_run, decisive, read_record
from maira.train.validation import Validator, validate_drafts
from radfact.errors import InputError, RunFailed
from radfact.live import LiveDisplay

CourseT = TypeVar("CourseT", bound=Course)
OpenedT = TypeVar("OpenedT")


class Gradient(NamedTuple):
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
class Run:
    """A run that is under way.

    Attributes:
        recipe, world: what is run, and by whom.
        model: as this process computes with it.
        write: writes the model as it is now as a checkpoint into a folder; all processes call it.
        optimizer: of its trained weights.
        rate: factor of the learning rate by step.
        corpus, plan: what it learns from, in which order.
        states: where it goes on from.
        log: what it says.
        watch: what it makes of faults.
        validator: measures it while it goes on; None without anything to validate on.
        step: optimiser steps done.
    """

    recipe: Course
    world: World
    model: Distributed
    write: Callable[[Path], None]
    optimizer: torch.optim.Optimizer
    rate: Callable[[int], float]
    corpus: Samples
    plan: Plan
    states: States
    log: Log
    watch: FaultWatch
    validator: Validator | None = None
    step: int = 0

    def go(self, is_told_to_stop: Callable[[], bool]) -> None:
        """Train from where the run stands to its end.

        Args:
            is_told_to_stop: whether this process is to end soon; the state is saved then, in all processes.

        Raises:
            InputError: a sample cannot be read, here or in another process.
            RunFailed: a fault that ends the run, a notice to stop, or a process is gone.
        """
        recipe, world = self.recipe, self.world
        rows = stream(self.corpus, self.plan, self.step, rank=world.rank, world=world.size, workers=recipe.workers)
        with closing(rows):
            self.model.wrapped.train()
            while self.step < self.plan.steps:
                asked = time.perf_counter()
                _, batches = next(rows)
                waited = time.perf_counter() - asked
                # Here those processes that have failed say so, while no other waits for their tensors.
                if any(world.gather(is_told_to_stop())):
                    self._leave()
                with world.together():
                    gradient = self._gradient(batches, waited)
                if (kind := self.watch.judge(gradient.losses["loss"], gradient.length)) is None:
                    with world.together():
                        self._update(gradient)
                else:
                    self._skip(kind, gradient)
                if self.validator:
                    # Before the state is saved: what was measured by then is measured for good.
                    self.validator.after_step(self.step, self.model, self.write)
                if self.step % recipe.save_every == 0 or self.step == self.plan.steps:
                    self.save()

    def save(self) -> None:
        """Save the state in the background."""
        record = {
            "recipe": decisive(self.recipe),
            "steps": self.plan.steps,
            "length": [self.recipe.epochs, self.recipe.passes],
            "data": self._data,
            "watch": self.watch.state_dict(),
            "log": self.log.state_dict(),
        }
        self.states.save(self.step, self.model.training, self.optimizer, record)

    def resume(self) -> None:
        """Go back to the last whole state of an interrupted run, if there is one, and begin to log from there.

        Raises:
            InputError: the folder holds a run of another recipe, or of other data, or a tracker cannot be started.
        """
        record: dict[str, Any] = {"step": 0}
        for state in self.states.found():
            held = read_record(state)
            check_same_run(state, held, self.recipe)
            if held["data"] != self._data:
                raise InputError(f"the studies to train on are others than when {state.name} was saved", field="train")
            try:
                self.states.load(state, self.model.training, self.optimizer)
            except RunFailed as error:
                self.log.say(f"{error}; the state before it is taken")
                continue
            record = held
            break
        self.step = record["step"]
        self.log.start(self.step)
        if self.step == 0:
            return
        self.watch.load_state_dict(record["watch"])
        self.log.load_state_dict(record["log"])
        self.log.say(f"Resuming {self.recipe.out} at step {self.step} of {self.plan.steps}")
        if record["steps"] != self.plan.steps:
            self.log.say(f"it was to have {record['steps']} steps; the learning rate goes on by the other length")

    def _gradient(self, batches: list[PackedBatch], waited: float) -> Gradient:
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
        # The one place where a step waits for the device.
        answer, patches, length = torch.stack([*self.world.sum(sums), norm.double()]).tolist()
        parts = {"answer": answer / totals.answer_tokens, "patches": patches / totals.samples}
        loss = parts["answer"] + weight * parts["patches"]
        sample_ids = [sample_id for batch in batches for sample_id in batch.sample_ids]
        return Gradient({"loss": loss} | (parts if weight else {}), norm, length, sample_ids)

    def _update(self, gradient: Gradient) -> None:
        rate = self.recipe.learning_rate * self.rate(self.step)
        self.model.clip(gradient.norm, self.recipe.clip)
        _set_rate(self.optimizer, rate)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.log.step(self.step, self._epoch, gradient.losses, lr=rate, grad_norm=gradient.length)

    def _skip(self, kind: Kind, gradient: Gradient) -> None:
        """Leave weights and optimizer as they are, write down which samples it was, and end the run if it is to end."""
        sample_ids = sorted(sample_id for part in self.world.gather(gradient.sample_ids) for sample_id in part)
        row = self.watch.record(kind, self.step + 1, gradient.losses["loss"], gradient.length, sample_ids)
        out = self.recipe.out
        if self.world.is_main:
            write_fault(out, row)
        if row["action"] == "stop":
            raise stopped(row, out)
        self.log.say(f"step {row['step']} is skipped: {describe(row)}; its samples are listed in {fault_file(out)}")
        self.optimizer.zero_grad()
        self.step += 1

    def _leave(self) -> None:
        self.save()
        saved = self.states.finish()
        what = f"the state of step {self.step} is saved" if saved else "the states saved before are as they were"
        raise RunFailed(f"told to stop at step {self.step} of {self.plan.steps}; {what}. The same command goes on")

    @property
    def _data(self) -> str:
        """Fingerprint of the answers that the steps are taken from."""
        return hashlib.sha256(self.corpus.table.tobytes()).hexdigest()[:16]

    @property
    def _epoch(self) -> int:
        return self.plan.epoch(self.step - 1)


@dataclass(frozen=True)
class Start:
    """What a run begins with: all in which kinds of models differ.

    Attributes:
        training: the model that reads packed rows, on the CPU, what of it is trained marked.
        corpus: what it learns from.
        config: of the model.
        write: writes the model as it is by then as a checkpoint into a folder; all processes call it.
        only_trained: leave out of the states what is not trained, since a checkpoint has it.
        validate: makes what measures the run, of its log and steps; None without anything to validate on.
    """

    training: Objective
    corpus: Samples
    config: Any
    write: Callable[[Path], None]
    only_trained: bool
    validate: Callable[[Log, int], Validator] | None = None


def train(recipe: Recipe, console: Console | None = None) -> Path:
    """Run a recipe to its end, from where it stopped if it was started before; returns the folder of the checkpoint.

    Raises:
        InputError: the recipe, a manifest or an image cannot be used, or the folder holds a run of another recipe.
        RunFailed: a fault of a step ended the run, it was told to stop (SIGTERM), or its end could not be saved.
    """
    return run_course(recipe, start_reports, console)


def run_course(
    recipe: CourseT, start: Callable[[CourseT, World, Console], Start], console: Console | None = None
) -> Path:
    """Run a recipe to its end, from where it stopped if it was started before; returns the folder of the checkpoint.

    Args:
        recipe: of the run.
        start: makes what it begins with, in all processes alike.
        console: where lines go.

    Raises:
        InputError, RunFailed: as `train`.
    """
    if recipe.out.exists() and not recipe.out.is_dir():
        raise InputError("is a file; name a folder", file=recipe.out, field="out")
    world, console = join_world(), console or Console()
    _seed(recipe.seed)
    run = _prepare(recipe, start(recipe, world, console), world, console)
    try:
        run.resume()
        with _notices() as is_told_to_stop:
            run.go(is_told_to_stop)
        if not run.states.finish():
            raise RunFailed(f"the last state of {recipe.out} could not be saved; the same command tries again")
        folder = recipe.out / "checkpoint"
        run.write(folder)
    finally:
        run.states.close()
        run.log.close()
    return folder


def start_reports(recipe: Recipe, world: World, console: Console) -> Start:
    """What a run of a MAIRA-2 begins with.

    Raises:
        InputError: the recipe, a manifest or an image cannot be used.
    """
    model, processor = load_parts(
        recipe, texts(recipe, TOKENIZER_STUDIES), empty=not world.is_main and sharding(recipe, world) == "fsdp"
    )
    vision = model.config.vision_config
    grid = vision.image_size // vision.patch_size if recipe.patch_loss else None
    corpus = open_in_turn(
        world,
        "reading studies",
        lambda on_progress: open_corpus(
            recipe, recipe.train, processor, recipe.out / "tables", patch_grid=grid, on_progress=on_progress
        ),
    )
    if world.is_main:
        for notice in corpus.notices():
            console.print(notice, highlight=False, markup=False, soft_wrap=True)
    choose_trained(model, recipe)
    training = TrainingModel(model, len(corpus.kinds), recipe.patch_loss, kernel_for(recipe, world))
    return Start(
        training,
        corpus,
        model.config,
        lambda folder: write_checkpoint(model, processor, recipe, world, folder),
        only_trained=not isinstance(recipe.model, FromScratch),
        validate=(lambda log, steps: validate_drafts(recipe, processor, world, log, steps))
        if recipe.validation.sources
        else None,
    )


def kernel_for(recipe: Course, world: World) -> str:
    """The attention within samples that a recipe wants, or that runs here."""
    half = recipe.precision == "bf16"
    return attention.choose(recipe.attention, world.device, torch.bfloat16 if half else torch.float32)


def _prepare(recipe: Course, start: Start, world: World, console: Console) -> Run:
    """Everything of a run but its first step, the same in all processes."""
    plan = Plan(start.corpus.table, recipe)
    plan.check(start.corpus.sample_id, world.size)
    prepare_blocks(start.training, recipe)
    dealt = distribute(start.training, recipe, world)
    optimizer = make_optimizer(start.training, recipe)
    # Weights are the same in all processes, what is dropped out is not.
    _seed(recipe.seed + world.rank)
    log = Log(recipe, start.config, world, console, plan.steps)
    states = States(recipe.out, recipe.keep, world, log.say, only_trained=start.only_trained)
    watch = FaultWatch(recipe.faults)
    rate = schedule(recipe, plan.steps)
    validator = start.validate(log, plan.steps) if start.validate else None
    return Run(recipe, world, dealt, start.write, optimizer, rate, start.corpus, plan, states, log, watch, validator)


def open_in_turn(world: World, title: str, open_it: Callable[[Callable[[int, int], None] | None], OpenedT]) -> OpenedT:
    """Open what the main process has to prepare while the others wait.

    Args:
        world: of the run.
        title: of the progress that is shown.
        open_it: opens it, and calls what it is given with how much is done and of how much.
    """
    if not world.is_main:
        world.wait()
        return open_it(None)
    account: dict[str, int] = {}
    with LiveDisplay(Console(stderr=True), {title: account.copy}):
        opened = open_it(lambda done, planned: account.update(done=done, planned=planned))
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


@contextmanager
def _notices() -> Iterator[Callable[[], bool]]:
    """Whether the process was told to end (SIGTERM), as schedulers and nodes that go down do some time before."""
    told = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield told.is_set
        return
    before = signal.signal(signal.SIGTERM, lambda *_: told.set())
    try:
        yield told.is_set
    finally:
        signal.signal(signal.SIGTERM, before)
