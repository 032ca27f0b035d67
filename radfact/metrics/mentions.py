"""Mentions of a lateral view and of a comparison: how often reports speak of what the model may not have seen."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from pydantic import TypeAdapter

from radfact.errors import Failure
from radfact.io.jsonl import read_json
from radfact.io.pairs import Pair
from radfact.llm import ChatClient, ChatRequest, PromptPrefix
from radfact.llm.response_text import after_thought
from radfact.metrics.protocol import Scored
from radfact.records import Record, Report, narrative
from radfact.statistics.bootstrap import Direction

_LATERAL = re.compile(
    r"(pa|ap|frontal) and lateral|\blateral and (pa|ap|frontal)|\blateral (projection|view)|(two|2) views",
    re.IGNORECASE,
)


def mentions_lateral(report: Report) -> bool:
    """Whether a report speaks of a lateral view, by the paper's expression (paper 004, listing 6).

    Args:
        report: a narrative or a list of sentences, no mention goes across two of these.
    """
    texts = [report] if isinstance(report, str) else [sentence.text for sentence in report]
    return any(_LATERAL.search(text) for text in texts)


class LateralMentions:
    """Shares of candidates and of references that speak of a lateral view (paper 004, D.6.1).

    Neither is good or bad: one reads them side by side, and for studies that have no lateral image.
    """

    name = "lateral_mentions"
    figures: Mapping[str, Direction] = {"lateral_mentions": "neutral", "lateral_mentions_reference": "neutral"}

    def score(self, pairs: Sequence[Pair]) -> Scored:
        """1 where a report speaks of a lateral view, else 0."""
        return Scored(
            {
                "lateral_mentions": [float(mentions_lateral(pair.candidate)) for pair in pairs],
                "lateral_mentions_reference": [float(mentions_lateral(pair.reference)) for pair in pairs],
            }
        )


COMPARISON_PROMPT = """You read findings sections of chest X-ray reports. Decide whether the text speaks of an earlier \
examination, in one of these ways:
- it says that something is new, unchanged, stable, improved, worse, larger, smaller, resolved, persistent or the like \
as compared with before;
- it names a prior, previous or comparison study or its date;
- it says that something was placed, removed or repositioned since.
A patient's history (prior surgery, an old or healed fracture, a chronic change, a line in a usual position) is no \
such mention, nor is the statement that no earlier study is available.
Answer with one word: yes or no."""
"""Ours: the paper says that a model was asked (paper 004, D.6.1), not how."""


class ComparisonMentions:
    """Shares of candidates and of references that speak of an earlier examination, as a language model reads them.

    The prompt is ours (`COMPARISON_PROMPT`); the paper's detector agreed with people on 96 to 98 % of reports. Source:
    paper 004, D.6.1. `check_comparisons` says how often a model is right on sentences of our own.
    """

    name = "comparison_mentions"
    figures: Mapping[str, Direction] = {"comparison_mentions": "neutral", "comparison_mentions_reference": "neutral"}
    parameters: Mapping[str, Any] = {"temperature": 0, "max_tokens": 16}

    def __init__(self, client: ChatClient) -> None:
        """Take the client of the model that reads."""
        self.client = client
        self._prefix = PromptPrefix([("system", COMPARISON_PROMPT)])

    def score(self, pairs: Sequence[Pair]) -> Scored:
        """1 where a report speaks of an earlier examination, else 0; NaN where the model gave no valid answer."""
        texts = [(narrative(pair.candidate), narrative(pair.reference)) for pair in pairs]
        before = self.client.usage_counter.as_dict()
        said = self.detect([text for both in texts for text in both])
        usage = {name: count - before[name] for name, count in self.client.usage_counter.as_dict().items()}
        values = [math.nan if isinstance(one, Failure) else float(one) for one in said]
        reasons = [one.reason if isinstance(one, Failure) else None for one in said]
        failures = {
            place: reason
            for place in range(len(pairs))
            if (reason := reasons[2 * place] or reasons[2 * place + 1]) is not None
        }
        names = list(self.figures)
        return Scored({names[0]: values[0::2], names[1]: values[1::2]}, failures=failures, usage=usage)

    def detect(self, texts: Sequence[str]) -> list[bool | Failure]:
        """Whether each text speaks of an earlier examination; an empty one does not, and is not asked about."""
        asked = list(dict.fromkeys(text for text in texts if text.strip()))
        answers = self.client.complete_all([ChatRequest((("user", text),), _yes_or_no, self._prefix) for text in asked])
        known: dict[str, bool | Failure] = dict(zip(asked, answers, strict=True))
        return [known.get(text, False) for text in texts]


_ALONE = r"\b(yes|no)\b(?=[^\w\s]|\s+[-–—(]|\s*$|\s*\n)"
_SAID = re.compile(r"\W*(?:(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\W+)?" + _ALONE, re.IGNORECASE)
"""The whole answer, or its first word before a mark: "No earlier image is at hand" answers nothing."""
_EITHER = re.compile(_ALONE, re.IGNORECASE)


def _yes_or_no(answer: str) -> bool:
    """The word that an answer is or begins with, after any thinking aloud; a "no" in prose says nothing of the report.

    Raises:
        ValueError: there is no such word, or the other one follows.
    """
    plain = re.sub(r"[*_`]", "", after_thought(answer))
    said = _SAID.match(plain)
    if said is None or len({word.lower() for word in _EITHER.findall(plain)}) != 1:
        raise ValueError("expected the one word yes or no")
    return said[1].lower() == "yes"


class _Labelled(Record):
    text: str
    mention: bool


_labelled = TypeAdapter(list[_Labelled])


@dataclass(frozen=True, slots=True)
class DetectorCheck:
    """How often a detector of comparisons is right; a failed answer counts as wrong.

    Attributes:
        accuracy: over all texts.
        sensitivity: over those that speak of an earlier examination.
        specificity: over the others.
        n: number of texts.
        failures: texts without a valid answer.
        wrong: the texts that were read wrongly.
    """

    accuracy: float
    sensitivity: float
    specificity: float
    n: int
    failures: int
    wrong: Sequence[str]


def check_comparisons(metric: ComparisonMentions) -> DetectorCheck:
    """Put our own labelled findings to a detector, half of which speak of an earlier examination."""
    with resources.as_file(resources.files("radfact.metrics") / "comparisons.json") as file:
        rows = _labelled.validate_python(read_json(file))
    said = metric.detect([row.text for row in rows])
    right = [one == row.mention for row, one in zip(rows, said, strict=True)]
    of_mentions, of_others = (
        [met for row, met in zip(rows, right, strict=True) if row.mention == label] for label in (True, False)
    )
    return DetectorCheck(
        accuracy=sum(right) / len(right),
        sensitivity=sum(of_mentions) / len(of_mentions),
        specificity=sum(of_others) / len(of_others),
        n=len(rows),
        failures=sum(isinstance(one, Failure) for one in said),
        wrong=[row.text for row, met in zip(rows, right, strict=True) if not met],
    )
