"""`maira estimate`: the memory, operations and time of a training run, and the time of a report of its model."""

from __future__ import annotations

from operator import itemgetter
from typing import Annotated, Any

import typer
from rich.console import Console

from maira.cli.evaluate import split_configs
from maira.cli.show import exit_with_failures, print_line
from radfact.cli.tables import show_rows
from radfact.errors import InputError
from radfact.progress import format_count

_GIB = 1 << 30
_COMPARED = ("memory per GPU", "fits", "tokens per second", "total time", "time per report")


def estimate(
    configs: Annotated[
        list[str], typer.Argument(metavar="CONFIGS", help="Run configs (YAML), and key=value overrides of all of them.")
    ],
    gpus: Annotated[int, typer.Option(help="Number of GPUs.", min=1)] = 1,
    gpu: Annotated[str, typer.Option(help="GPU model, such as h100; an unknown name lists all.")] = "a100-80g",
    mfu: Annotated[float, typer.Option(help="Model FLOPs utilization (MFU) to assume.", min=0.01, max=1)] = 0.45,
    json: Annotated[bool, typer.Option("--json", help="Print bytes, seconds and FLOPs as a JSON object.")] = False,
) -> None:
    """Estimate parameters, memory per GPU, FLOPs and time of a training run, without a GPU or weights.

    Several configs make a table, or a JSON object by config; one that cannot be estimated is listed (exit code 3).
    """
    from maira.train.config.run_config import read_train_config
    from maira.train.cost.estimate import estimate as run
    from radfact.io.jsonl import dumps

    paths, overrides = split_configs(configs)
    results, failures, console = {}, [], Console()
    for path in paths:
        try:
            results[str(path)] = run(read_train_config(path, overrides), gpu, gpus, mfu)
        except InputError as error:
            if len(paths) < 2 or error.field == "--gpu":
                raise
            failures.append((str(path), str(error).removeprefix(f"{path}: ")))
    if json:
        print(dumps(results if len(paths) > 1 else results[str(paths[0])]))
    elif len(paths) == 1:
        _print_details(console, results[str(paths[0])])
    elif results:
        rows = [(path, *itemgetter(*_COMPARED)(describe_times(result))) for path, result in results.items()]
        show_rows(console, ("config", *_COMPARED), rows, title=f"{gpus} x {gpu}, at an MFU of {mfu:.0%}")
    exit_with_failures(Console(stderr=True), failures)


def _print_details(console: Console, result: dict[str, Any]) -> None:
    from maira.train.cost.flops import TABLES

    kind = {"none": "one process", "ddp": "DDP", "fsdp": "FSDP2"}[result["sharding"]]
    print_line(console, f"{result['gpus']} x {result['gpu']}, {kind}; model: {result['model']}")
    counts = {part.replace("_", " "): list(both.values()) for part, both in result["parameters"].items()}
    counts["total"] = [sum(column) for column in zip(*counts.values(), strict=True)]
    rows = [(part, *map(format_count, numbers)) for part, numbers in counts.items()]
    show_rows(console, ("parameters", "all", "trained"), rows)
    memory = {"peak memory of a GPU": result["memory"]}
    if generation := result["generation"]:
        memory[f"peak memory while sampling {generation['batch_size']} responses"] = generation["memory"]
    for title, sizes in memory.items():
        rows = [(TABLES["labels"].get(part, part), _format_bytes(size)) for part, size in sizes.items() if size]
        show_rows(console, (title, ""), rows)
    space = f"{result['gpu_memory'] / _GIB:g} GiB of the GPU, with {result['reserved'] / _GIB:g} GiB reserved for CUDA"
    print_line(console, f"{'fits' if result['fits'] else 'does not fit'} in the {space}")
    show_rows(console, (f"at an MFU of {result['mfu']:.0%}", ""), [*describe_times(result).items()])
    print_line(console, "computed, not measured. Assumptions:")
    for topic, assumption in result["assumptions"].items():
        print_line(console, f"  {topic}: {assumption}")


def describe_times(result: dict[str, Any]) -> dict[str, str]:
    """Return the rows of the table of an estimate: what a step and the run take, and a report of the model."""
    from maira.train.logging import format_duration

    flops, rate = dict(result["flops_per_step"]), result["tokens_per_second"]
    total = flops.pop("total")
    rows = {
        "packed rows per step and GPU": f"{result['rows_per_step_and_gpu']:.1f}, {result['row_filled']:.0%} full",
        "operations per step": f"{total / 1e12:,.3g} TFLOP",
        **{f"  {part.replace('_', ' ')}": f"{count / total:.1%}" for part, count in flops.items()},
        "time per step": format_duration(result["seconds_per_step"]),
    }
    if generation := result["generation"]:
        rows |= {
            "  training": format_duration(result["seconds_per_step"] * (1 - generation["share"])),
            "  generation: images and prefill": format_duration(generation["prompt_seconds_per_step"]),
            "  generation: decoding": format_duration(generation["decoding_seconds_per_step"]),
            "  generation share": f"{generation['share']:.0%}",
            "responses per GPU": f"{generation['responses_per_gpu']:,}, at most {generation['batch_size']:,} per batch",
        }
    memory = max(part["memory"]["total"] for part in (result, generation) if part)
    return rows | {
        "memory per GPU": _format_bytes(memory),
        "fits": "yes" if result["fits"] else "no",
        "tokens per second": f"{rate:,.0f}",
        "tokens per second and GPU": f"{rate / result['gpus']:,.0f}",
        "time per report": format_duration(result["reports"]["seconds"]) if result["reports"] else "-",
        "run": f"{result['steps']:,} steps, {result['samples']:,} samples, {format_count(result['tokens'])} tokens",
        "total time": format_duration(result["hours"] * 3600),
        "GPU hours": f"{hours:,.1f}" if (hours := result["gpu_hours"]) >= 0.1 else f"{hours:.1g}",
    }


def _format_bytes(size: int) -> str:
    for unit, whole in (("GiB", _GIB), ("MiB", 1 << 20), ("KiB", 1024)):
        if size >= 0.1 * whole:
            return f"{size / whole:,.2f} {unit}"
    return f"{size} B"
