"""Cores, memory and disk, as much of them as this process may use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from radfact.doctor.report import Item

_GIB = 1 << 30
_CGROUP = Path("/sys/fs/cgroup")
_LOW_DISK = 5 * _GIB


def machine_items() -> Sequence[Item]:
    """Cores, memory, and the free disk of the current folder."""
    cores, share = usable_cores(), _cpu_share()
    limited = f", of which a limit leaves {share:g}" if share is not None and share < cores else ""
    items = [Item("cores", "note", f"{cores}{limited}", details={"cores": cores, "limit": share})]
    total, free = _memory()
    if total:
        text = f"{total / _GIB:.1f} GiB" + (f", {free / _GIB:.1f} GiB free" if free else "")
        items.append(Item("memory", "note", text, details={"bytes": total, "free_bytes": free}))
    return [*items, _disk("disk here", Path.cwd())]


def cache_items() -> Sequence[Item]:
    """The user's cache folders that commands write to or models are loaded from."""
    fetched = next((name for name in ("HF_HUB_CACHE", "HF_HOME") if os.environ.get(name)), "HF_HOME")
    return [
        _cache("maira's cache", user_cache() / "maira", "XDG_CACHE_HOME"),
        _cache("Hugging Face's cache", hugging_face_cache(), fetched),
    ]


def user_cache() -> Path:
    """The user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def hugging_face_cache() -> Path:
    """Where Hugging Face's own tools keep what they have fetched."""
    home = Path(os.environ.get("HF_HOME") or user_cache() / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub")


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_share() -> float | None:
    """Cores' worth of time that the control group leaves."""
    words = _read(_CGROUP / "cpu.max").split()
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0].isdigit() else None


def _memory() -> tuple[int | None, int | None]:
    """Memory in bytes and what of it is free, by the tighter of machine and control group."""
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


def _disk(name: str, folder: Path) -> Item:
    free = shutil.disk_usage(folder).free
    low = " (little: results, images and weights may not fit)" if free < _LOW_DISK else ""
    return Item(name, "note", f"{free / _GIB:.0f} GiB free{low}", details={"folder": str(folder), "free_bytes": free})


def _cache(name: str, folder: Path, variable: str) -> Item:
    existing = next((place for place in (folder, *folder.parents) if place.exists()), Path("/"))
    is_writable = os.access(existing, os.W_OK)
    state = f"{folder}, {'there' if existing == folder else 'not there yet'}"
    details = {"folder": str(folder), "exists": existing == folder, "writable": is_writable}
    if is_writable:
        return Item(name, "note", state, details=details)
    return Item(name, "wrong", f"{state}, cannot be written to", f"set {variable} to a folder of yours", False, details)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return ""
