"""A judge that tells how far it is, for the display of a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radfact.judges import EntailmentQuery, Failure, Judge, Verdict
    from radfact.judges.protocol import SplittingJudge


def in_steps(judge: Judge) -> Judge:
    """A judge whose usage says how far it is: the judge itself, or one that puts it the questions in portions."""
    from radfact.judges.protocol import SplittingJudge

    if "planned" in judge.usage():
        return judge
    return _SplittingInSteps(judge) if isinstance(judge, SplittingJudge) else _InSteps(judge)


class _InSteps:
    """A judge asked in portions that take about half a second each, so that `planned` and `done` can be told."""

    FIRST, LONG_ENOUGH = 64, 0.5

    def __init__(self, judge: Judge) -> None:
        self.name, self._judge = judge.name, judge
        self._planned = self._done = 0

    def judge(self, questions: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
        from radfact.judges.protocol import query_judge

        answers: list[Verdict | Failure] = []
        self._planned += len(questions)
        size = self.FIRST
        while len(answers) < len(questions):
            started = time.monotonic()
            portion = questions[len(answers) : len(answers) + size]
            answers += query_judge(self._judge, portion)
            self._done += len(portion)
            if time.monotonic() - started < self.LONG_ENOUGH:
                size *= 2
        return answers

    def describe(self) -> dict[str, Any]:
        return self._judge.describe()

    def usage(self) -> dict[str, int]:
        return {**self._judge.usage(), "planned": self._planned, "done": self._done}


class _SplittingInSteps(_InSteps):
    """One that splits as well."""

    def __init__(self, judge: SplittingJudge) -> None:
        super().__init__(judge)
        self.make_splitter = judge.make_splitter
