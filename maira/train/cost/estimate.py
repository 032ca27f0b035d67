"""Estimate the parameters, memory per GPU, operations and time of a training run before it is started."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError

from maira.model.config import MairaConfig, context_window, read_config
from maira.model.modeling import MODULES, modules_of
from maira.model.tokens import ADDED_TOKENS
from maira.runtime.processes import DistributedContext
from maira.train import attention
from maira.train.components import invalid_model_config
from maira.train.config.run_config import FromScratch, MairaLoraOptions, TrainConfig
from maira.train.cost.accelerators import ACCELERATORS, Accelerator
from maira.train.cost.flops import Flops, step_flops
from maira.train.cost.memory import Memory, ParallelSetup, RowShape, build_shapes, estimate_memory
from maira.train.cost.sampling import SamplingCost, SamplingSetup, estimate_sampling
from maira.train.cost.workload import Workload, measure_workload
from maira.train.data.batches import LENGTH_MULTIPLE
from maira.train.data.packing import pack, prompt_table
from maira.train.parallel import sharding
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_jsonl

GIB = 1 << 30
RESERVED = 2 * GIB
"""Bytes reserved for CUDA, its libraries, communication, and fragmentation; a guess."""
SMALL = 1_000_000_000
"""Number of parameters below which matrix products are too narrow to reach the usual MFU; a guess."""
MFU = 0.45
"""Default MFU, typical of large models with packed rows on recent GPUs."""
_STEPS = 20
"""Number of optimizer steps to pack when the number and length of rows are estimated."""


@dataclass(frozen=True)
class Packing:
    """How the samples of a step are packed into rows.

    Attributes:
        rows: rows per process.
        filled: filled share of the rows.
        fullest: the fullest row.
    """

    rows: float
    filled: float
    fullest: RowShape


@dataclass(frozen=True)
class MeasuredMfu:
    """MFU of a training run.

    Attributes:
        value: median over the lines of the run's metrics, as a share of the peak.
        lines: number of lines.
        file: the metrics.
    """

    value: float
    lines: int
    file: Path


@dataclass(frozen=True)
class Remedy:
    """A change of the configuration that needs less memory.

    Attributes:
        overrides: the change, as arguments of the command line.
        total: bytes on one GPU with the change.
        fits: whether these fit.
    """

    overrides: str
    total: int
    fits: bool


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of a run.

    Attributes:
        model: description of where the model's shape comes from.
        accelerator: kind of GPU.
        gpus: number of GPUs.
        mfu: model FLOPs utilization, as a share of the peak.
        is_mfu_measured: whether a run has measured it.
        assumptions: what the estimate assumes, by topic.
        sharding: how the GPUs share the work ("none", "ddp" or "fsdp").
        parameters: number of all and of trained parameters, by component.
        memory: memory of one GPU.
        sampling: cost of sampling responses on one GPU; None without `grpo`.
        fits: whether the peak memory and `RESERVED` fit on the GPU.
        remedies: changes that need less memory, if it does not fit.
        packing: how samples are packed into rows.
        workload: samples of an epoch.
        steps: number of optimizer steps.
        step_samples: samples per step, over all GPUs: responses with `grpo`, pairs with `dpo`.
        step_tokens: average tokens per step, over all GPUs.
        flops: operations per step, over all GPUs.
    """

    model: str
    accelerator: Accelerator
    gpus: int
    mfu: float
    is_mfu_measured: bool
    assumptions: dict[str, str]
    sharding: str
    parameters: dict[str, tuple[int, int]]
    memory: Memory
    sampling: SamplingCost | None
    fits: bool
    remedies: list[Remedy]
    packing: Packing
    workload: Workload
    steps: int
    step_samples: int
    step_tokens: float
    flops: Flops

    @property
    def training_seconds(self) -> float:
        """Seconds per step for the forward and backward passes over packed rows."""
        return self.flops.total / (self.gpus * self.accelerator.peak * self.mfu)

    @property
    def step_seconds(self) -> float:
        """Seconds per step."""
        return self.training_seconds + (self.sampling.seconds if self.sampling else 0.0)

    @property
    def is_small(self) -> bool:
        """Whether the model is too small to keep a GPU busy, so that its MFU cannot be predicted."""
        return sum(count for count, _ in self.parameters.values()) < SMALL

    @property
    def hours(self) -> float:
        """Hours of the run, without validation, drafts and saving."""
        return self.steps * self.step_seconds / 3600

    def to_json(self) -> dict[str, Any]:
        """Return the estimate as JSON values, in bytes, seconds and operations."""
        return {
            "model": self.model,
            "gpu": self.accelerator.name,
            "gpus": self.gpus,
            "mfu": self.mfu,
            "mfu_measured": self.is_mfu_measured,
            "assumptions": self.assumptions,
            "sharding": self.sharding,
            "parameters": {part: {"all": a, "trained": t} for part, (a, t) in self.parameters.items()},
            "memory": vars(self.memory) | {"total": self.memory.total},
            "generation": _generation_json(self.sampling, self.step_seconds) if self.sampling else None,
            "gpu_memory": round(self.accelerator.memory * GIB),
            "reserved": RESERVED,
            "fits": self.fits,
            "remedies": [vars(remedy) for remedy in self.remedies],
            "rows_per_step_and_gpu": self.packing.rows,
            "row_filled": self.packing.filled,
            "workload": self.workload.basis,
            "steps": self.steps,
            "samples": self.steps * self.step_samples,
            "tokens": round(self.steps * self.step_tokens),
            "flops_per_step": self.flops.by_part() | {"total": self.flops.total},
            "seconds_per_step": self.step_seconds,
            "hours": self.hours,
            "gpu_hours": self.hours * self.gpus,
        }


