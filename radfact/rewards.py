"""Metrics as rewards of reinforcement learning: of pairs of reports, or with the signature of TRL's trainers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from radfact.errors import ErrorCode, InputError, RunError, list_columns
from radfact.metrics.protocol import Metric, MetricResult, report_errors, score_pairs
from radfact.metrics.registry import choose_variant, expand_presets, select_metrics
from radfact.metrics.resources import MetricResources
from radfact.records import Pair, narrative, parse_sentences
from radfact.statistics.bootstrap import Direction

Completion = str | Sequence[Mapping[str, Any]]
"""Plain text, or the messages of a conversation, of which the last one's content is the report."""


class RewardFunction(Protocol):
    """A function that TRL's GRPOTrainer accepts in `reward_funcs`; dataset columns come as keyword arguments."""

    __name__: str

    def __call__(self, completions: Sequence[Completion], **columns: Any) -> list[float | None]:
        """Return one reward per completion, higher is better; TRL ignores samples whose reward is None."""
        ...


MetricOrScore = str | Metric | tuple[str | Metric, str]
"""A metric or its name, the name of a score, or a metric and the name of one of its scores."""


def make_reward(
    *metrics: MetricOrScore, weights: Sequence[float] | None = None, column: str = "ground_truth", **options: Any
) -> RewardFunction:
    """Create a reward: the weighted sum of one score of each metric, negated where lower is better.

    All completions of a call are scored together, so that a language model answers them concurrently. A sample that a
    metric cannot score has no reward. An empty completion for a reference that is not empty is different, because
    otherwise it would cost nothing: where its score has no value although the metric did not fail, the metric's
    `worst_values` count, as for RadFact's precision and F1.

    Args:
        metrics: names of metrics or scores as in `radfact evaluate --metrics`, metrics, or (metric, score). A metric
            with several scores counts by its main score, as `green` of green and `logical_f1` of radfact; if it has
            several main scores, one must be named.
        weights: one per metric; by default 1 each. A neutral score needs a weight, whose sign gives its direction.
        column: dataset column with the reference reports.
        options: of `radfact.metrics.resources.MetricResources`: `judge`, `base_url`, `weights` as `folders`, ...

    Raises:
        InputError: a metric is unknown, lacks a requirement, has no sample-level values, no values for texts or several
            main scores; the weights do not fit.
    """
    reward = load_reward(*metrics, weights=weights, **options)
    for name in reward.names:
        if name in reward.box_scores:
            raise _invalid(f"expected a score of texts, found '{name}', which needs boxes")
    return _TextReward(reward, column)


def load_reward(*metrics: MetricOrScore, weights: Sequence[float] | None = None, **options: Any) -> PairReward:
    """Create a reward of pairs of reports, whose sentences may have boxes.

    Args:
        metrics: as for `make_reward`; scores of boxes are allowed.
        weights: as for `make_reward`.
        options: as for `make_reward`.

    Raises:
        InputError: as for `make_reward`.
    """
    if not metrics:
        raise InputError("expected at least one metric", code=ErrorCode.MISSING_OPTION, field="metrics")
    factors = list(weights) if weights is not None else [1.0] * len(metrics)
    if len(factors) != len(metrics) or not all(map(math.isfinite, factors)):
        raise _invalid(f"expected {len(metrics)} finite numbers, one per metric, found {factors}", "weights")
    if "folders" in options:
        options["weights"] = options.pop("folders")
    _, compat = expand_presets([], options.pop("compat", ()))
    resources = MetricResources(**options)
    parts = []
    for item, factor in zip(metrics, factors, strict=True):
        metric, name, direction = _select_score(item, resources, compat)
        if weights is None and direction == "neutral":
            message = f"expected a weight for '{name}', which is neutral: its sign gives the direction"
            raise InputError(message, code=ErrorCode.MISSING_OPTION, field="weights")
        parts.append((metric, name, -factor if direction == "lower" else factor))
    return PairReward(parts)


@dataclass(frozen=True, slots=True)
class Reward:
    """The reward of a pair.

    Attributes:
        total: weighted sum of the scores; None if a score is missing.
        scores: the scores by name; None for a missing one.
    """

    total: float | None
    scores: dict[str, float | None]


