"""What a run takes, before anyone books a node: parameters, memory of a GPU by part, operations, time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError

from maira.model.config import MairaConfig, read_config
from maira.model.tokens import ADDED_TOKENS
from maira.train import attention
from maira.train.components import MODULES, invalid_model_config
from maira.train.config.run_config import FromScratch, MairaLoraOptions, TrainConfig
from maira.train.cost.accelerators import ACCELERATORS, Accelerator
from maira.train.cost.flops import Flops, step_flops
from maira.train.cost.memory import Memory, ParallelSetup, RowShape, build_shapes, estimate_memory
from maira.train.cost.workload import Workload, measure_workload
from maira.train.data.batches import LENGTH_MULTIPLE
from maira.train.data.packing import pack
from maira.train.parallel import DistributedContext, sharding
from radfact.errors import InputError

GIB = 1 << 30
RESERVED = 2 * GIB
"""For CUDA, its libraries, communication, and what the allocator cannot use; a guess."""
SMALL = 1_000_000_000
"""Parameters below which the assumed share of the peak is out of reach: a guess, from the products being narrow."""
_STEPS = 20
"""Optimiser steps that are packed to see how many rows they make, and how long."""


@dataclass(frozen=True)
class Packing:
    """How a step's samples share rows: rows of each process, how full they are, and the fullest of them."""

    rows: float
    filled: float
    fullest: RowShape


@dataclass(frozen=True)
class Remedy:
    """Another way to run a recipe: the overrides that ask for it, and the bytes that it takes on a GPU."""

    overrides: str
    total: int
    fits: bool


@dataclass(frozen=True)
class Estimate:
    """What a run takes.

    Attributes:
        model: where the model's shape comes from, in words.
        accelerator, gpus, mfu: what it is to run on, and the share of its peak that is taken to go into the model.
        sharding: how the GPUs share the work.
        parameters: of each part, all and trained.
        memory: of one GPU.
        fits: whether that and `RESERVED` are less than it has.
        remedies: other ways, where it does not fit.
        packing: of its samples.
        workload: of an epoch.
        steps: of the run.
        step_samples: of one step, over all GPUs.
        flops: of one step, over all GPUs.
    """

    model: str
    accelerator: Accelerator
    gpus: int
    mfu: float
    sharding: str
    parameters: dict[str, tuple[int, int]]
    memory: Memory
    fits: bool
    remedies: list[Remedy]
    packing: Packing
    workload: Workload
    steps: int
    step_samples: int
    flops: Flops

    @property
    def step_seconds(self) -> float:
        """Time of one step."""
        return self.flops.total / (self.gpus * self.accelerator.peak * self.mfu)

    @property
    def is_small(self) -> bool:
        """Whether the model is too small to keep a GPU busy, whose share of the peak nobody can foretell."""
        return sum(every for every, _ in self.parameters.values()) < SMALL

    @property
    def hours(self) -> float:
        """Time of the run; validation, drafts and saving are not in it."""
        return self.steps * self.step_seconds / 3600

    def to_json(self) -> dict[str, Any]:
        """JSON values: bytes, seconds, operations."""
        mean_tokens = float(self.workload.tokens.mean())
        return {
            "model": self.model,
            "gpu": self.accelerator.name,
            "gpus": self.gpus,
            "mfu": self.mfu,
            "sharding": self.sharding,
            "parameters": {part: {"all": a, "trained": t} for part, (a, t) in self.parameters.items()},
            "memory": vars(self.memory) | {"total": self.memory.total},
            "gpu_memory": round(self.accelerator.memory * GIB),
            "reserved": RESERVED,
            "fits": self.fits,
            "remedies": [vars(remedy) for remedy in self.remedies],
            "rows_per_step_and_gpu": self.packing.rows,
            "row_filled": self.packing.filled,
            "workload": self.workload.basis,
            "steps": self.steps,
            "samples": self.steps * self.step_samples,
            "tokens": round(self.steps * self.step_samples * mean_tokens),
            "flops_per_step": self.flops.by_part() | {"total": self.flops.total},
            "seconds_per_step": self.step_seconds,
            "hours": self.hours,
            "gpu_hours": self.hours * self.gpus,
        }


def estimate(config: TrainConfig, gpu: str, gpus: int = 1, mfu: float = 0.45) -> Estimate:
    """What a recipe takes on some GPUs; nothing of its size is allocated and no weights are read.

    Args:
        config: to be run. A model that is not there is taken for the paper's.
        gpu: name in `ACCELERATORS`.
        gpus: processes, each with one.
        mfu: share of the peak that goes into the model's operations.

    Raises:
        InputError: the GPU is not known, the recipe does not fit itself, or its data cannot be read.
    """
    accelerator = next((one for one in ACCELERATORS if one.name == gpu), None)
    if accelerator is None:
        raise InputError(f"'{gpu}' is not known; there are {', '.join(a.name for a in ACCELERATORS)}", field="--gpu")
    model_config, model = resolve_model_config(config)
    workload = measure_workload(config, model_config)
    per_epoch = workload.answers // config.global_batch
    if not per_epoch:
        raise InputError(f"an epoch has {workload.answers} answers, too few for one batch", field="global_batch")
    steps = config.passes // config.global_batch if config.passes else max(1, round((config.epochs or 0) * per_epoch))
    memory, packing, kind = _memory(config, model_config, workload, accelerator, gpus)
    limit = accelerator.memory * GIB - RESERVED
    remedies = [] if memory.total <= limit else list(_remedies(config, model_config, workload, accelerator, gpus))
    return Estimate(
        model=model,
        accelerator=accelerator,
        gpus=gpus,
        mfu=mfu,
        sharding=kind,
        parameters=_parameters(config, model_config),
        memory=memory,
        fits=memory.total <= limit,
        remedies=remedies,
        packing=packing,
        workload=workload,
        steps=steps,
        step_samples=config.global_batch,
        flops=step_flops(model_config, config, workload.rows).scaled(config.global_batch / len(workload.rows)),
    )


