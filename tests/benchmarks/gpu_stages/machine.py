"""Stage `machine`: the device, versions of libraries, and the rates that other stages compare with."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gpu_stages.cases import Measurement, Setup
from gpu_stages.models import GIB, best_seconds, compute_dtype
from maira.train.cost.accelerators import find_accelerator


@dataclass(frozen=True)
class PeakRates:
    """Measured rates: operations per second of a matrix product, and bytes per second that a copy reads and writes."""

    operations: float
    bytes: float


def measure(case: str, setup: Setup) -> Iterator[Measurement]:
    """Yield versions and properties, or the rates."""
    yield from _versions(setup) if case == "versions" else _rates(setup)


def _versions(setup: Setup) -> Iterator[Measurement]:
    yield Measurement("CPU cores", os.cpu_count() or 0)
    yield Measurement("free disk space", shutil.disk_usage(setup.folder).free / GIB, "GiB")
    if setup.device.type == "cuda":
        properties = torch.cuda.get_device_properties(setup.device)
        yield Measurement("device", properties.name)
        yield Measurement("memory", properties.total_memory / GIB, "GiB")
        yield Measurement("compute capability", f"{properties.major}.{properties.minor}")
        yield Measurement("multiprocessors", properties.multi_processor_count)
        yield Measurement("CUDA of torch", torch.version.cuda or "none")
        yield Measurement("cuDNN", str(torch.backends.cudnn.version()))
        accelerator = find_accelerator(properties.name)
        reason = None if accelerator else "maira.train.cost.accelerators has no data sheet of this device"
        yield Measurement(
            "peak of the data sheet", accelerator.peak / 1e12 if accelerator else None, "TFLOP/s", reason=reason
        )


def _rates(setup: Setup) -> Iterator[Measurement]:
    rates = measure_peak_rates(setup)
    yield Measurement("matrix product", rates.operations / 1e12, "TFLOP/s")
    yield Measurement("copy", rates.bytes / 1e9, "GB/s")


def measure_peak_rates(setup: Setup) -> PeakRates:
    """Measure a square matrix product of random numbers, and a copy, whose bytes count as read and as written."""
    side, elements = (8192, 1 << 30) if setup.device.type == "cuda" else (512, 1 << 22)
    device, dtype = setup.device, compute_dtype(setup.device)
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    product = torch.empty_like(left)
    operations = 2 * side**3 / best_seconds(lambda: torch.matmul(left, right, out=product), device)
    source = torch.ones(elements, device=device, dtype=dtype)
    target = torch.empty_like(source)
    return PeakRates(operations, 2 * source.nbytes / best_seconds(lambda: target.copy_(source), device))
