"""Metrics as rewards of reinforcement learning: functions with the signature of TRL's trainers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from radfact.errors import InputError, RunError
from radfact.metrics.protocol import Metric, Scored, check_scored, naming_metric
from radfact.metrics.registry import Choice, choose
from radfact.metrics.resources import Resources
from radfact.records import Pair, narrative, parse_sentences
from radfact.statistics.bootstrap import Direction

Completion = str | Sequence[Mapping[str, Any]]
"""Plain text, or the messages of a conversation, of which the last one's content is the report."""


class RewardFunction(Protocol):
    """What TRL's GRPOTrainer takes as `reward_funcs`; columns of the data set come as keyword arguments."""

    __name__: str

    def __call__(self, completions: Sequence[Completion], **columns: Any) -> list[float | None]:
        """One reward a completion, greater is better; None where there is none, which TRL leaves out."""
        ...


Wanted = str | Metric | tuple[str | Metric, str]
"""A metric by name or itself, a figure by name, or a metric and the name of one of its figures."""


def make_reward(
    *metrics: Wanted, weights: Sequence[float] | None = None, column: str = "ground_truth", **options: Any
) -> RewardFunction:
    """A reward made of metrics: the weighted sum of one figure of each, those that are better lower with their sign
    turned.

    All completions of a call are scored together, so that a model that is asked answers them side by side. A sample
    that any of the metrics cannot score has no reward. An empty completion of a reference that says something is no
    such sample, because saying nothing would then cost nothing: where a figure has no value of it, and the metric no
    failure, the worst value counts that the metric's `worst` has for the figure, as of RadFact's precision and F1.

    Args:
        metrics: names of metrics or figures as in `radfact evaluate --metrics`, metrics, or (metric, figure). Of a
            metric with several figures its headline counts, as `green` of green and `logical_f1` of radfact; where
            that is several, the figure must be named.
        weights: one a metric; by default 1 each. A figure of which neither way is better needs one, whose sign says it.
        column: of the data set, with the reference reports.
        options: of `radfact.metrics.resources.Resources`: `judge`, `base_url`, `weights` as `folders`, ...

    Raises:
        InputError: a metric is not known, needs something, has no values of samples or of texts, or several figures;
            the weights do not fit.
    """
    if not metrics:
        raise InputError("name at least one metric", field="metrics")
    factors = list(weights) if weights is not None else [1.0] * len(metrics)
    if len(factors) != len(metrics) or not all(map(math.isfinite, factors)):
        raise InputError(f"expected {len(metrics)} finite numbers, one a metric, found {factors}", field="weights")
    if "folders" in options:
        options["weights"] = options.pop("folders")
    resources = Resources(**options)
    parts = [_part(one, resources) for one in metrics]
    if weights is None:
        for _, figure, direction in parts:
            if direction == "neutral":
                raise InputError(
                    f"neither way is better of '{figure}'; say by the sign of its weight which is wanted",
                    field="weights",
                )
    turned = [-one if direction == "lower" else one for one, (*_, direction) in zip(factors, parts, strict=True)]
    return _Reward([(metric, figure) for metric, figure, _ in parts], turned, column)


class _Reward:
    """The callable; TRL logs it under `__name__`."""

    def __init__(self, parts: Sequence[tuple[Metric, str]], factors: Sequence[float], column: str) -> None:
        self._parts, self._factors, self._column = parts, factors, column
        self.__name__ = "_and_".join(figure for _, figure in parts)

    def __call__(self, completions: Sequence[Completion], **columns: Any) -> list[float | None]:
        references = columns.get(self._column)
        if references is None:
            raise InputError(f"the data set has no column '{self._column}' with references", field="column")
        if len(references) != len(completions):
            raise InputError(f"{len(completions)} completions, but {len(references)} references", field=self._column)
        pairs = [
            Pair(str(place), _text(completion), _reference(reference))
            for place, (completion, reference) in enumerate(zip(completions, references, strict=True))
        ]
        if not pairs:
            return []
        # Figures of one metric are of one answer.
        scored = {id(metric): _score(metric, pairs) for metric in {id(one): one for one, _ in self._parts}.values()}
        totals = [0.0] * len(pairs)
        for (metric, figure), factor in zip(self._parts, self._factors, strict=True):
            values = _values(scored[id(metric)], figure, getattr(metric, "worst", {}).get(figure, math.nan), pairs)
            totals = [total + factor * value for total, value in zip(totals, values, strict=True)]
        return [total if math.isfinite(total) else None for total in totals]


def _score(metric: Metric, pairs: Sequence[Pair]) -> Scored:
    """What a metric says of pairs.

    Raises:
        RunError: it fails, or gives something else than it promises.
    """
    with naming_metric(metric.name, RunError):
        scored = metric.score(pairs)
        try:
            check_scored(scored, metric, len(pairs))
        except RunError as error:
            raise RunError(f"{metric.name} {error}") from None
        return scored


def _values(scored: Scored, figure: str, worst: float, pairs: Sequence[Pair]) -> list[float]:
    """One figure of each pair; `worst` where there is none because the candidate says nothing."""
    if figure not in scored.values:
        raise _of_a_set(figure)
    found = []
    for place, (value, pair) in enumerate(zip(scored.values[figure], pairs, strict=True)):
        silent = not narrative(pair.candidate).strip() and bool(narrative(pair.reference).strip())
        # A metric of a user's own may say None where it has no value, as rewards themselves do.
        known = math.nan if value is None else value
        found.append(worst if math.isnan(known) and silent and place not in scored.failures else known)
    return found


def _part(wanted: Wanted, resources: Resources) -> tuple[Metric, str, Direction]:
    """A metric, the figure of it that counts, and which way is better."""
    given, figure = wanted if isinstance(wanted, tuple) else (wanted, None)
    choices = choose([given]) if isinstance(given, str) else [Choice.of(given)]
    if len(choices) != 1:
        raise InputError(f"'{given}' is many; name each metric that should count", field="metrics")
    metric = choices[0].metric or resources.metric(choices[0].entry)
    figures, headline = choices[0].wanted(metric.figures), choices[0].headline(metric)
    figure = figure or (headline[0] if len(headline) == 1 else None)
    if figure is None or figure not in figures:
        raise InputError(
            f"{metric.name} has several figures; name one of {', '.join(figures)}, or give (metric, figure)",
            field="metrics",
        )
    if figure in getattr(metric, "of_the_set", ()):
        raise _of_a_set(figure)
    if figure in getattr(metric, "of_boxes", ()):
        raise InputError(f"'{figure}' is a figure of boxes, which completions have none of", field="metrics")
    return metric, figure, figures[figure]


def _of_a_set(figure: str) -> InputError:
    return InputError(f"'{figure}' is a figure of a whole set; a reward needs one of samples", field="metrics")


def _text(completion: Completion) -> str:
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else ""
    if isinstance(content, str):
        return content
    # Content in parts, as models that see have it.
    return "".join(str(part.get("text", "")) for part in content or () if isinstance(part, Mapping))


def _reference(value: Any) -> Any:
    return value if isinstance(value, str) else narrative(parse_sentences(value, field="reference"))
