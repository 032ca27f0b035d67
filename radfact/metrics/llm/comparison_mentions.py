"""Mentions of an earlier examination, which the model may not have seen, as a language model detects them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from statistics import fmean as mean
from typing import Any

from radfact.errors import Failure
from radfact.llm import ChatClient, ChatRequest
from radfact.llm.plan import RequestPlan, plan_requests
from radfact.llm.response_text import strip_reasoning
from radfact.metrics.llm.llm_metric import complete, own_prompt
from radfact.metrics.protocol import Metric, MetricResult, Requirements, Score
from radfact.records import CHEST_XRAY, TextPair


class ComparisonMentions(Metric):
    """Shares of candidates and of references that mention an earlier examination, as a language model detects it."""

    name = "comparison_mentions"
    measures = "fraction of reports that mention an earlier examination"
    scores: Mapping[str, Score] = {
        "comparison_mentions": Score("neutral", "fraction of the candidates"),
        "comparison_mentions_reference": Score("neutral", "fraction of the references"),
    }
    requirements = Requirements(judge="model")
    cost = "two short responses"
    source = "MAIRA-2, appendix D.6.1; our prompt"
    parameters: Mapping[str, Any] = {"temperature": 0, "max_tokens": 16}

    def __init__(self, client: ChatClient) -> None:
        self.client = client

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        """Score 1 if a report mentions an earlier examination, else 0; NaN without a valid response."""
        results, usage = self.detect(_reports(pairs))
        values = [math.nan if isinstance(result, Failure) else float(result) for result in results]
        columns = dict(zip(self.scores, (values[0::2], values[1::2]), strict=True))
        failures: dict[int, str] = {}
        for index, result in enumerate(results):
            if isinstance(result, Failure):
                failures.setdefault(index // 2, result.reason)
        return MetricResult(columns, failures=failures, usage=usage)

    def detect(self, reports: Sequence[tuple[str, str]]) -> tuple[list[bool | Failure], dict[str, int]]:
        """Detect a mention of an earlier examination in each text, with its kind of examination; "" is not sent."""
        requests = self._requests(reports)
        responses, usage = complete(self.client, list(requests.values()))
        results = dict(zip(requests, responses, strict=True))
        return [results.get(report, False) for report in reports], usage

    def plan(self, pairs: Sequence[TextPair]) -> dict[str, RequestPlan]:
        return {self.name: plan_requests(self.client, list(self._requests(_reports(pairs)).values()))[0]}

    def _requests(self, reports: Sequence[tuple[str, str]]) -> dict[tuple[str, str], ChatRequest[bool]]:
        return {
            (text, kind): ChatRequest((("user", text),), _parse_yes_or_no, own_prompt(self.name, examination=kind))
            for text, kind in reports
            if text.strip()
        }


def _reports(pairs: Sequence[TextPair]) -> list[tuple[str, str]]:
    return [(text, pair.context.examination) for pair in pairs for text in (pair.candidate, pair.reference)]


_YES_OR_NO = r"\b(yes|no)\b(?=[^\w\s]|\s+[-–—(]|\s*$|\s*\n)"
"""A word alone or before a punctuation mark: the "no" in "No earlier image is at hand" answers nothing."""
_ANSWER = re.compile(r"\W*(?:(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\W+)?" + _YES_OR_NO, re.IGNORECASE)
_ANY_ANSWER = re.compile(_YES_OR_NO, re.IGNORECASE)


def _parse_yes_or_no(text: str) -> bool:
    """Parse the word that a response consists of or begins with."""
    plain = re.sub(r"[*_`]", "", strip_reasoning(text))
    match = _ANSWER.match(plain)
    if match is None or len({word.lower() for word in _ANY_ANSWER.findall(plain)}) != 1:
        raise ValueError("expected the one word yes or no")
    return match[1].lower() == "yes"


def check_comparisons(metric: ComparisonMentions) -> dict[str, Any]:
    """Measure a detector on our own labeled texts, half of which have a mention; a failed query counts as wrong."""
    file = resources.files("radfact.metrics.llm") / "comparisons.json"
    labels: dict[str, bool] = {row["text"]: row["mention"] for row in json.loads(file.read_text(encoding="utf-8"))}
    results, _ = metric.detect([(text, CHEST_XRAY) for text in labels])
    correct = {text: result == labels[text] for text, result in zip(labels, results, strict=True)}
    return {
        "accuracy": mean(correct.values()),
        "sensitivity": mean(is_correct for text, is_correct in correct.items() if labels[text]),
        "specificity": mean(is_correct for text, is_correct in correct.items() if not labels[text]),
        "n": len(labels),
        "failures": sum(isinstance(result, Failure) for result in results),
        "wrong": [text for text, is_correct in correct.items() if not is_correct],
    }
