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
    bootstrap_counts,
    harmonic_mean,
    scored_rows,
    to_summary,
)

_Counts = NDArray[np.float64]
Pairing = Callable[[_Counts, _Counts], tuple[_Counts, _Counts]]
"""Reduces the counts of two systems to what can be compared, (samples, k) of each -> (common samples, k) of each."""


def common_rows(left: _Counts, right: _Counts) -> tuple[_Counts, _Counts]:
    """Keep the samples that are scored in both systems.

    Args:
        left: counts of one system, a row per sample.
        right: counts of the other system.
    """
    both = scored_rows(left) & scored_rows(right)
    return left[both], right[both]


def common_parts(left: _Counts, right: _Counts) -> tuple[_Counts, _Counts]:
    """Keep each part (precision, recall) of `f1_counts` for the samples for which both systems have it.

    Args:
        left: counts of one system, a row per sample.
        right: counts of the other system.
    """
    left, right = common_rows(left, right)
    both = np.repeat((left[:, 1::2] > 0) & (right[:, 1::2] > 0), 2, axis=1)
    return np.where(both, left, 0.0), np.where(both, right, 0.0)


def randomization_test(
    left: NDArray[np.float64],
    right: NDArray[np.float64],
    functions: Mapping[str, CountsFunction],
    *,
    pairing: Pairing = common_rows,
    rounds: int = 1000,
    seed: int = 42,
) -> dict[str, float | None]:
    """Test whether the scores of two systems on the same samples differ: paired approximate randomization, two-sided.

    In every round the two results of each sample are swapped with probability 0.5. p = (k + 1) / (n + 1), where k of
    the n rounds have a difference at least as large as the observed one. A round in which a system has no value counts
    towards k, so that p may be too large where few samples have a value, but never too small.

    Args:
        left: (samples, k), counts of one system, as in `summarize_counts`.
        right: counts of the other system; samples in the same order.
        functions: score name -> function of summed counts.
        pairing: selects what can be compared.
        rounds: number of rounds.
        seed: seed of the swaps.

    Returns:
        p by score name; None where a score has no value for either system.
    """
    left, right = pairing(left, right)
    if not len(left):
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
) -> dict[str, Summary]:
    """Summarize the difference `left` minus `right` of scores; both systems are resampled alike.

    Args:
        left: as in `randomization_test`.
        right: as in `randomization_test`.
        functions: score name -> function of summed counts.
        has_value: selects the compared samples that `n` counts.
        pairing: selects what can be compared.
        replicates: number of bootstrap replicates.
        seed: seed of the bootstrap.
    """
    left, right = pairing(left, right)
    if not len(left):
        return {name: Summary(None) for name in functions}
    n = int((has_value(left) & has_value(right)).sum())
    left_samples, right_samples = (
        bootstrap_counts(counts, functions, replicates=replicates, seed=seed) for counts in (left, right)
    )
    return {
        name: to_summary(
            function(left.sum(axis=0)) - function(right.sum(axis=0)), left_samples[name] - right_samples[name], n
        )
        for name, function in functions.items()
    }


def mean_counts(values: Sequence[float]) -> NDArray[np.float64]:
    """Return values as counts for `mean_from_counts`: (samples, 2), the value and 1; NaN becomes a row of NaN."""
    column = np.asarray(values, dtype=np.float64)
    return np.stack([column, np.where(np.isnan(column), math.nan, 1.0)], axis=1)


def mean_from_counts(counts: NDArray[np.float64]) -> float:
    """Return the mean of the samples whose `mean_counts` are summed in `counts`, (2,)."""
    return float(counts[0] / counts[1]) if counts[1] else math.nan


def f1_counts(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return precision and recall of samples as counts for `f1_from_counts`.

    Args:
        parts: (samples, 2), precision and recall of each sample; NaN = no value.

    Returns:
        (samples, 4), precision, 1 if it has a value, and the same for recall; a row of NaN if a sample has neither.
    """
    parts = parts.reshape(-1, 2)
    known = ~np.isnan(parts)
    counts = np.stack([np.where(known, parts, 0.0), known], axis=2).reshape(-1, 4).astype(np.float64)
    # NaN excludes the sample from comparisons of two systems.
    counts[~known.any(axis=1)] = math.nan
    return counts


def f1_from_counts(counts: NDArray[np.float64]) -> float:
    """Return the harmonic mean of dataset-level precision and recall; NaN where either has no sample.

    Args:
        counts: (4,), sum of the `f1_counts` of samples.
    """
    precision, recall = (counts[i] / counts[i + 1] if counts[i + 1] else math.nan for i in (0, 2))
    return harmonic_mean(float(precision), float(recall))


def has_f1(counts: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Select the samples with both precision and recall.

    Args:
        counts: (samples, 4), as returned by `f1_counts`.
    """
    both: NDArray[np.bool_] = (counts[:, 1] > 0) & (counts[:, 3] > 0)
    return both
