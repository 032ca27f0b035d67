"""A mock judge: fixed verdicts instead of a judgment, to test pipelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from radfact.judges.callables import CallableJudge, JudgeFunction, VerdictLike
from radfact.records import normalize_text


class MockJudge(CallableJudge):
    """A judge with fixed verdicts, also available as `load_judge("mock")`.

    Its name in results is "mock", and its description says that its scores mean nothing.
    """

    def __init__(self, verdicts: JudgeFunction | Mapping[str, VerdictLike] | bool | None = None) -> None:
        """Take the verdicts.

        Args:
            verdicts: a function of (premises, hypothesis); a mapping from hypotheses to verdicts, where a missing
                hypothesis is not entailed; one verdict for all queries; or None, which entails a hypothesis that equals
                a premise up to case, punctuation and spaces.
        """

        def judge(premises: Sequence[str], hypothesis: str) -> VerdictLike:
            if verdicts is None:
                return _match_verbatim(premises, hypothesis)
            if callable(verdicts):
                return verdicts(premises, hypothesis)
            return verdicts.get(hypothesis, False) if isinstance(verdicts, Mapping) else verdicts

        super().__init__(judge, "mock")

    def describe(self) -> dict[str, Any]:
        """Return the name and a warning."""
        return {"name": self.name, "note": "Mock judge for tests: the scores mean nothing."}


def _match_verbatim(premises: Sequence[str], hypothesis: str) -> tuple[bool, list[int]]:
    """Return whether premises equal the hypothesis up to case, punctuation and spaces, and their indices."""
    text = normalize_text(hypothesis)
    indices = [index for index, premise in enumerate(premises) if normalize_text(premise) == text]
    return bool(indices), indices
