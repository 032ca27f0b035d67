"""Ensembles of judges: their average, or a linear regression fitted on expert scores.

Source: VERT, section 5.1.5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_json, write_json
from radfact.records import Record, validate_model
from radfact.results.reader import read_sample_scores
from radfact.statistics.bootstrap import Direction
from radfact.statistics.clusters import Clusters

Method = Literal["average", "linear_regression"]

Features = Mapping[str, Sequence[float]]
"""JUDGE/SCORE -> one value per sample, NaN = not scored; all of the same length and order."""

FOLDS = 10


class Ensemble(Record):
    """A fitted ensemble.

    Attributes:
        method: how features are combined.
        direction: which scores are better.
        coefficients: weight of each feature.
        intercept: intercept of the regression.
        target: name of the expert score.
        n: number of samples that it was fitted on.
    """

    method: Method
    direction: Direction = "higher"
    coefficients: Annotated[dict[str, FiniteFloat], Field(min_length=1)]
    intercept: FiniteFloat = 0.0
    target: str | None = None
    n: int = 0

    def apply(self, features: Features) -> list[float]:
        """Return the score of every sample; NaN if a feature is NaN."""
        for name in self.coefficients:
            if name not in features:
                message = f"expected '{name}', which the ensemble was fitted with"
                raise InputError(message, code=ErrorCode.MISMATCH, field="features")
        table = _table({name: features[name] for name in self.coefficients})
        scores: NDArray[np.float64] = table @ np.array(list(self.coefficients.values())) + self.intercept
        return [float(score) for score in scores]

    def save(self, path: Path | str) -> None:
        """Write JSON atomically."""
        write_json(path, self.model_dump())

    @classmethod
    def load(cls, path: Path | str) -> Ensemble:
        """Read the file of `save`."""
        return validate_model(cls, read_json(path), file=path)


def fit_ensemble(
    features: Features,
    target: Sequence[float] | None = None,
    *,
    method: Method = "linear_regression",
    target_name: str | None = None,
    direction: Direction = "higher",
) -> Ensemble:
    """Fit an ensemble."""
    if method not in get_args(Method):
        message = f"expected {' or '.join(get_args(Method))}, found '{method}'"
        raise InputError(message, code=ErrorCode.UNKNOWN_NAME, field="method")
    if not features:
        raise InputError("expected at least one feature", code=ErrorCode.EMPTY_INPUT, field="features")
    if method == "average":
        coefficients = dict.fromkeys(features, 1 / len(features))
        return Ensemble(method=method, direction=direction, coefficients=coefficients)
    if target is None:
        raise InputError("expected expert scores for a regression", code=ErrorCode.MISSING_FIELD, field="target")
    table, expert, indices = _complete_samples(features, target)
    if len(indices) <= len(features):
        message = f"expected more than {len(features)} samples with all values, found {len(indices)}"
        raise InputError(message, code=ErrorCode.EMPTY_INPUT, field="features")
    rows, scores = table[indices], expert[indices]
    center = rows.mean(axis=0)
    # Counts and their sum may both be features: lstsq returns the smallest of the solutions.
    slopes = np.linalg.lstsq(rows - center, scores - scores.mean(), rcond=None)[0]
    return Ensemble(
        method=method,
        direction=direction,
        coefficients=dict(zip(features, slopes.tolist(), strict=True)),
        intercept=float(scores.mean() - center @ slopes),
        target=target_name,
        n=len(indices),
    )


def cross_validate(
    features: Features,
    target: Sequence[float],
    *,
    method: Method = "linear_regression",
    folds: int = FOLDS,
    seed: int = 42,
    clusters: Clusters | None = None,
) -> list[float]:
    """Return every sample's score by an ensemble fitted on the other folds; NaN for incomplete samples."""
    table, expert, indices = _complete_samples(features, target)
    if len(indices) < 2:
        message = f"expected at least 2 samples with a target and all of {', '.join(features)}, found {len(indices)}"
        raise InputError(message, code=ErrorCode.EMPTY_INPUT, field="features")
    codes = np.arange(len(table)) if clusters is None else clusters.codes
    groups = np.unique(codes[indices])
    if not 2 <= folds <= len(groups):
        message = f"expected a number from 2 to {len(groups)}, found {folds}"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="folds")
    np.random.default_rng(seed).shuffle(groups)
    scores = np.full(len(table), math.nan)
    for fold in np.array_split(groups, folds):
        is_held_out = np.isin(codes[indices], fold)
        train, held_out = indices[~is_held_out], indices[is_held_out]
        ensemble = fit_ensemble(_select(features, train), expert[train].tolist(), method=method)
        scores[held_out] = ensemble.apply(_select(features, held_out))
    return [float(score) for score in scores]


@dataclass(frozen=True, slots=True)
class JudgeScores:
    """Scores by several judges of their common samples.

    Attributes:
        sample_ids: ids in the order of the first judge.
        features: JUDGE/SCORE -> one value per sample.
        directions: which values are better, by feature.
    """

    sample_ids: Sequence[str]
    features: Features
    directions: Mapping[str, Direction]


def read_features(runs: Mapping[str, Path | str], scores: Sequence[str] | None = None) -> JudgeScores:
    """Read the features of several judges from their results folders."""
    tables = {judge: read_sample_scores(folder) for judge, folder in runs.items()}
    rows_by_judge = [table.rows for table in tables.values()]
    common = [key for key in next(iter(rows_by_judge), {}) if all(key in rows for rows in rows_by_judge)]
    if not common:
        raise InputError("expected runs with common samples, found none", code=ErrorCode.MISMATCH, field="runs")
    columns: dict[str, list[float]] = {}
    directions: dict[str, Direction] = {}
    for judge, table in tables.items():
        rows = [table.rows[key] for key in common]
        available = [name for name in table.directions if any(not math.isnan(row.get(name, math.nan)) for row in rows)]
        for name in available if scores is None else scores:
            if name not in available:
                message = f"unknown score; scores are {', '.join(available)}"
                raise InputError(message, code=ErrorCode.UNKNOWN_NAME, file=runs[judge], field=name)
            columns[f"{judge}/{name}"] = [row.get(name, math.nan) for row in rows]
            directions[f"{judge}/{name}"] = table.directions[name]
    return JudgeScores(common, columns, directions)


def _complete_samples(
    features: Features, target: Sequence[float]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int_]]:
    """Return features (samples, features), target (samples,), and the indices of samples with all values."""
    table, expert = _table(features), np.asarray(target, dtype=np.float64)
    if len(expert) != len(table):
        message = f"expected {len(table)} scores, one per sample, found {len(expert)}"
        raise InputError(message, code=ErrorCode.MISMATCH, field="target")
    return table, expert, np.flatnonzero(~np.isnan(table).any(axis=1) & ~np.isnan(expert))


def _select(features: Features, indices: NDArray[np.int_]) -> dict[str, list[float]]:
    return {name: [values[index] for index in indices] for name, values in features.items()}


def _table(features: Features) -> NDArray[np.float64]:
    """Return features as an array (samples, features)."""
    if not features:
        raise InputError("expected at least one feature", code=ErrorCode.EMPTY_INPUT, field="features")
    if len({len(values) for values in features.values()}) > 1:
        raise InputError("expected the same number of values of every feature", field="features")
    return np.array(list(features.values()), dtype=np.float64).reshape(len(features), -1).T
