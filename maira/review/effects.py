"""Means by arm and differences between arms of readings, with intervals from mixed models or a cluster bootstrap."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radfact.optional import load_stats
from radfact.statistics.bootstrap import bootstrap
from radfact.statistics.clusters import Clusters

MAX_READINGS = 1000
"""Most readings of a mixed model; statsmodels takes 10 seconds for 1,000, and the time grows with the cube."""

_REPLICATES = 2000
_SEED = 42
_Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean or a difference of means with its interval; None = no value.

    Attributes:
        value: estimate.
        low, high: interval.
        method: how the interval was computed, or why there is none.
        n: number of readings behind the estimate.
        readers, samples: number of their readers and samples.
    """

    value: float | None
    low: float | None
    high: float | None
    method: str
    n: int
    readers: int
    samples: int

    def exponentiated(self) -> Estimate:
        """Return the effect of a logarithm as that of its argument: a geometric mean or a ratio."""
        value, low, high = (None if each is None else math.exp(each) for each in (self.value, self.low, self.high))
        return replace(self, value=value, low=low, high=high)


@dataclass(frozen=True, slots=True)
class OutcomeValues:
    """Values of readings.

    Attributes:
        values: one per reading, NaN = missing.
        arms, readers, samples: of each reading.
    """

    values: Sequence[float]
    arms: Sequence[str]
    readers: Sequence[str]
    samples: Sequence[str]

    def drop_missing(self) -> OutcomeValues:
        """Return the readings with a value."""
        rows = zip(self.values, self.arms, self.readers, self.samples, strict=True)
        columns = list(zip(*(row for row in rows if not math.isnan(row[0])), strict=True)) or [(), (), (), ()]
        return OutcomeValues(*columns)


@dataclass(frozen=True, slots=True)
class ArmEstimates:
    """Means by arm, and differences by pair of arms (the second minus the first)."""

    means: Mapping[str, Estimate]
    differences: Mapping[tuple[str, str], Estimate]


def estimate_effects(rated: OutcomeValues, arms: Sequence[str], *, significance_level: float = 0.05) -> ArmEstimates:
    """Estimate the means of arms and their differences.

    A linear mixed model has a mean for each arm and random effects of reader, study, draft (study in an arm) and
    reader in an arm, as far as the readings can tell them apart. If there is none, or it cannot be fitted, a bootstrap
    draws studies with all of their readings; its intervals are for these readers.
    """
    rated = rated.drop_missing()
    present = [arm for arm in arms if arm in rated.arms]
    contrasts: dict[tuple[str, ...], _Values] = {
        **{(arm,): np.eye(len(present))[place] for place, arm in enumerate(present)},
        **{
            (present[a], present[b]): np.eye(len(present))[b] - np.eye(len(present))[a]
            for a, b in combinations(range(len(present)), 2)
        },
    }
    intervals = _intervals(rated, present, contrasts, significance_level) if present else {}
    effects = {key: _with_counts(key, interval, rated) for key, interval in intervals.items()}
    none = Estimate(None, None, None, "no reading has a value", 0, 0, 0)
    return ArmEstimates(
        {arm: effects.get((arm,), none) for arm in arms},
        {pair: effects.get(pair, none) for pair in combinations(arms, 2)},
    )


_Interval = tuple[float, float | None, float | None, str]


def _with_counts(key: tuple[str, ...], interval: _Interval, rated: OutcomeValues) -> Estimate:
    rows = [row for row in zip(rated.arms, rated.readers, rated.samples, strict=True) if row[0] in key]
    return Estimate(*interval, len(rows), len({row[1] for row in rows}), len({row[2] for row in rows}))


def _intervals(
    rated: OutcomeValues, arms: Sequence[str], contrasts: Mapping[tuple[str, ...], _Values], significance_level: float
) -> dict[tuple[str, ...], _Interval]:
    values = np.asarray(rated.values, dtype=np.float64)
    means = np.array([values[[arm == each for each in rated.arms]].mean() for arm in arms])
    if len(values) and np.ptp(values) == 0:
        reason = "no interval: all values are the same"
        return {key: (float(contrast @ means), None, None, reason) for key, contrast in contrasts.items()}
    model = fit_mixed_model(rated, arms)
    if isinstance(model, MixedModel):
        return {key: model.interval(contrast, significance_level) for key, contrast in contrasts.items()}
    columns = {
        arm: [v if arm == each else math.nan for v, each in zip(values, rated.arms, strict=True)] for arm in arms
    }
    clusters = Clusters("sample_id", rated.samples)
    drawn = np.array(list(bootstrap(columns, replicates=_REPLICATES, seed=_SEED, clusters=clusters).values()))
    results: dict[tuple[str, ...], _Interval] = {}
    for key, contrast in contrasts.items():
        # An arm that is not part of the contrast may have no value in a replicate.
        used = contrast != 0
        replicates = contrast[used] @ drawn[used]
        replicates = replicates[~np.isnan(replicates)]
        if not len(replicates):
            results[key] = (float(contrast @ means), None, None, "no interval: fewer than two studies")
        elif np.allclose(replicates, replicates[0]):
            # An interval without width would be on the better side of almost any margin.
            results[key] = (float(contrast @ means), None, None, "no interval: the same in all studies")
        else:
            low, high = np.quantile(replicates, (significance_level / 2, 1 - significance_level / 2)).tolist()
            results[key] = (float(contrast @ means), low, high, f"bootstrap of studies: {model}")
    return results


