"""Waiting for another process, without a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 60.0
"""Seconds after which a wait fails; more than a busy machine needs."""


def wait_until(condition: Callable[[], Any]) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)
