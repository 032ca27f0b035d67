"""Optional packages, imported on first use."""

from __future__ import annotations

import importlib
from typing import Any

from radfact.errors import ErrorCode, InputError


def load_module(name: str) -> Any:
    """Import a module of the packages for meta-evaluation, such as `scipy.stats`."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(
            f'needs the package {error.name}: pip install "maira-radfact[meta]"', code=ErrorCode.MISSING_REQUIREMENT
        ) from None


def load_pyplot() -> Any:
    """Import `matplotlib.pyplot` with a backend that draws into files."""
    load_module("matplotlib").use("agg")
    return load_module("matplotlib.pyplot")
