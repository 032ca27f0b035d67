"""The training loop, on accelerate: one process on a CPU or as many as `accelerate launch` starts."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from data.manifest import read_manifest
from data.study import Study
from maira.examples import PRIOR_REPORT_UNUSED, has_unused_prior_report
from maira.model import MairaForConditionalGeneration
from maira.processor import MairaProcessor
from maira.train.batches import Batch, Samples, plan_epoch
from maira.train.parts import load_parts
from maira.train.recipe import Recipe
from radfact.errors import InputError, RunFailed
from radfact.jsonl import dumps, open_atomic, read_json, write_json


@dataclass
class Progress:
    """Where a run stands: optimiser steps done, and micro-batches of this process done in the present epoch."""

    step: int = 0
    epoch: int = 0
    position: int = 0
    seconds: float = 0.0

    def state_dict(self) -> dict[str, Any]:
        """For accelerate."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """For accelerate."""
        for name, value in state.items():
            setattr(self, name, value)


class TrainingModel(nn.Module):
    """The model with the auxiliary patch head beside it."""

    def __init__(self, model: MairaForConditionalGeneration, kinds: int, patch_weight: float) -> None:
        super().__init__()
        self.model = model
        self.patch_weight = patch_weight
        self.patch_head = nn.Linear(model.config.vision_config.hidden_size, kinds) if patch_weight else None

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Losses of a batch: `loss` to minimise, and its parts `answer` and `patches`."""
        patches = self.model.vision_tower(batch.pixel_values)
        answer = self.model(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            labels=batch.labels,
            image_tokens=self.model.multi_modal_projector(patches),
            use_cache=False,
        ).loss
        if self.patch_head is None or batch.coverage is None:
            return {"loss": answer, "answer": answer.detach()}
        scores = self.patch_head(patches[batch.frontal_rows]).float()
        # Summed over kinds, averaged over patches: the weight then means the same for any number of kinds.
        part = F.binary_cross_entropy_with_logits(scores, batch.coverage, reduction="none").sum(-1).mean()
        return {"loss": answer + self.patch_weight * part, "answer": answer.detach(), "patches": part.detach()}


@dataclass
class Meter:
    """Means and rates from one log line to the next; `waited` is the time spent waiting for data, seconds."""

    totals: dict[str, float] = field(default_factory=dict)
    count: int = 0
    tokens: int = 0
    samples: int = 0
    waited: float = 0.0
    started: float = field(default_factory=time.perf_counter)

    def add(self, losses: dict[str, Tensor], batch: Batch) -> None:
        """Count one micro-batch."""
        for name, value in losses.items():
            self.totals[name] = self.totals.get(name, 0.0) + float(value.detach())
        self.count += 1
        self.tokens += int(batch.attention_mask.sum())
        self.samples += batch.input_ids.shape[0]

    def read(self) -> dict[str, float]:
        """Means and rates since the meter was made."""
        seconds = time.perf_counter() - self.started
        values = {name: total / self.count for name, total in self.totals.items()}
        return values | {
            "samples_per_second": self.samples / seconds,
            "tokens_per_second": self.tokens / seconds,
            "data_wait": self.waited / seconds,
        }


def schedule(recipe: Recipe, steps: int) -> Callable[[int], float]:
    """Factor of the learning rate by step: linear warm-up, then half a cosine down to 0 (paper B.2)."""
    warmup = max(1, round(recipe.warmup * steps))

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, steps - warmup))))

    return factor