def resolve_model_config(config: TrainConfig) -> tuple[MairaConfig, str]:
    """The configuration of a recipe's model, and where it comes from, in words.

    Raises:
        InputError: it is not that of a model of this kind.
    """
    if isinstance(config.model, Path):
        if not config.model.exists():
            return MairaConfig(), f"the paper's 7B model, since {config.model} is not here"
        return read_config(config.model), f"{config.model / 'model_config.json'}"
    return _fresh_config(config.model), "the recipe's fresh model"


def _fresh_config(parts: FromScratch) -> MairaConfig:
    image = parts.vocab_size + len(ADDED_TOKENS)
    try:
        return MairaConfig(
            vision_config=parts.vision_config.model_dump(exclude_unset=True),
            text_config=parts.text_config | {"vocab_size": image + 1, "pad_token_id": 0},
            image_token_index=image,
            image_merge=parts.image_merge,
            projector_n_layers=parts.projector_n_layers,
        )
    except (ValueError, StrictDataclassError) as error:
        raise invalid_model_config(error) from None


def _pack_steps(config: TrainConfig, workload: Workload, processes: int) -> Packing:
    """Pack some steps' samples as a run would.

    Raises:
        InputError: a sample is longer than a row, or a step has too few samples for that many processes.
    """
    rng, tokens = np.random.default_rng(0), workload.tokens
    counts, filled, fullest, most = [], [], RowShape((1,), 1, 1), 0
    for _ in range(_STEPS):
        drawn = rng.integers(len(tokens), size=config.global_batch)
        packed = pack(tokens[drawn].tolist(), config.token_budget, processes)
        counts.append(len(packed) / processes)
        filled.append(tokens[drawn].sum() / (len(packed) * config.token_budget))
        # The fullest comes first.
        picked = drawn[packed[0]]
        if (total := int(tokens[picked].sum())) > most:
            images, answers = (int(workload.rows[name][picked].sum()) for name in ("images", "answer"))
            most, fullest = total, RowShape(tuple(tokens[picked].tolist()), images, answers)
    return Packing(float(np.mean(counts)), float(np.mean(filled)), fullest)


def _memory(
    config: TrainConfig, model_config: MairaConfig, workload: Workload, accelerator: Accelerator, gpus: int
) -> tuple[Memory, Packing, str]:
    packing = _pack_steps(config, workload, gpus)
    kind = sharding(config, DistributedContext(0, gpus, torch.device("cuda")))
    # FlashAttention's kernel needs Ampere or later.
    is_varlen = config.attention != "samples" and config.precision == "bf16" and not accelerator.name.startswith("v100")
    kernel = attention.VARLEN if is_varlen else attention.SAMPLES
    setting = ParallelSetup(gpus, kind, kernel, holds=packing.rows > 1, memory=round(accelerator.memory * GIB))
    return estimate_memory(build_shapes(model_config, config), config, packing.fullest, setting), packing, kind


def _parameters(config: TrainConfig, model_config: MairaConfig) -> dict[str, tuple[int, int]]:
    model = build_shapes(model_config, config)
    counted = {}
    for part, name in MODULES.items():
        parameters = list(model.get_submodule(name).parameters())
        trained = sum(p.numel() for p in parameters if p.requires_grad)
        counted[str(part)] = (sum(p.numel() for p in parameters), trained)
    return counted


def _remedies(
    config: TrainConfig, model_config: MairaConfig, workload: Workload, accelerator: Accelerator, gpus: int
) -> Iterator[Remedy]:
    """Other ways to run a recipe, the less they change the earlier; shorter rows only where they are needed."""
    least = -(-int(workload.tokens.max()) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    full, short = {"activation_checkpointing": "full"}, {"token_budget": min(least, config.token_budget)}
    ways: list[dict[str, Any]] = [full]
    if gpus > 1 and config.parallel == "ddp":
        ways.append({"parallel": "fsdp"})
    if config.optimizer != "adamw_8bit":
        ways.append(full | {"optimizer": "adamw_8bit", "weights": "bfloat16"})
    if "language_model" in config.trained:
        lora = config.lora or MairaLoraOptions()
        ways += [full | {"lora": lora}, full | {"lora": lora.model_copy(update={"quantize": "nf4"})}]
    for way in ways:
        for changes in (way, way | short):
            words = _words(config, changes)
            if not words:
                continue
            try:
                memory, _, _ = _memory(config.model_copy(update=changes), model_config, workload, accelerator, gpus)
            except InputError:
                continue
            fits = memory.total <= accelerator.memory * GIB - RESERVED
            yield Remedy(words, memory.total, fits)
            if fits:
                break


def _words(config: TrainConfig, way: dict[str, Any]) -> str:
    """The overrides of the command line that ask for a way, as far as the recipe does not."""
    words = []
    for key, value in way.items():
        if value == getattr(config, key):
            continue
        if isinstance(value, MairaLoraOptions):
            words.append("lora.quantize=nf4" if value.quantize else f"lora.rank={value.rank}")
        else:
            words.append(f"{key}={value}")
    return " ".join(words)
