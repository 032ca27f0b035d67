"""Estimate the parameters, memory per GPU, operations and time of a training run before it is started."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from maira.generate.transformers_engine import batch_bytes, largest_batch_size
from maira.model.config import MairaConfig, context_window, read_config
from maira.model.modeling import MODULES, MairaForConditionalGeneration, modules_of
from maira.model.prompts import NEW_TOKENS, render
from maira.model.task_examples import drop_inputs
from maira.model.tokens import ADDED_TOKENS, IMAGE
from maira.runtime.processes import DistributedContext
from maira.train import attention
from maira.train.components import make_model_config
from maira.train.config.run_config import DataSource, GrpoConfig, TrainConfig
from maira.train.cost.flops import ACCELERATORS, TABLES, Accelerator, make_generation, make_rates
from maira.train.cost.memory import NF4, build_shapes, estimate_memory, is_quantized
from maira.train.data.dataset import answers, study_example
from maira.train.data.packing import pack
from maira.train.data.sources import open_source
from maira.train.parallel import sharding
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_jsonl

GIB = 1 << 30
RESERVED = 2 * GIB
"""Bytes reserved for CUDA, its libraries, communication, and fragmentation; a guess."""
_PROMPT_TOKENS, _ANSWER_TOKENS = 196, 140
"""Text tokens of an average sample of the paper."""
_STUDIES_READ, _ROWS, _DRAWS = 400, 2000, 20
"""Approximate number of studies of a source whose texts are read, samples that represent an epoch, drawn steps."""

Numbers = npt.NDArray[np.int64]


class Workload(NamedTuple):
    """Number of samples (with `dpo`, pairs) of an epoch, lengths of samples that represent it, and their source."""

    samples: int
    images: Numbers  # (rows,), as the others
    prompt: Numbers  # tokens, with those of images
    answer: Numbers  # tokens
    limit: Numbers  # tokens that the answer may have
    basis: str

    @property
    def tokens(self) -> Numbers:
        """(rows,), tokens of prompt and answer."""
        return self.prompt + self.answer

    def steps(self, count: int) -> Numbers:
        """Draw the rows of `_DRAWS` steps of `count` samples, (steps, samples)."""
        return np.random.default_rng(0).integers(_ROWS, size=(_DRAWS, count))


def measure_workload(config: TrainConfig, model_config: MairaConfig) -> Workload:
    """Measure the data of a configuration; data sets of table 1, by their folders, or all replace absent sources."""
    rows: list[tuple[float, ...]] = []
    basis: list[str] = []
    sources = [(str(source.manifest or source.shards), source) for source in config.train]
    folders = TABLES["folders"]
    # The innermost known folder of an absent path names its data set.
    absent = {
        path: next((folders[part] for part in reversed(path.lower().split("/")) if part in folders), None)
        for path, source in sources
        if _is_absent(path, source)
    }
    if unknown := [path for path, name in absent.items() if name is None]:
        rows = [row for name in TABLES["table 1"] for row in _published(name, config.tasks, config, model_config)]
        basis = [f"the paper's whole mix (table 1), its private data included, since {unknown[0]} cannot be opened"]
    else:
        count_tokens, method = _token_counter(config)
        for path, source in sources:
            if name := absent.get(path):
                rows += _published(name, config.shares(source), config, model_config)
                basis.append(f"{name} of the paper's table 1 for {path}, which cannot be opened")
            else:
                rows += _read_lengths(source, config, model_config, count_tokens)
                basis.append(f"{path}, {method}")
    if not rows:
        raise InputError("expected answers for the configured tasks, found none in the studies", field="train")
    weight, *columns = np.array(rows).T
    # The rows at equal steps of the cumulated weights represent an epoch.
    drawn = np.searchsorted(weight.cumsum() / weight.sum(), (np.arange(_ROWS) + 0.5) / _ROWS)
    images, prompt, answer, limit = (column[drawn].astype(np.int64) for column in columns)
    if config.dpo is not None:
        basis.append("one preference pair per study, with two reports as long as its own")
    tokens = f"{(prompt + answer).mean():,.0f} tokens on average, {answer.mean():,.0f} of them the answer's"
    basis.append(f"an epoch of {round(weight.sum()):,} samples of {images.mean():.2f} images and {tokens}")
    return Workload(round(weight.sum()), images, prompt, answer, limit, "; ".join(basis))


def _is_absent(path: str, source: DataSource) -> bool:
    if "://" not in path:
        return not Path(path, *([] if source.manifest else ["index.json"])).is_file()
    try:
        open_source(source)
    except InputError:
        return True
    return False


def _published(
    name: str, shares: dict[Any, float], config: TrainConfig, model_config: MairaConfig
) -> Iterator[tuple[float, ...]]:
    """Yield the samples of a data set of table 1 as rows: weight, images, tokens of prompt and answer, limit."""
    task, samples, lateral, prior = TABLES["table 1"][name]
    lateral, prior = lateral * ("lateral" not in config.drop), prior * ("prior" not in config.drop)
    both = lateral * prior
    for images, share in ((1, 1 - lateral - prior + both), (2, lateral + prior - 2 * both), (3, both)):
        if weight := samples * shares.get(task, 0.0) * share:
            prompt = images * model_config.image_seq_length + _PROMPT_TOKENS
            yield weight, images, prompt, _ANSWER_TOKENS, _limit(task, config, model_config, prompt)


def _limit(task: Any, config: TrainConfig, model_config: MairaConfig, prompt: int) -> int:
    """Return the most tokens of a sampled response."""
    limit = (config.grpo and config.grpo.max_new_tokens) or NEW_TOKENS[task]
    return max(1, min(limit, context_window(model_config.text_config) - prompt))


def _read_lengths(
    source: DataSource, config: TrainConfig, model_config: MairaConfig, count_tokens: Callable[[str], int]
) -> list[tuple[float, ...]]:
    """Return rows as those of `_published` for some studies of a source."""
    studies, shares = open_source(source), config.shares(source)
    numbers = range(0, studies.count, max(1, studies.count // _STUDIES_READ))
    rows: list[tuple[float, ...]] = []
    errors: list[InputError] = []
    scanned = (entry for number in numbers for entry in studies.scan(number, number + 1, source.split, errors))
    for _, study, size in scanned:
        known = drop_inputs(study, config.drop)
        for task, phrase in answers(known, shares):
            example = study_example(known, task, phrase, config, size)
            images = len(example.images)
            prompt = images * model_config.image_seq_length + count_tokens(render(example.messages).replace(IMAGE, ""))
            weight = shares[task] * studies.count / len(numbers)
            limit = _limit(task, config, model_config, prompt)
            rows.append((weight, images, prompt, count_tokens(example.target or "") + 1, limit))
    if errors:
        raise errors[0]
    if config.dpo is not None and source.preferences is not None and source.preferences.is_file():
        pairs, total = sum(1 for _ in read_jsonl(source.preferences)), sum(row[0] for row in rows)
        rows = [(weight * pairs / total, *lengths) for weight, *lengths in rows]
    return rows


def _token_counter(config: TrainConfig) -> tuple[Callable[[str], int], str]:
    """Return a function that counts the tokens of a text, and its description."""
    if not isinstance(config.model, Path) or not (config.model / "config.json").is_file():
        return lambda text: ceil(len(text) / 4), "4 characters assumed per token"
    from maira.model.processor import MairaProcessor

    tokenizer = MairaProcessor.from_pretrained(config.model).tokenizer
    return lambda text: len(tokenizer(text)["input_ids"]), "tokenized"


def estimate(config: TrainConfig, gpu: str, gpus: int = 1, mfu: float = 0.45) -> dict[str, Any]:
    """Estimate bytes, seconds and operations of a run as JSON values, without reading or allocating weights."""
    accelerator = ACCELERATORS.get(gpu)
    if accelerator is None:
        raise InputError(f"expected one of {', '.join(ACCELERATORS)}, found '{gpu}'", field="--gpu")
    if config.grpo is not None and config.grpo.engine == "vllm":
        message = "the memory and time of vLLM cannot be estimated; set grpo.engine=transformers"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="grpo.engine")
    model_config, model_name = resolve_model_config(config)
    workload = measure_workload(config, model_config)
    if config.grpo is not None:
        workload = workload._replace(answer=np.minimum(workload.answer, workload.limit))
    _, steps = config.plan_steps(workload.samples)
    answers = config.global_batch * (1 if config.dpo is None else 2)
    rates = make_rates(model_config, config.trains, config.lora)
    totals = rates.of(workload.tokens, int(workload.images.sum()), int(workload.answer.sum()))
    flops = {part: count * answers / _ROWS for part, count in totals.items()}
    model = build_shapes(model_config, config)
    kind = sharding(config, DistributedContext(0, gpus, torch.device("cuda")))
    # FlashAttention needs Ampere or later.
    is_varlen = config.attention != "samples" and config.precision == "bf16" and not gpu.startswith("v100")
    kernel = attention.VARLEN if is_varlen else attention.SAMPLES
    rows, filled, fullest = _pack_steps(config, workload, gpus)
    placement: dict[str, Any] = {"processes": gpus, "sharding": kind, "memory": accelerator.memory * GIB}
    memory = estimate_memory(model, config, *fullest, kernel=kernel, accumulates=rows > 1, **placement)
    training, generation = sum(flops.values()) / (gpus * accelerator.peak * mfu), None
    seconds = training
    if config.grpo is not None:
        generation = _estimate_sampling(model, config, workload, memory, kind, accelerator, gpus, mfu)
        seconds += generation["prompt_seconds_per_step"] + generation["decoding_seconds_per_step"]
        generation["share"] = 1 - training / seconds
    peak = max(sum(memory.values()), generation["memory"]["total"] if generation else 0)
    parameters = {}
    for part in MODULES:
        counts = [(p.numel(), p.requires_grad) for module in modules_of(model, part) for p in module.parameters()]
        parameters[str(part)] = {"all": sum(n for n, _ in counts), "trained": sum(n for n, trains in counts if trains)}
    facts = {
        "mfu": mfu,
        "communication": "; with communication between GPUs" if gpus > 1 else "",
        "peak": accelerator.peak / 1e12,
        "bandwidth": accelerator.bandwidth / 1e12,
        "draws": _DRAWS,
        "kernel": kernel.removeprefix("maira_"),
        "basis": workload.basis,
    }
    topics = [topic for topic in TABLES["assumptions"] if generation or topic != "generation"]
    assumptions = {topic: TABLES["assumptions"][topic].format(**facts) for topic in topics}
    hours = steps * seconds / 3600
    return {
        "model": model_name,
        "gpu": gpu,
        "gpus": gpus,
        "mfu": mfu,
        "sharding": kind,
        "assumptions": assumptions,
        "parameters": parameters,
        "memory": memory | {"total": sum(memory.values())},
        "generation": generation,
        "gpu_memory": round(accelerator.memory * GIB),
        "reserved": RESERVED,
        "fits": peak <= accelerator.memory * GIB - RESERVED,
        "rows_per_step_and_gpu": rows,
        "row_filled": filled,
        "steps": steps,
        "samples": steps * config.global_batch,
        "tokens": round(steps * answers * float(workload.tokens.mean())),
        "tokens_per_second": answers * float(workload.tokens.mean()) / seconds,
        "reports": _estimate_reports(model_config, workload, accelerator, mfu),
        "flops_per_step": flops | {"total": sum(flops.values())},
        "seconds_per_step": seconds,
        "hours": hours,
        "gpu_hours": hours * gpus,
    }


def resolve_model_config(config: TrainConfig) -> tuple[MairaConfig, str]:
    """Return the model configuration of a training configuration, and a description of where it comes from."""
    parts = config.model
    if isinstance(parts, Path):
        if not parts.exists():
            return MairaConfig(), f"the paper's 7B model, since {parts} does not exist"
        return read_config(parts), str(parts / "config.json")
    image = parts.vocab_size + len(ADDED_TOKENS)
    own = parts.text_config | {"vocab_size": image + 1, "pad_token_id": 0}
    return make_model_config(parts, own, image), "a new model, as configured"


def _pack_steps(config: TrainConfig, workload: Workload, gpus: int) -> tuple[float, float, tuple[list[int], int, int]]:
    """Return rows per GPU, their filled share, and tokens of the samples, images and answers of the fullest row."""
    answers = 1 if config.dpo is None else 2
    limited = workload.answer if config.grpo is None else workload.limit
    lengths, counts, filled, rows = answers * (workload.prompt + limited), [], [], []
    repeats = config.global_batch // config.samples_per_draw
    for drawn in np.repeat(workload.steps(config.samples_per_draw), repeats, axis=1):
        tokens = answers * workload.tokens[drawn]
        packed = pack(tokens.tolist(), config.token_budget, gpus)
        counts.append(len(packed) / gpus)
        filled.append(tokens.sum() / (len(packed) * config.token_budget))
        if config.grpo is not None:
            packed = pack(lengths[drawn].tolist(), config.token_budget, gpus)
        rows.append(drawn[packed[0]])  # the fullest
    row = np.repeat(max(rows, key=lambda row: lengths[row].sum()), answers)
    fullest = (lengths[row] // answers).tolist(), int(workload.images[row].sum()), int(limited[row].sum())
    return float(np.mean(counts)), float(np.mean(filled)), fullest


def _estimate_reports(config: MairaConfig, workload: Workload, gpu: Accelerator, mfu: float) -> dict[str, Any] | None:
    """Estimate the seconds per report of `maira generate` with the trained model, in batches that fill the GPU."""
    generation = make_generation(config, mfu * gpu.peak, gpu.bandwidth)
    room = round(gpu.memory * GIB - RESERVED - generation.weights)
    length = round(float((workload.prompt + workload.limit).mean()))
    if sum(batch_bytes(length, config.text_config, 2)) > room:
        return None
    batch = largest_batch_size(room, length, config.text_config, 2)
    # The first token comes with the prompt.
    earlier = workload.prompt.mean() + np.arange(1, max(2, round(float(workload.answer.mean()))))
    prompt = generation.prompt_seconds(workload.prompt, int(workload.images.sum())) / _ROWS
    decoding = generation.decoding_seconds(batch, earlier) / batch
    return {"batch_size": batch, "prompt_seconds": prompt, "decoding_seconds": decoding, "seconds": prompt + decoding}


def _estimate_sampling(
    model: MairaForConditionalGeneration,
    config: TrainConfig,
    workload: Workload,
    training: dict[str, int],
    kind: str,
    accelerator: Accelerator,
    gpus: int,
    mfu: float,
) -> dict[str, Any]:
    """Estimate time and memory of sampling the responses of a step, on the GPU that needs most."""
    # `TransformersEngine` takes the longest prompts first, as many as fit into the memory that training leaves.
    # Prefill is compute-bound; a decoding step takes the time of its operations or of its memory traffic.
    grpo, text, size = config.grpo or GrpoConfig(), model.config.text_config, 2 if config.precision == "bf16" else 4
    # The weights of low-rank adapters, about one in a hundred, are left out.
    generation = make_generation(model.config, mfu * accelerator.peak, accelerator.bandwidth, size)
    quantized = sum(p.numel() for name, p in model.named_parameters() if is_quantized(name, p, config))
    trained = [p for p in model.parameters() if p.requires_grad]
    held = {
        "weights": training["weights"],
        "gradients": sum(p.nbytes for p in trained) if kind == "ddp" else 0,
        "states": training["states"],
        "gathered": size * sum(p.numel() for p in model.parameters()) if kind == "fsdp" else 0,
        "copies": 0 if kind == "fsdp" else size * sum(p.numel() for p in trained if p.itemsize > size),
    }
    # The engine plans with the type of the first weight; autocast has not copied the weights yet.
    planned = size if kind == "fsdp" else model.dtype.itemsize
    room = accelerator.memory * GIB - RESERVED - sum(held.values())
    times = np.zeros(2)
    steps, batches = list[int](), list[tuple[int, dict[str, int]]]()
    for draw in workload.steps(config.samples_per_draw):
        ordered, ranks = draw[np.argsort(-workload.prompt[draw], kind="stable")], []
        for own in (ordered[rank::gpus] for rank in range(min(gpus, len(ordered)))):
            # Equal prompts of a batch are read once, and batches rarely divide them.
            reading, decoding = generation.prompt_seconds(workload.prompt[own], int(workload.images[own].sum())), 0.0
            order = np.repeat(own, grpo.num_generations)
            while len(order):
                longest = int(workload.prompt[order[0]])
                length = longest + int(workload.limit[order].max())
                count = largest_batch_size(round(room + held["copies"]), length, text, planned)
                row, chunk = batch_bytes(length, text, size)
                while count > 1 and count * row + chunk > room:
                    count //= 2
                rows, order = np.split(order, [count])
                count, cache = len(rows), round(len(rows) * length * generation.cached)
                batches.append((count, held | {"cache": cache, "temporary": count * row + chunk - cache}))
                # Dequantized weights are written in 16 bits and read again; bitsandbytes multiplies up to 4 rows
                # directly. The dynamic cache is read and copied.
                moved = generation.weights + quantized * (NF4 - size + (4 if count > 4 else 0))
                batch = generation._replace(weights=moved, cached=3 * generation.cached)
                steps.append(int(workload.answer[rows].max()))
                decoding += batch.decoding_seconds(count, longest + np.arange(steps[-1]))
            ranks.append((reading, decoding))
        times += max(ranks, key=sum)
    peak = max((parts for _, parts in batches), key=lambda parts: sum(parts.values()))
    reading, decoding = (times / (_DRAWS * grpo.num_iterations)).tolist()
    return {
        "responses_per_gpu": -(-config.samples_per_draw // gpus) * grpo.num_generations,
        "batch_size": max(count for count, _ in batches),
        "decoding_steps": float(np.mean(steps)),
        "prompt_seconds_per_step": reading,
        "decoding_seconds_per_step": decoding,
        "memory": peak | {"total": sum(peak.values())},
    }
