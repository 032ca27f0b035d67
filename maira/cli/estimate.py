"""`maira estimate`: the memory, operations and time of a training run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from maira.cli.show import print_line, print_table

_GIB = 1 << 30


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
    json: Annotated[bool, typer.Option("--json", help="Print bytes, seconds and FLOPs as a JSON object.")] = False,
) -> None:
    """Estimate parameters, memory per GPU, FLOPs and time of a training run, without a GPU or weights."""
    from maira.train.config.run_config import read_train_config
    from maira.train.cost.estimate import estimate as run
    from radfact.io.jsonl import dumps

    result = run(read_train_config(config, overrides), gpu, gpus, 0.45 if mfu is None else mfu)
    if json:
        print(dumps(result))
        return
    console = Console()
    kind = {"none": "one process", "ddp": "DDP", "fsdp": "FSDP2"}[result["sharding"]]
    for line in (f"model: {result['model']}", f"{gpus} x {gpu}, {kind}"):
        print_line(console, line)
    counts = {part.replace("_", " "): list(both.values()) for part, both in result["parameters"].items()}
    counts["total"] = [sum(column) for column in zip(*counts.values(), strict=True)]
    rows = [(part, *map(_format_count, numbers)) for part, numbers in counts.items()]
    print_table(console, None, ("parameters", "all", "trained"), rows)
    _print_memory(console, "peak memory of a GPU", result["memory"])
    if generation := result["generation"]:
        _print_memory(console, f"peak memory while sampling {generation['batch_size']} responses", generation["memory"])
    fits = "fits" if result["fits"] else "does not fit"
    reserved = f"with {result['reserved'] / _GIB:g} GiB reserved for CUDA"
    print_line(console, f"{fits} in the {result['gpu_memory'] / _GIB:g} GiB of the GPU, {reserved}")
    print_table(console, None, (f"at an MFU of {result['mfu']:.0%}", ""), [*_times(result).items()])
    print_line(console, "computed, not measured. Assumptions:")
    for topic, assumption in result["assumptions"].items():
        print_line(console, f"  {topic}: {assumption}")
    if counts["total"][0] < 1e9 and mfu is None:
        advice = "train some steps and set --mfu to the mfu of their metrics.jsonl."
        print_line(console, f"  A model of this size does not reach an MFU of {result['mfu']:.0%}; {advice}")


def _times(result: dict[str, Any]) -> dict[str, str]:
    flops = dict(result["flops_per_step"])
    total = flops.pop("total")
    rows = {
        "packed rows per step and GPU": f"{result['rows_per_step_and_gpu']:.1f}, {result['row_filled']:.0%} full",
        "operations per step": f"{total / 1e12:,.3g} TFLOP",
        **{f"  {part.replace('_', ' ')}": f"{count / total:.1%}" for part, count in flops.items()},
        "time per step": _format_duration(result["seconds_per_step"]),
    }
    if generation := result["generation"]:
        rows |= {
            "  training": _format_duration(result["seconds_per_step"] * (1 - generation["share"])),
            "  generation: images and prefill": _format_duration(generation["prompt_seconds_per_step"]),
            "  generation: decoding": _format_duration(generation["decoding_seconds_per_step"]),
            "  generation share": f"{generation['share']:.0%}",
            "responses per step and GPU": f"{generation['responses_per_gpu']:,}, at most {generation['batch_size']:,} "
            "per batch",
        }
    return rows | {
        "run": f"{result['steps']:,} steps, {result['samples']:,} samples, {_format_count(result['tokens'])} tokens",
        "total time": _format_duration(result["hours"] * 3600),
        "GPU hours": f"{hours:,.1f}" if (hours := result["gpu_hours"]) >= 0.1 else f"{hours:.1g}",
    }


def _print_memory(console: Console, title: str, sizes: dict[str, int]) -> None:
    from maira.train.cost.flops import TABLES

    labels = TABLES["labels"]
    print_table(console, None, (title, ""), [(labels.get(p, p), _format_bytes(n)) for p, n in sizes.items() if n])


def _format_count(number: float) -> str:
    unit, size = next(((unit, size) for unit, size in (("M", 1e6), ("k", 1e3)) if number >= size), ("", 1))
    return f"{number / size:,.1f} {unit}" if unit else f"{number:,.0f}"


def _format_bytes(size: int) -> str:
    for unit, whole in (("GiB", _GIB), ("MiB", 1 << 20), ("KiB", 1024)):
        if size >= 0.1 * whole:
            return f"{size / whole:,.2f} {unit}"
    return f"{size} B"


def _format_duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2g} s"
    minutes = seconds / 60
    if minutes < 10:
        return f"{minutes:.1f} min"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:,.1f} h"
