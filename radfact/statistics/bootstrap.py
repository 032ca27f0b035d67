"""Figures of a set of samples, and how sure one can be of them: means, harmonic means, bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Direction = Literal["higher", "lower", "neutral"]
"""Which way is better; a share of reports that mention something is neither."""

CountsFigure = Callable[[NDArray[np.float64]], float]
"""A figure of summed counts, (k,) -> float."""

Valued = Callable[[NDArray[np.float64]], NDArray[np.bool_]]
"""Which samples have a value of their own, (samples, k) -> (samples,)."""

_DIGITS = 12
"""Of the greatest value: what differs in later ones is rounding in sums."""

_QUANTILES = (0.025, 0.25, 0.5, 0.75, 0.975)


@dataclass(frozen=True, slots=True)
class Summary:
    """One figure of a set: the plain point estimate beside the bootstrap's median and percentiles; None = no value.

    `low` and `high` are the 2.5 and 97.5 percentiles, `n` counts the samples that have a value (for an F1: both of
    its parts), and `direction` says which way is better, if any is.
    """

    point: float | None
    low: float | None = None
    q25: float | None = None
    median: float | None = None
    q75: float | None = None
    high: float | None = None
    n: int = 0
    direction: Direction = "higher"


def rounded(values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Values to be set beside each other: those that differ by the rounding in sums alone are the same.

    Args:
        values: of one figure, NaN = not scored, which stays so.
    """
    found = np.asarray(values, dtype=np.float64)
    greatest = float(np.nanmax(np.abs(found))) if not np.isnan(found).all() else 0.0
    if not (math.isfinite(greatest) and greatest):
        return found
    even: NDArray[np.float64] = np.round(found / greatest, _DIGITS) * greatest
    return even


def harmonic_mean(precision: float, recall: float) -> float:
    """F1 of a precision and a recall: 0 where both are 0, NaN where either is NaN."""
    total = precision + recall
    return 2 * precision * recall / total if total != 0 else 0.0


def summarise(
    values: Mapping[str, Sequence[float]],
    *,
    f1: Mapping[str, tuple[str, str]] | None = None,
    replicates: int = 500,
    seed: int = 42,
) -> dict[str, Summary]:
    """Summarise the per-sample values of some figures, resampling samples with replacement (paper 004, appendix C).

    A figure of the set is the mean over the samples that have a value. An F1 is the harmonic mean of the set's
    precision and recall, in every replicate anew. Replicates are drawn in sequence from one generator,
    `numpy.random.default_rng(seed).choice(n, n, replace=True)`, n being all samples: those without a value take part
    and stay without one.

    Args:
        values: figure name -> one value a sample, NaN where there is none; all of the same length.
        f1: name of an F1 -> names of its precision and its recall in `values`.
        replicates: number of bootstrap replicates; 0 gives point estimates only.
        seed: of the generator.
    """
    table, names = _table(values), list(values)
    known = ~np.isnan(table)
    points = dict(zip(names, _means(np.nansum(table, axis=1), known.sum(axis=1)).tolist(), strict=True))
    counts = dict(zip(names, known.sum(axis=1).tolist(), strict=True))
    for name, (precision, recall) in (f1 or {}).items():
        points[name] = harmonic_mean(points[precision], points[recall])
        counts[name] = int((known[names.index(precision)] & known[names.index(recall)]).sum())
    spreads = bootstrap(values, f1=f1, replicates=replicates, seed=seed)
    return {name: summary_of(point, spreads[name], counts[name]) for name, point in points.items()}


