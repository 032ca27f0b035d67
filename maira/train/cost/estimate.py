"""Estimate the parameters, memory per GPU, operations and time of a training run before it is started."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn

from maira.generate.transformers_engine import batch_bytes, largest_batch_size
from maira.model.config import MairaConfig, context_window, read_config
from maira.model.modeling import MODULES, MairaForConditionalGeneration, modules_of
from maira.model.tokens import ADDED_TOKENS
from maira.runtime.processes import DistributedContext
from maira.train import attention
from maira.train.components import invalid_model_config
from maira.train.config.run_config import GrpoConfig, TrainConfig
from maira.train.cost.accelerators import ACCELERATORS, Accelerator
from maira.train.cost.flops import make_rates
from maira.train.cost.memory import NF4, build_shapes, estimate_memory, is_quantized
from maira.train.cost.workload import measure_workload
from maira.train.data.packing import pack, prompt_table
from maira.train.parallel import sharding
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_jsonl

GIB = 1 << 30
RESERVED = 2 * GIB
"""Bytes reserved for CUDA, its libraries, communication, and fragmentation; a guess."""
MFU = 0.45
"""Default MFU, typical of large models with packed rows on recent GPUs."""
_DRAWS = 20
"""Number of optimizer steps to pack, and of batches of prompts to sample."""


def read_mfu(file: Path) -> tuple[float, str]:
    """Read the median MFU of a training run from its `metrics.jsonl`, without the first line, which includes startup.

    Returns: the MFU, and where it comes from.

    Raises:
        InputError: the file cannot be read, has no valid MFU, or belongs to a run with `grpo`.
    """
    values = []
    for line, row in read_jsonl(file):
        value = row.get("mfu", 1.0)
        if "mfu" in row and "generation_seconds" in row:
            message = "expected a run without grpo, found one with grpo, whose MFU includes the time of generation"
            raise InputError(message, file=file, line=line, field="generation_seconds")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            message = f"expected a number above 0 and at most 1, found {value!r:.80}"
            raise InputError(message, file=file, line=line, field="mfu")
        values += [value] if "mfu" in row else []
    if not values:
        message = "expected the metrics of a run on a GPU that maira estimate knows, found no line with an mfu"
        raise InputError(message, code=ErrorCode.MISSING_FIELD, file=file, field="mfu")
    counted = values[1:] or values
    lines = "1 line" if len(counted) == 1 else f"the median of {len(counted):,} lines"
    return median(counted), f"measured: {lines} of {file}; used even if that run had another GPU or run config"


def estimate(config: TrainConfig, gpu: str, gpus: int = 1, mfu: float | tuple[float, str] = MFU) -> dict[str, Any]:
    """Estimate the cost of a training configuration, without reading weights or allocating memory for them.

    Args:
        config: of the training. If its model does not exist, the model of the paper is assumed.
        gpu: name in `ACCELERATORS`.
        gpus: number of GPUs, with one process each.
        mfu: model FLOPs utilization, as a share of the GPU's peak; assumed, or measured (`read_mfu`).

    Returns: bytes, seconds and operations, as JSON values.

    Raises:
        InputError: the GPU is unknown, the configuration is inconsistent or samples with vLLM, or its data cannot be
            read.
    """
    accelerators = {accelerator.name: accelerator for accelerator in ACCELERATORS}
    if gpu not in accelerators:
        raise InputError(f"expected one of {', '.join(accelerators)}, found '{gpu}'", field="--gpu")
    if config.grpo is not None and config.grpo.engine == "vllm":
        message = "the memory and time of vLLM cannot be estimated; set grpo.engine=transformers"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="grpo.engine")
    accelerator = accelerators[gpu]
    available = accelerator.memory * GIB
    model_config, model_name = resolve_model_config(config)
    workload = measure_workload(config, model_config)
    limited = workload.rows
    if config.grpo is not None:
        limited = prompt_table(workload.rows, config.grpo, context_window(model_config.text_config))
        workload.rows["answer"] = np.minimum(workload.rows["answer"], limited["answer"])
    per_epoch = workload.answers // config.samples_per_draw * config.steps_per_draw
    if not per_epoch:
        raise InputError(f"expected at most the {workload.answers} answers of an epoch", field="global_batch")
    steps = (
        config.passes // config.global_batch * config.steps_per_draw
        if config.passes
        else max(1, round((config.epochs or 0) * per_epoch))
    )
    answers_per_sample = 1 if config.dpo is None else 2
    answers = config.global_batch * answers_per_sample
    tokens = workload.tokens
    images = int(workload.rows["images"].sum())
    flops = make_rates(model_config, config).of(tokens, images, int(workload.rows["answer"].sum()))
    flops = {part: count * answers / len(tokens) for part, count in flops.items()}
    rows, filled, _ = _pack_steps(config, workload.rows, gpus, answers_per_sample)
    fullest = _pack_steps(config, limited, gpus, answers_per_sample)[2]
    kind = sharding(config, DistributedContext(0, gpus, torch.device("cuda")))
    # FlashAttention needs Ampere or later.
    is_varlen = config.attention != "samples" and config.precision == "bf16" and not gpu.startswith("v100")
    kernel = attention.VARLEN if is_varlen else attention.SAMPLES
    model = build_shapes(model_config, config)
    parallel: dict[str, Any] = {
        "processes": gpus,
        "sharding": kind,
        "kernel": kernel,
        "accumulates": rows > 1,
        "memory": available,
    }
    memory = estimate_memory(model, config, *fullest, **parallel)
    utilization, source = mfu if isinstance(mfu, tuple) else (mfu, "assumed and not measured")
    training = sum(flops.values()) / (gpus * accelerator.peak * utilization)
    seconds, generation = training, None
    if config.grpo is not None:
        sampler = _Sampler(model, config, memory, kind, accelerator, utilization)
        generation = sampler.estimate(workload.rows, limited["answer"], gpus)
        seconds += generation["seconds"]
        generation["share"] = generation.pop("seconds") / seconds
    peak = max(sum(memory.values()), generation["memory"]["total"] if generation else 0)
    parameters = {}
    for part in MODULES:
        counts = [(p.numel(), p.requires_grad) for module in modules_of(model, part) for p in module.parameters()]
        parameters[str(part)] = {"all": sum(n for n, _ in counts), "trained": sum(n for n, trains in counts if trains)}
    assumptions = {
        "MFU": f"{utilization:.1%}, {source}" + ("; it includes communication between GPUs" if gpus > 1 else ""),
        "peak rate": f"{accelerator.peak / 1e12:g} TFLOP/s per GPU, the data sheet's dense bfloat16",
        "operations": "matrix products of the model, without recomputation "
        f"(activation_checkpointing={config.activation_checkpointing})",
        "memory": f"by formula for the fullest of the packed rows of {_DRAWS} steps, with the attention kernel "
        f"{kernel.removeprefix('maira_')}{'; torch.compile needs less' if config.compile else ''}; "
        f"{RESERVED / GIB:g} GiB more are reserved for CUDA and fragmentation",
        "time": "steps only, without start, validation, drafts, saving and waiting for data",
        "samples": workload.basis,
    }
    if config.dpo is not None:
        assumptions["reference model"] = "the time does not include its log-probabilities before the first step"
    if config.grpo is not None:
        assumptions["training"] = "on all responses; groups whose rewards are all equal take no time in a run"
        assumptions["responses"] = "as long as the report of their study; memory is that of responses at the limit"
        assumptions["generation"] = (
            "a lower bound: prefill at the MFU, padded to the longest prompt of a batch; each decoding step reads the "
            "weights once and moves keys and values three times (the dynamic cache copies them) at the data sheet's "
            f"{accelerator.bandwidth / 1e12:g} TB/s per GPU, or computes at the MFU if that takes longer; excludes "
            "kernel launches, the grammar, gathering weights and the reward"
        )
    hours = steps * seconds / 3600
    return {
        "model": model_name,
        "gpu": accelerator.name,
        "gpus": gpus,
        "mfu": utilization,
        "mfu_measured": isinstance(mfu, tuple),
        "assumptions": assumptions,
        "sharding": kind,
        "parameters": parameters,
        "memory": memory | {"total": sum(memory.values())},
        "generation": generation,
        "gpu_memory": round(available),
        "reserved": RESERVED,
        "fits": peak <= available - RESERVED,
        "rows_per_step_and_gpu": rows,
        "row_filled": filled,
        "workload": workload.basis,
        "steps": steps,
        "samples": steps * config.global_batch,
        "tokens": round(steps * answers * float(tokens.mean())),
        "flops_per_step": flops | {"total": sum(flops.values())},
        "seconds_per_step": seconds,
        "hours": hours,
        "gpu_hours": hours * gpus,
    }


def resolve_model_config(config: TrainConfig) -> tuple[MairaConfig, str]:
    """Return the model configuration of a training configuration, and a description of where it comes from.

    Raises:
        InputError: the model configuration is invalid.
    """
    parts = config.model
    if isinstance(parts, Path):
        if not parts.exists():
            return MairaConfig(), f"the paper's 7B model, since {parts} does not exist"
        return read_config(parts), str(parts / "config.json")
    image = parts.vocab_size + len(ADDED_TOKENS)
    try:
        made = MairaConfig(
            vision_config=parts.vision_config.model_dump(exclude_unset=True),
            text_config=parts.text_config | {"vocab_size": image + 1, "pad_token_id": 0},
            image_token_index=image,
            image_merge=parts.image_merge,
            projector_n_layers=parts.projector_n_layers,
        )
    except (ValueError, StrictDataclassError) as error:
        raise invalid_model_config(error) from None
    return made, "a new model, as configured"


def _pack_steps(
    config: TrainConfig, lengths: npt.NDArray[Any], processes: int, answers: int
) -> tuple[float, float, tuple[list[int], int, int]]:
    """Pack the samples of some steps as a run would.

    Returns: rows per process, the filled share of the rows, and the fullest row: tokens of its samples, its images and
    answer tokens.

    Raises:
        InputError: a sample is longer than a row, or a step has too few samples for the number of processes.
    """
    rng, tokens = np.random.default_rng(0), lengths["prompt"].astype(np.int64) + lengths["answer"]
    counts, filled, fullest = [], [], np.array([], np.int64)
    for _ in range(_DRAWS):
        drawn = rng.integers(len(tokens), size=config.samples_per_draw)
        drawn = np.repeat(drawn, config.global_batch // len(drawn))
        packed = pack((answers * tokens[drawn]).tolist(), config.token_budget, processes)
        counts.append(len(packed) / processes)
        filled.append(answers * tokens[drawn].sum() / (len(packed) * config.token_budget))
        # `pack` returns the fullest row first.
        fullest = max(fullest, drawn[packed[0]], key=lambda row: tokens[row].sum())
    samples = np.repeat(fullest, answers)
    images, answer_tokens = (int(lengths[name][samples].sum()) for name in ("images", "answer"))
    return float(np.mean(counts)), float(np.mean(filled)), (tokens[samples].tolist(), images, answer_tokens)


class _Sampler:
    """Time and memory of sampling the responses of a step on one GPU, batched as `TransformersEngine` does.

    The longest prompts come first, as many as fit into the memory that training leaves. Prefill is compute-bound; a
    decoding step takes the time of its operations or of its memory traffic (weights, keys and values).
    """

    def __init__(
        self,
        model: MairaForConditionalGeneration,
        config: TrainConfig,
        training: dict[str, int],
        kind: str,
        accelerator: Accelerator,
        mfu: float,
    ) -> None:
        self._samples, self._grpo, self._text = (
            config.samples_per_draw,
            config.grpo or GrpoConfig(),
            model.config.text_config,
        )
        self._size, self._free = 2 if config.precision == "bf16" else 4, accelerator.memory * GIB - RESERVED
        self._operations, self._bandwidth = mfu * accelerator.peak, accelerator.bandwidth
        self._rates = make_rates(model.config, config.model_copy(update={"trained": (), "lora": None}))
        layers = [(name, m.weight) for name, m in model.named_modules() if isinstance(m, nn.Linear)]
        layers = [(name, weight) for name, weight in layers if "language_model" in name or "lm_head" in name]
        quantized = [weight for name, weight in layers if is_quantized(name, weight, config)]
        self._quantized = sum(weight.numel() for weight in quantized)
        self._weights = self._size * (sum(weight.numel() for _, weight in layers) - self._quantized)
        self._token = self._rates.token + 2 * sum(weight.numel() for name, weight in layers if ".lora_" in name)
        head = self._text.head_dim or self._text.hidden_size // self._text.num_attention_heads
        self._cache = 2 * self._text.num_hidden_layers * self._text.num_key_value_heads * head * self._size
        trained = [p for p in model.parameters() if p.requires_grad]
        is_sharded = kind == "fsdp"
        copied = sum(p.numel() for p in trained if p.itemsize > self._size)
        self._states = {
            "weights": training["weights"],
            "gradients": sum(p.nbytes for p in trained) if kind == "ddp" else 0,
            "states": training["states"],
            "gathered": self._size * sum(p.numel() for p in model.parameters()) if is_sharded else 0,
            "copies": 0 if is_sharded else self._size * copied,
        }
        # The engine plans with the type of the model's first weight.
        self._planned_size = self._size if is_sharded else model.dtype.itemsize

    def estimate(self, lengths: npt.NDArray[Any], limits: npt.NDArray[Any], gpus: int) -> dict[str, Any]:
        """Return the cost of a step on the slowest GPU; responses are as long as the report of their study."""
        rng, copies, draw = np.random.default_rng(0), self._grpo.num_generations, self._samples
        times, sizes, decoded, peaks = [], [], [], []
        for _ in range(_DRAWS):
            prompts = rng.integers(len(lengths), size=draw)
            own_times = []
            for rank in range(min(gpus, draw)):
                own = prompts[rank::gpus]
                images = int(lengths["images"][own].sum())
                prompt = (images * (self._rates.encoder + copies * self._rates.adapter)) / self._operations
                decoding, order = 0.0, np.repeat(own[np.argsort(-lengths["prompt"][own], kind="stable")], copies)
                while len(order):
                    longest = int(lengths["prompt"][order[0]])
                    limit = int(limits[order].max())
                    rows, order = np.split(order, [self._batch_size(longest + limit)])
                    tokens = int(lengths["answer"][rows].max())
                    pairs = longest * (longest + 1) / 2 * self._rates.pair
                    prompt += len(rows) * (longest * self._token + pairs) / self._operations
                    decoding += self._decoding_seconds(len(rows), longest, tokens)
                    sizes.append(len(rows))
                    decoded.append(tokens)
                    peaks.append(self._memory(len(rows), longest + limit))
                own_times.append((prompt, decoding))
            times.append(max(own_times, key=sum))
        prompt, decoding = np.mean(times, axis=0) / self._grpo.num_iterations
        memory = max(peaks, key=lambda peak: sum(peak.values()))
        return {
            "responses_per_gpu": -(-draw // gpus) * copies,
            "batch_size": max(sizes),
            "decoding_steps": float(np.mean(decoded)),
            "prompt_seconds_per_step": float(prompt),
            "decoding_seconds_per_step": float(decoding),
            "seconds": float(prompt + decoding),
            "memory": memory | {"total": sum(memory.values())},
        }

    def _decoding_seconds(self, rows: int, longest: int, tokens: int) -> float:
        context = longest + np.arange(tokens)
        needed = rows * (self._token + self._rates.answer + context * self._rates.pair)
        # Dequantized weights are written in 16 bits and read again; bitsandbytes multiplies up to 4 rows directly.
        weights = self._weights + self._quantized * (NF4 + (4 if rows > 4 else 0))
        # The dynamic cache is read and copied.
        moved = weights + 3 * rows * context * self._cache
        return float(np.maximum(needed / self._operations, moved / self._bandwidth).sum())

    def _batch_size(self, longest: int) -> int:
        # Autocast has not copied the weights yet.
        free = self._free - (sum(self._states.values()) - self._states["copies"])
        rows = largest_batch_size(round(free), longest, self._text, self._planned_size)
        while rows > 1 and sum(self._memory(rows, longest).values()) > self._free:
            rows //= 2
        return rows

    def _memory(self, rows: int, longest: int) -> dict[str, int]:
        row, chunk = batch_bytes(longest, self._text, self._size)
        cache = rows * longest * self._cache
        return self._states | {"cache": cache, "temporary": rows * row + chunk - cache}
