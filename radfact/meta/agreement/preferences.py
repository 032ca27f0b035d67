"""Agreement with expert preferences between two candidates, by scores and by direct queries to a judge."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from radfact.errors import Failure
from radfact.llm import ChatClient, ChatRequest
from radfact.llm.response_text import strip_reasoning
from radfact.meta.agreement.analysis import LISTED
from radfact.meta.datasets.preferences import PreferenceSet
from radfact.meta.scores import ScoreColumns
from radfact.metrics.llm.llm_metric import fill_prompt, load_prompt
from radfact.records import narrative
from radfact.statistics.clusters import id_order
from radfact.statistics.rater_agreement import Preference, PreferenceAccuracy, accuracy_by_confidence, prefer_lower

_LABEL = re.compile(r"\bassistant ([12]) is (better than|worse than|equal to) assistant (?!\1)[12]\b")
_NO_LETTERS = re.compile(r"[\W_]")
_AROUND_LABEL = re.compile(
    r"(?:label|final|answer|verdict|conclusion|decision|judge?ment|preference|result|output|overall|last|line"
    r"|in|the|my|is|so|thus|hence|therefore| )*"
)
"""Words that may surround the label in its line; any other word may negate it."""


@dataclass(frozen=True, slots=True)
class WrongPreference:
    """A row in which a score prefers the candidate that the experts do not, or neither."""

    score: str
    row_id: str
    confidence: float
    expert: Preference
    preferred: Preference
    first: float
    second: float


def evaluate_scores(
    preferences: PreferenceSet, scores: ScoreColumns, **draws: int
) -> dict[str, dict[float, PreferenceAccuracy]]:
    """Return how often each score prefers the experts' candidate, by minimum confidence (GREEN, figure 6)."""
    preferred = _preferred_by_scores(preferences, scores)
    return {name: _accuracy(preferences, choices, **draws) for name, choices in preferred.items()}


def find_wrong_preferences(preferences: PreferenceSet, scores: ScoreColumns) -> list[WrongPreference]:
    """Return the rows in which a score does not prefer the experts' candidate, by score, the surest experts first."""
    half = len(preferences.first)
    results = []
    for name, preferred in _preferred_by_scores(preferences, scores).items():
        values = scores.values[name]
        rows = zip(preferences.first, preferences.confidence, preferences.expert, preferred, strict=True)
        wrong = [
            WrongPreference(name, pair.sample_id.removesuffix("_1"), sure, expert, ours, *values[index::half])
            for index, (pair, sure, expert, ours) in enumerate(rows)
            if expert is not None and ours is not None and ours != expert
        ]
        wrong.sort(key=lambda row: (-row.confidence, -abs(row.first - row.second), id_order(row.row_id)))
        results += wrong[:LISTED]
    return results


def _preferred_by_scores(preferences: PreferenceSet, scores: ScoreColumns) -> dict[str, list[Preference | None]]:
    half = len(preferences.first)
    return {name: prefer_lower(column[:half], column[half:]) for name, column in scores.oriented.items()}


def _accuracy(
    of: PreferenceSet, preferred: Sequence[Preference | None], **draws: int
) -> dict[float, PreferenceAccuracy]:
    return accuracy_by_confidence(of.expert, preferred, of.confidence, clusters=of.clusters, **draws)


def evaluate_judge(
    client: ChatClient, preferences: PreferenceSet, **draws: int
) -> tuple[dict[float, PreferenceAccuracy], list[str]]:
    """Return a model's accuracy by confidence, and reasons of failures (GREEN, appendix A.3 and table 6)."""
    prompt = load_prompt("preference")
    requests = {}
    for index, (first, second) in enumerate(zip(preferences.first, preferences.second, strict=True)):
        if preferences.expert[index] is not None:
            texts = {"reference": first.reference, "first": first.candidate, "second": second.candidate}
            text = fill_prompt(prompt, **{name: narrative(report) for name, report in texts.items()})
            requests[index] = ChatRequest((("user", text),), parse_preference)
    responses = dict(zip(requests, client.complete_all([*requests.values()]), strict=True))
    reasons = [response.reason for response in responses.values() if isinstance(response, Failure)]
    chosen = {index: choice for index, choice in responses.items() if not isinstance(choice, Failure)}
    preferred = [chosen.get(index) for index in range(len(preferences.expert))]
    return _accuracy(preferences, preferred, **draws), reasons


def parse_preference(text: str) -> Preference:
    """Parse a response whose last line is the label, as the prompt requires; earlier lines are ignored."""
    lines = [_NO_LETTERS.sub(" ", line) for line in strip_reasoning(text).splitlines()]
    last = " ".join(next((line for line in reversed(lines) if line.strip()), "").lower().split())
    labels: set[Preference] = {
        "equal" if label == "equal to" else "first" if (number == "1") == (label == "better than") else "second"
        for number, label in _LABEL.findall(last)
    }
    if len(labels) == 1 and _AROUND_LABEL.fullmatch(_LABEL.sub("", last)):
        return labels.pop()
    raise ValueError('expected a last line such as "Assistant 1 is better than Assistant 2"')
