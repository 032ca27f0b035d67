"""What a run says of itself: a line on the console, `metrics.jsonl`, trackers; rates, and how near to the hardware."""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from torch import Tensor, nn

from maira.train.config.run_config import BaseTrainConfig
from maira.train.cost.accelerators import find_accelerator
from maira.train.cost.flops import make_rates
from maira.train.data.packing import PackedBatch
from maira.train.trackers import Tracker, places, start_trackers
from radfact.io.jsonl import dumps, open_atomic

if TYPE_CHECKING:
    from maira.train.data.schedule import DataSchedule
    from maira.train.parallel import DistributedContext

MetricValues = Mapping[str, float | None]
_WINDOW = 30
"""Log lines over which the pace is taken that the time left is reckoned by."""


_RESIDENT_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in which the system counts the memory of a process."""


class MetricsFile:
    """`metrics.jsonl`: one object a line, with its `step`. What cannot be written waits for the next line.

    Args:
        path: of the file.
        step: where the run goes on; lines of later steps are dropped, and a last one that was cut off.

    Attributes:
        validated: step of the last line about a validation that was there; 0 without any.
    """

    def __init__(self, path: Path, step: int) -> None:
        self._path, self._waiting, self.validated = path, "", 0
        if path.exists():
            read = ((line, _row(line)) for line in path.read_text(encoding="utf-8").splitlines())
            kept = [(line, row) for line, row in read if row is not None and row["step"] <= step]
            # Lines of steps alone have an epoch.
            self.validated = max((row["step"] for _, row in kept if "epoch" not in row), default=0)
            with open_atomic(path) as handle:
                handle.writelines(f"{line}\n" for line, _ in kept)

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a line.

        Raises:
            OSError: it cannot be written now.
        """
        self._waiting += dumps(dict(row)) + "\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        size = self._path.stat().st_size if self._path.exists() else 0
        try:
            with self._path.open("a", encoding="utf-8") as handle:
                handle.write(self._waiting)
        except OSError:
            with suppress(OSError), self._path.open("r+b") as handle:
                handle.truncate(size)
            raise
        self._waiting = ""


