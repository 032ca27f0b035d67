"""FineRadScore: the fewest corrections that make a candidate say what the reference says, graded (paper 001)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from radfact.errors import InputError
from radfact.llm import ChatClient, ChatRequest, PromptPrefix
from radfact.metrics.llm_metric import AskedMetric, load_prompt
from radfact.metrics.responses.corrections import Corrections, parse_corrections
from radfact.statistics.bootstrap import Direction

REPROMPTS = 5
"""Paper 001, section 5."""

_LINE_END = re.compile(r"(?<!\d)\.(?!\d|$)")


def split_lines(report: str) -> tuple[str, ...]:
    """The lines that corrections refer to: a report divided at the published expression (paper 001, appendix A).

    Every line keeps its full stop, as in the published examples.
    """
    lines, begin = [], 0
    report = report.strip()
    for match in _LINE_END.finditer(report):
        lines.append(report[begin : match.end()].strip())
        begin = match.end()
    return tuple(line for line in (*lines, report[begin:].strip()) if line.strip(" ."))


def numbered(lines: Sequence[str]) -> str:
    """Lines after their numbers from 0, as they are shown to the model."""
    return "\n".join(f"[{index}] {line}" for index, line in enumerate(lines))


class FineRadScore(AskedMetric[Corrections]):
    """FineRadScore by its published prompt with five examples, or zero-shot.

    A correction weighs 1 (not actionable; an invalid comparison too), 2 (actionable nonurgent), 3 (urgent) or 4
    (emergent). `fineradscore` is their sum (paper 001, section 8), `fineradscore_max` the greatest of them (section
    6.4), `fineradscore_lines` how many there are; all are 0 where there is nothing to correct.
    """

    name: ClassVar[str] = "fineradscore"
    figures: ClassVar[Mapping[str, Direction]] = dict.fromkeys(
        ("fineradscore", "fineradscore_max", "fineradscore_lines"), "lower"
    )
    parameters: ClassVar[Mapping[str, Any]] = {"temperature": 0, "max_tokens": 4096}

    def __init__(self, client: ChatClient, *, zero_shot: bool = False) -> None:
        """Take the client of the model that is asked; zero-shot leaves out the published examples (appendix A.1).

        Raises:
            InputError: `zero_shot` is not true or false.
        """
        if not isinstance(zero_shot, bool):
            raise InputError(f"expected true or false, found {zero_shot!r}", field="zero_shot")
        super().__init__(client)
        shown = load_prompt("fineradscore_zero_shot" if zero_shot else "fineradscore_few_shot")
        self._prefix = PromptPrefix([("system", load_prompt("fineradscore") + shown)])

    def question(self, candidate: str, reference: str) -> ChatRequest[Corrections]:
        """Instructions and examples as the system message, the numbered candidate and the reference after it."""
        return self.question_of_lines(split_lines(candidate), reference)

    def question_of_lines(self, lines: Sequence[str], reference: str) -> ChatRequest[Corrections]:
        """The same of a candidate whose lines are given, as those of a set that radiologists have corrected are."""
        content = f"Generated Text: {numbered(lines)}\n\nGround Truth Text: {reference}\n\nCorrections:"
        return ChatRequest(
            (("user", content),), lambda text: parse_corrections(text, lines), prefix=self._prefix, repairs=REPROMPTS
        )

    def read(self, answer: Corrections) -> Mapping[str, float]:
        """Sum, maximum and number of the corrections."""
        severities = answer.severities
        return {
            "fineradscore": sum(severities),
            "fineradscore_max": max(severities, default=0),
            "fineradscore_lines": len(severities),
        }

    def detail(self, answer: Corrections) -> Mapping[str, Any]:
        """The corrections, and the report that they make of the candidate."""
        return answer.as_record()
