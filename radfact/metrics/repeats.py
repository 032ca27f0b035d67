"""Repeated scoring: query a model several times about the same pairs to measure how much its responses vary."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radfact.metrics.protocol import Metric, MetricResult, PooledScore, Repeats, add_up_counts, group_by_counts


def combine_repeats(metric: Metric, results: Sequence[MetricResult], count: int) -> MetricResult:
    """Average the results of repeats on `count` samples: each sample over the repeats that scored it."""
    first = results[0]
    stacked = {name: np.array([result.values[name] for result in results], dtype=np.float64) for name in first.values}
    pooled: dict[str, PooledScore] = {}
    for group, _ in group_by_counts(first.pooled):
        counts = _mean(np.stack([result.pooled[group[0]].counts for result in results]))
        pooled |= {name: PooledScore(counts, first.pooled[name].value) for name in group}
    failed = Counter(place for result in results for place in result.failures)
    names = list(metric.scores)
    points = [metric.aggregate(result, names, replicates=0, seed=0) for result in results]
    return MetricResult(
        {name: _mean(values).tolist() for name, values in stacked.items()},
        pooled=pooled,
        details=[_details(results, stacked, index) for index in range(count)],
        failures={index: reason for index, reason in first.failures.items() if failed[index] == len(results)},
        usage=add_up_counts([result.usage for result in results]),
        usage_by_role={
            role: add_up_counts([result.usage_by_role.get(role, {}) for result in results])
            for role in first.usage_by_role
        },
        counts=add_up_counts([result.counts for result in results]),
        repeats=Repeats(
            len(results),
            {name: _deviation([summaries[name].point for summaries in points]) for name in names},
            sum(number < len(results) for number in failed.values()),
        ),
    )


def _mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # No repeat has a value.
        means: NDArray[np.float64] = np.nansum(values, axis=0) / (~np.isnan(values)).sum(axis=0)
    return means


def _deviation(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and not math.isnan(value)]
    return statistics.stdev(known) if len(known) > 1 else None


def _details(results: Sequence[MetricResult], stacked: Mapping[str, NDArray[np.float64]], index: int) -> dict[str, Any]:
    """Return the details of the first repeat that scored a sample, and the standard deviation of its scores."""
    scored = next((result for result in results if index not in result.failures), results[0])
    deviations = {name: _deviation(values[:, index].tolist()) for name, values in stacked.items()}
    return {
        **(scored.details[index] if scored.details else {}),
        "repeat_sd": {name: value for name, value in deviations.items() if value is not None},
        "failed_repeats": sum(index in result.failures for result in results),
    }
