"""The training loop, on accelerate: one process on a CPU or as many as `accelerate launch` starts."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator
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
from maira.config import MairaConfig
from maira.examples import make_example
from maira.model import MairaForConditionalGeneration
from maira.processor import MairaImageProcessor, MairaProcessor
from maira.tokens import IMAGE
from maira.train.batches import Batch, Samples, plan_epoch
from maira.train.recipe import FromScratch, Recipe
from maira.train.tokenizer import train_tokenizer, words_of
from radfact.errors import InputError
from radfact.jsonl import dumps

TOKENIZER_STUDIES = 4000
"""Studies whose texts shape the vocabulary of a tokenizer trained from scratch."""


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
    """Running means between two log lines."""

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
        """Means and rates since the last reading, which starts the next."""
        seconds = time.perf_counter() - self.started
        values = {name: total / self.count for name, total in self.totals.items()}
        values |= {
            "samples_per_second": self.samples / seconds,
            "tokens_per_second": self.tokens / seconds,
            "data_wait": self.waited / seconds,
        }
        self.__init__()  # type: ignore[misc]
        return values


def build_fresh(recipe: Recipe, parts: FromScratch, studies: list[Study]) -> tuple[MairaForConditionalGeneration, MairaProcessor]:
    """A model with random weights by the recipe's seed, and a processor with a tokenizer trained on the studies' texts."""
    texts = []
    for study in studies[:TOKENIZER_STUDIES]:
        for task in ("findings", "grounded"):
            example = make_example(study, task, preset=recipe.preset)
            texts.append(words_of(example.prompt + (example.target or "")))
    tokenizer = train_tokenizer(texts, parts.vocab_size)
    config = MairaConfig(
        vision_config=parts.vision_config,
        text_config=parts.text_config | {
            "vocab_size": len(tokenizer),
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        image_merge=parts.image_merge,
        projector_n_layers=parts.projector_n_layers,
    )
    images = MairaImageProcessor(size=config.vision_config.image_size)
    processor = MairaProcessor(images, tokenizer, image_seq_length=config.image_seq_length)
    return MairaForConditionalGeneration(config), processor


def load_parts(recipe: Recipe, studies: list[Study]) -> tuple[MairaForConditionalGeneration, MairaProcessor]:
    """The model and processor that a recipe starts from."""
    if isinstance(recipe.model, FromScratch):
        return build_fresh(recipe, recipe.model, studies)
    if not (recipe.model / "config.json").exists():
        raise InputError("no checkpoint here (config.json is missing)", file=recipe.model)
    model = MairaForConditionalGeneration.from_pretrained(recipe.model, dtype=torch.float32)
    return model, MairaProcessor.from_pretrained(recipe.model)


def schedule(recipe: Recipe, steps: int) -> Any:
    """Factor of the learning rate by step: linear warm-up, then half a cosine down to 0."""
    warmup = max(1, round(recipe.warmup * steps))

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, steps - warmup))))

    return factor


def train(recipe: Recipe, console: Console | None = None) -> Path:
    """Run a recipe to its end, from where it stopped if it was started before; returns the folder of the checkpoint.

    Raises:
        InputError: the recipe, a manifest or an image cannot be used.
    """
    console = console or Console()
    set_seed(recipe.seed)
    accelerator = Accelerator(mixed_precision=recipe.precision)
    world, rank = accelerator.num_processes, accelerator.process_index
    accumulate, rest = divmod(recipe.global_batch, recipe.micro_batch * world)
    if rest:
        raise InputError(
            f"must be a multiple of micro_batch x processes ({recipe.micro_batch} x {world}), got {recipe.global_batch}",
            field="global_batch",
        )
    studies = read_manifest(recipe.train)
    model, processor = load_parts(recipe, studies)
    vision = model.config.vision_config
    kinds = sorted({label.kind for study in studies for label in study.labels or ()})
    wrapped: Any = TrainingModel(model, len(kinds), recipe.patch_loss)
    steps = recipe.passes // recipe.global_batch
    optimizer: Any = torch.optim.AdamW(
        _groups(wrapped, recipe.weight_decay), lr=recipe.learning_rate, betas=recipe.betas, fused=True
    )
    wrapped, optimizer = accelerator.prepare(wrapped, optimizer)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(recipe, steps))
    progress = Progress()
    accelerator.register_for_checkpointing(rates, progress)
    state = recipe.out / "state"
    if state.exists():
        accelerator.load_state(str(state))
        console.print(f"Resuming {recipe.out} at step {progress.step} of {steps}")
    log = recipe.out / "metrics.jsonl"
    log.parent.mkdir(parents=True, exist_ok=True)
    _forget_after(log, progress.step)

    meter = Meter()
    grid = vision.image_size // vision.patch_size
    batches = _stream(studies, processor, recipe, progress, rank, world, kinds, grid)
    wrapped.train()
    while progress.step < steps:
        started = time.perf_counter()
        for _ in range(accumulate):
            asked = time.perf_counter()
            batch = next(batches)
            meter.waited += time.perf_counter() - asked
            losses = wrapped(_to(batch, accelerator.device))
            accelerator.backward(losses["loss"] / accumulate)
            meter.add(losses, batch)
            progress.position += 1
        norm = accelerator.clip_grad_norm_(wrapped.parameters(), recipe.clip)
        rate = rates.get_last_lr()[0]
        optimizer.step()
        optimizer.zero_grad()
        rates.step()
        progress.step += 1
        progress.seconds += time.perf_counter() - started
        if progress.step % recipe.log_every == 0 and accelerator.is_main_process:
            _write_log(log, console, progress, steps, meter.read() | {"lr": rate, "grad_norm": float(norm)})
        if progress.step % recipe.save_every == 0 or progress.step == steps:
            _save_state(accelerator, state)
    return _save_checkpoint(accelerator, wrapped, processor, recipe.out / "checkpoint")


def _groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Weight decay for matrices, none for biases, norms and other vectors."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]


def _stream(
    studies: list[Study], processor: MairaProcessor, recipe: Recipe, progress: Progress,
    rank: int, world: int, kinds: list[str], grid: int,
) -> Iterator[Batch]:  # fmt: skip
    """Micro-batches of this process from where it stands, epoch after epoch."""
    while True:
        mine = plan_epoch(studies, recipe, progress.epoch)[rank::world]
        if not mine:
            raise InputError(
                f"has too few studies with an answer for one batch of {recipe.micro_batch}", file=recipe.train
            )
        samples = Samples(studies, mine[progress.position :], processor, recipe, progress.epoch, kinds, grid)
        yield from DataLoader(samples, batch_size=None, num_workers=1, prefetch_factor=4)
        progress.epoch, progress.position = progress.epoch + 1, 0


def _to(batch: Batch, device: torch.device) -> Batch:
    return Batch(**{k: None if v is None else v.to(device, non_blocking=True) for k, v in vars(batch).items()})


def _forget_after(log: Path, step: int) -> None:
    """Drop log lines of steps that were lost with an interrupted run."""
    if log.exists():
        lines = [line for line in log.read_text(encoding="utf-8").splitlines() if json.loads(line)["step"] <= step]
        log.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def _write_log(log: Path, console: Console, progress: Progress, steps: int, values: dict[str, float]) -> None:
    row = {"step": progress.step, "epoch": progress.epoch, "seconds": round(progress.seconds, 1)}
    with log.open("a", encoding="utf-8") as handle:
        handle.write(dumps(row | {k: float(f"{v:.5g}") for k, v in values.items()}) + "\n")
    left = (steps - progress.step) * progress.seconds / progress.step
    losses = "  ".join(f"{k} {values[k]:.4f}" for k in ("answer", "patches") if k in values)
    console.print(
        f"step {progress.step}/{steps}  {losses}  lr {values['lr']:.2e}  norm {values['grad_norm']:.2f}  "
        f"{values['samples_per_second']:.1f} samples/s  {values['tokens_per_second']:.0f} tokens/s  "
        f"data wait {values['data_wait']:.0%}  left {left / 60:.0f} min",
        highlight=False,
    )


def _save_state(accelerator: Accelerator, state: Path) -> None:
    """Save beside the last state and then take its place, so that a crash while saving costs nothing."""
    fresh, old = state.with_name("state.writing"), state.with_name("state.old")
    if accelerator.is_main_process:
        shutil.rmtree(fresh, ignore_errors=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(fresh))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(old, ignore_errors=True)
        if state.exists():
            state.rename(old)
        fresh.rename(state)
        shutil.rmtree(old, ignore_errors=True)


def _save_checkpoint(accelerator: Accelerator, wrapped: Any, processor: MairaProcessor, folder: Path) -> Path:
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        model = accelerator.unwrap_model(wrapped).model
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
    return folder
