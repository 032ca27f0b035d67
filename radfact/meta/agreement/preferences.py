"""Agreement with expert preferences between two candidates, by scores and by direct queries to a judge."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from radfact.errors import Failure
from radfact.llm import ChatClient, ChatRequest
from radfact.llm.response_text import strip_reasoning
from radfact.meta.datasets.preferences import PreferenceSet
from radfact.meta.scores import ScoreColumns
from radfact.metrics.llm.llm_metric import fill_prompt, load_prompt
from radfact.records import narrative
from radfact.statistics.rater_agreement import Preference, PreferenceAccuracy, accuracy_by_confidence, prefer_by_score

_LABELS: Mapping[str, Preference] = {"better than": "first", "worse than": "second", "equal to": "equal"}
_LABEL = re.compile(r"\bassistant 1 is (better than|worse than|equal to) assistant 2\b")
_SWAPPED_LABEL = re.compile(r"\bassistant 2 is (better than|worse than|equal to) assistant 1\b")
_SWAPPED: Mapping[Preference, Preference] = {"first": "second", "second": "first", "equal": "equal"}
_NO_LETTERS = re.compile(r"[\W_]")
_AROUND_LABEL = re.compile(
    r"(?:label|final|answer|verdict|conclusion|decision|judge?ment|preference|result|output|overall|last|line|in|the|my|"
    r"is|so|thus|hence|therefore| )*"
)
"""Words that may surround the label in its line; any other word may negate it."""


def evaluate_scores(
    preferences: PreferenceSet, scores: ScoreColumns, *, replicates: int, seed: int
) -> dict[str, dict[float, PreferenceAccuracy]]:
    """Return how often each score prefers the experts' candidate, by minimum confidence.

    A score that is the same for both candidates of every pair has no accuracy.

    Source: GREEN, figure 6.
    """
    half = len(preferences.first)
    table = {}
    for name in scores.values:
        column = scores.oriented(name)
        if column is not None:
            preferred = prefer_by_score(column[:half], column[half:], direction="lower")
            table[name] = accuracy_by_confidence(
                preferences.expert,
                preferred,
                preferences.confidence,
                replicates=replicates,
                seed=seed,
                clusters=preferences.clusters,
            )
    return table


@dataclass(frozen=True, slots=True)
class JudgePreferences:
    """Accuracy of a judge's preferences by minimum confidence, and the reason of each failed query by row index."""

    accuracies: Mapping[float, PreferenceAccuracy]
    failures: Mapping[int, str]


def evaluate_judge(client: ChatClient, preferences: PreferenceSet, *, replicates: int, seed: int) -> JudgePreferences:
    """Query a model for the better candidate of each row in which the experts prefer one.

    Source: GREEN, appendix A.3 and table 6.
    """
    prompt = load_prompt("preference")
    indices = [index for index, expert in enumerate(preferences.expert) if expert is not None]
    requests = []
    for index in indices:
        first, second = preferences.first[index], preferences.second[index]
        texts = {"reference": first.reference, "first": first.candidate, "second": second.candidate}
        text = fill_prompt(prompt, **{name: narrative(report) for name, report in texts.items()})
        requests.append(ChatRequest((("user", text),), parse_preference))
    preferred: list[Preference | None] = [None] * len(preferences.expert)
    failures: dict[int, str] = {}
    responses = client.complete_all(requests)
    for index, response in zip(indices, responses, strict=True):
        if isinstance(response, Failure):
            failures[index] = response.reason
        else:
            preferred[index] = response
    accuracies = accuracy_by_confidence(
        preferences.expert,
        preferred,
        preferences.confidence,
        replicates=replicates,
        seed=seed,
        clusters=preferences.clusters,
    )
    return JudgePreferences(accuracies, failures)


def parse_preference(text: str) -> Preference:
    """Parse a response whose last line is the label, as the prompt requires; earlier lines are ignored."""
    lines = [_NO_LETTERS.sub(" ", line) for line in strip_reasoning(text).splitlines()]
    last = " ".join(next((line for line in reversed(lines) if line.strip()), "").lower().split())
    labels = {_LABELS[label] for label in _LABEL.findall(last)}
    labels |= {_SWAPPED[_LABELS[label]] for label in _SWAPPED_LABEL.findall(last)}
    if len(labels) == 1 and _AROUND_LABEL.fullmatch(_SWAPPED_LABEL.sub("", _LABEL.sub("", last))):
        return labels.pop()
    raise ValueError('expected a last line such as "Assistant 1 is better than Assistant 2"')