def _row(line: str) -> dict[str, Any] | None:
    """What a line holds; None where it is not whole."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


@dataclass
class _Counts:
    """What this process did since the last line; `waited` for data, seconds."""

    started: float
    tokens: int = 0
    samples: int = 0
    flops: float = 0.0
    waited: float = 0.0
    paused: float = 0.0


class MetricsLogger:
    """What a run says of its steps, each `log_every` of them, and of what is validated.

    All processes call it alike, `start` first: counts are kept by each and added up when a line is due, so that no step
    waits for the device or for other processes. The main process alone writes. A tracker or file that cannot be written
    while the run goes on is said once and does not end it.

    Args:
        config: its folder, trackers and `log_every` count, and what it trains.
        model_config: of the model; what is executed is reckoned from it (`maira.train.cost.flops`).
        context: the processes of the run.
        console: where lines go.
        steps: of the whole run.

    Attributes:
        validated: step of the last validation that is written down, known to the main process; 0 before the first.
    """

    def __init__(
        self, config: BaseTrainConfig, model_config: Any, context: DistributedContext, console: Console, steps: int
    ) -> None:
        self.validated = 0
        self._recipe, self._context, self._console, self._steps = config, context, console, steps
        self._costs = make_rates(model_config, config)
        self._peak = _peak(context.device)
        self._trackers: dict[str, Tracker] = {}
        self._can_write = True
        self._losses: dict[str, Tensor | float] = {}
        self._count = 0
        self._seconds = 0.0
        self._counts = _Counts(time.perf_counter())

    def start(self, step: int) -> None:
        """Begin, with so many optimiser steps done; what files hold of later ones is dropped.

        Raises:
            InputError: a tracker cannot be started, in the main process.
        """
        if self._context.is_main:
            self._trackers = start_trackers(self._recipe, step)
            self._metrics = MetricsFile(self._recipe.out / "metrics.jsonl", step)
            self.validated = self._metrics.validated
        self._counts = _Counts(time.perf_counter())
        self._pace = deque([(step, self._counts.started)], maxlen=_WINDOW + 1)

    def log_setup(self, schedule: DataSchedule, model: nn.Module, sharing: str, kernel: str) -> None:
        """Say what the run is about to do, and how.

        Args:
            schedule: its course.
            model: what is trained told from what is frozen; on this process's device.
            sharing: how the processes share it ("none", "ddp", "fsdp").
            kernel: of attention.
        """
        config, context = self._recipe, self._context
        parameters = [(_numel(parameter), parameter.requires_grad) for parameter in model.parameters()]
        trained = sum(count for count, is_trained in parameters if is_trained)
        every = sum(count for count, _ in parameters)
        alike = f"{context.size} processes"
        processes = {"none": "1 process", "ddp": f"{alike} (DDP)", "fsdp": f"{alike} (FSDP2)"}
        self.info(
            f"{len(schedule.table):,} answers, {schedule.samples_per_epoch:,} samples an epoch, {schedule.steps:,} steps of "
            f"{config.global_batch}",
            f"{_short(trained)} of {_short(every)} parameters trained",
            f"{processes[sharing]} on {context.device.type}, attention {kernel.removeprefix('maira_')}",
            f"figures in {', '.join(places(config))}",
        )

    def state_dict(self) -> dict[str, Any]:
        """What the next line needs of the steps before, as JSON values; the same in every process."""
        losses = {name: float(value) for name, value in self._losses.items()}
        seconds = self._seconds + time.perf_counter() - self._counts.started
        return {"losses": losses, "count": self._count, "seconds": seconds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._losses, self._count = dict(state["losses"]), int(state["count"])
        self._seconds = float(state["seconds"])

    def count_row(self, batch: PackedBatch, waited: float) -> None:
        """Count a packed row of this process.

        Args:
            batch: still on the CPU; padding is not counted.
            waited: time for which it was waited, seconds.
        """
        lengths = batch.starts.diff()[: len(batch.sample_ids)].numpy()
        counts = self._counts
        counts.tokens += int(lengths.sum())
        counts.samples += len(lengths)
        counts.flops += self._costs.of(lengths, batch.pixel_values.shape[0], batch.targets.shape[0]).total
        counts.waited += waited

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Keep what is done in the block (validation, say) out of the rates; the time left counts it."""
        started = time.perf_counter()
        yield
        self._counts.paused += time.perf_counter() - started

    def log_step(self, step: int, epoch: int, losses: Mapping[str, Tensor | float], **last: Tensor | float) -> None:
        """Take an optimiser step, and say how it goes if a line is due.

        Args:
            step: how many are done now.
            epoch: from 0.
            losses: of the step, over all processes; a line has their mean over its steps. Tensors are not read before.
            **last: what a line has as it is (`lr`, `grad_norm`).
        """
        for name, value in losses.items():
            detached = value.detach() if isinstance(value, Tensor) else value
            self._losses[name] = self._losses.get(name, 0.0) + detached
        self._count += 1
        if step % self._recipe.log_every and step != self._steps:
            return
        figures = {name: float(value) / self._count for name, value in self._losses.items()}
        figures |= {name: float(value) for name, value in last.items()}
        rates = self._read_rates()
        self._losses, self._count = {}, 0
        self._pace.append((step, time.perf_counter()))
        left = _time_left(self._pace, self._steps)
        if self._context.is_main:
            head = {"step": step, "epoch": epoch, "seconds": round(self._seconds, 1)}
            self._write(head, figures | rates)
            self.info(f"step {step}/{self._steps}", *_line(figures, rates, left))

    def log_validation(self, step: int, figures: MetricValues) -> None:
        """Take what was validated after a step."""
        if self._context.is_main:
            self.validated = step
            self._write({"step": step}, figures)
            self.info(f"step {step}/{self._steps}", *_validated(figures))

    def info(self, *parts: str) -> None:
        """A line of several parts; on a narrow terminal it is broken between them."""
        if not self._context.is_main:
            return
        width = self._console.width if self._console.is_terminal else math.inf
        for line in _fold(parts, width):
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Have all trackers write what they hold."""
        for name in list(self._trackers):
            self._guarded(name, lambda tracker: tracker.close())
        self._trackers = {}

    def _read_rates(self) -> dict[str, float]:
        """Rates since the last line, over all processes, and the memory that the fullest device held meanwhile."""
        counts, context, now = self._counts, self._context, time.perf_counter()
        mine = [counts.tokens, counts.samples, counts.flops / 1e12, counts.waited]
        memory = [0.0] * context.size
        memory[context.rank] = _memory(context.device)
        collective_section = torch.tensor([*mine, *memory], dtype=torch.float64, device=context.device)
        tokens, samples, tflop, waited, *held = context.sum(collective_section).tolist()
        whole = now - counts.started
        seconds = max(whole - counts.paused, 1e-9)
        self._seconds += whole
        self._counts = _Counts(now)
        rates = {
            "tokens_per_second": tokens / seconds,
            "samples_per_second": samples / seconds,
            "tflops_per_device": tflop / seconds / context.size,
            "data_wait": waited / context.size / seconds,
        }
        if self._peak is not None:
            rates["mfu"] = rates["tflops_per_device"] * 1e12 / self._peak
        return rates | ({"memory_gb": max(held)} if max(held) else {})

    def _write(self, head: Mapping[str, float], figures: MetricValues) -> None:
        rounded = {name: _nine_digits(value) for name, value in figures.items()}
        try:
            self._metrics.add({**head, **rounded})
            self._can_write = True
        except OSError as error:
            if self._can_write:
                self.info(f"metrics.jsonl cannot be written: {error.strerror}; training goes on")
            self._can_write = False
        known = {name: value for name, value in rounded.items() if value is not None}
        for name in list(self._trackers):
            self._guarded(name, lambda tracker: tracker.write(int(head["step"]), known))

    def _guarded(self, name: str, act: Any) -> None:
        try:
            act(self._trackers[name])
        except Exception as error:  # whatever a tracker's disk or network fails with, the training is worth more
            said = " ".join(str(error).split()) or type(error).__name__
            self.info(f"{name} is left out from here on: {said}")
            del self._trackers[name]


def _numel(parameter: nn.Parameter) -> int:
    """Numbers of a parameter, also of one that is packed in 4 bits."""
    state = getattr(parameter, "quant_state", None)
    return math.prod(state.shape) if state is not None else parameter.numel()


def _peak(device: torch.device) -> float | None:
    """Operations a second that the device's maker claims; None for a CPU or one that is not known."""
    if device.type != "cuda":
        return None
    known = find_accelerator(torch.cuda.get_device_name(device))
    return known.peak if known else None


