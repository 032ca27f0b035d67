"""Notices to end, which a run heeds when its step is done."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from maira.runtime.processes import is_main

_AFTER_THIS_STEP = b"\nthe state is saved after this step; Ctrl-C again ends at once\n"


@contextmanager
def notices() -> Iterator[Callable[[], bool]]:
    """Whether the process was told to end: by SIGTERM, which schedulers send some time before, or by Ctrl-C.

    Another Ctrl-C interrupts as ever.
    """
    told = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield told.is_set
        return

    def interrupt(*_: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        told.set()
        # Not by the console: it may be just writing.
        os.write(2, _AFTER_THIS_STEP if is_main() else b"")

    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: told.set()),
        signal.SIGINT: signal.signal(signal.SIGINT, interrupt),
    }
    try:
        yield told.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
