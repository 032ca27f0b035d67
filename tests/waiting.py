"""Waiting for another process, without a fixed time."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 240.0
"""Seconds after which a wait fails; more than a busy machine needs."""


def wait_until(condition: Callable[[], Any], details: Callable[[], str] = str) -> None:
    """Wait until a condition holds.

    Args:
        condition: is called again and again; an assertion in it ends the wait at once, such as one that a process runs.
        details: makes the message of the failure, such as the output of a process.
    """
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, details()
        time.sleep(0.01)