def _memory(device: torch.device) -> float:
    """Most memory that tensors took on the device since this was last asked, or on a CPU the process so far, GB."""
    if device.type != "cuda":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RESIDENT_UNIT / 1e9
    held = torch.cuda.max_memory_allocated(device) / 1e9
    torch.cuda.reset_peak_memory_stats(device)
    return held


def _time_left(pace: deque[tuple[int, float]], steps: int) -> float:
    """Seconds, at the pace of the last lines; nothing of a resumed run's past is in it."""
    (first, since), (last, now) = pace[0], pace[-1]
    return (steps - last) * (now - since) / max(1, last - first)


def _nine_digits(value: float | None) -> float | None:
    """Enough to tell any two numbers of float32 apart; None where it is not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.9g}")


def _line(figures: MetricValues, rates: Mapping[str, float], left: float) -> list[str]:
    parts = [f"{name} {value:.4f}" for name, value in figures.items() if name not in ("lr", "grad_norm")]
    parts += [f"lr {figures['lr']:.2e}"] if "lr" in figures else []
    parts += [f"norm {figures['grad_norm']:.2f}"] if "grad_norm" in figures else []
    parts += [f"{_short(rates['tokens_per_second'])} tokens/s", f"{_short(rates['samples_per_second'])} samples/s"]
    parts += [f"MFU {rates['mfu']:.0%}" if "mfu" in rates else f"{rates['tflops_per_device']:.2g} TFLOP/s"]
    parts += [f"{rates['memory_gb']:.1f} GB"] if "memory_gb" in rates else []
    return [*parts, f"data wait {rates['data_wait']:.0%}", f"{_duration(left)} left"]


def _validated(figures: MetricValues) -> Iterator[str]:
    """Losses one by one; of other figures those that belong together (precision, recall, F1) side by side."""
    beside: dict[str, dict[str, str]] = {}
    for name, value in figures.items():
        said = "-" if value is None else f"{value:.3f}"
        if name.startswith("loss/"):
            yield f"{name} {said}"
        else:
            group, _, part = name.replace("/", "_" if name.startswith("boxes/") else "/").rpartition("_")
            beside.setdefault(group, {})[part] = said
    for group, parts in beside.items():
        if set(parts.values()) != {"-"}:
            yield f"{group} {'/'.join(parts)} {'/'.join(parts.values())}"


def _short(count: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.3g}"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def _fold(parts: tuple[str, ...], width: float) -> Iterator[str]:
    """Lines of parts, none broken; all but the first are indented."""
    line = ""
    for part in parts:
        if line and len(line) + 2 + len(part) > width:
            yield line
            line = f"  {part}"
        else:
            line = f"{line}  {part}" if line else part
    yield line
