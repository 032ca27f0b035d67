"""Stage `phantom`: whole training runs of the run configs for phantoms, supervised and with sampled reports (GRPO)."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from gpu_stages.cases import Measurement, Setup
from gpu_stages.models import CHECKPOINT
from maira.data.phantoms import write_phantoms
from maira.train.config.run_config import TrainConfig, read_train_config
from maira.train.cost.accelerators import find_accelerator
from maira.train.cost.estimate import estimate
from maira.train.report_training import train

CONFIGS = CHECKPOINT.parents[1] / "configs"


def measure(case: str, setup: Setup) -> Iterator[Measurement]:
    """Train a run config and yield its rates."""
    yield from _measure_grpo(setup) if case == "grpo" else _measure_supervised(setup)


def _measure_supervised(setup: Setup) -> Iterator[Measurement]:
    """Train from scratch, resume with more steps, and yield the rates of the second part."""
    studies, steps, batch = (4, 2, 2) if setup.is_tiny else (256, 60, 32)
    manifest = _write_studies(setup, studies)
    rows: list[dict[str, Any]] = []
    for part in (1, 2):
        config = _read_config(
            "phantom.yaml",
            setup,
            f"train={manifest}",
            "tasks={grounded: 1, findings: 1}",
            f"global_batch={batch}",
            f"passes={part * steps * batch}",
            f"log_every={max(1, steps // 6)}",
        )
        rows = _train(config)
    resumed = [row for row in rows if row["step"] > steps]
    yield Measurement("steps", rows[-1]["step"], at_least=2 * steps, at_most=2 * steps)
    yield Measurement("loss of the first part", rows[0]["loss"])
    yield Measurement("loss at the end", rows[-1]["loss"], at_most=None if setup.is_tiny else rows[0]["loss"])
    # The first line of the resumed run includes its start.
    timed = resumed[1:] or resumed
    names = {"samples_per_second": "samples/s", "tokens_per_second": "tokens/s", "tflops_per_device": "TFLOP/s"}
    for name, unit in names.items():
        yield Measurement(name.replace("_", " "), statistics.median(row[name] for row in timed), unit)
    yield Measurement("share of time spent waiting for data", statistics.median(row["data_wait"] for row in timed))
    yield _memory(rows)


def _measure_grpo(setup: Setup) -> Iterator[Measurement]:
    """Train the shipped checkpoint by rewards, and yield the time of generation, compared with `maira estimate`."""
    studies, steps, batch, group = (4, 3, 8, 4) if setup.is_tiny else (64, 8, 64, 8)
    config = _read_config(
        "phantom_grpo.yaml",
        setup,
        f"model={CHECKPOINT}",
        f"train={_write_studies(setup, studies)}",
        # Needs no further packages.
        "grpo.reward.scores={spatial_f1: 1}",
        f"grpo.num_generations={group}",
        f"grpo.max_new_tokens={12 if setup.is_tiny else 450}",
        f"global_batch={batch}",
        f"passes={steps * batch}",
    )
    rows = _train(config)
    yield Measurement("steps", rows[-1]["step"], at_least=steps, at_most=steps)
    seconds = statistics.median(row["seconds"] - before["seconds"] for before, row in pairwise(rows))
    generation = statistics.median(row["generation_seconds"] for row in rows[1:])
    yield Measurement("responses per second of generation", batch / generation, "responses/s")
    yield Measurement("seconds per step", seconds, "s")
    yield Measurement("share of generation", generation / seconds)
    yield Measurement("seconds of the reward", statistics.median(row["reward_seconds"] for row in rows[1:]), "s")
    yield Measurement("tokens of a response", statistics.mean(row["answer_tokens"] for row in rows))
    name = torch.cuda.get_device_name() if setup.device.type == "cuda" else "CPU"
    if (accelerator := find_accelerator(name)) is None:
        yield Measurement("generation / maira estimate", None, reason=f"the rates of '{name}' are unknown")
    elif sampling := estimate(config, accelerator.name)["generation"]:
        estimated = sampling["prompt_seconds_per_step"] + sampling["decoding_seconds_per_step"]
        yield Measurement("generation / maira estimate", generation / estimated, at_least=1.0)
    yield _memory(rows)


def _write_studies(setup: Setup, count: int) -> Path:
    folder = setup.folder / "phantoms"
    list(write_phantoms(folder, count, seed=1, size=224, split="train", workers=_workers(setup)))
    return folder / "manifest.jsonl"


def _workers(setup: Setup) -> int:
    return 1 if setup.is_tiny else min(8, os.cpu_count() or 1)


def _read_config(name: str, setup: Setup, *overrides: str) -> TrainConfig:
    precision = "bf16" if setup.device.type == "cuda" else "no"
    shared = (f"out={setup.folder / 'run'}", "validation.sources=[]", "trackers=[]", f"precision={precision}")
    return read_train_config(CONFIGS / name, [*shared, f"workers={_workers(setup)}", *overrides])


def _train(config: TrainConfig) -> list[dict[str, Any]]:
    """Train, and return the rows of the log."""
    train(config, Console(file=StringIO()))
    return [json.loads(line) for line in (config.out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def _memory(rows: list[dict[str, Any]]) -> Measurement:
    return Measurement("memory", rows[-1].get("memory_gb"), "GB", reason=None if "memory_gb" in rows[-1] else "unknown")
