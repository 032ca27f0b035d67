"""Metrics as rewards of reinforcement learning: of pairs of reports, or with the signature of TRL's trainers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from radfact.errors import ErrorCode, InputError, RunError, list_columns
from radfact.metrics.protocol import Metric, MetricResult, report_errors, score_pairs
from radfact.metrics.registry import select_metrics
from radfact.metrics.resources import MetricResources
from radfact.records import Pair, Report, narrative, parse_sentences
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
            raise InputError(
                f"expected a score of texts, found '{name}', which needs boxes",
                code=ErrorCode.INVALID_OPTION,
                field="metrics",
            )
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
        raise InputError(
            f"expected {len(metrics)} finite numbers, one per metric, found {factors}",
            code=ErrorCode.INVALID_OPTION,
            field="weights",
        )
    if "folders" in options:
        options["weights"] = options.pop("folders")
    resources = MetricResources(**options)
    parts = [_select_score(metric, resources) for metric in metrics]
    for _, name, direction in parts:
        if weights is None and direction == "neutral":
            raise InputError(
                f"expected a weight for '{name}', which is neutral: its sign gives the direction",
                code=ErrorCode.MISSING_OPTION,
                field="weights",
            )
    signed = [
        -factor if direction == "lower" else factor for factor, (*_, direction) in zip(factors, parts, strict=True)
    ]
    return PairReward([(metric, name) for metric, name, _ in parts], signed)


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

    def __init__(self, parts: Sequence[tuple[Metric, str]], factors: Sequence[float]) -> None:
        self._parts, self._factors = parts, factors
        self.names = [name for _, name in parts]
        self.box_scores = {name for metric, name in parts if name in metric.box_scores}

    def __call__(self, pairs: Sequence[Pair]) -> list[Reward]:
        """Score pairs; all pairs of a call are scored together.

        Raises:
            RunError: a metric fails.
        """
        if not pairs:
            return []
        results: dict[int, MetricResult] = {}
        for metric, _ in self._parts:
            # Several scores of a metric come from one result.
            if id(metric) not in results:
                with report_errors(metric.name, RunError):
                    results[id(metric)] = score_pairs(metric, pairs)
        columns = [
            _values(results[id(metric)], name, metric.worst_values.get(name, math.nan), pairs)
            for metric, name in self._parts
        ]
        for (metric, name), column in zip(self._parts, columns, strict=True):
            if name in self.box_scores:
                _complete_box_scores(column, pairs, results[id(metric)].failures)
        return [self._reward(pair, values) for pair, values in zip(pairs, zip(*columns, strict=True), strict=True)]

    def _reward(self, pair: Pair, values: Sequence[float]) -> Reward:
        has_boxes = _has_boxes(pair.candidate) or _has_boxes(pair.reference)
        counted = [
            (factor, value)
            for name, factor, value in zip(self.names, self._factors, values, strict=True)
            if has_boxes or name not in self.box_scores
        ]
        scale = 1.0
        if len(counted) < len(values):
            weight = sum(abs(factor) for factor, _ in counted)
            scale = sum(map(abs, self._factors)) / weight if weight else math.nan
        total = scale * sum(factor * value for factor, value in counted)
        scores = {name: _finite(value) for name, value in zip(self.names, values, strict=True)}
        return Reward(_finite(total) if counted else None, scores)


class _TextReward:
    """The reward function of TRL, which logs it under `__name__`."""

    def __init__(self, reward: PairReward, column: str) -> None:
        self._reward, self._column = reward, column
        self.__name__ = "_and_".join(reward.names)

    def __call__(self, completions: Sequence[Completion], **columns: Any) -> list[float | None]:
        references = columns.get(self._column)
        if references is None:
            raise InputError(
                f"expected a column '{self._column}' with references, found {list_columns([*columns])}",
                code=ErrorCode.MISSING_FIELD,
                field="column",
            )
        if len(references) != len(completions):
            raise InputError(
                f"expected {len(completions)} references, one per completion, found {len(references)}",
                code=ErrorCode.MISMATCH,
                field=self._column,
            )
        pairs = [
            Pair(str(index), _text_of(completion), _reference_text(reference))
            for index, (completion, reference) in enumerate(zip(completions, references, strict=True))
        ]
        return [reward.total for reward in self._reward(pairs)]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _has_boxes(report: Report) -> bool:
    return not isinstance(report, str) and any(sentence.has_region for sentence in report)


def _complete_box_scores(values: list[float], pairs: Sequence[Pair], failures: Mapping[int, str]) -> None:
    """Replace missing scores of boxes by 0 in place where exactly one of the two reports has boxes."""
    for index, pair in enumerate(pairs):
        is_one_sided = _has_boxes(pair.candidate) != _has_boxes(pair.reference)
        if math.isnan(values[index]) and is_one_sided and index not in failures:
            values[index] = 0.0


def _values(result: MetricResult, name: str, worst: float, pairs: Sequence[Pair]) -> list[float]:
    """Return one score per pair; `worst` where it has no value because the candidate is empty."""
    if name not in result.values:
        raise _no_sample_values(name)
    values = []
    for index, (value, pair) in enumerate(zip(result.values[name], pairs, strict=True)):
        is_empty = not narrative(pair.candidate).strip() and bool(narrative(pair.reference).strip())
        # A custom metric may use None for a missing value, as rewards do.
        value = math.nan if value is None else value
        values.append(worst if math.isnan(value) and is_empty and index not in result.failures else value)
    return values


def _select_score(metric_or_score: MetricOrScore, resources: MetricResources) -> tuple[Metric, str, Direction]:
    """Return a metric, the score of it that counts, and its direction."""
    item, name = metric_or_score if isinstance(metric_or_score, tuple) else (metric_or_score, None)
    selections = select_metrics([item])
    if len(selections) != 1:
        raise InputError(
            f"expected one metric, found {len(selections)} for '{item}'", code=ErrorCode.INVALID_OPTION, field="metrics"
        )
    (selection,) = selections
    metric = selection.metric or resources.metric(selection.entry)
    directions, main_scores = selection.select(metric), selection.main_scores(metric)
    name = name or (main_scores[0] if len(main_scores) == 1 else None)
    if name is None or name not in directions:
        raise InputError(
            f"expected one score of {metric.name}: name one of {', '.join(directions)}, or give (metric, score)",
            code=ErrorCode.INVALID_OPTION,
            field="metrics",
        )
    if name in metric.dataset_scores:
        raise _no_sample_values(name)
    return metric, name, directions[name]


def _no_sample_values(name: str) -> InputError:
    return InputError(
        f"expected a score with sample-level values, found '{name}', which exists only for a dataset",
        code=ErrorCode.INVALID_OPTION,
        field="metrics",
    )


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
