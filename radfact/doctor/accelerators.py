"""GPUs, found by the driver and not by torch, whose import takes seconds; and what torch was built for."""

from __future__ import annotations

import ast
import ctypes
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from radfact.doctor.report import Item

_ASKED = ("index", "name", "driver_version", "memory.total", "memory.used", "compute_cap")
_PATIENCE = 10
"""Seconds for nvidia-smi, which hangs where a driver does."""
_BFLOAT16 = 8.0
"""Compute capability from which a GPU computes in bfloat16 (Ampere)."""


def accelerator_items() -> Sequence[Item]:
    """Each GPU with its memory, driver and bfloat16; one item that says so where there is none."""
    program = shutil.which("nvidia-smi")
    gpus = [] if program is None else _nvidia(program)
    torch = torch_build()
    items = [*gpus] or [Item("GPU", "note", "none found; models run on the CPU")]
    if torch is not None:
        items.append(_torch_item(torch, has_gpu=any(item.state == "ok" for item in gpus)))
    return items


def torch_build() -> str | None:
    """What the installed torch was built for: "CUDA 12.8", "ROCm 6.2", "the CPU"; None where there is no torch."""
    try:
        found = importlib.util.find_spec("torch")
    except ValueError:  # a module that was put in its place without saying where from
        return None
    if found is None or found.origin is None:
        return None
    source = Path(found.origin).with_name("version.py")
    if not source.is_file():
        return None
    values = {}
    for node in ast.parse(source.read_text("utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(targets[0], ast.Name) and isinstance(value, ast.Constant):
            values[targets[0].id] = str(value.value or "")
    builds = {"cuda": "CUDA", "hip": "ROCm", "xpu": "XPU"}
    return next((f"{words} {values[key]}" for key, words in builds.items() if values.get(key)), "the CPU")


def _torch_item(build: str, *, has_gpu: bool) -> Item:
    version = f"built for {build}"
    if has_gpu and not build.startswith("CUDA"):
        mend = "install the build of torch for your CUDA: https://pytorch.org/get-started/locally"
        return Item("torch", "wrong", f"{version}, and so does not use the GPU", mend)
    return Item("torch", "ok", version, details={"build": build})


def _nvidia(program: str) -> list[Item]:
    asked = [program, f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [Item("GPU", "wrong", f"nvidia-smi does not answer ({type(error).__name__})")]
    if done.returncode != 0:
        said = " ".join((done.stdout or done.stderr).split())
        return [Item("GPU", "wrong", f"nvidia-smi: {said:.200}", "reinstall or restart the NVIDIA driver")]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    items = [_gpu_item([cell.strip() for cell in line.split(",")]) for line in done.stdout.splitlines() if line.strip()]
    if visible is not None:
        items.append(Item("CUDA_VISIBLE_DEVICES", "note", visible or "empty: no GPU is seen"))
    return items


def _gpu_item(cells: Sequence[str]) -> Item:
    index, name, driver, total, used, capability = cells
    has_bfloat16 = _number(capability) >= _BFLOAT16
    cuda = _cuda_of_driver()
    text = f"{name}, {_gib(total)} GiB ({_gib(used)} in use), driver {driver}"
    text += f" (CUDA {cuda})" if cuda else ""
    text += f", {'bf16' if has_bfloat16 else 'no bf16'}"
    details = {
        "name": name,
        "memory_mib": _number(total),
        "used_mib": _number(used),
        "driver": driver,
        "cuda": cuda,
        "compute_capability": capability,
        "bf16": has_bfloat16,
    }
    return Item(f"GPU {index}", "ok", text, details=details)


def _gib(mebibytes: str) -> str:
    """A count of MiB in GiB; drivers say "[N/A]" of what they do not tell."""
    value = _number(mebibytes)
    return f"{value / 1024:.0f}" if value else "?"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _cuda_of_driver() -> str | None:
    """The newest CUDA that the driver runs."""
    try:
        version = ctypes.c_int()
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"
