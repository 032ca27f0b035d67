"""Paired comparison of two systems on the same samples: randomization tests and differences with intervals.

`scipy.stats.permutation_test` is not used: it has no scores that are functions of summed counts of paired samples, and
with the mean of 3,000 samples as its statistic it takes 0.16 s for 1,000 rounds, where `randomization_test` takes
0.014 s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from radfact.statistics.bootstrap import (
    CountsFunction,
    RowFilter,
    Summary,
    add_up,
    bootstrap_counts,
    harmonic_mean,
    scored_rows,
    to_summary,
)
from radfact.statistics.clusters import Clusters

_Counts = NDArray[np.float64]
Pairing = Callable[[_Counts, _Counts], tuple[_Counts, _Counts]]
"""Blanks what cannot be compared in the counts of two systems, (samples, k) of each; a row of NaN = not scored."""


def common_rows(left: _Counts, right: _Counts) -> tuple[_Counts, _Counts]:
    """Blank the samples that are not scored in both systems."""
    both = (scored_rows(left) & scored_rows(right))[:, None]
    return np.where(both, left, math.nan), np.where(both, right, math.nan)


def common_parts(left: _Counts, right: _Counts) -> tuple[_Counts, _Counts]:
    """Keep each part (precision, recall) of `f1_counts` for the samples for which both systems have it."""
    left, right = common_rows(left, right)
    is_missing = np.repeat((left[:, 1::2] == 0) | (right[:, 1::2] == 0), 2, axis=1)
    return np.where(is_missing, 0.0, left), np.where(is_missing, 0.0, right)


def randomization_test(
    left: NDArray[np.float64],
    right: NDArray[np.float64],
    functions: Mapping[str, CountsFunction],
    *,
    pairing: Pairing = common_rows,
    rounds: int = 1000,
    seed: int = 42,
    clusters: Clusters | None = None,
) -> dict[str, float | None]:
    """Test whether the scores of two systems on the same samples differ: paired approximate randomization, two-sided.

    In every round the two results of each sample, or of all samples of a cluster together, are swapped with
    probability 0.5. p = (k + 1) / (n + 1), where k of the n rounds have a difference at least as large as the observed
    one. A round in which a system has no value counts toward k, so that p may be too large where few samples have a
    value, but never too small.
    """
    left, right, clusters = _comparable(left, right, pairing, clusters)
    left, right = clusters.sum(left), clusters.sum(right)
    if len(left) < (1 if clusters.by is None else 2):
        return dict.fromkeys(functions)
    left_sum, right_sum = left.sum(axis=0), right.sum(axis=0)
    total, gap = left_sum + right_sum, right - left
    observed = {name: abs(function(left_sum) - function(right_sum)) for name, function in functions.items()}
    extreme = dict.fromkeys(functions, 0)
    generator = np.random.default_rng(seed)
    for _ in range(rounds):
        swapped = left_sum + generator.integers(0, 2, len(left)) @ gap
        for name, function in functions.items():
            # Sums in another order may differ in the last digit. No comparison with NaN is true.
            extreme[name] += not abs(function(swapped) - function(total - swapped)) < observed[name] - 1e-12
    return {name: None if math.isnan(gap) else (extreme[name] + 1) / (rounds + 1) for name, gap in observed.items()}


def paired_difference(
    left: NDArray[np.float64],
    right: NDArray[np.float64],
    functions: Mapping[str, CountsFunction],
    *,
    has_value: RowFilter = scored_rows,
    pairing: Pairing = common_rows,
    replicates: int = 500,
    seed: int = 42,
    clusters: Clusters | None = None,
) -> dict[str, Summary]:
    """Summarize the difference `left` minus `right` of scores; both systems are resampled alike."""
    left, right, clusters = _comparable(left, right, pairing, clusters)
    if not len(left):
        return {name: Summary(None) for name in functions}
    n = int((has_value(left) & has_value(right)).sum())
    left_samples, right_samples = (
        bootstrap_counts(counts, functions, replicates=replicates, seed=seed, clusters=clusters)
        for counts in (left, right)
    )
    return {
        name: to_summary(function(add_up(left)) - function(add_up(right)), left_samples[name] - right_samples[name], n)
        for name, function in functions.items()
    }


def _comparable(
    left: _Counts, right: _Counts, pairing: Pairing, clusters: Clusters | None
) -> tuple[_Counts, _Counts, Clusters]:
    """Return the counts of the samples that can be compared, (common samples, k) of each, and their clusters."""
    left, right = pairing(left, right)
    rows = np.flatnonzero(scored_rows(left))
    return left[rows], right[rows], (clusters or Clusters.of_single(len(left))).select(rows)


def adjust_holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p-values by Holm's method (1979): the i-th smallest of m times m - i + 1, but at least the one before."""
    tests = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(tests):
        largest = max(largest, min(1.0, (len(tests) - rank) * p))
        adjusted[index] = largest
    return adjusted


def mean_counts(values: Sequence[float]) -> NDArray[np.float64]:
    """Return values as counts for `mean_from_counts`: (samples, 2), the value and 1; NaN becomes a row of NaN."""
    column = np.asarray(values, dtype=np.float64)
    return np.stack([column, np.where(np.isnan(column), math.nan, 1.0)], axis=1)


def mean_from_counts(counts: NDArray[np.float64]) -> float:
    """Return the mean of the samples whose `mean_counts` are summed in `counts`, (2,)."""
    return float(counts[0] / counts[1]) if counts[1] else math.nan


def f1_counts(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return precision and recall of samples as counts for `f1_from_counts`."""
    parts = parts.reshape(-1, 2)
    known = ~np.isnan(parts)
    counts = np.stack([np.where(known, parts, 0.0), known], axis=2).reshape(-1, 4).astype(np.float64)
    # NaN excludes the sample from comparisons of two systems.
    counts[~known.any(axis=1)] = math.nan
    return counts


def f1_from_counts(counts: NDArray[np.float64]) -> float:
    """Return the harmonic mean of dataset-level precision and recall; NaN where either has no sample."""
    precision, recall = (counts[i] / counts[i + 1] if counts[i + 1] else math.nan for i in (0, 2))
    return harmonic_mean(float(precision), float(recall))


def has_f1(counts: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Select the samples with both precision and recall."""
    both: NDArray[np.bool_] = (counts[:, 1] > 0) & (counts[:, 3] > 0)
    return both
