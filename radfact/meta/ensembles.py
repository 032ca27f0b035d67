"""Ensembles of judges: their average, or a linear regression on expert ratings (VERT, section 5.1.5)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from radfact.api import evaluate
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_json, write_json
from radfact.meta.agreement.report import short_table
from radfact.meta.datasets.ratings import RatingSet
from radfact.meta.scores import ScoreColumns, select_scores
from radfact.metrics.protocol import Metric, MetricResult
from radfact.pages.meta_page import Table
from radfact.records import Pair, Pairs, Record, validate_model
from radfact.results.evaluation import EvaluationResult
from radfact.results.reader import read_digests, read_sample_scores, read_scores, read_texts
from radfact.results.schema import ScoresFile, metric_of_scores
from radfact.results.systems import metric_settings
from radfact.statistics.bootstrap import Direction
from radfact.statistics.clusters import Clusters
from radfact.statistics.correlation import SEED, correlate

Method = Literal["linear_regression", "average"]

Features = Mapping[str, Sequence[float]]
"""JUDGE/SCORE -> one value per sample, NaN = not scored; all of the same length and order."""


class Ensemble(Record):
    """A fitted ensemble; `n` is the number of samples it was fitted on, `target` the name of the expert score."""

    method: Method
    direction: Direction = "higher"
    coefficients: Annotated[dict[str, FiniteFloat], Field(min_length=1)]
    intercept: FiniteFloat = 0.0
    target: str | None = None
    n: int = 0

    def apply(self, features: Features) -> list[float]:
        """Return the score of every sample; NaN if a feature is NaN."""
        if missing := [name for name in self.coefficients if name not in features]:
            message = f"expected '{missing[0]}', which the ensemble was fitted with"
            raise InputError(message, code=ErrorCode.MISMATCH, field="features")
        table = np.array([features[name] for name in self.coefficients], dtype=np.float64).T
        scores: list[float] = (table @ np.array(list(self.coefficients.values())) + self.intercept).tolist()
        return scores

    def save(self, path: Path | str) -> None:
        write_json(path, self.model_dump())

    @classmethod
    def load(cls, path: Path | str) -> Ensemble:
        return validate_model(cls, read_json(path), file=path)


def fit_ensemble(
    features: Features,
    target: Sequence[float] = (),
    *,
    method: Method = "linear_regression",
    target_name: str | None = None,
    direction: Direction = "higher",
) -> Ensemble:
    """Fit an ensemble on expert scores; an average weighs all features alike and uses none."""
    if method == "average":
        coefficients = dict.fromkeys(features, 1 / len(features))
        return Ensemble(method=method, direction=direction, coefficients=coefficients)
    table, expert, is_complete = _to_arrays(features, target)
    rows, scores = table[is_complete], expert[is_complete]
    if len(rows) <= len(features):
        message = f"expected more than {len(features)} samples with all values, found {len(rows)}"
        raise InputError(message, code=ErrorCode.EMPTY_INPUT, field="features")
    center = rows.mean(axis=0)
    # Counts and their sum may both be features: lstsq returns the smallest of the solutions.
    slopes = np.linalg.lstsq(rows - center, scores - scores.mean(), rcond=None)[0]
    return Ensemble(
        method=method,
        direction=direction,
        coefficients=dict(zip(features, slopes.tolist(), strict=True)),
        intercept=float(scores.mean() - center @ slopes),
        target=target_name,
        n=len(rows),
    )


def cross_validate(
    features: Features,
    target: Sequence[float],
    *,
    method: Method = "linear_regression",
    folds: int = 10,
    seed: int = SEED,
    clusters: Clusters | None = None,
) -> list[float]:
    """Return scores by ensembles fitted on other folds of whole clusters; NaN for incomplete samples."""
    table, expert, is_complete = _to_arrays(features, target)
    if is_complete.sum() < 2:
        names = ", ".join(features)
        message = f"expected at least 2 samples with a target and all of {names}, found {is_complete.sum()}"
        raise InputError(message, code=ErrorCode.EMPTY_INPUT, field="features")
    codes = np.arange(len(table)) if clusters is None else clusters.codes
    groups = np.unique(codes[is_complete])
    if not 2 <= folds <= len(groups):
        message = f"expected a number from 2 to {len(groups)}, found {folds}"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="folds")
    np.random.default_rng(seed).shuffle(groups)
    scores = np.full(len(table), math.nan)
    for fold in np.array_split(groups, folds):
        is_held_out = is_complete & np.isin(codes, fold)
        ensemble = fit_ensemble(features, np.where(is_held_out, math.nan, expert).tolist(), method=method)
        scores[is_held_out] = np.array(ensemble.apply(features))[is_held_out]
    held_out: list[float] = scores.tolist()
    return held_out


def _to_arrays(
    features: Features, target: Sequence[float]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Return features (samples, features), target (samples,), and whether each sample has all values."""
    if not features:
        raise InputError("expected at least one feature", code=ErrorCode.EMPTY_INPUT, field="features")
    table, expert = np.array(list(features.values()), dtype=np.float64).T, np.asarray(target, dtype=np.float64)
    return table, expert, ~(np.isnan(table).any(axis=1) | np.isnan(expert))


