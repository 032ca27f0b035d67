"""Means by arm and differences between arms of readings, with intervals from mixed models or a cluster bootstrap."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from radfact.statistics.bootstrap import bootstrap
from radfact.statistics.clusters import Clusters

MAX_READINGS = 1000
"""Most readings of a mixed model; statsmodels takes 10 seconds for 1,000, and the time grows with the cube."""

_REPLICATES = 2000
_SEED = 42
_Values = NDArray[np.float64]

Contrast = tuple[str, ...]
"""An arm, for its mean, or two arms, for the second minus the first."""


class Rating(NamedTuple):
    """Value of a reading, NaN = missing."""

    value: float
    arm: str
    reader: str
    sample: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean or difference of `n` readings with its interval (None = no value); `method` says how or why not."""

    value: float | None
    low: float | None
    high: float | None
    method: str
    n: int
    readers: int
    samples: int


def estimate_effects(
    ratings: Sequence[Rating], arms: Sequence[str], *, significance_level: float = 0.05
) -> dict[Contrast, Estimate]:
    """Estimate means of arms and their differences by a mixed model, or else a bootstrap over studies."""
    ratings = [rating for rating in ratings if not math.isnan(rating.value)]
    present = [arm for arm in arms if any(rating.arm == arm for rating in ratings)]
    units = dict(zip(present, np.eye(len(present)), strict=True))
    contrasts = {key: units[key[-1]] - (units[key[0]] if len(key) > 1 else 0) for key in _contrasts(present)}
    intervals = _intervals(ratings, present, contrasts, significance_level) if present else {}
    none: _Interval = (None, None, None, "no reading has a value")
    effects = {}
    for key in _contrasts(arms):
        used = [rating for rating in ratings if rating.arm in key and key in intervals]
        readers, samples = {rating.reader for rating in used}, {rating.sample for rating in used}
        effects[key] = Estimate(*intervals.get(key, none), len(used), len(readers), len(samples))
    return effects


def _contrasts(arms: Sequence[str]) -> list[Contrast]:
    return [*((arm,) for arm in arms), *combinations(arms, 2)]


_Interval = tuple[float | None, float | None, float | None, str]


def _intervals(
    ratings: Sequence[Rating], arms: Sequence[str], contrasts: Mapping[Contrast, _Values], significance_level: float
) -> dict[Contrast, _Interval]:
    values = np.array([rating.value for rating in ratings])
    is_in_arm = np.array([[rating.arm == arm for rating in ratings] for arm in arms])
    means = np.array([values[own].mean() for own in is_in_arm])
    results: dict[Contrast, _Interval] = {
        key: (float(contrast @ means), None, None, "no interval: all values are the same")
        for key, contrast in contrasts.items()
    }
    if np.ptp(values) == 0:
        return results
    model = fit_mixed_model(ratings, arms)
    if not isinstance(model, str):
        effects, estimates, covariance = model
        quantile = NormalDist().inv_cdf(1 - significance_level / 2)
        for key, contrast in contrasts.items():
            value, half = float(contrast @ estimates), quantile * math.sqrt(contrast @ covariance @ contrast)
            results[key] = (value, value - half, value + half, f"mixed model ({', '.join(effects)})")
        return results
    columns = dict(zip(arms, np.where(is_in_arm, values, math.nan).tolist(), strict=True))
    clusters = Clusters("sample_id", samples := [rating.sample for rating in ratings], samples)
    drawn = np.array(list(bootstrap(columns, replicates=_REPLICATES, seed=_SEED, clusters=clusters).values()))
    for key, contrast in contrasts.items():
        # An arm that is not part of the contrast may have no value in a replicate.
        used = contrast != 0
        replicates = contrast[used] @ drawn[used]
        replicates = replicates[~np.isnan(replicates)]
        low, high, method = None, None, f"bootstrap of studies: {model}"
        if not len(replicates):
            method = "no interval: fewer than two studies"
        elif np.allclose(replicates, replicates[0]):
            # An interval without width would be on the better side of almost any margin.
            method = "no interval: the same in all studies"
        else:
            low, high = np.quantile(replicates, (significance_level / 2, 1 - significance_level / 2)).tolist()
        results[key] = (float(contrast @ means), low, high, method)
    return results


def fit_mixed_model(ratings: Sequence[Rating], arms: Sequence[str]) -> tuple[list[str], _Values, _Values] | str:
    """Fit a linear mixed model by restricted maximum likelihood to readings without missing values."""
    if len(ratings) > MAX_READINGS:
        return f"more than {MAX_READINGS:,} readings"
    groups = _random_effects(ratings, len(arms))
    if not groups:
        return "no reader and no study has two readings"
    if len(ratings) - len(arms) - sum(degrees for _, degrees in groups.values()) < 1:
        return "too few readings for a mixed model"
    from statsmodels.regression.mixed_linear_model import MixedLM, VCSpec

    values = np.array([rating.value for rating in ratings])
    design = np.array([[float(arm == rating.arm) for arm in arms] for rating in ratings])
    matrices = [[np.eye(codes.max() + 1)[codes]] for codes, _ in groups.values()]
    columns = [[[str(column) for column in range(matrix.shape[1])]] for (matrix,) in matrices]
    # Crossed effects are variance components of a single group.
    components = VCSpec(list(groups), columns, matrices)
    # The optimizer needs values of about 1.
    scale = float(np.std(values))
    model = MixedLM(values / scale, design, np.zeros(len(design)), exog_vc=components)
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


def _random_effects(ratings: Sequence[Rating], arms: int) -> dict[str, tuple[NDArray[np.int64], int]]:
    """Return the codes and degrees of freedom of the random effects that the readings can tell apart."""
    readers, samples = _codes([rating.reader for rating in ratings]), _codes([rating.sample for rating in ratings])
    candidates = {
        "reader": (readers, 0),
        "study": (samples, 0),
        # The same as the study if each study is in one arm, and the same as the reading if each draft is read once.
        "draft": (_codes([(rating.sample, rating.arm) for rating in ratings]), int(samples.max()) + arms - 1),
        "reader × arm": (_codes([(rating.reader, rating.arm) for rating in ratings]), int(readers.max()) + arms - 1),
    }
    if not readers.max():
        del candidates["reader × arm"]
    return {
        name: (codes, int(codes.max()) - nested)
        for name, (codes, nested) in candidates.items()
        if codes.max() > nested and codes.max() + 1 < len(ratings)
    }


def _codes(keys: Sequence[Any]) -> NDArray[np.int64]:
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    return np.array([places[key] for key in keys], dtype=np.int64)
