"""The packages that asking about metrics needs beside those of radfact, loaded when they are used."""

from __future__ import annotations

import importlib
from typing import Any

from radfact.errors import InputError


def load_stats() -> Any:
    """`scipy.stats`.

    Raises:
        InputError: scipy is not installed.
    """
    return _load("scipy.stats")


def load_pyplot() -> Any:
    """`matplotlib.pyplot`, which draws into files and opens no window.

    Raises:
        InputError: matplotlib is not installed.
    """
    _load("matplotlib").use("agg")
    return _load("matplotlib.pyplot")


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(f'needs the package {error.name}: pip install "maira-radfact[meta]"') from None
