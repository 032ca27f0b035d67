"""Means by arm and differences between arms of readings, with intervals from mixed models or a cluster bootstrap."""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from radfact.statistics.bootstrap import bootstrap
from radfact.statistics.clusters import Clusters

MAX_READINGS = 1000
"""Most readings of a mixed model; statsmodels takes 10 seconds for 1,000, and the time grows with the cube."""

_REPLICATES = 2000
_SEED = 42
_Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean or a difference of means with its interval (`low`, `high`); None = no value.

    Attributes:
        method: how the interval was computed, or why there is none.
        n, readers, samples: number of readings behind the estimate, and of their readers and samples.
    """

    value: float | None
    low: float | None
    high: float | None
    method: str
    n: int
    readers: int
    samples: int


@dataclass(frozen=True, slots=True)
class OutcomeValues:
    """Values of readings (NaN = missing), with the arm, reader and sample of each."""

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

    def exponentiated(self) -> ArmEstimates:
        """Return the effects of a logarithm as those of its argument: geometric means and ratios."""
        return ArmEstimates(
            {arm: _exponentiated(effect) for arm, effect in self.means.items()},
            {pair: _exponentiated(effect) for pair, effect in self.differences.items()},
        )


def _exponentiated(effect: Estimate) -> Estimate:
    value, low, high = (None if each is None else math.exp(each) for each in (effect.value, effect.low, effect.high))
    return replace(effect, value=value, low=low, high=high)


def estimate_effects(rated: OutcomeValues, arms: Sequence[str], *, significance_level: float = 0.05) -> ArmEstimates:
    """Estimate the means of arms and their differences, with intervals at 1 - `significance_level`.

    A linear mixed model has a mean for each arm and random effects of reader, study, draft (study in an arm) and
    reader in an arm, as far as the readings can tell them apart. If there is none, or it cannot be fitted, a bootstrap
    draws studies with all of their readings; its intervals are for these readers.
    """
    rated = rated.drop_missing()
    present = [arm for arm in arms if arm in rated.arms]
    units = dict(zip(present, np.eye(len(present)), strict=True))
    contrasts: dict[tuple[str, ...], _Values] = {
        **{(arm,): unit for arm, unit in units.items()},
        **{(first, second): units[second] - units[first] for first, second in combinations(present, 2)},
    }
    effects = {}
    intervals = _intervals(rated, present, contrasts, significance_level) if present else {}
    for key, interval in intervals.items():
        rows = [row for row in zip(rated.arms, rated.readers, rated.samples, strict=True) if row[0] in key]
        effects[key] = Estimate(*interval, len(rows), len({row[1] for row in rows}), len({row[2] for row in rows}))
    none = Estimate(None, None, None, "no reading has a value", 0, 0, 0)
    return ArmEstimates(
        {arm: effects.get((arm,), none) for arm in arms},
        {pair: effects.get(pair, none) for pair in combinations(arms, 2)},
    )


_Interval = tuple[float, float | None, float | None, str]


def _intervals(
    rated: OutcomeValues, arms: Sequence[str], contrasts: Mapping[tuple[str, ...], _Values], significance_level: float
) -> dict[tuple[str, ...], _Interval]:
    values = np.asarray(rated.values, dtype=np.float64)
    means = np.array([values[[arm == each for each in rated.arms]].mean() for arm in arms])
    if len(values) and np.ptp(values) == 0:
        reason = "no interval: all values are the same"
        return {key: (float(contrast @ means), None, None, reason) for key, contrast in contrasts.items()}
    model = fit_mixed_model(rated, arms)
    results: dict[tuple[str, ...], _Interval] = {}
    if not isinstance(model, str):
        effects, estimates, covariance = model
        quantile = NormalDist().inv_cdf(1 - significance_level / 2)
        for key, contrast in contrasts.items():
            value, half = float(contrast @ estimates), quantile * math.sqrt(contrast @ covariance @ contrast)
            results[key] = (value, value - half, value + half, f"mixed model ({', '.join(effects)})")
        return results
    columns = {
        arm: [v if arm == each else math.nan for v, each in zip(values, rated.arms, strict=True)] for arm in arms
    }
    clusters = Clusters("sample_id", rated.samples)
    drawn = np.array(list(bootstrap(columns, replicates=_REPLICATES, seed=_SEED, clusters=clusters).values()))
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


def fit_mixed_model(rated: OutcomeValues, arms: Sequence[str]) -> tuple[list[str], _Values, _Values] | str:
    """Fit a linear mixed model by restricted maximum likelihood to readings without missing values.

    Returns:
        The names of the random effects, the means of the arms, and their covariance; or why there is no model.
    """
    if len(rated.values) > MAX_READINGS:
        return f"more than {MAX_READINGS:,} readings"
    groups = _random_effects(rated, len(arms))
    if not groups:
        return "no reader and no study has two readings"
    if len(rated.values) - len(arms) - sum(degrees for _, degrees in groups.values()) < 1:
        return "too few readings for a mixed model"
    from statsmodels.regression.mixed_linear_model import MixedLM, VCSpec

    design = np.array([[float(arm == each) for arm in arms] for each in rated.arms])
    matrices = [[np.eye(codes.max() + 1)[codes]] for codes, _ in groups.values()]
    columns = [[[str(column) for column in range(matrix.shape[1])]] for (matrix,) in matrices]
    # Crossed effects are variance components of a single group.
    components = VCSpec(list(groups), columns, matrices)
    # The optimizer needs values of about 1.
    scale = float(np.std(rated.values))
    model = MixedLM(np.asarray(rated.values) / scale, design, np.zeros(len(design)), exog_vc=components)
    with warnings.catch_warnings():
        # A variance of 0 is on the boundary; the optimizer without derivatives, which is used, copes with it.
        warnings.simplefilter("ignore")
        try:
            fitted = model.fit(reml=True, method="powell", maxiter=200)
        except (np.linalg.LinAlgError, ValueError):
            return "the mixed model did not converge"
    if not (fitted.converged and np.isfinite([fitted.scale, *fitted.vcomp]).all()):
        return "the mixed model did not converge"
    # statsmodels inverts a numerical Hessian of all parameters, which is off where a variance is about 0.
    variance = fitted.scale * np.eye(len(design))
    variance += sum(component * matrix @ matrix.T for component, (matrix,) in zip(fitted.vcomp, matrices, strict=True))
    covariance = np.linalg.inv(design.T @ np.linalg.solve(variance, design))
    return list(groups), scale * fitted.fe_params, scale**2 * covariance


def _random_effects(rated: OutcomeValues, arms: int) -> dict[str, tuple[NDArray[np.int64], int]]:
    """Return the codes and degrees of freedom of the random effects that the readings can tell apart."""
    n = len(rated.values)
    readers, samples = _codes(rated.readers), _codes(rated.samples)
    candidates = {
        "reader": (readers, 0),
        "study": (samples, 0),
        # The same as the study if each study is in one arm, and the same as the reading if each draft is read once.
        "draft": (_codes(list(zip(rated.samples, rated.arms, strict=True))), int(samples.max()) + arms - 1),
        "reader × arm": (_codes(list(zip(rated.readers, rated.arms, strict=True))), int(readers.max()) + arms - 1),
    }
    if not readers.max():
        del candidates["reader × arm"]
    degrees = {name: int(codes.max()) - nested for name, (codes, nested) in candidates.items()}
    return {
        name: (codes, degrees[name])
        for name, (codes, _) in candidates.items()
        if degrees[name] > 0 and codes.max() + 1 < n
    }


def _codes(keys: Sequence[Hashable]) -> NDArray[np.int64]:
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    return np.array([places[key] for key in keys], dtype=np.int64)
