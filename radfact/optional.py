"""Optional packages, imported on first use."""

from __future__ import annotations

import importlib
from typing import Any

from radfact.errors import ErrorCode, InputError


def load_stats() -> Any:
    """Import `scipy.stats`."""
    return _import("scipy.stats")


def load_optimize() -> Any:
    """Import `scipy.optimize`."""
    return _import("scipy.optimize")


def load_pyplot() -> Any:
    """Import `matplotlib.pyplot` with a backend that draws into files."""
    _import("matplotlib").use("agg")
    return _import("matplotlib.pyplot")


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(
            f'needs the package {error.name}: pip install "maira-radfact[meta]"', code=ErrorCode.MISSING_REQUIREMENT
        ) from None
