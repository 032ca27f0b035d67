"""Metrics of a run on the console, in `metrics.jsonl` and in trackers, with throughput and MFU."""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import torch
from rich.console import Console
from torch import nn

from maira.train.config.run_config import BaseTrainConfig
from maira.train.cost.flops import find_accelerator, make_rates
from maira.train.data.packing import PackedBatch
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import dumps, open_atomic, read_text
from radfact.progress import format_count

if TYPE_CHECKING:
    from maira.runtime.processes import DistributedContext
    from maira.train.data.schedule import DataSchedule

MetricValues = Mapping[str, float | None]
WANDB_PROJECT = "maira"
"""Default of the environment variable WANDB_PROJECT."""
_WINDOW = 30
"""Log lines over which the pace is averaged for the remaining time."""
_PARTS = ("precision", "recall", "f1", "iou")
"""Ends of the names of metrics that are printed together."""
_RESIDENT_UNIT = 1 if sys.platform == "darwin" else 1024
"""Unit of `ru_maxrss` in bytes."""


class MetricsFile:
    """`metrics.jsonl`, an object with its `step` per line, without the lines after the step that a run resumes from."""

    def __init__(self, path: Path, step: int) -> None:
        self._path, self._pending = path, ""
        self.validated = 0  # step of the last validation in the file; 0 without any
        if not path.exists():
            return
        with open_atomic(path) as handle:
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                if row["step"] <= step:
                    handle.write(f"{line}\n")
                    # Only lines of steps have an epoch.
                    self.validated = self.validated if "epoch" in row else row["step"]

    def add(self, row: Mapping[str, Any]) -> None:
        self._pending += dumps(dict(row)) + "\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        size = self._path.stat().st_size if self._path.exists() else 0
        try:
            with self._path.open("a", encoding="utf-8") as handle:
                handle.write(self._pending)
        except OSError:
            with suppress(OSError), self._path.open("r+b") as handle:
                handle.truncate(size)
            raise
        self._pending = ""


class Tracker(NamedTuple):
    """Functions that write the metrics of a step, and close the tracker."""

    write: Callable[[int, Mapping[str, float]], Any]
    close: Callable[[], Any]


def _start_tensorboard(config: BaseTrainConfig, first_step: int) -> Tracker:
    """Write event files to `tensorboard/` of the run's folder."""
    from torch.utils.tensorboard import SummaryWriter

    make: Any = SummaryWriter
    writer = make(str(config.out / "tensorboard"), purge_step=first_step + 1 if first_step else None)
    return Tracker(lambda step, metrics: [writer.add_scalar(key, x, step) for key, x in metrics.items()], writer.close)


def _start_wandb(config: BaseTrainConfig, first_step: int) -> Tracker:
    """Log to a run of Weights & Biases, the same one after resumption; its id is saved in the run's folder."""
    # Metrics are plotted over `step`, one of them, since its own step counter could not go back to a saved state.
    wandb: Any = import_module("wandb")
    if os.environ.get("WANDB_MODE", "online") == "online" and not _has_wandb_key():
        # wandb would ask for it, and wait, on a terminal.
        message = "wandb has no key: run `wandb login`, set WANDB_API_KEY, or WANDB_MODE=offline"
        raise InputError(message, code=ErrorCode.MISSING_REQUIREMENT, field="trackers")
    id_file = config.out / "wandb-id.txt"
    run_id = read_text(id_file).strip() if first_step and id_file.exists() else None
    config.out.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"name": config.out.name, "dir": str(config.out), "id": run_id}
    options |= {"config": config.model_dump(mode="json"), "resume": "allow" if run_id else None}
    try:
        run = wandb.init(project=os.environ.get("WANDB_PROJECT", WANDB_PROJECT), **options)
    except wandb.Error as error:
        raise InputError(f"wandb does not start: {' '.join(str(error).split())}", field="trackers") from None
    id_file.write_text(f"{run.id}\n", encoding="utf-8")
    run.define_metric("*", step_metric="step")
    return Tracker(lambda step, metrics: run.log({"step": step, **metrics}), run.finish)


def _has_wandb_key() -> bool:
    """Return whether Weights & Biases finds credentials in the environment or in the file that `wandb login` writes."""
    if os.environ.keys() & {"WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"}:
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).netloc
    try:
        return netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, NetrcParseError):
        return False


_STARTS = {"tensorboard": _start_tensorboard, "wandb": _start_wandb}


def tracker_names(config: BaseTrainConfig) -> list[str]:
    """Return the names of the trackers, without default ones whose package is not installed."""
    names: list[str] = list(dict.fromkeys(config.trackers))
    if "trackers" not in config.model_fields_set:
        names = [name for name in names if find_spec(name)]
    return names


