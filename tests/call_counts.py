"""Count the calls that a function makes: a measure of work that is the same on every machine."""

import sys
from collections.abc import Callable
from types import FrameType


def count_calls(function: Callable[[], object]) -> int:
    """Return the number of calls of Python and C functions while `function` runs."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls
