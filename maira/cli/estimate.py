"""The command that tells what a run takes before anyone books a node."""

from __future__ import annotations

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
_MEANINGS = {
    "weights": "weights",
    "gradients": "gradients",
    "states": "optimizer's states",
    "encoder": "activations of the encoder",
    "adapter": "activations of the adapter, embeddings",
    "activations": "activations of the language model",
    "logits": "logits of answers",
    "gathered": "gathered by FSDP2: weights and gradients of the blocks at work",
    "temporary": "temporary, in the backward pass",
}


def estimate(
    config: Annotated[Path, typer.Argument(help="Recipe (YAML).")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, instead of the recipe's.")] = None,
    gpus: Annotated[int, typer.Option(help="How many.", min=1)] = 1,
    gpu: Annotated[str, typer.Option(help="Which, such as a100-80g, h100, h200, l40s (a wrong name lists all).")] = (
        "a100-80g"
    ),
    mfu: Annotated[
        float, typer.Option(help="Share of the GPU's peak that goes into the model's operations.", min=0.01, max=1)
    ] = 0.45,
    json: Annotated[bool, typer.Option("--json", help="Bytes, seconds and operations as one JSON object.")] = False,
) -> None:
    """Tell what a run takes: parameters, memory of a GPU by part, operations, time. Needs no GPU, reads no weights."""
    from maira.train.config.run_config import read_train_config
    from maira.train.cost.estimate import estimate as run
    from radfact.io.jsonl import dumps

    read = read_train_config(config, overrides)
    print_line(Console(stderr=True), f"estimating {config}: its passes are run on tensors without bytes")
    found = run(read, gpu, gpus, mfu)
    if json:
        print(dumps(found.to_json()))
        return
    console = Console()
    for line in _introduction(found):
        print_line(console, line)
    console.print(_parameter_table(found))
    console.print(_memory_table(found))
    for line in _verdict(found):
        print_line(console, line)
    console.print(_time_table(found))
    print_line(console, f"samples: {found.workload.basis}")
    print_line(console, "time: at the MFU given; without validation, drafts, saving and waiting for data")
    if found.is_small:
        print_line(
            console,
            f"time: a model of this size does not reach an MFU of {found.mfu:.0%}; run some steps, read what they do "
            "(mfu in metrics.jsonl), and give it as --mfu",
        )


def _introduction(found: Estimate) -> list[str]:
    kind = {"none": "one process", "ddp": "DDP", "fsdp": "FSDP2"}[found.sharding]
    return [f"model: {found.model}", f"{found.gpus} x {found.accelerator.name}, {kind}"]


def _parameter_table(found: Estimate) -> Table:
    table = _table("parameters", "all", "trained")
    rows = [*found.parameters.items(), ("total", (_sum(found, 0), _sum(found, 1)))]
    for part, (every, trained) in rows:
        table.add_row(part.replace("_", " "), _count(every), _count(trained) if trained else "-")
    return table


def _sum(found: Estimate, place: int) -> int:
    return sum(counts[place] for counts in found.parameters.values())


def _memory_table(found: Estimate) -> Table:
    table = _table("memory of a GPU at its fullest moment", "")
    for part, size in vars(found.memory).items():
        if size:
            table.add_row(_MEANINGS[part], _bytes(size))
    table.add_row("total", _bytes(found.memory.total))
    return table


def _verdict(found: Estimate) -> list[str]:
    from maira.train.cost.estimate import RESERVED

    has = f"the GPU's {found.accelerator.memory:g} GiB, of which {RESERVED / _GIB:g} are set aside for the uncounted"
    if found.fits:
        return [f"fits in {has}"]
    lines = [f"does not fit in {has}"]
    for remedy in found.remedies:
        does = "fits" if remedy.fits else "does not fit"
        lines.append(f"  with {remedy.overrides}: {remedy.total / _GIB:,.1f} GiB, {does}")
    if found.sharding == "fsdp" or not any(remedy.fits for remedy in found.remedies):
        lines.append("  more GPUs under FSDP2 take a smaller share each of weights, gradients and states")
    return lines


def _time_table(found: Estimate) -> Table:
    packing, flops = found.packing, found.flops
    table = _table(f"at an MFU of {found.mfu:.0%}", "")
    tokens = found.steps * found.step_samples * float(found.workload.tokens.mean())
    for name, value in {
        "packed rows a step and GPU": f"{packing.rows:.1f}, {packing.filled:.0%} full",
        "operations of a step": f"{flops.total / 1e12:,.3g} TFLOP",
        **{f"  {part.replace('_', ' ')}": f"{count / flops.total:.1%}" for part, count in flops.by_part().items()},
        "a step": _duration(found.step_seconds),
        "the run": f"{found.steps:,} steps, {found.steps * found.step_samples:,} samples, {_count(tokens)} tokens",
        "time": _duration(found.hours * 3600),
        "GPU hours": f"{hours:,.1f}" if (hours := found.hours * found.gpus) >= 0.1 else f"{hours:.1g}",
    }.items():
        table.add_row(name, value)
    return table


def _count(number: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return f"{number:,.0f}"


def _bytes(size: int) -> str:
    for unit, whole in (("GiB", _GIB), ("MiB", 1 << 20)):
        if size >= 0.1 * whole:
            return f"{size / whole:,.2f} {unit}"
    return f"{size / 1024:,.1f} KiB" if size >= 1024 else f"{size} B"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2g} s"
    hours = seconds / 3600
    return f"{seconds / 60:.0f} min" if hours < 2 else f"{hours:,.1f} h"


def _table(title: str, *columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(title)
    for column in columns:
        options: dict[str, Any] = {"justify": "right"} if column else {}
        table.add_column(column, **options)
    return table
