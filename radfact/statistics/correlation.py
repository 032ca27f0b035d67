"""Rank and linear correlation of a score with experts, with bootstrap intervals over samples.

`scipy.stats.bootstrap` is not used: for the three coefficients of 200 samples and 1,000 replicates it takes 0.7 s (and
Kendall's tau grows with the square of the samples), where `correlate` takes 0.024 s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from radfact.optional import load_stats
from radfact.statistics.bootstrap import round_noise

_Values = NDArray[np.float64]
_Weights = NDArray[np.float64]
"""(replicates, samples), how often each sample was drawn."""

REPLICATES = 1000
SEED = 42
_MIN_SAMPLES = 3
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % bootstrap interval and the number of samples behind it; None = no value."""

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0


def correlate(
    expert: Sequence[float], scores: Sequence[float], *, replicates: int = REPLICATES, seed: int = SEED
) -> dict[str, Estimate]:
    """Return Kendall's tau-b, Spearman's rho and Pearson's r of scores with experts.

    Args:
        expert: one value per sample, NaN = not rated.
        scores: one value per sample, NaN = not scored. Only samples with both values count.
        replicates: number of bootstrap replicates, each drawn by `numpy.random.default_rng(seed).choice(n, n)`; 0 for
            no intervals.
        seed: seed of the bootstrap.

    Returns:
        Estimates by name; without a value for fewer than three samples or if all values are the same.
    """
    x, y = np.asarray(expert, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    known = ~np.isnan(x) & ~np.isnan(y)
    x, y = round_noise(x[known]), round_noise(y[known])
    n = len(x)
    if n < _MIN_SAMPLES or np.ptp(x) == 0 or np.ptp(y) == 0:
        return {name: Estimate(None, n=n) for name in COEFFICIENTS}
    stats = load_stats()
    points = {"kendall": stats.kendalltau, "spearman": stats.spearmanr, "pearson": stats.pearsonr}
    generator = np.random.default_rng(seed)
    draws = (np.bincount(generator.choice(n, n, replace=True), minlength=n) for _ in range(replicates))
    weights = np.array(list(draws), dtype=np.float64).reshape(replicates, n)
    return {
        name: _estimate(float(points[name](x, y).statistic), resample(x, y, weights), n)
        for name, resample in _RESAMPLE.items()
    }


def _estimate(point: float, samples: _Values, n: int) -> Estimate:
    samples = samples[~np.isnan(samples)]
    if math.isnan(point) or not samples.size:
        return Estimate(None if math.isnan(point) else point, n=n)
    low, high = np.quantile(samples, (0.025, 0.975)).tolist()
    return Estimate(point, low, high, n)


def _kendall(x: _Values, y: _Values, weights: _Weights) -> _Values:
    """Return tau-b of every replicate; a sample that is drawn twice is tied with itself."""
    concordant, untied_x, untied_y = (np.zeros(len(weights)) for _ in range(3))
    for start in range(0, len(x), _BLOCK):
        part = slice(start, start + _BLOCK)
        sign_x = np.sign(x[part, None] - x[None, :])  # (block, samples)
        sign_y = np.sign(y[part, None] - y[None, :])
        for total, signs in ((concordant, sign_x * sign_y), (untied_x, np.abs(sign_x)), (untied_y, np.abs(sign_y))):
            total += np.einsum("rs,rs->r", weights[:, part], weights @ signs.T)
    return _divide(concordant, np.sqrt(untied_x * untied_y))


def _spearman(x: _Values, y: _Values, weights: _Weights) -> _Values:
    return _weighted_pearson(_ranks(x, weights), _ranks(y, weights), weights)


def _pearson(x: _Values, y: _Values, weights: _Weights) -> _Values:
    return _weighted_pearson(x[None, :], y[None, :], weights)


def _ranks(values: _Values, weights: _Weights) -> _Values:
    """Return average ranks in every replicate, (replicates, samples)."""
    order = np.argsort(values, kind="stable")
    _, first, place = np.unique(values[order], return_index=True, return_inverse=True)
    counts = np.add.reduceat(weights[:, order], first, axis=1)  # (replicates, distinct values)
    ranks: _Values = (np.cumsum(counts, axis=1) - (counts - 1) / 2)[:, place[np.argsort(order)]]
    return ranks


def _weighted_pearson(x: _Values, y: _Values, weights: _Weights) -> _Values:
    total = weights.sum(axis=1, keepdims=True)
    dx = x - (weights * x).sum(axis=1, keepdims=True) / total
    dy = y - (weights * y).sum(axis=1, keepdims=True) / total
    scale = np.sqrt((weights * dx**2).sum(axis=1) * (weights * dy**2).sum(axis=1))
    return _divide((weights * dx * dy).sum(axis=1), scale)


def _divide(part: _Values, whole: _Values) -> _Values:
    # A variance of zero may be slightly above zero after rounding.
    quotient: _Values = np.divide(part, whole, out=np.full(part.shape, math.nan), where=whole > 1e-9)
    return quotient


_RESAMPLE: Mapping[str, Callable[[_Values, _Values, _Weights], _Values]] = {
    "kendall": _kendall,
    "spearman": _spearman,
    "pearson": _pearson,
}
COEFFICIENTS = tuple(_RESAMPLE)
