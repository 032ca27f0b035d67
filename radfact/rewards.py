"""Metrics as rewards of reinforcement learning: of pairs of reports, or with the signature of TRL's trainers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from radfact.errors import ErrorCode, list_columns, option_error
from radfact.metrics.pair_rewards import PairReward, no_sample_values
from radfact.metrics.protocol import Metric
from radfact.metrics.registry import choose_variant, expand_presets, select_metrics
from radfact.metrics.resources import MetricResources
from radfact.records import Pair, is_missing, narrative, parse_sentences
from radfact.statistics.bootstrap import Direction

Completion = str | Sequence[Mapping[str, Any]] | None
"""Plain text, or the messages of a conversation, of which the last one's content is the report."""
MetricOrScore = str | Metric | tuple[str | Metric, str]
"""A metric or its name, the name of a score, or a metric and the name of one of its scores."""


class RewardFunction(Protocol):
    """A function that TRL's GRPOTrainer accepts in `reward_funcs`; dataset columns come as keyword arguments."""

    __name__: str

    def __call__(self, completions: Sequence[Completion], **columns: Any) -> list[float | None]:
        """Return one reward per completion, higher is better; TRL ignores samples whose reward is None."""
        ...


def make_reward(
    *metrics: MetricOrScore, weights: Sequence[float] | None = None, column: str = "ground_truth", **options: Any
) -> RewardFunction:
    """Create a reward: the weighted sum of one score of each metric, negated where lower is better.

    All completions of a call are scored together, so that a language model answers them concurrently. A sample that a
    metric cannot score, such as one with an empty reference or without a valid response of a model, has no reward. A
    completion that cannot be read, such as None, "...", or one in another script, has the reward of an empty one.
    Where an empty completion has no score, the metric's `worst_values` count, as for RadFact's precision and F1,
    because otherwise it would cost nothing.

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
            raise option_error(f"expected a score of texts, found '{name}', which needs boxes", "metrics")
    return _TextReward(reward, column)


def load_reward(*metrics: MetricOrScore, weights: Sequence[float] | None = None, **options: Any) -> PairReward:
    """Create a reward of pairs of reports, whose sentences and scores may have boxes. See `make_reward`."""
    if not metrics:
        raise option_error("expected at least one metric", "metrics", ErrorCode.MISSING_OPTION)
    factors = list(weights) if weights is not None else [1.0] * len(metrics)
    if len(factors) != len(metrics) or not all(map(math.isfinite, factors)):
        raise option_error(f"expected {len(metrics)} finite numbers, one per metric, found {factors}", "weights")
    if "folders" in options:
        options["weights"] = options.pop("folders")
    _, compat = expand_presets([], options.pop("compat", ()))
    resources = MetricResources(**options)
    parts = []
    for item, factor in zip(metrics, factors, strict=True):
        metric, name, direction = _select_score(item, resources, compat)
        if weights is None and direction == "neutral":
            message = f"expected a weight for '{name}', which is neutral: its sign gives the direction"
            raise option_error(message, "weights", ErrorCode.MISSING_OPTION)
        parts.append((metric, name, -factor if direction == "lower" else factor))
    return PairReward(parts)


class _TextReward:
    """The reward function of TRL, which logs it under `__name__`, and whose processes take a copy of it."""

    def __init__(self, reward: PairReward, column: str) -> None:
        self._reward, self._column = reward, column
        self.__name__ = "_and_".join(reward.names)

    def __call__(self, completions: Sequence[Completion], **columns: Any) -> list[float | None]:
        references = columns.get(self._column)
        if references is None:
            message = f"expected a column '{self._column}' with references, found {list_columns([*columns])}"
            raise option_error(message, "column", ErrorCode.MISSING_FIELD)
        if len(references) != len(completions):
            message = f"expected {len(completions)} references, one per completion, found {len(references)}"
            raise option_error(message, self._column, ErrorCode.MISMATCH)
        texts = zip(map(_text_of, completions), map(_reference_text, references), strict=True)
        pairs = [Pair(str(index), *reports) for index, reports in enumerate(texts)]
        return [item.total for item in self._reward(pairs)]


def _select_score(
    metric_or_score: MetricOrScore, resources: MetricResources, compat: Sequence[str]
) -> tuple[Metric, str, Direction]:
    """Return a metric, the score of it that counts, and its direction."""
    item, name = metric_or_score if isinstance(metric_or_score, tuple) else (metric_or_score, None)
    selections = select_metrics([item])
    if len(selections) != 1:
        raise option_error(f"expected one metric, found {len(selections)} for '{item}'", "metrics")
    (selection,) = selections
    metric = selection.metric or resources.metric(choose_variant(selection.entry, compat))
    directions, main_scores = selection.select(metric), selection.main_scores(metric)
    if name is None and (len(main_scores) == 1 or metric.name in main_scores):
        name = main_scores[0] if len(main_scores) == 1 else metric.name
    if name is None or name not in directions:
        names = ", ".join(directions)
        message = f"expected one score of {metric.name}: name one of {names}, or give (metric, score)"
        raise option_error(message, "metrics")
    if name in metric.dataset_scores:
        raise no_sample_values(name)
    return metric, name, directions[name]


def _text_of(completion: Any) -> str:
    """Return the text of a completion, of a message, or of the last one of several; "" if there is none."""
    if isinstance(completion, list | tuple):
        return _text_of(completion[-1]) if completion else ""
    content = completion.get("content") if isinstance(completion, Mapping) else completion
    if isinstance(content, list | tuple):
        # Vision models have content in parts.
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def _reference_text(value: Any) -> str:
    if isinstance(value, str) or is_missing(value):
        return value if isinstance(value, str) else ""
    return narrative(parse_sentences(value, field="reference"))