def scored_rows(counts: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which rows of counts (samples, k) are those of samples that were scored."""
    known: NDArray[np.bool_] = np.isnan(counts).sum(axis=1) == 0
    return known


def summarise_counts(
    counts: NDArray[np.float64],
    values: Mapping[str, CountsFigure],
    *,
    valued: Valued = scored_rows,
    replicates: int = 500,
    seed: int = 42,
) -> dict[str, Summary]:
    """Summarise figures of a set that are computed from what its samples add up to, such as corpus BLEU or a macro F1.

    Samples are resampled as in `summarise`, and each figure is computed anew from the sums of every replicate.

    Args:
        counts: (samples, k), what each sample adds; NaN in a whole row = not scored.
        values: figure name -> function of summed counts, (k,) -> float.
        valued: which samples `n` counts, where not all that were scored have a value of their own.
        replicates: as in `summarise`.
        seed: as in `summarise`.
    """
    known = scored_rows(counts)
    if not known.any():
        return {name: Summary(None) for name in values}
    n = int(valued(counts).sum())
    points = {name: value(counts[known].sum(axis=0)) for name, value in values.items()}
    spreads = bootstrap_counts(counts, values, replicates=replicates, seed=seed)
    return {name: summary_of(point, spreads[name], n) for name, point in points.items()}


def bootstrap_counts(
    counts: NDArray[np.float64], values: Mapping[str, CountsFigure], *, replicates: int = 500, seed: int = 42
) -> dict[str, NDArray[np.float64]]:
    """The figures of `summarise_counts` on every replicate, by name, each of shape (replicates,).

    Args:
        counts: as in `summarise_counts`.
        values: as in `summarise_counts`.
        replicates: number of replicates.
        seed: of the generator.
    """
    known = scored_rows(counts)
    filled = np.where(known[:, None], counts, 0.0)
    generator = np.random.default_rng(seed)
    spreads = {name: np.full(replicates, math.nan) for name in values}
    for place in range(replicates):
        drawn = generator.choice(len(counts), len(counts), replace=True)
        times = np.bincount(drawn, minlength=len(counts)).astype(np.float64)
        if times[known].any():
            sums = times @ filled
            for name, value in values.items():
                spreads[name][place] = value(sums)
    return spreads


def bootstrap(
    values: Mapping[str, Sequence[float]],
    *,
    f1: Mapping[str, tuple[str, str]] | None = None,
    replicates: int = 500,
    seed: int = 42,
) -> dict[str, NDArray[np.float64]]:
    """The figures of the set on every replicate, by name, each of shape (replicates,); NaN where one has no value.

    Args:
        values: as in `summarise`.
        f1: as in `summarise`.
        replicates: number of replicates.
        seed: of the generator.
    """
    table = _table(values)
    known = ~np.isnan(table)
    if table.shape[1]:
        drawn = _resample(np.where(known, table, 0.0), known, replicates, seed)
    else:
        drawn = np.full((len(values), replicates), math.nan)
    spreads = dict(zip(values, drawn, strict=True))
    for name, (precision, recall) in (f1 or {}).items():
        spreads[name] = _harmonic_means(spreads[precision], spreads[recall])
    return spreads


def _table(values: Mapping[str, Sequence[float]]) -> NDArray[np.float64]:
    """(figures, samples)."""
    return np.array(list(values.values()), dtype=np.float64).reshape(len(values), -1)


def _means(sums: NDArray[np.float64], counts: NDArray[np.int_]) -> NDArray[np.float64]:
    means: NDArray[np.float64] = np.divide(sums, counts, out=np.full(sums.shape, math.nan), where=counts > 0)
    return means


def _resample(filled: NDArray[np.float64], known: NDArray[np.bool_], replicates: int, seed: int) -> NDArray[np.float64]:
    """Means of every figure on every replicate, (figures, replicates)."""
    generator = np.random.default_rng(seed)
    figures, samples = filled.shape
    stacked = np.concatenate([filled, known.astype(np.float64)])  # (2 * figures, samples): values, then 1 where known
    sums = np.empty((replicates, 2 * figures))
    for row in sums:
        drawn = generator.choice(samples, samples, replace=True)
        stacked.take(drawn, axis=1).sum(axis=1, out=row)
    return _means(sums[:, :figures], sums[:, figures:].astype(np.int_)).T


def _harmonic_means(precision: NDArray[np.float64], recall: NDArray[np.float64]) -> NDArray[np.float64]:
    total = precision + recall
    # NaN != 0, so a replicate without a precision or a recall stays NaN.
    f1: NDArray[np.float64] = np.divide(2 * precision * recall, total, out=np.zeros_like(total), where=total != 0)
    return f1


def summary_of(point: float, spread: NDArray[np.float64], n: int) -> Summary:
    """A figure and its replicates (replicates,), NaN where there is no value, as one record."""
    if math.isnan(point):
        return Summary(None, n=n)
    if np.isnan(spread).all():
        return Summary(point, n=n)
    low, q25, median, q75, high = np.nanquantile(spread, _QUANTILES).tolist()
    return Summary(point, low, q25, median, q75, high, n)
