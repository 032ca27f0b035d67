"""Termination signals that a run obeys at the end of its step."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from maira.runtime.processes import is_main

_MESSAGE = b"\nthe training state is saved after this step; press Ctrl-C again to end at once\n"


class TerminationSignal:
    """Context manager that records SIGTERM and Ctrl-C instead of ending the process.

    Schedulers send SIGTERM some time before they kill a job. A second Ctrl-C interrupts as usual. Outside of the main
    thread, where no signals arrive, nothing is recorded.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._handlers: dict[signal.Signals, Any] = {}

    @property
    def is_received(self) -> bool:
        """Whether a termination signal was received."""
        return self._event.is_set()

    def __enter__(self) -> TerminationSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: Any) -> None:
        self._event.set()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            # Not by the console, which may be writing right now.
            os.write(2, _MESSAGE if is_main() else b"")
