"""`maira estimate`: the memory, operations and time of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from maira.cli.show import print_line

if TYPE_CHECKING:
    from maira.train.cost.estimate import Estimate

_GIB = 1 << 30
_MEMORY_LABELS = {
    "weights": "weights",
    "gradients": "gradients",
    "states": "optimizer states",
    "encoder": "activations of the encoder",
    "adapter": "activations of the adapter and embeddings",
    "activations": "activations of the language model",
    "logits": "logits of answers",
    "gathered": "gathered by FSDP2: weights and gradients of the active blocks",
    "temporary": "temporary tensors of the backward pass",
}
_SAMPLING_LABELS = {
    "weights": "weights",
    "gradients": "gradient buckets of DDP",
    "states": "optimizer states",
    "gathered": "gathered by FSDP2: all weights",
    "copies": "bfloat16 copies of trained weights",
    "cache": "keys and values",
    "temporary": "temporary tensors",
}


def estimate(
    config: Annotated[Path, typer.Argument(help="Run config (YAML).")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value overrides of the run config.")] = None,
    gpus: Annotated[int, typer.Option(help="Number of GPUs.", min=1)] = 1,
    gpu: Annotated[
        str,
        typer.Option(help="GPU model, such as a100-80g or h100; an unknown name lists all."),
    ] = ("a100-80g"),
    mfu: Annotated[
        float | None,
        typer.Option(help="Model FLOPs utilization (MFU) to assume. Default: 0.45.", min=0.01, max=1),
    ] = None,
    mfu_from: Annotated[
        Path | None,
        typer.Option(help="metrics.jsonl of a run on a GPU; use the median MFU that it has measured.", metavar="FILE"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print bytes, seconds and FLOPs as a JSON object.")] = False,
) -> None:
    """Estimate parameters, memory per GPU, FLOPs and time of a training run, without a GPU or weights."""
    from maira.train.config.run_config import read_train_config
    from maira.train.cost.estimate import MFU, read_mfu
    from maira.train.cost.estimate import estimate as run
    from radfact.errors import ErrorCode, InputError
    from radfact.io.jsonl import dumps

    if mfu is not None and mfu_from is not None:
        raise InputError(
            "cannot be combined with --mfu; use one of them", code=ErrorCode.CONFLICTING_OPTIONS, field="--mfu-from"
        )
    utilization = read_mfu(mfu_from) if mfu_from else MFU if mfu is None else mfu
    train_config = read_train_config(config, overrides)
    print_line(Console(stderr=True), f"estimating {config}: running a step on tensors without data")
    result = run(train_config, gpu, gpus, utilization)
    if json:
        print(dumps(result.to_json()))
        return
    console = Console()
    for line in _introduction(result):
        print_line(console, line)
    console.print(_parameter_table(result))
    console.print(_memory_table("peak memory of a GPU", vars(result.memory), _MEMORY_LABELS))
    if result.sampling:
        title = f"peak memory while sampling {result.sampling.batch_size} responses"
        console.print(_memory_table(title, vars(result.sampling.memory), _SAMPLING_LABELS))
    for line in _verdict(result):
        print_line(console, line)
    console.print(_time_table(result))
    print_line(console, "computed, not measured. Assumptions:")
    for topic, assumption in result.assumptions.items():
        print_line(console, f"  {topic}: {assumption}")
    if result.is_small and not result.is_mfu_measured:
        print_line(
            console,
            f"  A model of this size does not reach an MFU of {result.mfu:.0%}; train some steps and set --mfu-from to "
            "their metrics.jsonl.",
        )


def _introduction(result: Estimate) -> list[str]:
    kind = {"none": "one process", "ddp": "DDP", "fsdp": "FSDP2"}[result.sharding]
    return [f"model: {result.model}", f"{result.gpus} x {result.accelerator.name}, {kind}"]


def _parameter_table(result: Estimate) -> Table:
    table = _table("parameters", "all", "trained")
    rows = [*result.parameters.items(), ("total", (_sum(result, 0), _sum(result, 1)))]
    for part, (count, trained) in rows:
        table.add_row(part.replace("_", " "), _format_count(count), _format_count(trained) if trained else "-")
    return table


def _sum(result: Estimate, index: int) -> int:
    return sum(counts[index] for counts in result.parameters.values())


def _memory_table(title: str, sizes: Mapping[str, int], labels: Mapping[str, str]) -> Table:
    table = _table(title, "")
    for part, size in sizes.items():
        if size:
            table.add_row(labels[part], _format_bytes(size))
    table.add_row("total", _format_bytes(sum(sizes.values())))
    return table


def _verdict(result: Estimate) -> list[str]:
    from maira.train.cost.estimate import RESERVED

    limit = f"the {result.accelerator.memory:g} GiB of the GPU, with {RESERVED / _GIB:g} GiB reserved for CUDA"
    if result.fits:
        return [f"fits in {limit}"]
    lines = [f"does not fit in {limit}"]
    for remedy in result.remedies:
        verdict = "fits" if remedy.fits else "does not fit"
        lines.append(f"  with {remedy.overrides}: {remedy.total / _GIB:,.1f} GiB, {verdict}")
    if result.sharding == "fsdp" or not any(remedy.fits for remedy in result.remedies):
        lines.append("  with FSDP2 on more GPUs, each holds a smaller share of weights, gradients and optimizer states")
    return lines


def _time_table(result: Estimate) -> Table:
    packing, flops = result.packing, result.flops
    table = _table(f"at an MFU of {result.mfu:.0%}", "")
    samples, tokens = result.steps * result.step_samples, result.steps * result.step_tokens
    for name, value in {
        "packed rows per step and GPU": f"{packing.rows:.1f}, {packing.filled:.0%} full",
        "operations per step": f"{flops.total / 1e12:,.3g} TFLOP",
        **{f"  {part.replace('_', ' ')}": f"{count / flops.total:.1%}" for part, count in flops.by_part().items()},
        "time per step": _format_duration(result.step_seconds),
        **_step_times(result),
        "run": f"{result.steps:,} steps, {samples:,} samples, {_format_count(tokens)} tokens",
        "total time": _format_duration(result.hours * 3600),
        "GPU hours": f"{hours:,.1f}" if (hours := result.hours * result.gpus) >= 0.1 else f"{hours:.1g}",
    }.items():
        table.add_row(name, value)
    return table


def _step_times(result: Estimate) -> dict[str, str]:
    if (sampling := result.sampling) is None:
        return {}
    return {
        "  training": _format_duration(result.training_seconds),
        "  generation: images and prefill": _format_duration(sampling.prompt_seconds),
        "  generation: decoding": _format_duration(sampling.decoding_seconds),
        "  generation share": f"{sampling.seconds / result.step_seconds:.0%}",
        "responses per step and GPU": f"{sampling.responses:,}, at most {sampling.batch_size:,} per batch",
    }


def _format_count(number: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return f"{number:,.0f}"


def _format_bytes(size: int) -> str:
    for unit, whole in (("GiB", _GIB), ("MiB", 1 << 20)):
        if size >= 0.1 * whole:
            return f"{size / whole:,.2f} {unit}"
    return f"{size / 1024:,.1f} KiB" if size >= 1024 else f"{size} B"


def _format_duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2g} s"
    minutes = seconds / 60
    if minutes < 10:
        return f"{minutes:.1f} min"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:,.1f} h"


def _table(title: str, *columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(title)
    for column in columns:
        options: dict[str, Any] = {"justify": "right"} if column else {}
        table.add_column(column, **options)
    return table
