"""A user's own function as splitter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from radfact.errors import Failure, InputError
from radfact.judges.splitter import Splitter


class CallableSplitter:
    """A splitter that asks a function for the sentences of one narrative at a time."""

    def __init__(self, function: Callable[[str], Sequence[str]], name: str | None = None) -> None:
        """Take the function, and the name under which it stands in results (by default the function's own)."""
        self.function = function
        self.name: str = name or str(getattr(function, "__qualname__", type(function).__name__))

    def split(self, narratives: Sequence[str]) -> list[list[str] | Failure]:
        """The sentences of each narrative, in order; an exception leaves its narrative without any."""
        return [self._split(narrative) for narrative in narratives]

    def _split(self, narrative: str) -> list[str] | Failure:
        try:
            return list(self.function(narrative))
        except Exception as error:
            return Failure(f"{self.name}: {type(error).__name__}: {' '.join(str(error).split()):.300}")

    def describe(self) -> dict[str, Any]:
        """The name: what else a function depends on is not known."""
        return {"name": self.name}

    def usage(self) -> dict[str, int]:
        """Nothing is counted."""
        return {}


def as_splitter(given: Splitter | Callable[[str], Sequence[str]]) -> Splitter:
    """What a user gives as the splitter, as one.

    Raises:
        InputError: it is neither a splitter nor a function.
    """
    if isinstance(given, Splitter):
        return given
    if not callable(given):
        raise InputError(
            "expected a splitter (load_splitter makes one of a name) or a function of one narrative, "
            f"found {type(given).__name__}",
            field="splitter",
        )
    return CallableSplitter(given)
