"""Whether two systems differ by more than chance on the same samples: randomisation tests, paired differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from radfact.statistics.bootstrap import (
    CountsFigure,
    Summary,
    Valued,
    bootstrap_counts,
    harmonic_mean,
    scored_rows,
    summary_of,
)

_Counts = NDArray[np.float64]
Paired = Callable[[_Counts, _Counts], tuple[_Counts, _Counts]]
"""What of two systems' counts can be compared, (samples, k) of each -> (shared samples, k) of each."""


def paired_rows(left: _Counts, right: _Counts) -> tuple[_Counts, _Counts]:
    """The samples that both have scored."""
    both = scored_rows(left) & scored_rows(right)
    return left[both], right[both]


def paired_parts(left: _Counts, right: _Counts) -> tuple[_Counts, _Counts]:
    """Of counts as `f1_counts` gives them each part of the samples of which both systems have it."""
    left, right = paired_rows(left, right)
    both = np.repeat((left[:, 1::2] > 0) & (right[:, 1::2] > 0), 2, axis=1)
    return np.where(both, left, 0.0), np.where(both, right, 0.0)


def randomisation_test(
    left: NDArray[np.float64],
    right: NDArray[np.float64],
    values: Mapping[str, CountsFigure],
    *,
    paired: Paired = paired_rows,
    rounds: int = 1000,
    seed: int = 42,
) -> dict[str, float | None]:
    """Whether figures of two systems on the same samples differ by more than chance: approximate randomisation.

    In every round the two results of each sample are swapped or not, by the toss of a coin; p = (k + 1) / (n + 1),
    with k the number of the n rounds in which the figures differ at least as much as they do in truth. A round in which
    a system is left without a value says nothing of that; it counts among the k, so that p may be too great where few
    samples have a value, and is never too small.

    Args:
        left: (samples, k), what each sample adds to the counts of one system, as in `summarise_counts`.
        right: of the other; samples in the same order.
        values: figure name -> function of summed counts.
        paired: what of the two takes part.
        rounds: number of rounds.
        seed: of the coin.

    Returns:
        p by name, of the two-sided test; None where a figure has no value for either system.
    """
    left, right = paired(left, right)
    if not len(left):
        return dict.fromkeys(values)
    total, gap = left.sum(axis=0) + right.sum(axis=0), right - left
    found = {name: abs(value(left.sum(axis=0)) - value(right.sum(axis=0))) for name, value in values.items()}
    extreme = dict.fromkeys(values, 0)
    generator = np.random.default_rng(seed)
    for _ in range(rounds):
        swapped = left.sum(axis=0) + generator.integers(0, 2, len(left)) @ gap
        for name, value in values.items():
            # Sums in another order may differ in the last digit. No comparison with NaN is true.
            extreme[name] += not abs(value(swapped) - value(total - swapped)) < found[name] - 1e-12
    return {name: None if math.isnan(found[name]) else (extreme[name] + 1) / (rounds + 1) for name in values}


def as_counts(values: Sequence[float]) -> NDArray[np.float64]:
    """Values of samples as counts, whose figure is `mean_of`: (samples, 2), the value and 1; NaN stays a whole row."""
    column = np.asarray(values, dtype=np.float64)
    return np.stack([column, np.where(np.isnan(column), math.nan, 1.0)], axis=1)


def mean_of(counts: NDArray[np.float64]) -> float:
    """The mean of samples that were made counts by `as_counts`."""
    return float(counts[0] / counts[1]) if counts[1] else math.nan


def f1_counts(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    """(samples, 4), as `set_f1` takes their sum; a sample with one value adds it, one without any is not scored (NaN).

    Args:
        parts: (samples, 2), precision and recall of each sample; NaN where it has none.
    """
    parts = parts.reshape(-1, 2)
    known = ~np.isnan(parts)
    filled = np.where(known, parts, 0.0)
    counts: NDArray[np.float64] = np.stack([filled[:, 0], known[:, 0], filled[:, 1], known[:, 1]], axis=1).astype(
        np.float64
    )
    # So that, in a comparison of two systems, it takes no part in either.
    counts[~known.any(axis=1)] = math.nan
    return counts


def set_f1(counts: NDArray[np.float64]) -> float:
    """Harmonic mean of a set's precision and recall; NaN where either has no sample.

    Args:
        counts: (4,), sum of the samples' precisions, how many there are, and the same of the recalls.
    """
    precision, recall = (counts[place] / counts[place + 1] if counts[place + 1] else math.nan for place in (0, 2))
    return harmonic_mean(float(precision), float(recall))


def with_f1(counts: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which samples have an F1 of their own: those with a precision and a recall.

    Args:
        counts: (samples, 4), as `f1_counts` gives them.
    """
    both: NDArray[np.bool_] = (counts[:, 1] > 0) & (counts[:, 3] > 0)
    return both


def difference_of_counts(
    left: NDArray[np.float64],
    right: NDArray[np.float64],
    values: Mapping[str, CountsFigure],
    *,
    valued: Valued = scored_rows,
    paired: Paired = paired_rows,
    replicates: int = 500,
    seed: int = 42,
) -> dict[str, Summary]:
    """By how much figures of `left` lie above those of `right`, paired: both are resampled alike.

    Args:
        left: as in `randomisation_test`.
        right: likewise.
        values: figure name -> function of summed counts.
        valued: which of the samples that take part `n` counts.
        paired: what of the two takes part.
        replicates: of the bootstrap.
        seed: of the bootstrap.
    """
    left, right = paired(left, right)
    if not len(left):
        return {name: Summary(None) for name in values}
    n = int((valued(left) & valued(right)).sum())
    spreads = [bootstrap_counts(one, values, replicates=replicates, seed=seed) for one in (left, right)]
    return {
        name: summary_of(value(left.sum(axis=0)) - value(right.sum(axis=0)), spreads[0][name] - spreads[1][name], n)
        for name, value in values.items()
    }
