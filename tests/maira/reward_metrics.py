"""Metrics for the rewards of tests, named in configs as `reward_metrics:NAME`."""

import math
from collections.abc import Mapping, Sequence

from radfact.metrics.protocol import Metric, MetricResult
from radfact.records import TextPair
from radfact.statistics.bootstrap import Direction


class Brevity(Metric):
    """1 for an empty candidate, less for more letters."""

    name = "brevity"
    scores: Mapping[str, Direction] = {"brevity": "higher"}

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        return MetricResult({self.name: [self.value(pair) for pair in pairs]})

    def value(self, pair: TextPair) -> float:
        return 1 / (1 + len(pair.candidate))


class Constant(Brevity):
    """The same value for every candidate."""

    name = "constant"
    scores: Mapping[str, Direction] = {"constant": "higher"}

    def value(self, _pair: TextPair) -> float:
        return 1.0


class Nothing(Brevity):
    """No value for any candidate."""

    name = "nothing"
    scores: Mapping[str, Direction] = {"nothing": "higher"}

    def value(self, _pair: TextPair) -> float:
        return math.nan
