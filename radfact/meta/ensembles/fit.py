"""Ensembles of judges from results folders: fitted on expert ratings, applied as another metric.

Source: VERT, section 5.1.5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radfact.api import evaluate
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_jsonl
from radfact.meta.agreement.report import short_table
from radfact.meta.datasets.ratings import RatingSet
from radfact.meta.ensembles.model import (
    FOLDS,
    Ensemble,
    Features,
    JudgeScores,
    Method,
    cross_validate,
    fit_ensemble,
)
from radfact.metrics.protocol import Metric, MetricResult
from radfact.pages.meta_page import Table
from radfact.records import Pair, Pairs
from radfact.results.evaluation import EvaluationResult
from radfact.results.reader import read_digests, read_scores
from radfact.results.schema import metric_of_scores
from radfact.results.systems import metric_settings
from radfact.statistics.bootstrap import Direction
from radfact.statistics.clusters import Clusters, clusters_of
from radfact.statistics.correlation import REPLICATES, SEED, correlate

NAME = "ensemble"
"""Name of the metric and of its score."""


@dataclass(frozen=True, slots=True)
class FittedEnsemble:
    """An ensemble with its cross-validated scores.

    Attributes:
        ensemble: fitted on all samples.
        held_out: score of every sample by an ensemble that was fitted without it.
        experts: expert score of every sample.
        features: features of every sample.
        clusters: of the samples; None if samples are resampled.
    """

    ensemble: Ensemble
    held_out: Sequence[float]
    experts: Sequence[float]
    features: Features
    clusters: Clusters | None = None

    def table(self, *, replicates: int = REPLICATES, seed: int = SEED) -> Table:
        """Return correlations with the experts, of the cross-validated ensemble and of each feature."""
        columns = {"cross-validated": self.held_out, **self.features}
        draws = {"replicates": replicates, "seed": seed}
        estimates = {n: correlate(self.experts, c, clusters=self.clusters, **draws) for n, c in columns.items()}
        return short_table("scores", estimates)


def fit_on_ratings(
    ratings: RatingSet,
    judge_scores: JudgeScores,
    *,
    method: Method = "linear_regression",
    folds: int = FOLDS,
    seed: int = SEED,
) -> FittedEnsemble:
    """Fit an ensemble on the rated samples that judges have scored."""
    means = dict(zip((sample.pair.sample_id for sample in ratings.samples), ratings.means(ratings.target), strict=True))
    indices = [index for index, key in enumerate(judge_scores.sample_ids) if key in means]
    if not indices:
        raise InputError(
            "expected judges with scores of the rated reports, found none; ids are those of 'radfact meta pairs'",
            code=ErrorCode.MISMATCH,
        )
    features = {name: [column[index] for index in indices] for name, column in judge_scores.features.items()}
    experts = [means[judge_scores.sample_ids[index]] for index in indices]
    direction: Direction = ratings.better[ratings.target]
    known = {value for value in experts if not math.isnan(value)}
    if method == "linear_regression" and len(known) == 1:
        message = f"expected different values of '{ratings.target}' to fit, found {known.pop():g} for all reports"
        raise InputError(message)
    if method == "average":
        if len(set(judge_scores.directions.values())) != 1:
            directions = ", ".join(f"{name} {direction}" for name, direction in judge_scores.directions.items())
            raise InputError(
                f"expected scores with the same direction for an average, found {directions}",
                code=ErrorCode.MISMATCH,
                field="features",
            )
        direction = next(iter(judge_scores.directions.values()))
    ensemble = fit_ensemble(features, experts, method=method, target_name=ratings.target, direction=direction)
    labels = {sample.pair.sample_id: sample.pair.cluster for sample in ratings.samples}
    by = ratings.cluster_by
    clusters = None if by is None else clusters_of(by, [labels[judge_scores.sample_ids[index]] for index in indices])
    held_out = cross_validate(features, experts, method=method, folds=folds, seed=seed, clusters=clusters)
    return FittedEnsemble(ensemble, held_out, experts, features, clusters)


class EnsembleMetric(Metric):
    """An ensemble as a metric for samples with known features."""

    name = NAME
    source = "VERT, section 5.1.5"

    def __init__(self, ensemble: Ensemble, judge_scores: JudgeScores, folders: Mapping[str, Path]) -> None:
        """Create the metric."""
        self.scores = {NAME: ensemble.direction}
        self._scores = dict(zip(judge_scores.sample_ids, ensemble.apply(judge_scores.features), strict=True))
        self._ensemble, self._judges = ensemble, _judges(ensemble, folders)

    def describe(self) -> dict[str, Any]:
        """Return the ensemble and its judges."""
        return {**self._ensemble.model_dump(), "judges": dict(self._judges)}

    def score(self, pairs: Sequence[Pair]) -> MetricResult:
        """Return the score of every pair; NaN without a score of a judge."""
        values = [self._scores.get(pair.sample_id, math.nan) for pair in pairs]
        failures = {index: "not scored by a judge" for index, value in enumerate(values) if math.isnan(value)}
        return MetricResult({NAME: values}, failures=failures)


def apply_to_folders(
    ensemble: Ensemble,
    judge_scores: JudgeScores,
    folders: Mapping[str, Path],
    out: Path,
    *,
    run: Mapping[str, Any] | None = None,
    bootstrap: int = 500,
    seed: int = SEED,
) -> EvaluationResult:
    """Score the samples of results folders by an ensemble, and write another results folder."""
    metric = EnsembleMetric(ensemble, judge_scores, folders)
    # Folders with a splitter have split reports; a folder without one has them as they were given.
    scores = {folder: read_scores(folder) for folder in folders.values()}
    source = next((folder for folder, file in scores.items() if file.splitter is None), next(iter(scores)))
    read = _read_pairs(source, judge_scores.sample_ids)
    pairs = Pairs(tuple(read), len(read), digests=read_digests(source))
    judge = {"name": f"ensemble of {', '.join(metric.describe()['judges'])}", **metric.describe()}
    return evaluate(pairs, [metric], bootstrap=bootstrap, seed=seed, out=out, run={**(run or {}), "judge": judge})


def _judges(ensemble: Ensemble, folders: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """Return judge -> metric of a feature -> how the metric was computed."""
    scores = {judge: read_scores(folder) for judge, folder in folders.items()}
    judges: dict[str, dict[str, Any]] = {}
    for feature in ensemble.coefficients:
        judge, _, score = feature.rpartition("/")
        metric = metric_of_scores(scores[judge]).get(score, score)
        judges.setdefault(judge, {})[metric] = metric_settings(scores[judge]).get(metric)
    return judges


def _read_pairs(folder: Path, sample_ids: Sequence[str]) -> list[Pair]:
    """Read reports from a results folder, with sentences joined by spaces."""
    path = folder / "sentences.jsonl"
    texts: dict[tuple[str, str], list[str]] = {}
    for line, row in read_jsonl(path):
        sample_id, side, text = (row.get(name) for name in ("sample_id", "side", "text"))
        if not (isinstance(sample_id, str) and isinstance(text, str) and side in ("candidate", "reference")):
            raise InputError(
                "expected a sentence with sample_id, side and text",
                code=ErrorCode.MISSING_FIELD,
                file=path,
                line=line,
            )
        texts.setdefault((sample_id, str(side)), []).append(text)
    return [
        Pair(key, " ".join(texts.get((key, "candidate"), ())), " ".join(texts.get((key, "reference"), ())))
        for key in sample_ids
    ]