def _generation_json(sampling: SamplingCost, step_seconds: float) -> dict[str, Any]:
    return {
        "responses_per_gpu": sampling.responses,
        "batch_size": sampling.batch_size,
        "decoding_steps": sampling.decoding_steps,
        "prompt_seconds_per_step": sampling.prompt_seconds,
        "decoding_seconds_per_step": sampling.decoding_seconds,
        "share": sampling.seconds / step_seconds,
        "memory": vars(sampling.memory) | {"total": sampling.memory.total},
    }


def read_mfu(file: Path) -> MeasuredMfu:
    """Read the MFU of a training run from its `metrics.jsonl`.

    Skips the first line, which includes startup, unless it is the only one.

    Raises:
        InputError: the file cannot be read, has no MFU or one that is not between 0 and 1, or belongs to a run with
            `grpo`.
    """
    values = []
    for line, row in read_jsonl(file):
        if "mfu" not in row:
            continue
        if "generation_seconds" in row:
            raise InputError(
                "expected the metrics of a run without grpo, found one with grpo, whose MFU includes the time of "
                "generation",
                file=file,
                line=line,
                field="generation_seconds",
            )
        value = row["mfu"]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise InputError(
                f"expected a number above 0 and at most 1, found {value!r:.80}", file=file, line=line, field="mfu"
            )
        values.append(value)
    if not values:
        raise InputError(
            "expected the metrics of a run on a GPU, found no line with an mfu; runs on CPUs and on GPUs that "
            "maira estimate does not know have none",
            code=ErrorCode.MISSING_FIELD,
            file=file,
            field="mfu",
        )
    counted = values[1:] or values
    return MeasuredMfu(median(counted), len(counted), file)


def estimate(config: TrainConfig, gpu: str, gpus: int = 1, mfu: float | MeasuredMfu = MFU) -> Estimate:
    """Estimate the cost of a training configuration, without reading weights or allocating memory for them.

    Args:
        config: of the training. If its model does not exist, the model of the paper is assumed.
        gpu: name in `ACCELERATORS`.
        gpus: number of GPUs, with one process each.
        mfu: model FLOPs utilization, as a share of the GPU's peak; assumed, or measured by a run.

    Raises:
        InputError: the GPU is unknown, the configuration is inconsistent or samples with vLLM, or its data cannot be
            read.
    """
    accelerators = {accelerator.name: accelerator for accelerator in ACCELERATORS}
    if gpu not in accelerators:
        raise InputError(f"expected one of {', '.join(accelerators)}, found '{gpu}'", field="--gpu")
    accelerator = accelerators[gpu]
    if config.grpo is not None and config.grpo.engine == "vllm":
        raise InputError(
            "the memory and time of vLLM cannot be estimated; set grpo.engine=transformers",
            code=ErrorCode.INVALID_OPTION,
            field="grpo.engine",
        )
    model_config, model = resolve_model_config(config)
    workload = measure_workload(config, model_config)
    if config.grpo is not None:
        limits = prompt_table(workload.rows, config.grpo, context_window(model_config.text_config))["answer"]
        workload.rows["answer"] = np.minimum(workload.rows["answer"], limits)
    per_epoch = workload.answers // config.samples_per_draw * config.steps_per_draw
    if not per_epoch:
        raise InputError(f"expected at most the {workload.answers} answers of an epoch", field="global_batch")
    steps = (
        config.passes // config.global_batch * config.steps_per_draw
        if config.passes
        else max(1, round((config.epochs or 0) * per_epoch))
    )
    answers = config.global_batch * _answers_per_sample(config)
    mfu_value = mfu.value if isinstance(mfu, MeasuredMfu) else mfu
    run = _estimate_gpu(config, model_config, workload, accelerator, gpus, mfu_value)
    limit = accelerator.memory * GIB - RESERVED
    remedies = [] if run.peak <= limit else list(_remedies(config, model_config, workload, accelerator, gpus))
    return Estimate(
        model=model,
        accelerator=accelerator,
        gpus=gpus,
        mfu=mfu_value,
        is_mfu_measured=isinstance(mfu, MeasuredMfu),
        assumptions=_assumptions(config, accelerator, gpus, workload, mfu),
        sharding=run.sharding,
        parameters=_parameters(config, model_config),
        memory=run.memory,
        sampling=run.sampling,
        fits=run.peak <= limit,
        remedies=remedies,
        packing=run.packing,
        workload=workload,
        steps=steps,
        step_samples=config.global_batch,
        step_tokens=answers * float(workload.tokens.mean()),
        flops=step_flops(model_config, config, workload.rows).scaled(answers / len(workload.rows)),
    )