@dataclass
class _Run:
    """A run that is under way; `wrapped` is a TrainingModel as accelerate prepared it, and so is `optimizer`."""

    recipe: Recipe
    accelerator: Accelerator
    console: Console
    steps: int
    accumulate: int
    wrapped: Any
    optimizer: Any
    rates: torch.optim.lr_scheduler.LambdaLR
    progress: Progress

    def resume(self) -> None:
        """Go back to the state that an interrupted run saved last, if there is one."""
        state, old, fresh = _state_folders(self.recipe)
        if self.accelerator.is_main_process and not state.exists() and old.exists():
            # Interrupted between the two renames of `save`: what was being written is whole.
            (fresh if fresh.exists() else old).rename(state)
        self.accelerator.wait_for_everyone()
        if state.exists():
            _check_same_run(state, self.recipe)
            self.accelerator.load_state(str(state))
            self.console.print(f"Resuming {self.recipe.out} at step {self.progress.step} of {self.steps}")
        if self.accelerator.is_main_process:
            _forget_after(self.recipe.out / "metrics.jsonl", self.progress.step)

    def step(self, batches: Iterator[Batch], meter: Meter) -> dict[str, float]:
        """One optimiser step; returns its learning rate and the norm of its gradient before clipping."""
        for _ in range(self.accumulate):
            asked = time.perf_counter()
            batch = next(batches)
            meter.waited += time.perf_counter() - asked
            losses = self.wrapped(batch.to(self.accelerator.device))
            if not math.isfinite(value := float(losses["loss"].detach())):
                raise RunFailed(
                    f"the loss is {value} at step {self.progress.step + 1}, samples {', '.join(batch.sample_ids)}; "
                    f"the last state saved in {self.recipe.out} is as it was. A lower learning_rate may help"
                )
            self.accelerator.backward(losses["loss"] / self.accumulate)
            meter.add(losses, batch)
            self.progress.position += 1
        norm = self.accelerator.clip_grad_norm_(self.wrapped.parameters(), self.recipe.clip)
        rate = float(self.rates.get_last_lr()[0])
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.rates.step()
        self.progress.step += 1
        return {"lr": rate, "grad_norm": float(norm)}

    def save(self) -> None:
        """Save beside the last state and then take its place, so that a crash while saving costs nothing."""
        state, old, fresh = _state_folders(self.recipe)
        if self.accelerator.is_main_process:
            shutil.rmtree(fresh, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self.accelerator.save_state(str(fresh))
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            write_json(fresh / "recipe.json", _decisive(self.recipe))
            shutil.rmtree(old, ignore_errors=True)
            if state.exists():
                state.rename(old)
            fresh.rename(state)
            shutil.rmtree(old, ignore_errors=True)

    def log(self, values: dict[str, float]) -> None:
        """Append a line to `metrics.jsonl` and say the same to the person who waits."""
        progress = self.progress
        row = {"step": progress.step, "epoch": progress.epoch, "seconds": round(progress.seconds, 1)}
        self.recipe.out.mkdir(parents=True, exist_ok=True)
        with (self.recipe.out / "metrics.jsonl").open("a", encoding="utf-8") as handle:
            handle.write(dumps(row | {k: float(f"{v:.5g}") for k, v in values.items()}) + "\n")
        left = (self.steps - progress.step) * progress.seconds / progress.step
        losses = "  ".join(f"{k} {values[k]:.4f}" for k in ("answer", "patches") if k in values)
        self.console.print(
            f"step {progress.step}/{self.steps}  {losses}  lr {values['lr']:.2e}  norm {values['grad_norm']:.2f}  "
            f"{values['samples_per_second']:.1f} samples/s  {values['tokens_per_second']:.0f} tokens/s  "
            f"data wait {values['data_wait']:.0%}  left {left / 60:.0f} min",
            highlight=False,
        )


def train(recipe: Recipe, console: Console | None = None) -> Path:
    """Run a recipe to its end, from where it stopped if it was started before; returns the folder of the checkpoint.

    Raises:
        InputError: the recipe, a manifest or an image cannot be used, or the folder holds a run of another recipe.
        RunFailed: the loss is not finite.
    """
    if recipe.out.exists() and not recipe.out.is_dir():
        raise InputError("is a file; name a folder", file=recipe.out, field="out")
    console = console or Console()
    set_seed(recipe.seed)
    accelerator = Accelerator(mixed_precision=recipe.precision)
    studies = read_manifest(recipe.train)
    if unused := sum(map(has_unused_prior_report, studies)):
        console.print(f"{unused} of {len(studies)} studies: {PRIOR_REPORT_UNUSED}")
    model, processor = load_parts(recipe, studies)
    vision = model.config.vision_config
    kinds = sorted({label.kind for study in studies for label in study.labels or ()})
    run = _prepare(recipe, accelerator, console, TrainingModel(model, len(kinds), recipe.patch_loss))
    run.resume()

    batches = _stream(studies, processor, run, kinds, vision.image_size // vision.patch_size)
    progress, meter = run.progress, Meter()
    run.wrapped.train()
    while progress.step < run.steps:
        started = time.perf_counter()
        values = run.step(batches, meter)
        progress.seconds += time.perf_counter() - started
        if progress.step % recipe.log_every == 0 and accelerator.is_main_process:
            run.log(meter.read() | values)
            meter = Meter()
        if progress.step % recipe.save_every == 0 or progress.step == run.steps:
            run.save()
    return _save_checkpoint(run, processor)


def _prepare(recipe: Recipe, accelerator: Accelerator, console: Console, model: TrainingModel) -> _Run:
    accumulate, rest = divmod(recipe.global_batch, recipe.micro_batch * accelerator.num_processes)
    if rest:
        raise InputError(
            f"must be a multiple of micro_batch x processes ({recipe.micro_batch} x {accelerator.num_processes}), "
            f"got {recipe.global_batch}",
            field="global_batch",
        )
    steps = recipe.passes // recipe.global_batch
    groups = _groups(model, recipe.weight_decay)
    plain = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=recipe.betas, fused=True)
    wrapped, optimizer = accelerator.prepare(model, plain)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(recipe, steps))
    progress = Progress()
    accelerator.register_for_checkpointing(rates, progress)
    return _Run(recipe, accelerator, console, steps, accumulate, wrapped, optimizer, rates, progress)


