"""The splitter protocol: narratives in, single-finding sentences out, whoever splits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from radfact.errors import Failure


@runtime_checkable
class Splitter(Protocol):
    """Anything that makes single-finding sentences of narrative findings (paper 004, appendix B.5.1)."""

    name: str

    def split(self, narratives: Sequence[str]) -> list[list[str] | Failure]:
        """The sentences of each narrative, in order. Never raises for a single bad answer."""
        ...

    def describe(self) -> dict[str, Any]:
        """Everything that changes a sentence (name, version, prompt hash), for `run.json`; JSON values only."""
        ...

    def account(self) -> dict[str, int]:
        """What the answers cost so far, as in `radfact.entailment.Judge.account`."""
        ...