def _assumptions(
    config: TrainConfig, accelerator: Accelerator, gpus: int, workload: Workload, mfu: float | MeasuredMfu
) -> dict[str, str]:
    if isinstance(mfu, MeasuredMfu):
        lines = "1 line" if mfu.lines == 1 else f"the median of {mfu.lines:,} lines"
        utilization = (
            f"{mfu.value:.1%}, measured: {lines} of {mfu.file}; used even if that run had another GPU or run config"
        )
    else:
        utilization = f"{mfu:.1%}, assumed and not measured"
    kernel = _kernel(config, accelerator).removeprefix("maira_")
    compiled = "; torch.compile needs less, by an unknown amount" if config.compile else ""
    assumptions = {
        "MFU": utilization + ("; it includes communication between GPUs" if gpus > 1 else ""),
        "peak rate": f"{accelerator.peak / 1e12:g} TFLOP/s per GPU, the data sheet's dense bfloat16",
        "operations": "matrix products of the model, without recomputation "
        f"(activation_checkpointing={config.activation_checkpointing})",
        "memory": f"tensors of the fullest of the packed rows of {_STEPS} steps, with the attention kernel {kernel}"
        f"{compiled}; {RESERVED / GIB:g} GiB more are reserved for CUDA and fragmentation",
        "time": "steps only, without start, validation, drafts, saving and waiting for data",
        "samples": workload.basis,
    }
    if config.dpo is not None:
        assumptions["reference model"] = (
            "the time does not include computing its log-probabilities before the first step"
        )
    if config.grpo is None:
        return assumptions
    return assumptions | {
        "training": "on all responses; groups whose rewards are all equal take no time in a run",
        "responses": "as long as the report of their study; memory is that of responses at the token limit",
        "generation": "a lower bound: prefill at the MFU, padded to the longest prompt of a batch; each decoding step "
        "reads the weights once and moves keys and values three times (the dynamic cache copies them) at the data "
        f"sheet's {accelerator.bandwidth / 1e12:g} TB/s per GPU, or computes at the MFU if that takes longer; excludes "
        "kernel launches, the grammar, gathering weights and the reward",
    }


def resolve_model_config(config: TrainConfig) -> tuple[MairaConfig, str]:
    """Return the model configuration of a training configuration, and a description of where it comes from.

    Raises:
        InputError: the model configuration is invalid.
    """
    if isinstance(config.model, Path):
        if not config.model.exists():
            return MairaConfig(), f"the paper's 7B model, since {config.model} does not exist"
        return read_config(config.model), f"{config.model / 'model_config.json'}"
    return _fresh_config(config.model), "a new model, as configured"


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


def _answers_per_sample(config: TrainConfig) -> int:
    """Return the number of answers per sample, each with its prompt: two with `dpo`."""
    return 1 if config.dpo is None else 2


