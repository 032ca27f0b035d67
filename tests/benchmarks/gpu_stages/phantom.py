"""Stage `phantom`: a whole training run of the phantom checkpoint's run config, which is then resumed."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator
from io import StringIO
from typing import Any

from rich.console import Console

from data.phantoms import write_phantoms
from gpu_stages.cases import Measurement, Setup
from gpu_stages.models import CHECKPOINT
from maira.train.config.run_config import read_train_config
from maira.train.report_training import train

RUN_CONFIG = CHECKPOINT.parents[1] / "configs" / "phantom.yaml"


def measure(_case: str, setup: Setup) -> Iterator[Measurement]:
    """Train from scratch, resume with more steps, and yield the rates of the second part."""
    studies, steps, batch = (4, 2, 2) if setup.is_tiny else (256, 60, 32)
    workers = min(8, os.cpu_count() or 1)
    folder = setup.folder / "phantoms"
    list(write_phantoms(folder, studies, seed=1, size=224, split="train", workers=1 if setup.is_tiny else workers))
    rows: list[dict[str, Any]] = []
    for part in (1, 2):
        config = read_train_config(
            RUN_CONFIG,
            [
                f"train={folder / 'manifest.jsonl'}",
                f"out={setup.folder / 'run'}",
                "validation.sources=[]",
                "trackers=[]",
                "tasks={grounded: 1, findings: 1}",
                f"global_batch={batch}",
                f"passes={part * steps * batch}",
                f"log_every={max(1, steps // 6)}",
                f"precision={'bf16' if setup.device.type == 'cuda' else 'no'}",
                f"workers={1 if setup.is_tiny else workers}",
            ],
        )
        train(config, Console(file=StringIO()))
        lines = (config.out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
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
    yield Measurement("memory", rows[-1].get("memory_gb"), "GB", reason=None if "memory_gb" in rows[-1] else "unknown")
