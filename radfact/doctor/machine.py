"""Checks of cores, memory, disk and GPUs, as far as this process may use them.

GPUs come from the driver and not from torch, whose import takes seconds.
"""

from __future__ import annotations

import ast
import ctypes
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from radfact.cache_folders import user_cache, weights_folder
from radfact.doctor.results import CheckResult

_GIB = 1 << 30
_CGROUP = Path("/sys/fs/cgroup")
_LOW_DISK = 5 * _GIB
_GPU_FIELDS = ("index", "name", "driver_version", "memory.total", "memory.used", "compute_cap")
_TIMEOUT = 10
"""Seconds for nvidia-smi, which hangs if a driver hangs."""
_BFLOAT16_CAPABILITY = 8.0
"""Compute capability from which a GPU supports bfloat16 (Ampere)."""


def check_machine() -> Sequence[CheckResult]:
    """Check cores, memory, and the free disk space of the current folder."""
    cores, limit = usable_cores(), _cpu_limit()
    suffix = f", limited to {limit:g}" if limit is not None and limit < cores else ""
    results = [CheckResult("cores", "note", f"{cores}{suffix}", details={"cores": cores, "limit": limit})]
    total, free = _memory()
    if total:
        text = f"{total / _GIB:.1f} GiB" + (f", {free / _GIB:.1f} GiB free" if free else "")
        results.append(CheckResult("memory", "note", text, details={"bytes": total, "free_bytes": free}))
    folder = Path.cwd()
    free_disk = shutil.disk_usage(folder).free
    low = " (little: results, images and weights may not fit)" if free_disk < _LOW_DISK else ""
    details = {"folder": str(folder), "free_bytes": free_disk}
    return [*results, CheckResult("disk here", "note", f"{free_disk / _GIB:.0f} GiB free{low}", details=details)]


def check_caches() -> Sequence[CheckResult]:
    """Check the cache folders that commands write to or load models from."""
    variable = next((name for name in ("HF_HUB_CACHE", "HF_HOME") if os.environ.get(name)), "HF_HOME")
    return [
        _check_cache("maira's cache", user_cache() / "maira", "XDG_CACHE_HOME"),
        _check_cache("Hugging Face's cache", hugging_face_cache(), variable),
        _check_cache("weights of metrics", weights_folder(), "RADFACT_WEIGHTS"),
    ]


def hugging_face_cache() -> Path:
    """Return the folder of Hugging Face's downloads."""
    home = Path(os.environ.get("HF_HOME") or user_cache() / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub")


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_limit() -> float | None:
    """Return the CPU time limit of the control group, in cores."""
    fields = _read(_CGROUP / "cpu.max").split()
    return int(fields[0]) / int(fields[1]) if len(fields) == 2 and fields[0].isdigit() else None


def _memory() -> tuple[int | None, int | None]:
    """Return total and free memory in bytes, by the tighter limit of machine and control group."""
    rows = dict(line.split(":", 1) for line in _read(Path("/proc/meminfo")).splitlines() if ":" in line)
    sizes = {name: int(value.split()[0]) * 1024 for name, value in rows.items() if value.split()}
    total, free = sizes.get("MemTotal"), sizes.get("MemAvailable")
    if total is None and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit, used = _read(_CGROUP / "memory.max").strip(), _read(_CGROUP / "memory.current").strip()
    if limit.isdigit() and total and int(limit) < total:
        total = int(limit)
        free = min(free or total, total - int(used)) if used.isdigit() else free
    return total, free


def _check_cache(name: str, folder: Path, variable: str) -> CheckResult:
    existing = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    is_writable = os.access(existing, os.W_OK)
    message = f"{folder}, {'exists' if existing == folder else 'does not exist yet'}"
    details = {"folder": str(folder), "exists": existing == folder, "writable": is_writable}
    if is_writable:
        return CheckResult(name, "note", message, details=details)
    fix = f"set {variable} to a folder that you can write to"
    return CheckResult(name, "wrong", f"{message}, not writable", fix, details=details)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return ""


def check_accelerators() -> Sequence[CheckResult]:
    """Check each GPU: memory, driver and bfloat16; and whether torch can use it."""
    program = shutil.which("nvidia-smi")
    results = [] if program is None else _check_nvidia(program)
    has_gpu = any(result.status == "ok" for result in results)
    results = results or [CheckResult("GPU", "note", "none found; models run on the CPU")]
    build = torch_build()
    if build is None:
        return results
    if has_gpu and not build.startswith("CUDA"):
        fix = "install the build of torch for your CUDA: https://pytorch.org/get-started/locally"
        return [*results, CheckResult("torch", "wrong", f"built for {build}, does not use the GPU", fix)]
    return [*results, CheckResult("torch", "ok", f"built for {build}", details={"build": build})]


def torch_build() -> str | None:
    """Return what the installed torch is built for: "CUDA 12.8", "ROCm 6.2", "the CPU"; None without torch."""
    try:
        spec = importlib.util.find_spec("torch")
    except ValueError:  # a module in sys.modules without a spec
        return None
    if spec is None or spec.origin is None:
        return None
    source = Path(spec.origin).with_name("version.py")
    if not source.is_file():
        return None
    values = {}
    for node in ast.parse(source.read_text("utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(targets[0], ast.Name) and isinstance(value, ast.Constant):
            values[targets[0].id] = str(value.value or "")
    builds = {"cuda": "CUDA", "hip": "ROCm", "xpu": "XPU"}
    return next((f"{name} {values[key]}" for key, name in builds.items() if values.get(key)), "the CPU")


def _check_nvidia(program: str) -> list[CheckResult]:
    command = [program, f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [CheckResult("GPU", "wrong", f"nvidia-smi does not answer ({type(error).__name__})")]
    if process.returncode != 0:
        output = " ".join((process.stdout or process.stderr).split())
        return [CheckResult("GPU", "wrong", f"nvidia-smi: {output:.200}", "reinstall or restart the NVIDIA driver")]
    lines = [line for line in process.stdout.splitlines() if line.strip()]
    results = [_check_gpu([cell.strip() for cell in line.split(",")]) for line in lines]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        results.append(CheckResult("CUDA_VISIBLE_DEVICES", "note", visible or "empty: no GPU is visible"))
    return results


def _check_gpu(cells: Sequence[str]) -> CheckResult:
    index, name, driver, total, used, capability = cells
    has_bfloat16 = _number(capability) >= _BFLOAT16_CAPABILITY
    cuda = _driver_cuda_version()
    message = f"{name}, {_gib(total)} GiB ({_gib(used)} in use), driver {driver}"
    message += f" (CUDA {cuda})" if cuda else ""
    message += f", {'bf16' if has_bfloat16 else 'no bf16'}"
    details = {
        "name": name,
        "memory_mib": _number(total),
        "used_mib": _number(used),
        "driver": driver,
        "cuda": cuda,
        "compute_capability": capability,
        "bf16": has_bfloat16,
    }
    return CheckResult(f"GPU {index}", "ok", message, details=details)


def _gib(mebibytes: str) -> str:
    """Convert MiB to GiB; a driver may return "[N/A]"."""
    value = _number(mebibytes)
    return f"{value / 1024:.0f}" if value else "?"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _driver_cuda_version() -> str | None:
    """Return the newest CUDA version that the driver supports."""
    try:
        version = ctypes.c_int()
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"
