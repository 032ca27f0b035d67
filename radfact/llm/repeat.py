"""Index of the current repeat (`--repeat`), which is part of the cache key of a request.

Metrics and judges send requests deep inside their own code, so the index is a context variable and not an argument. The
tasks of an event loop inherit it from the thread that starts them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_REPEAT: ContextVar[int] = ContextVar("repeat", default=0)
current_repeat = _REPEAT.get
"""Returns the index of the current repeat; 0 is the first, whose responses are those of a run without repeats."""


@contextmanager
def use_repeat(index: int) -> Iterator[None]:
    """Assign all requests of a block to a repeat, which shares no cached responses with other repeats."""
    token = _REPEAT.set(index)
    try:
        yield
    finally:
        _REPEAT.reset(token)
