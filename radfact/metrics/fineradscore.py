"""FineRadScore: the fewest line corrections from candidate to reference, graded by clinical severity."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from radfact.errors import ErrorCode, InputError
from radfact.llm import ChatClient, ChatRequest, PromptPrefix
from radfact.metrics.llm_metric import LLMMetric, load_prompt
from radfact.metrics.protocol import Score
from radfact.metrics.responses.corrections import Corrections, parse_corrections

REPROMPTS = 5
"""Repairs of a malformed response. Source: FineRadScore, section 5."""

_LINE_END = re.compile(r"(?<!\d)\.(?!\d|$)")


def split_lines(report: str) -> tuple[str, ...]:
    """Split a report into the lines that corrections refer to; each keeps its full stop, as in the published examples.

    Source: FineRadScore, appendix A.
    """
    lines, start = [], 0
    report = report.strip()
    for match in _LINE_END.finditer(report):
        lines.append(report[start : match.end()].strip())
        start = match.end()
    return tuple(line for line in (*lines, report[start:].strip()) if line.strip(" ."))


class FineRadScore(LLMMetric[Corrections]):
    """FineRadScore by its published prompt with five examples, or zero-shot.

    The severity of a correction is 1 (not actionable, or an invalid comparison), 2 (actionable nonurgent), 3 (urgent)
    or 4 (emergent). `fineradscore` is the sum of the severities, `fineradscore_max` their maximum and
    `fineradscore_lines` the number of corrections; all are 0 if nothing is corrected.

    Source: FineRadScore, sections 6.4 and 8, and appendix A.
    """

    name = "fineradscore"
    display_name = "FineRadScore"
    measures = "severity of the corrections that a candidate needs, line by line"
    scores: Mapping[str, Score] = {
        "fineradscore": Score("lower", "sum of the severities"),
        "fineradscore_max": Score("lower", "maximum of the severities"),
        "fineradscore_lines": Score("lower", "number of corrections"),
    }
    cost = "a response as long as the corrected report"
    source = "FineRadScore, appendix A"
    parameters: Mapping[str, Any] = {"temperature": 0, "max_tokens": 4096}

    def __init__(self, client: ChatClient, *, zero_shot: bool = False) -> None:
        """Take the client and the prompt.

        Args:
            client: client of the model.
            zero_shot: omit the published examples (appendix A.1).

        Raises:
            InputError: `zero_shot` is not a boolean.
        """
        if not isinstance(zero_shot, bool):
            raise InputError(
                f"expected true or false, found {zero_shot!r}", code=ErrorCode.INVALID_OPTION, field="zero_shot"
            )
        super().__init__(client)
        output_format = load_prompt("fineradscore_zero_shot" if zero_shot else "fineradscore_few_shot")
        self._prefix = PromptPrefix([("system", load_prompt("fineradscore") + output_format)])

    def request(self, candidate: str, reference: str) -> ChatRequest[Corrections]:
        """Build a system message with instructions and examples and a user message of both reports. See `LLMMetric`."""
        return self.request_for_lines(split_lines(candidate), reference)

    def request_for_lines(self, lines: Sequence[str], reference: str) -> ChatRequest[Corrections]:
        """Build the request for a candidate that is already split, such as one that radiologists have corrected.

        Args:
            lines: of the candidate.
            reference: report.
        """
        numbered_lines = "\n".join(f"[{index}] {line}" for index, line in enumerate(lines))
        content = f"Generated Text: {numbered_lines}\n\nGround Truth Text: {reference}\n\nCorrections:"
        return ChatRequest(
            (("user", content),), lambda text: parse_corrections(text, lines), prefix=self._prefix, repairs=REPROMPTS
        )

    def compute_scores(self, response: Corrections) -> Mapping[str, float]:
        """Compute sum, maximum and number of the severities."""
        severities = response.severities
        return {
            "fineradscore": sum(severities),
            "fineradscore_max": max(severities, default=0),
            "fineradscore_lines": len(severities),
        }

    def record(self, response: Corrections) -> Mapping[str, Any]:
        """Return the corrections and the corrected report."""
        return response.as_record()