@dataclass(frozen=True, slots=True)
class MixedModel:
    """A fitted linear mixed model.

    Attributes:
        random_effects: names of the random effects.
        variances: variance of each random effect, then of the residual.
        degrees: degrees of freedom of these variances.
        means: mean of each arm.
        parts: (variances, arms, arms), part of each variance in the covariance of the means.
    """

    random_effects: tuple[str, ...]
    variances: tuple[float, ...]
    degrees: tuple[float, ...]
    means: _Values
    parts: _Values

    def interval(self, contrast: _Values, significance_level: float) -> _Interval:
        """Return a contrast of the means with its interval and the method.

        The interval is that of Student's t with Satterthwaite's degrees of freedom: the mean of three readers is less
        certain than its standard error says.

        Source:
            Satterthwaite, "An Approximate Distribution of Estimates of Variance Components", 1946.
        """
        value = float(contrast @ self.means)
        parts = np.einsum("a,kab,b->k", contrast, self.parts, contrast)
        variance = float(parts.sum())
        degrees = variance**2 / float((parts**2 / np.asarray(self.degrees)).sum())
        half = float(load_stats().t.ppf(1 - significance_level / 2, degrees)) * math.sqrt(variance)
        return value, value - half, value + half, f"mixed model ({', '.join(self.random_effects)})"


def fit_mixed_model(rated: OutcomeValues, arms: Sequence[str]) -> MixedModel | str:
    """Fit a linear mixed model by restricted maximum likelihood.

    Returns:
        The model, or why there is none.
    """
    if len(rated.values) > MAX_READINGS:
        return f"more than {MAX_READINGS:,} readings"
    values = np.asarray(rated.values, dtype=np.float64)
    design = np.array([[float(arm == each) for arm in arms] for each in rated.arms])
    groups = _random_effects(rated, len(arms))
    if not groups:
        return "no reader and no study has two readings"
    used = {name: codes for name, (codes, _) in groups.items()}
    degrees = [df for _, df in groups.values()]
    residual = len(values) - len(arms) - sum(degrees)
    if residual < 1:
        return "too few readings for a mixed model"
    # The optimizer needs values of about 1.
    scale = float(values.std())
    fitted = _fit(values / scale, design, used)
    if fitted is None:
        return "the mixed model did not converge"
    variances = np.asarray(fitted) * scale**2
    indicators = {name: np.eye(codes.max() + 1)[codes] for name, codes in used.items()}
    covariance = variances[-1] * np.eye(len(values)) + sum(
        variance * matrix @ matrix.T for variance, matrix in zip(variances[:-1], indicators.values(), strict=True)
    )
    solved = np.linalg.solve(covariance, design)
    inverse = np.linalg.inv(design.T @ solved)
    weights = solved @ inverse  # (readings, arms), of the readings in each mean
    projected = [matrix.T @ weights for matrix in indicators.values()] + [weights]
    parts = np.array([variance * matrix.T @ matrix for variance, matrix in zip(variances, projected, strict=True)])
    return MixedModel(tuple(used), tuple(variances.tolist()), (*degrees, residual), weights.T @ values, parts)


def _random_effects(rated: OutcomeValues, arms: int) -> dict[str, tuple[NDArray[np.int64], int]]:
    """Return the codes and degrees of freedom of the random effects that the readings can tell apart."""
    n = len(rated.values)
    readers, samples, drafts, reader_arms = (
        _codes(keys)
        for keys in (
            rated.readers,
            rated.samples,
            list(zip(rated.samples, rated.arms, strict=True)),
            list(zip(rated.readers, rated.arms, strict=True)),
        )
    )
    counts = {
        name: int(codes.max()) + 1
        for name, codes in (("reader", readers), ("study", samples), ("draft", drafts), ("pair", reader_arms))
    }
    effects = {}
    if 1 < counts["reader"] < n:
        effects["reader"] = (readers, counts["reader"] - 1)
    if 1 < counts["study"] < n:
        effects["study"] = (samples, counts["study"] - 1)
    # The same as the study if each study is in one arm, and the same as the reading if each draft is read once.
    if counts["study"] < counts["draft"] < n and counts["draft"] - counts["study"] - arms + 1 > 0:
        effects["draft"] = (drafts, counts["draft"] - counts["study"] - arms + 1)
    if 1 < counts["reader"] < counts["pair"] < n and counts["pair"] - counts["reader"] - arms + 1 > 0:
        effects["reader × arm"] = (reader_arms, counts["pair"] - counts["reader"] - arms + 1)
    return effects


def _codes(keys: Sequence[Any]) -> NDArray[np.int64]:
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    return np.array([places[key] for key in keys], dtype=np.int64)


def _fit(values: _Values, design: _Values, groups: Mapping[str, NDArray[np.int64]]) -> list[float] | None:
    """Return the variance of each random effect and of the residual; None if the fit does not converge."""
    from statsmodels.regression.mixed_linear_model import MixedLM, VCSpec

    names = list(groups)
    matrices = [[np.eye(codes.max() + 1)[codes]] for codes in groups.values()]
    columns = [[[str(column) for column in range(matrix.shape[1])]] for (matrix,) in matrices]
    # Crossed effects are variance components of a single group.
    model = MixedLM(values, design, np.zeros(len(values)), exog_vc=VCSpec(names, columns, matrices))
    with warnings.catch_warnings():
        # A variance of 0 is on the boundary; the optimizer without derivatives, which is used, copes with it.
        warnings.simplefilter("ignore")
        try:
            fitted = model.fit(reml=True, method="powell", maxiter=200)
        except (np.linalg.LinAlgError, ValueError):
            return None
    variances = [*np.asarray(fitted.vcomp, dtype=np.float64).tolist(), float(fitted.scale)]
    return variances if fitted.converged and np.isfinite(variances).all() else None