def _pack_steps(config: TrainConfig, workload: Workload, processes: int) -> Packing:
    """Pack the samples of some steps as a run would.

    Raises:
        InputError: a sample is longer than a row, or a step has too few samples for the number of processes.
    """
    rng, answers = np.random.default_rng(0), _answers_per_sample(config)
    tokens = answers * workload.tokens
    counts, filled, fullest, max_tokens = [], [], RowShape((1,), 1, 1), 0
    for _ in range(_STEPS):
        drawn = rng.integers(len(tokens), size=config.samples_per_draw)
        drawn = np.repeat(drawn, config.global_batch // len(drawn))
        packed = pack(tokens[drawn].tolist(), config.token_budget, processes)
        counts.append(len(packed) / processes)
        filled.append(tokens[drawn].sum() / (len(packed) * config.token_budget))
        # `pack` returns the fullest row first.
        picked = drawn[packed[0]]
        if (total := int(tokens[picked].sum())) > max_tokens:
            samples = np.repeat(picked, answers)
            sums = (int(workload.rows[name][samples].sum()) for name in ("images", "answer"))
            max_tokens, fullest = total, RowShape(tuple(workload.tokens[samples].tolist()), *sums)
    return Packing(float(np.mean(counts)), float(np.mean(filled)), fullest)


@dataclass(frozen=True)
class _GpuEstimate:
    """Memory and work of one GPU."""

    memory: Memory
    sampling: SamplingCost | None
    packing: Packing
    sharding: str

    @property
    def peak(self) -> int:
        """Peak memory of training and sampling, in bytes."""
        return max(self.memory.total, self.sampling.memory.total if self.sampling else 0)


def _estimate_gpu(
    config: TrainConfig,
    model_config: MairaConfig,
    workload: Workload,
    accelerator: Accelerator,
    gpus: int,
    mfu: float = MFU,
) -> _GpuEstimate:
    packing = _pack_steps(config, workload, gpus)
    if config.grpo is not None:
        limits = prompt_table(workload.rows, config.grpo, context_window(model_config.text_config))
        packing = replace(packing, fullest=_pack_steps(config, replace(workload, rows=limits), gpus).fullest)
    kind = sharding(config, DistributedContext(0, gpus, torch.device("cuda")))
    kernel = _kernel(config, accelerator)
    available = round(accelerator.memory * GIB)
    setting = ParallelSetup(gpus, kind, kernel, accumulates=packing.rows > 1, memory=available)
    model, sampling = build_shapes(model_config, config), None
    memory = estimate_memory(model, config, packing.fullest, setting)
    if config.grpo is not None:
        rates = mfu * accelerator.peak, accelerator.bandwidth
        setup = SamplingSetup(gpus, kind, available - RESERVED, *rates)
        sampling = estimate_sampling(model, config, workload.rows, memory, setup)
    return _GpuEstimate(memory, sampling, packing, kind)


def _kernel(config: TrainConfig, accelerator: Accelerator) -> str:
    """Return the attention kernel that a run selects; that of FlashAttention needs Ampere or later."""
    is_varlen = config.attention != "samples" and config.precision == "bf16" and not accelerator.name.startswith("v100")
    return attention.VARLEN if is_varlen else attention.SAMPLES


def _parameters(config: TrainConfig, model_config: MairaConfig) -> dict[str, tuple[int, int]]:
    model = build_shapes(model_config, config)
    counts = {}
    for part in MODULES:
        parameters = [p for module in modules_of(model, part) for p in module.parameters()]
        trained = sum(p.numel() for p in parameters if p.requires_grad)
        counts[str(part)] = (sum(p.numel() for p in parameters), trained)
    return counts


def _remedies(
    config: TrainConfig, model_config: MairaConfig, workload: Workload, accelerator: Accelerator, gpus: int
) -> Iterator[Remedy]:
    """Yield changes that need less memory, the smallest first; with shorter rows only if a change does not suffice."""
    shortest = -(-int(workload.tokens.max()) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    full, short = {"activation_checkpointing": "full"}, {"token_budget": min(shortest, config.token_budget)}
    options: list[dict[str, Any]] = [full]
    if gpus > 1 and config.parallel == "ddp":
        options.append({"parallel": "fsdp"})
    if config.optimizer != "adamw_8bit":
        options.append(full | {"optimizer": "adamw_8bit", "weights": "bfloat16"})
    if "language_model" in config.trained:
        lora = config.lora or MairaLoraOptions()
        options += [full | {"lora": lora}, full | {"lora": lora.model_copy(update={"quantize": "nf4"})}]
    for option in options:
        for changes in (option, option | short):
            overrides = _format_overrides(config, changes)
            if not overrides:
                continue
            try:
                peak = _estimate_gpu(config.model_copy(update=changes), model_config, workload, accelerator, gpus).peak
            except InputError:
                continue
            fits = peak <= accelerator.memory * GIB - RESERVED
            yield Remedy(overrides, peak, fits)
            if fits:
                break


def _format_overrides(config: TrainConfig, changes: dict[str, Any]) -> str:
    """Format changes as overrides of the command line, without those that the configuration already has."""
    overrides = []
    for key, value in changes.items():
        if value == getattr(config, key):
            continue
        if isinstance(value, MairaLoraOptions):
            overrides.append("lora.quantize=nf4" if value.quantize else f"lora.rank={value.rank}")
        else:
            overrides.append(f"{key}={value}")
    return " ".join(overrides)
