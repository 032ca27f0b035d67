"""The splitter protocol: narratives in, single-finding sentences out, whoever splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from radfact.errors import Failure


@dataclass(frozen=True, slots=True)
class SplitSentence:
    """A sentence of a narrative, or several that need each other, and the single-finding sentences made of it: none
    where it was removed (paper 004, listing 2)."""

    orig: str
    new: tuple[str, ...]


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

    def usage(self) -> dict[str, int]:
        """What the answers cost so far, as in `radfact.judges.Judge.usage`."""
        ...


class ExplainingSplitter(Splitter, Protocol):
    """A splitter that tells of every sentence what became of it."""

    def explain(self, narratives: Sequence[str]) -> list[list[SplitSentence] | Failure]:
        """Each narrative's own sentences in order, with what was made of each. Never raises for a single bad answer."""
        ...


def sentences_of_split(split: Sequence[SplitSentence]) -> list[str]:
    """All sentences made of one narrative, in order."""
    return [sentence for one in split for sentence in one.new]
