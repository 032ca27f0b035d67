"""Protocols of judges and splitters: any object with these methods can decide entailment or split narratives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from radfact.errors import ErrorCode, Failure, RunError, describe

Status = Literal["entailment", "not_entailment"]
Relation = Literal["entailment", "neutral", "contradiction"]
_STATUSES, _RELATIONS = get_args(Status), (None, *get_args(Relation))


@dataclass(frozen=True, slots=True)
class EntailmentQuery:
    """Is `hypothesis` true, given that all `premises` (the sentences of the other report) are?"""

    premises: tuple[str, ...]
    hypothesis: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Response to an entailment query."""

    status: Status  #: whether the hypothesis is entailed
    evidence: tuple[int, ...] = ()  #: indices of the premises that decide it; an entailment has at least one
    why: str | None = None  #: explanation of the judge
    #: The status, with neutral and contradicted hypotheses distinguished; None if the judge does not distinguish them.
    #: The published scores of RadFact depend only on the status.
    relation: Relation | None = None


@runtime_checkable
class Judge(Protocol):
    """Decides whether sentences follow from reports (MAIRA-2, section RadFact).

    A judge may also have a method `make_splitter()`, which returns a `Splitter` of the same model or rules, with a
    usage of its own.
    """

    name: str

    def judge(self, queries: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
        """Return one verdict or failure per query, in order. A single invalid response must not raise."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return everything that changes a verdict (name, version, prompt hash, options) as JSON values."""
        ...

    def usage(self) -> dict[str, int]:
        """Return the cost so far: `calls`, `tokens_in`, `tokens_out`, `repairs`, `failures`, `cached`.

        A judge that also counts `planned` and `done` queries gets a progress bar.
        """
        ...


@runtime_checkable
class Splitter(Protocol):
    """Splits narrative findings into sentences of one finding each (MAIRA-2, appendix B.5.1)."""

    name: str

    def split(self, narratives: Sequence[str]) -> list[list[str] | Failure]:
        """Return the sentences of each narrative, in order. A single invalid response must not raise."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return everything that changes a sentence (name, version, prompt hash) as JSON values."""
        ...

    def usage(self) -> dict[str, int]:
        """Return the cost so far, as in `Judge.usage`."""
        ...


@dataclass(frozen=True, slots=True)
class RemovedText:
    """A part of a narrative that the splitter removed, with its reason and position; None if it gives or has none."""

    text: str
    reason: str | None = None
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class SplitSentence:
    """Result of splitting one sentence (MAIRA-2, listing 2)."""

    orig: str  #: a sentence of the narrative, or several that depend on each other
    new: tuple[str, ...]  #: single-finding sentences; empty if the sentence was removed
    removed: tuple[RemovedText, ...] = ()  #: parts that were removed, if the splitter reports them

    @property
    def all_removed(self) -> tuple[RemovedText, ...]:
        """Removed parts, or the whole sentence if nothing of it remains."""
        return self.removed or (() if self.new else (RemovedText(self.orig),))


@runtime_checkable
class ExplainingSplitter(Splitter, Protocol):
    """A splitter that reports the source of every sentence."""

    def explain(self, narratives: Sequence[str]) -> list[list[SplitSentence] | Failure]:
        """Return the split sentences of each narrative, in order. A single invalid response must not raise."""
        ...

    def split(self, narratives: Sequence[str]) -> list[list[str] | Failure]:
        """Return the sentences of each narrative, in order."""
        return [split if isinstance(split, Failure) else flatten_split(split) for split in self.explain(narratives)]


def flatten_split(split: Sequence[SplitSentence]) -> list[str]:
    return [new for sentence in split for new in sentence.new]


def query_judge(judge: Judge, queries: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
    """Query a judge and validate its verdicts; an invalid one becomes a failure.

    Args:
        judge: a judge.
        queries: in the order of the verdicts.

    Raises:
        RunError: the number of verdicts differs from the number of queries.
    """
    verdicts = judge.judge(queries)
    if len(verdicts) != len(queries):
        message = f"judge '{judge.name}': expected {len(queries)} verdicts, found {len(verdicts)}"
        raise RunError(message, code=ErrorCode.JUDGE_FAILED)
    return [_validated(verdict, len(query.premises)) for query, verdict in zip(queries, verdicts, strict=True)]


def _validated(value: Any, premises: int) -> Verdict | Failure:
    if isinstance(value, Failure):
        return value
    if (verdict := normalize_verdict(value)) is None:
        expected = f"a Verdict of {' or '.join(get_args(Status))} with indices into the premises as its evidence"
        return Failure(f"expected {expected}, found {describe(value)}")
    if verdict.status == "entailment" and not verdict.evidence:
        return Failure("entailment without evidence")
    if any(not 0 <= index < premises for index in verdict.evidence):
        return Failure(f"evidence {list(verdict.evidence)} outside of the {premises} premises")
    return verdict


def normalize_verdict(value: Any) -> Verdict | None:
    """Return a verdict with its evidence as a tuple of int; None if the value is no valid verdict."""
    if not isinstance(value, Verdict) or value.status not in _STATUSES or value.relation not in _RELATIONS:
        return None
    evidence: Any = value.evidence.tolist() if hasattr(value.evidence, "tolist") else value.evidence
    is_list = isinstance(evidence, Sequence) and not isinstance(evidence, str | bytes)
    if not is_list or any(isinstance(index, bool) or not isinstance(index, Integral) for index in evidence):
        return None
    if value.relation is not None and (value.relation == "entailment") != (value.status == "entailment"):
        return None
    return replace(value, evidence=tuple(map(int, evidence)))


_WORD = re.compile(r"\w+")
_FINAL_MARKS = re.compile(r"[.!?;,]*")

_Span = tuple[int, int]


def locate_removed(narrative: str, split: Sequence[SplitSentence]) -> list[RemovedText]:
    """Return the removed parts of a narrative in order, with their positions where their sentences are found."""
    if not any(sentence.all_removed for sentence in split):
        return []
    matches = list(_WORD.finditer(narrative))
    words = [match[0].lower() for match in matches]
    located: list[RemovedText] = []
    taken: list[_Span] = []
    read = 0  # words of the sentences so far
    for sentence in split:
        # A removed sentence may stand between linked ones, of which only the first has removed parts.
        origs = (sentence.orig, sentence.orig.partition(". ")[0])
        places = [span for orig in origs for span in _find(words, orig, (read, len(words)))]
        place = min(places, key=lambda span: (span[0], -span[1]), default=None)
        if place is not None:
            read = place[1]
        for removed in sentence.all_removed:
            spans = _find(words, removed.text, place or (0, len(words)))
            free = [span for span in spans if all(span[1] <= begin or end <= span[0] for begin, end in taken)]
            if not free or (place is None and len(free) > 1):
                located.append(removed)
                continue
            taken.append(free[0])
            start, end = matches[free[0][0]].start(), matches[free[0][1] - 1].end()
            if free[0] == place and (marks := _FINAL_MARKS.match(narrative, end)):
                end = marks.end()
            located.append(replace(removed, start=start, end=end))
    return located


def _find(words: Sequence[str], text: str, span: _Span) -> list[_Span]:
    """Return where the words of a text occur consecutively among the words of a span."""
    wanted = [word.lower() for word in _WORD.findall(text)]
    starts = range(span[0], span[1] - len(wanted) + 1) if wanted else ()
    return [(first, first + len(wanted)) for first in starts if words[first : first + len(wanted)] == wanted]
