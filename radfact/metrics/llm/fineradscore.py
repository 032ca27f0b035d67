"""FineRadScore: the fewest line corrections from candidate to reference, graded by clinical severity."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, get_args

from radfact.errors import option_error
from radfact.llm import ChatClient, ChatRequest, Message, PromptPrefix
from radfact.metrics.llm.llm_metric import LLMMetric, load_prompt
from radfact.metrics.llm.responses.corrections import Corrections, parse_corrections
from radfact.metrics.protocol import Score
from radfact.records import TextPair

REPROMPTS = 5
"""Repairs of a malformed response. Source: FineRadScore, section 5."""

Examples = Literal["turns", "prompt", "none"]
"""How the published examples are sent: as turns of the conversation, within the instructions, or not at all."""

# The paper prints a space where this accepts any whitespace: a line break after a full stop also ends a line.
_LINE_END = re.compile(r"(?<=\.\s)(?<!\d\.\s)")
_EXAMPLE = re.compile(
    r"Generated Text: (?P<lines>.*?)\n\nGround Truth Text: (?P<reference>.*?)\n\nCorrections:\n(?P<corrections>.*?)\n"
    r"(?=\nExample|\Z)",
    re.DOTALL,
)


def split_lines(report: str) -> tuple[str, ...]:
    """Split a report into lines at full stops, which they keep, but not after a digit (FineRadScore, appendix A)."""
    lines = _LINE_END.split(report.strip())
    return tuple(line.strip().replace("..", ".") for line in lines if line.strip(" ."))


@cache
def _example_turns() -> tuple[Message, ...]:
    """Return the five published examples as turns of a conversation (FineRadScore, appendix A.2)."""
    turns: list[Message] = []
    for example in _EXAMPLE.finditer(load_prompt("fineradscore_few_shot")):
        query = _query(" ".join(example["lines"].split("\n")), example["reference"])
        turns += [("user", query), ("assistant", json.dumps(json.loads(example["corrections"])))]
    return tuple(turns)


def _query(numbered_lines: str, reference: str) -> str:
    return f"Generated Text: {numbered_lines} \n \n Ground Truth Text: {reference}"


class FineRadScore(LLMMetric[Corrections]):
    """FineRadScore by its published prompt with five examples, or zero-shot.

    By default the conversation is that of the authors' code for GPT-4, which uses the model's default temperature.
    """

    name = "fineradscore"
    measures = "severity of the corrections that a candidate needs, line by line"
    scores: Mapping[str, Score] = {
        "fineradscore": Score("lower", "sum of the severities, 0 to 4 a line", "severity sum"),
        "fineradscore_max": Score("lower", "maximum of the severities", "0 to 4"),
        "fineradscore_lines": Score("lower", "number of corrections", "corrections"),
    }
    cost = "a response as long as the corrected report"
    for_chest_xrays = True
    source = "FineRadScore, appendix A"
    parameters: Mapping[str, Any] = {"temperature": 0, "max_tokens": 4096}

    def __init__(self, client: ChatClient, *, examples: Examples = "turns") -> None:
        if examples not in get_args(Examples):
            raise option_error(f"expected one of {', '.join(get_args(Examples))}, found {examples!r}", "examples")
        super().__init__(client)
        self.examples = examples
        instructions = load_prompt("fineradscore")
        conversations: Mapping[Examples, tuple[Message, ...]] = {
            "turns": (("system", instructions), *_example_turns()),
            "prompt": (("system", instructions + load_prompt("fineradscore_few_shot")),),
            "none": (),
        }
        self._prefix = PromptPrefix(conversations[examples])
        self._zero_shot = instructions + load_prompt("fineradscore_zero_shot") if examples == "none" else ""

    def request(self, pair: TextPair) -> ChatRequest[Corrections]:
        return self.request_for_lines(split_lines(pair.candidate), pair.reference)

    def request_for_lines(self, lines: Sequence[str], reference: str) -> ChatRequest[Corrections]:
        """Build the request for a candidate that is already split, such as one that radiologists have corrected."""
        numbered_lines = [f"[{index}] {line}" for index, line in enumerate(lines)]
        if self.examples == "prompt":
            joined = "\n".join(numbered_lines)
            content = f"Generated Text: {joined}\n\nGround Truth Text: {reference}\n\nCorrections:"
        else:
            content = self._zero_shot + _query(" ".join(numbered_lines), reference)
        return ChatRequest(
            (("user", content),), lambda text: parse_corrections(text, lines), prefix=self._prefix, repairs=REPROMPTS
        )

    def compute_scores(self, response: Corrections) -> Mapping[str, float]:
        severities = response.severities
        return dict(zip(self.scores, (sum(severities), max(severities, default=0), len(severities)), strict=True))

    def record(self, response: Corrections) -> Mapping[str, Any]:
        return response.as_record()