def read_features(runs: Mapping[str, Path], scores: Sequence[str] | None = None) -> tuple[Sequence[str], ScoreColumns]:
    """Read scores of judges (default: all with a value) on their common samples, in the order of the first judge."""
    tables = {judge: read_sample_scores(folder) for judge, folder in runs.items()}
    rows_by_judge = [table.rows for table in tables.values()]
    common = [key for key in next(iter(rows_by_judge), {}) if all(key in rows for rows in rows_by_judge)]
    if not common:
        raise InputError("expected runs with common samples, found none", code=ErrorCode.MISMATCH, field="runs")
    columns: dict[str, Sequence[float]] = {}
    directions: dict[str, Direction] = {}
    for judge, table in tables.items():
        available = select_scores(table, common)
        for name in available.values if scores is None else scores:
            if name not in available.values:
                message = f"unknown score; scores are {', '.join(available.values)}"
                raise InputError(message, code=ErrorCode.UNKNOWN_NAME, file=runs[judge], field=name)
            columns[f"{judge}/{name}"], directions[f"{judge}/{name}"] = available.values[name], table.directions[name]
    return common, ScoreColumns(columns, directions)


def fit_on_ratings(
    ratings: RatingSet,
    sample_ids: Sequence[str],
    scores: ScoreColumns,
    *,
    method: Method,
    folds: int,
    seed: int,
    replicates: int,
) -> tuple[Ensemble, Table, Clusters]:
    """Fit an ensemble on the mean ratings of scored samples; the table correlates it, cross-validated, and features."""
    places = {key: place for place, key in enumerate(sample_ids)}
    scored = replace(ratings, samples=[row for row in ratings.samples if row.pair.sample_id in places])
    if not scored.samples:
        message = "expected judges with scores of the rated reports, found none; ids are those of 'radfact meta pairs'"
        raise InputError(message, code=ErrorCode.MISMATCH)
    indices = [places[row.pair.sample_id] for row in scored.samples]
    features = {name: [column[index] for index in indices] for name, column in scores.values.items()}
    experts, direction = scored.means(ratings.target), ratings.better[ratings.target]
    known = {value for value in experts if not math.isnan(value)}
    if method == "linear_regression" and len(known) == 1:
        message = f"expected different values of '{ratings.target}' to fit, found {known.pop():g} for all reports"
        raise InputError(message)
    ensemble = fit_ensemble(features, experts, method=method, target_name=ratings.target, direction=direction)
    if method == "average":
        common, *others = dict.fromkeys(scores.directions.values())
        if others:
            found = ", ".join(f"{name} {direction}" for name, direction in scores.directions.items())
            message = f"expected scores with the same direction for an average, found {found}"
            raise InputError(message, code=ErrorCode.MISMATCH, field="features")
        ensemble = ensemble.model_copy(update={"direction": common})
    held_out = cross_validate(features, experts, method=method, folds=folds, seed=seed, clusters=scored.clusters)
    draws: dict[str, Any] = {"clusters": scored.clusters, "replicates": replicates, "seed": seed}
    columns = {"cross-validated": held_out, **features}
    estimates = {name: correlate(experts, column, **draws) for name, column in columns.items()}
    return ensemble, short_table("scores", estimates), scored.clusters


class EnsembleMetric(Metric):
    """An ensemble as a metric for samples with known scores."""

    name = "ensemble"
    source = "VERT, section 5.1.5"

    def __init__(self, ensemble: Ensemble, values: Mapping[str, float], files: Mapping[str, ScoresFile]) -> None:
        self.scores = {self.name: ensemble.direction}
        self._ensemble, self._values = ensemble, values
        self.judges: dict[str, dict[str, Any]] = {}
        for feature in ensemble.coefficients:
            judge, _, score = feature.rpartition("/")
            metric = metric_of_scores(files[judge]).get(score, score)
            self.judges.setdefault(judge, {})[metric] = metric_settings(files[judge]).get(metric)

    def describe(self) -> dict[str, Any]:
        return {**self._ensemble.model_dump(), "judges": self.judges}

    def score(self, pairs: Sequence[Pair]) -> MetricResult:
        """Return the score of every pair; NaN without a score of a judge."""
        values = [self._values.get(pair.sample_id, math.nan) for pair in pairs]
        failures = {index: "not scored by a judge" for index, value in enumerate(values) if math.isnan(value)}
        return MetricResult({self.name: values}, failures=failures)


def apply_to_folders(
    ensemble: Ensemble,
    values: Mapping[str, float],
    folders: Mapping[str, Path],
    out: Path,
    *,
    run: Mapping[str, Any] | None = None,
    bootstrap: int = 500,
    seed: int = SEED,
) -> EvaluationResult:
    """Write the scores of an ensemble by sample id as another results folder beside those of its judges."""
    files = {judge: read_scores(folder) for judge, folder in folders.items()}
    metric = EnsembleMetric(ensemble, values, files)
    # Folders with a splitter have split reports; a folder without one has them as they were given.
    source = folders[min(files, key=lambda judge: files[judge].splitter is not None)]
    texts = read_texts(source)
    read = [Pair(key, texts.get((key, "candidate"), ""), texts.get((key, "reference"), "")) for key in values]
    pairs = Pairs(tuple(read), len(read), digests=read_digests(source))
    judge = {"name": f"ensemble of {', '.join(metric.judges)}", **metric.describe()}
    return evaluate(pairs, [metric], bootstrap=bootstrap, seed=seed, out=out, run={**(run or {}), "judge": judge})
