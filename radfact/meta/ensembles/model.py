"""Several judges' figures as one: their average, or a linear regression fitted on expert scores (paper 003, 5.1.5)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from radfact.errors import InputError
from radfact.io.jsonl import read_json, write_json
from radfact.records import Record, validated
from radfact.results.reader import read_sample_scores
from radfact.statistics.bootstrap import Direction

Method = Literal["average", "linear_regression"]

Features = Mapping[str, Sequence[float]]
"""JUDGE/FIGURE -> one value a sample, NaN = not scored; all of the same length and order."""

FOLDS = 10


class Ensemble(Record):
    """A fitted ensemble: the intercept and a coefficient a feature, what it was fitted on, which way it is better."""

    method: Method
    direction: Direction = "higher"
    coefficients: Annotated[dict[str, FiniteFloat], Field(min_length=1)]
    intercept: FiniteFloat = 0.0
    target: str | None = None
    n: int = 0

    def apply(self, features: Features) -> list[float]:
        """The ensemble's score of every sample, NaN where a feature is.

        Raises:
            InputError: a feature is missing.
        """
        table = _table({name: _known(features, name) for name in self.coefficients})
        scores: NDArray[np.float64] = table @ np.array(list(self.coefficients.values())) + self.intercept
        return [float(score) for score in scores]

    def save(self, path: Path | str) -> None:
        """Write it as JSON, whole or not at all."""
        write_json(path, self.model_dump())

    @classmethod
    def load(cls, path: Path | str) -> Ensemble:
        """Read what `save` wrote.

        Raises:
            InputError: naming file and field.
        """
        return validated(cls, read_json(path), file=path)


def fit_ensemble(
    features: Features,
    target: Sequence[float] | None = None,
    *,
    method: Method = "linear_regression",
    target_name: str | None = None,
    direction: Direction = "higher",
) -> Ensemble:
    """Fit an ensemble.

    Args:
        features: of the train split.
        target: the experts' score of every sample, which the regression is fitted on; an average needs none.
        method: `average` weighs all features alike and trains nothing, so they should be of one kind and scale.
        target_name: noted in the ensemble.
        direction: which way its scores are better: of the target, or of features that are averaged.

    Raises:
        InputError: no features, no target, or fewer samples with all values than coefficients.
    """
    if method not in get_args(Method):
        raise InputError(f"expected {' or '.join(get_args(Method))}, found '{method}'", field="method")
    names = list(features)
    if not names:
        raise InputError("expected at least one feature", field="features")
    if method == "average":
        return Ensemble(method=method, direction=direction, coefficients=dict.fromkeys(names, 1 / len(names)))
    if target is None:
        raise InputError("a regression is fitted on the scores of experts", field="target")
    table, wanted = _table(features), np.asarray(target, dtype=np.float64)
    if len(wanted) != len(table):
        raise InputError(f"expected {len(table)} scores, one a sample, found {len(wanted)}", field="target")
    known = ~np.isnan(table).any(axis=1) & ~np.isnan(wanted)
    if known.sum() <= len(names):
        raise InputError(f"{known.sum()} samples have all values; {len(names)} features want more", field="features")
    rows, scores = table[known], wanted[known]
    centre = rows.mean(axis=0)
    # Counts and their sums stand side by side: the least of the many solutions is taken.
    slopes = np.linalg.lstsq(rows - centre, scores - scores.mean(), rcond=None)[0]
    return Ensemble(
        method=method,
        direction=direction,
        coefficients=dict(zip(names, slopes.tolist(), strict=True)),
        intercept=float(scores.mean() - centre @ slopes),
        target=target_name,
        n=int(known.sum()),
    )


def cross_validate(
    features: Features,
    target: Sequence[float],
    *,
    method: Method = "linear_regression",
    folds: int = FOLDS,
    seed: int = 42,
) -> list[float]:
    """Every sample's score by an ensemble that was fitted without its fold; NaN where a feature or its target is.

    Args:
        features: as in `fit_ensemble`.
        target: the experts' scores.
        method: as in `fit_ensemble`.
        folds: number of parts, at most one a sample.
        seed: of the parts.

    Raises:
        InputError: as `fit_ensemble`, or fewer samples with all values than folds, or less than two folds.
    """
    table, wanted = _table(features), np.asarray(target, dtype=np.float64)
    if len(wanted) != len(table):
        raise InputError(f"expected {len(table)} scores, one a sample, found {len(wanted)}", field="target")
    places = np.flatnonzero(~np.isnan(table).any(axis=1) & ~np.isnan(wanted))
    if len(places) < 2:
        raise InputError(f"{len(places)} samples have a target and all of {', '.join(features)}", field="features")
    if not 2 <= folds <= len(places):
        raise InputError(f"expected a number from 2 to {len(places)}, found {folds}", field="folds")
    np.random.default_rng(seed).shuffle(places)
    scores = np.full(len(table), math.nan)
    for held_out in np.array_split(places, folds):
        train = np.setdiff1d(places, held_out)
        fitted = fit_ensemble(_rows(features, train), wanted[train].tolist(), method=method)
        scores[held_out] = fitted.apply(_rows(features, held_out))
    return [float(score) for score in scores]


@dataclass(frozen=True, slots=True)
class Judged:
    """What several judges said of the samples that all of them have.

    Attributes:
        sample_ids: in the order of the first judge.
        features: JUDGE/FIGURE -> one value a sample.
        directions: which way is better, by feature.
    """

    sample_ids: Sequence[str]
    features: Features
    directions: Mapping[str, Direction]


def read_features(runs: Mapping[str, Path | str], figures: Sequence[str] | None = None) -> Judged:
    """The features of several judges from their results folders.

    Args:
        runs: judge -> its results folder.
        figures: which ones; by default all that a judge has for any of these samples.

    Raises:
        InputError: no such file or figure, an id that stands twice, or no sample in common.
    """
    tables = {judge: read_sample_scores(place) for judge, place in runs.items()}
    samples = [table.rows for table in tables.values()]
    common = [key for key in next(iter(samples), {}) if all(key in rows for rows in samples)]
    if not common:
        raise InputError("the runs have no sample in common", field="runs")
    columns: dict[str, list[float]] = {}
    directions: dict[str, Direction] = {}
    for judge, table in tables.items():
        rows = [table.rows[key] for key in common]
        there = [name for name in table.directions if any(not math.isnan(row.get(name, math.nan)) for row in rows)]
        for figure in there if figures is None else figures:
            if figure not in there:
                raise InputError(f"no such figure; there are {', '.join(there)}", file=runs[judge], field=figure)
            columns[f"{judge}/{figure}"] = [row.get(figure, math.nan) for row in rows]
            directions[f"{judge}/{figure}"] = table.directions[figure]
    return Judged(common, columns, directions)


def _known(features: Features, name: str) -> Sequence[float]:
    if name not in features:
        raise InputError(f"missing; the ensemble was fitted with '{name}'", field="features")
    return features[name]


def _rows(features: Features, places: NDArray[np.int_]) -> dict[str, list[float]]:
    return {name: [values[place] for place in places] for name, values in features.items()}


def _table(features: Features) -> NDArray[np.float64]:
    """(samples, features)."""
    if not features:
        raise InputError("expected at least one feature", field="features")
    if len({len(values) for values in features.values()}) > 1:
        raise InputError("expected as many values of every feature", field="features")
    return np.array(list(features.values()), dtype=np.float64).reshape(len(features), -1).T
