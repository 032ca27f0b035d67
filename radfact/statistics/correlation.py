"""Rank and linear correlation of a figure with experts, with bootstrap intervals over samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radfact.optional import load_stats
from radfact.statistics.bootstrap import round_noise

Values = NDArray[np.float64]
Times = NDArray[np.float64]
"""(replicates, samples), how often each sample was drawn."""

REPLICATES = 1000
SEED = 42
FEWEST = 3
"""With fewer samples a correlation says nothing."""
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % bootstrap interval and the number of samples behind it; None = no value."""

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0


def correlate(
    expert: Sequence[float], figure: Sequence[float], *, replicates: int = REPLICATES, seed: int = SEED
) -> dict[str, Estimate]:
    """Kendall's tau-b, Spearman's rho and Pearson's r of a figure with experts (papers 000, 002 and 003).

    Args:
        expert: one value a sample; NaN = not rated.
        figure: one value a sample in the same order; NaN = not scored. Samples without either are left out.
        replicates: bootstrap replicates over samples, each by `numpy.random.default_rng(seed).choice(n, n)`; 0 for
            none.
        seed: of the bootstrap.

    Returns:
        By name. None where there are fewer than three samples or all values are the same.
    """
    x, y = np.asarray(expert, dtype=np.float64), np.asarray(figure, dtype=np.float64)
    known = ~np.isnan(x) & ~np.isnan(y)
    x, y = round_noise(x[known]), round_noise(y[known])
    n = len(x)
    if n < FEWEST or np.ptp(x) == 0 or np.ptp(y) == 0:
        return {name: Estimate(None, n=n) for name in _POINTS}
    times = _draws(n, replicates, seed)
    found = {}
    for name, point in _POINTS.items():
        spread = _SPREADS[name](x, y, times)
        found[name] = _estimate(point(load_stats(), x, y), spread, n)
    return found


def _draws(n: int, replicates: int, seed: int) -> Times:
    generator = np.random.default_rng(seed)
    drawn = (np.bincount(generator.choice(n, n, replace=True), minlength=n) for _ in range(replicates))
    return np.array(list(drawn), dtype=np.float64).reshape(replicates, n)


def _estimate(point: float, spread: Values, n: int) -> Estimate:
    spread = spread[~np.isnan(spread)]
    if math.isnan(point) or not spread.size:
        return Estimate(None if math.isnan(point) else point, n=n)
    low, high = np.quantile(spread, (0.025, 0.975)).tolist()
    return Estimate(point, low, high, n)


def _kendall(x: Values, y: Values, times: Times) -> Values:
    """Tau-b of every replicate: a sample drawn twice is tied with itself, as it would be in the drawn list."""
    concordant, untied_x, untied_y = (np.zeros(len(times)) for _ in range(3))
    for start in range(0, len(x), _BLOCK):
        part = slice(start, start + _BLOCK)
        sign_x = np.sign(x[part, None] - x[None, :])  # (block, samples)
        sign_y = np.sign(y[part, None] - y[None, :])
        for total, signs in ((concordant, sign_x * sign_y), (untied_x, np.abs(sign_x)), (untied_y, np.abs(sign_y))):
            total += np.einsum("rs,rs->r", times[:, part], times @ signs.T)
    return _quotient(concordant, np.sqrt(untied_x * untied_y))


def _spearman(x: Values, y: Values, times: Times) -> Values:
    return _weighted_pearson(_ranks(x, times), _ranks(y, times), times)


def _pearson(x: Values, y: Values, times: Times) -> Values:
    return _weighted_pearson(x[None, :], y[None, :], times)


def _ranks(values: Values, times: Times) -> Values:
    """Average ranks in every replicate, (replicates, samples)."""
    order = np.argsort(values, kind="stable")
    _, first, place = np.unique(values[order], return_index=True, return_inverse=True)
    counts = np.add.reduceat(times[:, order], first, axis=1)  # (replicates, distinct values)
    ranks: Values = (np.cumsum(counts, axis=1) - (counts - 1) / 2)[:, place[np.argsort(order)]]
    return ranks


def _weighted_pearson(x: Values, y: Values, times: Times) -> Values:
    total = times.sum(axis=1, keepdims=True)
    dx = x - (times * x).sum(axis=1, keepdims=True) / total
    dy = y - (times * y).sum(axis=1, keepdims=True) / total
    spread = np.sqrt((times * dx**2).sum(axis=1) * (times * dy**2).sum(axis=1))
    return _quotient((times * dx * dy).sum(axis=1), spread)


def _quotient(part: Values, whole: Values) -> Values:
    # What is left of a variance of zero after rounding is no variance.
    quotient: Values = np.divide(part, whole, out=np.full(part.shape, math.nan), where=whole > 1e-9)
    return quotient


_POINTS: Mapping[str, Callable[[Any, Values, Values], float]] = {
    "kendall": lambda stats, x, y: float(stats.kendalltau(x, y).statistic),
    "spearman": lambda stats, x, y: float(stats.spearmanr(x, y).statistic),
    "pearson": lambda stats, x, y: float(stats.pearsonr(x, y).statistic),
}
_SPREADS: Mapping[str, Callable[[Values, Values, Times], Values]] = {
    "kendall": _kendall,
    "spearman": _spearman,
    "pearson": _pearson,
}
COEFFICIENTS = tuple(_POINTS)