class MetricsLogger:
    """Logs the steps of a run, every `log_every`, and its validations; all processes call it alike, `start` first."""

    # Each process keeps its own counts, which are summed when a line is due, so that no step synchronizes with the
    # device or waits. A tracker or file that cannot be written during the run is reported once and does not end the
    # run.

    def __init__(
        self, config: BaseTrainConfig, model_config: Any, context: DistributedContext, console: Console, steps: int
    ) -> None:
        self._config, self._context, self._console, self._steps = config, context, console, steps
        self.validated = 0  # step of the last validation that is logged, known to the main process; 0 before the first
        self._costs, self._peak = make_rates(model_config, config.trains, config.lora), _peak(context.device)
        self._trackers: dict[str, Tracker] = {}
        self._can_write = True
        self._losses: dict[str, float] = {}
        self._count = 0
        self._seconds = 0.0
        self._begin_line(time.perf_counter())

    def start(self, step: int) -> None:
        """Start after a number of optimizer steps; files lose what they hold of later steps."""
        if self._context.is_main:
            self._trackers = {name: _STARTS[name](self._config, step) for name in tracker_names(self._config)}
            self._metrics = MetricsFile(self._config.out / "metrics.jsonl", step)
            self.validated = self._metrics.validated
        self._begin_line(time.perf_counter())
        self._pace = deque([(step, self._started)], maxlen=_WINDOW + 1)

    def _begin_line(self, now: float) -> None:
        """Begin to count for the next line: tokens, samples and FLOPs of this process, and seconds by their use."""
        self._started = now
        self._counts = dict.fromkeys(("tokens", "samples", "flops", "waited", "paused"), 0.0)

    def log_setup(self, schedule: DataSchedule, model: nn.Module, sharding: str, kernel: str) -> None:
        total = sum(map(_numel, model.parameters()))
        trained = sum(_numel(parameter) for parameter in model.parameters() if parameter.requires_grad)
        size, out = f"{self._context.size} processes", self._config.out
        project = os.environ.get("WANDB_PROJECT", WANDB_PROJECT)
        places = {"tensorboard": f"TensorBoard: {out / 'tensorboard'}", "wandb": f"Weights & Biases: project {project}"}
        processes = {"none": "1 process", "ddp": f"{size} (DDP)", "fsdp": f"{size} (FSDP2)"}
        targets = [str(out / "metrics.jsonl"), *(places[name] for name in tracker_names(self._config))]
        self.info(
            f"{len(schedule.table):,} samples, {schedule.samples_per_epoch:,} per epoch, {schedule.steps:,} steps of "
            f"{self._config.global_batch}",
            f"{format_count(trained)} of {format_count(total)} parameters trained",
            f"{processes[sharding]} on {self._context.device.type}, attention {kernel.removeprefix('maira_')}",
            f"metrics in {', '.join(targets)}",
        )
        for part in (part for part in schedule.parts if part.used < part.available):
            factor = (self._config.train[part.source].tasks or {}).get(part.task, 1.0)
            used = f"an epoch uses {part.used:,} of {part.available:,} {part.task} samples (share {part.share:g})"
            self.info(f"train[{part.source}]: {used}; tasks.{part.task}={1 / factor:g} uses all")

    def state_dict(self) -> dict[str, Any]:
        """Return what the next line needs of previous steps, as JSON values, the same in every process."""
        seconds = self._seconds + time.perf_counter() - self._started
        return {"losses": dict(self._losses), "count": self._count, "seconds": seconds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._losses, self._count, self._seconds = dict(state["losses"]), state["count"], state["seconds"]

    def count_row(self, batch: PackedBatch, waited: float) -> None:
        lengths = batch.starts.diff()[: len(batch.sample_ids)].numpy()
        flops = self._costs.of(lengths, batch.pixel_values.shape[0], batch.targets.shape[0]).values()
        counted = {"tokens": int(lengths.sum()), "samples": len(lengths), "flops": sum(flops), "waited": waited}
        for name, count in counted.items():
            self._counts[name] += count

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Context whose time (of a validation, say) is excluded from the rates, but not from the remaining time."""
        started = time.perf_counter()
        yield
        self._counts["paused"] += time.perf_counter() - started

    def log_step(self, step: int, epoch: int, losses: Mapping[str, float], **last: float) -> None:
        """Count an optimizer step, and log if a line is due."""
        for name, value in losses.items():
            self._losses[name] = self._losses.get(name, 0.0) + value
        self._count += 1
        if step % self._config.log_every and step != self._steps:
            return
        metrics = {name: value / self._count for name, value in self._losses.items()} | last
        rates = self._read_rates()
        self._losses, self._count = {}, 0
        self._pace.append((step, time.perf_counter()))
        # At the pace of the last lines since the start or the resumption.
        (first, since), (last_step, now) = self._pace[0], self._pace[-1]
        left = (self._steps - step) * (now - since) / max(1, last_step - first)
        if self._context.is_main:
            self._write({"step": step, "epoch": epoch, "seconds": round(self._seconds, 1)}, metrics | rates)
            self.info(f"step {step}/{self._steps}", *_line(metrics, rates, left))

    def log_validation(self, step: int, metrics: MetricValues) -> None:
        if self._context.is_main:
            self.validated = step
            self._write({"step": step}, metrics)
            self.info(f"step {step}/{self._steps}", *_validated(metrics))

    def info(self, *parts: str) -> None:
        """Print a line of several parts."""
        if self._context.is_main:
            self._console.print("  ".join(parts), highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        for name in list(self._trackers):
            self._guarded(name, lambda tracker: tracker.close())
        self._trackers = {}

    def _read_rates(self) -> dict[str, float]:
        """Return the rates since the last line, over all processes, and the peak memory of the fullest device."""
        counts, context = self._counts, self._context
        local = [counts["tokens"], counts["samples"], counts["flops"] / 1e12, counts["waited"]]
        memory = [0.0] * context.size
        memory[context.rank] = _memory(context.device)
        sums = torch.tensor([*local, *memory], dtype=torch.float64, device=context.device)
        now = time.perf_counter()
        elapsed = now - self._started
        tokens, samples, tflop, waited, *peaks = context.sum(sums).tolist()
        seconds = max(elapsed - counts["paused"], 1e-9)
        self._seconds += elapsed
        self._begin_line(now)
        rates = {
            "tokens_per_second": tokens / seconds,
            "samples_per_second": samples / seconds,
            "tflops_per_device": tflop / seconds / context.size,
            "data_wait": waited / context.size / seconds,
        }
        if self._peak is not None:
            rates["mfu"] = rates["tflops_per_device"] * 1e12 / self._peak
        return rates | ({"memory_gb": max(peaks)} if max(peaks) else {})

    def _write(self, head: Mapping[str, float], metrics: MetricValues) -> None:
        # Nine digits distinguish all float32 numbers; what is not finite is None.
        known = {name: float(f"{x:.9g}") for name, x in metrics.items() if x is not None and math.isfinite(x)}
        try:
            self._metrics.add({**head, **dict.fromkeys(metrics), **known})
            self._can_write = True
        except OSError as error:
            if self._can_write:
                self.info(f"metrics.jsonl cannot be written: {error.strerror}; training continues")
            self._can_write = False
        known = {name if "/" in name else f"train/{name}": value for name, value in known.items()}
        for name in list(self._trackers):
            self._guarded(name, lambda tracker: tracker.write(int(head["step"]), known))

    def _guarded(self, name: str, act: Any) -> None:
        try:
            act(self._trackers[name])
        except Exception as error:  # whatever its disk or network fails with, training continues
            reason = " ".join(str(error).split()) or type(error).__name__
            self.info(f"{name} is disabled: {reason}")
            del self._trackers[name]


def _numel(parameter: nn.Parameter) -> int:
    """Return the number of elements of a parameter, also of one that is packed in 4 bits."""
    state = getattr(parameter, "quant_state", None)
    return math.prod(state.shape) if state is not None else parameter.numel()


def _peak(device: torch.device) -> float | None:
    """Return the peak FLOP/s of a device by its data sheet; None for a CPU or an unknown device."""
    accelerator = find_accelerator(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return accelerator.peak if accelerator else None


def _memory(device: torch.device) -> float:
    """Return the peak memory of tensors on the device since the last call, or of the process on a CPU, in GB."""
    if device.type != "cuda":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RESIDENT_UNIT / 1e9
    peak = torch.cuda.max_memory_allocated(device) / 1e9
    torch.cuda.reset_peak_memory_stats(device)
    return peak


def _line(metrics: MetricValues, rates: Mapping[str, float], left: float) -> list[str]:
    parts = [f"{name} {value:.4f}" for name, value in metrics.items() if name not in ("lr", "grad_norm")]
    parts += [f"lr {metrics['lr']:.2e}"] if "lr" in metrics else []
    parts += [f"norm {metrics['grad_norm']:.2f}"] if "grad_norm" in metrics else []
    parts += [f"{format_count(rates[f'{unit}_per_second'])} {unit}/s" for unit in ("tokens", "samples")]
    parts += [f"MFU {rates['mfu']:.0%}" if "mfu" in rates else f"{rates['tflops_per_device']:.2g} TFLOP/s"]
    parts += [f"{rates['memory_gb']:.1f} GB"] if "memory_gb" in rates else []
    return [*parts, f"data wait {rates['data_wait']:.0%}", f"{format_duration(left)} left"]


def _validated(metrics: MetricValues) -> Iterator[str]:
    """Yield metrics one by one, and those of a group (precision, recall, F1) together."""
    groups: dict[str, dict[str, str]] = {}
    for name, value in metrics.items():
        text = "-" if value is None else f"{value:.3f}"
        group, _, part = name.replace("/", "_" if name.startswith("boxes/") else "/").rpartition("_")
        if part in _PARTS:
            groups.setdefault(group, {})[part] = text
        else:
            yield f"{name} {text}"
    for group, parts in groups.items():
        if set(parts.values()) != {"-"}:
            yield f"{group} {'/'.join(parts)} {'/'.join(parts.values())}"


def format_duration(seconds: float) -> str:
    """Format a time with two digits: 0.17 s, 3.5 min, 90 min, 24.5 h."""
    if seconds < 60:
        return f"{seconds:.2g} s"
    minutes = seconds / 60
    if minutes < 10:
        return f"{minutes:.1f} min"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:,.1f} h"