def _state_folders(recipe: Recipe) -> tuple[Path, Path, Path]:
    """The state of a run, the one before it, and the one that is being written."""
    return recipe.out / "state", recipe.out / "state.old", recipe.out / "state.writing"


def _decisive(recipe: Recipe) -> dict[str, Any]:
    """The part of a recipe that must stay as it is for its run to go on, as JSON values; a run may be made longer."""
    return recipe.model_dump(mode="json", exclude={"out", "passes", "checkpoint_dtype", "save_every", "log_every"})


def _check_same_run(state: Path, recipe: Recipe) -> None:
    """Check that a state was saved by a run of this recipe.

    Raises:
        InputError: it was another one.
    """
    file, mine = state / "recipe.json", _decisive(recipe)
    held = read_json(file) if file.exists() else mine
    if changed := [key for key in mine if held.get(key) != mine[key]]:
        raise InputError(
            f"{recipe.out} holds a run with another {', '.join(changed)}; name another folder or remove that one",
            field="out",
        )


def _groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Weight decay for matrices, none for biases, norms and other vectors."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]


def _stream(studies: list[Study], processor: MairaProcessor, run: _Run, kinds: list[str], grid: int) -> Iterator[Batch]:
    """Micro-batches of this process from where it stands, epoch after epoch."""
    recipe, progress = run.recipe, run.progress
    world, rank = run.accelerator.num_processes, run.accelerator.process_index
    while True:
        plan = plan_epoch(studies, recipe, progress.epoch)
        # As many for each process, so that all of them stand at the same place of the same epoch.
        mine = plan[: len(plan) // world * world][rank::world]
        if not mine:
            raise InputError(
                f"has too few studies with an answer for one batch of {recipe.micro_batch} a process", file=recipe.train
            )
        samples = Samples(studies, mine[progress.position :], processor, recipe, progress.epoch, kinds, grid)
        for batch in DataLoader(samples, batch_size=None, num_workers=1, prefetch_factor=4):
            if isinstance(batch, InputError):
                raise batch
            yield batch
        progress.epoch, progress.position = progress.epoch + 1, 0


def _forget_after(log: Path, step: int) -> None:
    """Drop log lines of steps that were lost with an interrupted run, and a last one that was cut off by it."""
    if not log.exists():
        return
    kept = []
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except json.JSONDecodeError:
            continue
    with open_atomic(log) as handle:
        handle.writelines(kept)


def _save_checkpoint(run: _Run, processor: MairaProcessor) -> Path:
    folder = run.recipe.out / "checkpoint"
    run.accelerator.wait_for_everyone()
    if run.accelerator.is_main_process:
        model = run.accelerator.unwrap_model(run.wrapped).model
        model.to(getattr(torch, run.recipe.checkpoint_dtype)).save_pretrained(folder)
        processor.save_pretrained(folder)
    return folder
