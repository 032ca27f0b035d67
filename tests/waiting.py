"""Waiting for another process, without a fixed time."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 240.0
"""Seconds after which a wait fails; more than a busy machine needs."""


def wait_until(condition: Callable[[], Any], details: Callable[[], str] = str) -> None:
    """Wait until a condition holds, which may fail by an assertion; `details` are for the message of the failure."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, details()
        time.sleep(0.01)
