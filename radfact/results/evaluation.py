"""What many metrics said of the same pairs."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from radfact.io.pairs import Pair, narratives
from radfact.metrics.protocol import Described, Metric, Scored
from radfact.metrics.registry import Choice
from radfact.statistics.bootstrap import Direction, Summary


@dataclass(frozen=True, slots=True)
class MetricRun:
    """What one metric said.

    Attributes:
        metric: the metric itself.
        choice: as it was asked for.
        figures: those that are wanted, and which way is better.
        scored: what it said of every pair, wanted or not.
        summaries: of the wanted figures.
        seconds: that it took.
        arguments: that it was made with.
        reused: whether it stands in the results folder from an earlier run.
    """

    metric: Metric
    choice: Choice
    figures: Mapping[str, Direction]
    scored: Scored
    summaries: Mapping[str, Summary]
    seconds: float
    arguments: Mapping[str, Any] = field(default_factory=dict)
    reused: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The figures of a set of pairs by several metrics, in input order.

    Attributes:
        pairs: that were scored.
        runs: by the metric's name.
        choices: all that was asked for.
        unavailable: why a metric that was asked for gave nothing.
        left_out: references without a candidate, of which no metric says anything.
        options: of the bootstrap.
        reports: `digest` of the reports by id, where these are not the texts of the pairs; None = not known.
    """

    pairs: Sequence[Pair]
    runs: Mapping[str, MetricRun]
    choices: Sequence[Choice] = ()
    unavailable: Mapping[str, str] = field(default_factory=dict)
    left_out: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    reports: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, Summary]:
        """All figures of the set by name."""
        return {name: one for run in self.runs.values() for name, one in run.summaries.items()}

    @property
    def values(self) -> dict[str, Sequence[float]]:
        """All figures of the samples by name; NaN = not scored."""
        return {
            name: run.scored.values[name]
            for run in self.runs.values()
            for name in run.figures
            if name in run.scored.values
        }

    @property
    def settings_of_radfact(self) -> dict[str, Any]:
        """Judge, splitter and options of RadFact where it was scored; no splitter where nothing was split."""
        run = self.runs.get("radfact")
        if run is None or not isinstance(run.metric, Described):
            return {}
        return {**run.metric.describe(), **({} if narratives(self.pairs) else {"splitter": None})}

    @property
    def failures(self) -> list[dict[str, str]]:
        """Of every pair, why metrics could not score it, by the metric's name."""
        return [
            {name: run.scored.failures[place] for name, run in self.runs.items() if place in run.scored.failures}
            for place in range(len(self.pairs))
        ]

    def to_frame(self) -> Any:
        """The samples as a pandas DataFrame, indexed by `sample_id`, a column a figure.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise ImportError("a frame needs pandas: pip install pandas") from None
        index = pandas.Index([pair.sample_id for pair in self.pairs], name="sample_id")
        return pandas.DataFrame(dict(self.values), index=index)