class PairReward:
    """The weighted sum of some scores of pairs (`load_reward`).

    A score of boxes has its worst value, 0, if exactly one of the two reports has boxes: otherwise a report could avoid
    the score by leaving out its boxes. If neither has boxes, the score does not count, and the sum of the others is
    scaled to the sum of all weights.

    Attributes:
        names: of the scores.
        box_scores: those of them that need boxes.
    """

    def __init__(self, parts: Sequence[tuple[Metric, str, float]]) -> None:
        self._parts = parts
        self.names = [name for _, name, _ in parts]
        self.box_scores = {name for metric, name, _ in parts if name in metric.box_scores}

    def __call__(self, pairs: Sequence[Pair]) -> list[Reward]:
        """Score pairs; all pairs of a call are scored together.

        Raises:
            RunError: a metric fails.
        """
        if not pairs:
            return []
        results: dict[int, MetricResult] = {}
        for metric, _, _ in self._parts:
            # Several scores of a metric come from one result.
            if id(metric) not in results:
                with report_errors(metric.name, RunError):
                    results[id(metric)] = score_pairs(metric, pairs)
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


class _TextReward:
    """The reward function of TRL, which logs it under `__name__`, and whose processes take a copy of it."""

    def __init__(self, reward: PairReward, column: str) -> None:
        self._reward, self._column = reward, column
        self.__name__ = "_and_".join(reward.names)

    def __call__(self, completions: Sequence[Completion], **columns: Any) -> list[float | None]:
        references = columns.get(self._column)
        if references is None:
            message = f"expected a column '{self._column}' with references, found {list_columns([*columns])}"
            raise InputError(message, code=ErrorCode.MISSING_FIELD, field="column")
        if len(references) != len(completions):
            message = f"expected {len(completions)} references, one per completion, found {len(references)}"
            raise InputError(message, code=ErrorCode.MISMATCH, field=self._column)
        texts = zip(map(_text_of, completions), map(_reference_text, references), strict=True)
        pairs = [Pair(str(index), *reports) for index, reports in enumerate(texts)]
        return [item.total for item in self._reward(pairs)]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _have_boxes(pair: Pair) -> tuple[bool, bool]:
    """Return whether the candidate and the reference have boxes."""
    candidate, reference = (
        not isinstance(report, str) and any(sentence.has_region for sentence in report)
        for report in (pair.candidate, pair.reference)
    )
    return candidate, reference


def _values(result: MetricResult, metric: Metric, name: str, pairs: Sequence[Pair]) -> list[float]:
    """Return one score per pair, the worst one where a candidate would otherwise avoid the score."""
    if name not in result.values:
        raise _no_sample_values(name)
    values = []
    for index, (value, pair) in enumerate(zip(result.values[name], pairs, strict=True)):
        # A custom metric may use None for a missing value, as rewards do.
        value = math.nan if value is None else value
        if math.isnan(value) and index not in result.failures:
            if not narrative(pair.candidate).strip() and narrative(pair.reference).strip():
                value = metric.worst_values.get(name, math.nan)
            if math.isnan(value) and name in metric.box_scores and len(set(_have_boxes(pair))) == 2:
                value = 0.0
        values.append(value)
    return values


def _select_score(
    metric_or_score: MetricOrScore, resources: MetricResources, compat: Sequence[str]
) -> tuple[Metric, str, Direction]:
    """Return a metric, the score of it that counts, and its direction."""
    item, name = metric_or_score if isinstance(metric_or_score, tuple) else (metric_or_score, None)
    selections = select_metrics([item])
    if len(selections) != 1:
        raise _invalid(f"expected one metric, found {len(selections)} for '{item}'")
    (selection,) = selections
    metric = selection.metric or resources.metric(choose_variant(selection.entry, compat))
    directions, main_scores = selection.select(metric), selection.main_scores(metric)
    name = name or (main_scores[0] if len(main_scores) == 1 else None)
    if name is None or name not in directions:
        names = ", ".join(directions)
        raise _invalid(f"expected one score of {metric.name}: name one of {names}, or give (metric, score)")
    if name in metric.dataset_scores:
        raise _no_sample_values(name)
    return metric, name, directions[name]


def _no_sample_values(name: str) -> InputError:
    return _invalid(f"expected a score with sample-level values, found '{name}', which exists only for a dataset")


def _invalid(message: str, field: str = "metrics") -> InputError:
    return InputError(message, code=ErrorCode.INVALID_OPTION, field=field)


def _text_of(completion: Completion) -> str:
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else ""
    if isinstance(content, str):
        return content
    # Vision models have content in parts.
    return "".join(str(part.get("text", "")) for part in content or () if isinstance(part, Mapping))


def _reference_text(value: Any) -> Any:
    return value if isinstance(value, str) else narrative(parse_sentences(value, field="reference"))
