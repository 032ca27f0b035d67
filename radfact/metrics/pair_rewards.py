"""Rewards of pairs: weighted sums of scores, in which an unreadable candidate counts as an empty one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from radfact.errors import ErrorCode, InputError, RunError
from radfact.languages import Language
from radfact.metrics.protocol import Metric, MetricResult, report_errors, score_pairs
from radfact.metrics.radfact.regions import has_area
from radfact.records import Pair, Report, is_missing, narrative


@dataclass(frozen=True, slots=True)
class Reward:
    """The reward of a pair: the weighted sum of its scores, and the scores by name; None for a missing one."""

    total: float | None
    scores: dict[str, float | None]


class PairReward:
    """The weighted sum of some scores of pairs (`load_reward`).

    A score of boxes has its worst value, 0, if exactly one of the two reports has boxes: otherwise a report could avoid
    the score by leaving out its boxes. If neither has boxes, the score does not count, and the sum of the others is
    scaled to the sum of all weights.
    """

    def __init__(self, parts: Sequence[tuple[Metric, str, float]]) -> None:
        self._parts = parts
        self.names = [name for _, name, _ in parts]
        self.box_scores = {name for metric, name, _ in parts if name in metric.box_scores}

    def __call__(self, pairs: Sequence[Pair]) -> list[Reward]:
        """Score pairs, all of a call together; a pair without a reference has no reward."""
        with_words = [pair for pair in pairs if _has_words(pair.reference)]
        rewards = iter(self._score([pair if _has_words(pair.candidate) else _without(pair) for pair in with_words]))
        nothing = Reward(None, dict.fromkeys(self.names))
        return [next(rewards) if _has_words(pair.reference) else nothing for pair in pairs]

    def _score(self, pairs: list[Pair]) -> list[Reward]:
        if not pairs:
            return []
        results: dict[int, tuple[MetricResult, list[Pair]]] = {}
        # Several scores of a metric come from one result.
        for key, metric in {id(metric): metric for metric, _, _ in self._parts}.items():
            with report_errors(metric.name, RunError):
                results[key] = _score(metric, pairs)
        columns = [_values(results[id(metric)], metric, name, pairs) for metric, name, _ in self._parts]
        return [self._reward(pair, values) for pair, values in zip(pairs, zip(*columns, strict=True), strict=True)]

    def _reward(self, pair: Pair, values: Sequence[float]) -> Reward:
        has_boxes = any(_have_boxes(pair))
        counted = [
            (factor, value)
            for (_, name, factor), value in zip(self._parts, values, strict=True)
            if has_boxes or name not in self.box_scores
        ]
        scale = 1.0
        if len(counted) < len(values):
            weight = sum(abs(factor) for factor, _ in counted)
            scale = sum(abs(factor) for *_, factor in self._parts) / weight if weight else math.nan
        total = scale * sum(factor * value for factor, value in counted)
        scores = {name: _finite(value) for name, value in zip(self.names, values, strict=True)}
        return Reward(_finite(total) if counted else None, scores)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _has_words(report: Report | None) -> bool:
    return not is_missing(report) and any(map(str.isalnum, narrative(report or "")))


def _have_boxes(pair: Pair) -> list[bool]:
    reports = (pair.candidate, pair.reference)
    return [not isinstance(report, str) and any(map(has_area, report)) for report in reports]


def _score(metric: Metric, pairs: list[Pair]) -> tuple[MetricResult, list[Pair]]:
    """Score pairs, and return them too, with empty candidates in place of those that the metric cannot read."""
    result = _score_any(metric, pairs)
    # A model that gives no valid response is no fault of the candidate.
    if any(result.usage.get(name) for name in ("calls", "cached")):
        return result, pairs
    texts = {place: narrative(pairs[place].candidate) for place in result.failures}
    is_english = Language.ENGLISH.matches
    unread = {
        place for place, text in texts.items() if text and (metric.language is not Language.ANY or not is_english(text))
    }
    if unread:
        pairs = [_without(pair) if place in unread else pair for place, pair in enumerate(pairs)]
        result = _score_any(metric, pairs)
    return result, pairs


def _score_any(metric: Metric, pairs: Sequence[Pair]) -> MetricResult:
    """Score pairs; if the metric can read none of them, all have failed."""
    try:
        return score_pairs(metric, pairs)
    except RunError as error:
        if error.code is not ErrorCode.NOTHING_SCORED:
            raise
        nothing = {name: [math.nan] * len(pairs) for name in metric.scores}
        return MetricResult(nothing, failures=dict.fromkeys(range(len(pairs)), str(error)))


def _without(pair: Pair) -> Pair:
    return replace(pair, candidate=[] if isinstance(pair.candidate, list) else "")


def _values(scored: tuple[MetricResult, list[Pair]], metric: Metric, name: str, pairs: Sequence[Pair]) -> list[float]:
    """Return one score per pair, the worst one where a candidate would otherwise avoid the score."""
    result, read = scored
    if name not in result.values:
        raise no_sample_values(name)
    values = []
    for index, (value, pair) in enumerate(zip(result.values[name], pairs, strict=True)):
        if math.isnan(value) and not (index in result.failures and metric.needs_reference):
            # A splitter may remove every sentence.
            counts = result.details[index].get("counts", {}) if result.details else {}
            is_empty = not narrative(read[index].candidate) or counts.get("candidate_sentences") == 0
            if is_empty and counts.get("reference_sentences") != 0:
                value = metric.worst_values.get(name, math.nan)
            if math.isnan(value) and name in metric.box_scores and len(set(_have_boxes(pair))) == 2:
                value = 0.0
        values.append(value)
    return values


def no_sample_values(name: str) -> InputError:
    message = f"expected a score with sample-level values, found '{name}', which exists only for a dataset"
    return InputError(message, code=ErrorCode.INVALID_OPTION, field="metrics")
