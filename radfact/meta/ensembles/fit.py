"""Ensembles of judges on results folders: fitted on experts' ratings, applied as one more metric (paper 003, 5.1.5)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from radfact.errors import InputError
from radfact.html.meta_page import Table
from radfact.io.jsonl import read_jsonl
from radfact.meta.datasets.ratings import Ratings
from radfact.meta.ensembles.model import (
    FOLDS,
    Ensemble,
    Features,
    Judged,
    Method,
    cross_validate,
    fit_ensemble,
)
from radfact.metrics.protocol import Metric, MetricResult
from radfact.metrics.registry import MetricSelection
from radfact.metrics.resources import MetricResources
from radfact.pipeline import MetricRunner, write_results_and_page
from radfact.records import Pair
from radfact.results.evaluation import EvaluationResult
from radfact.results.reader import read_digests, read_scores
from radfact.results.schema import metric_of_scores
from radfact.results.systems import asked
from radfact.statistics.bootstrap import Direction
from radfact.statistics.correlation import COEFFICIENTS, REPLICATES, SEED, correlate

NAME = "ensemble"
"""Of the metric and its figure."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """An ensemble, what each of the rated samples gets by one that was not fitted on it, and what it is made of."""

    ensemble: Ensemble
    held_out: Sequence[float]
    experts: Sequence[float]
    features: Features

    def table(self, *, replicates: int = REPLICATES, seed: int = SEED) -> Table:
        """Correlations with the experts, the cross-validated ensemble first, then its features alone."""
        rows = []
        for name, column in {"cross-validated": self.held_out, **self.features}.items():
            found = correlate(self.experts, column, replicates=replicates, seed=seed)
            first, *others = (found[one] for one in COEFFICIENTS)
            rows.append([name, first.n, first.value, first.low, first.high, *(one.value for one in others)])
        return Table(["scores", "n", COEFFICIENTS[0], "low", "high", *COEFFICIENTS[1:]], rows)


def fit_on_ratings(
    ratings: Ratings, judged: Judged, *, method: Method = "linear_regression", folds: int = FOLDS, seed: int = SEED
) -> Fitted:
    """Fit an ensemble on the rated samples that judges have scored.

    Args:
        ratings: the mean over raters of the target is what the regression is fitted on.
        judged: what the judges said.
        method: as in `fit_ensemble`.
        folds: of the cross-validation.
        seed: of the folds.

    Raises:
        InputError: there is no such sample, a regression would be fitted on ratings that are all the same, features
            that are averaged have different directions, or as `fit_ensemble`.
    """
    wanted = dict(zip((one.pair.sample_id for one in ratings.samples), ratings.means(ratings.target), strict=True))
    places = [place for place, key in enumerate(judged.sample_ids) if key in wanted]
    if not places:
        raise InputError("the judges have scored none of the rated reports; ids are those of 'radfact meta pairs'")
    features = {name: [column[place] for place in places] for name, column in judged.features.items()}
    experts = [wanted[judged.sample_ids[place]] for place in places]
    direction: Direction = ratings.better[ratings.target]
    known = {value for value in experts if not math.isnan(value)}
    if method == "linear_regression" and len(known) == 1:
        raise InputError(f"all '{ratings.target}' of the rated reports are {known.pop():g}; there is nothing to fit")
    if method == "average":
        direction = _common_direction(judged.directions)
    held_out = cross_validate(features, experts, method=method, folds=folds, seed=seed)
    ensemble = fit_ensemble(features, experts, method=method, target_name=ratings.target, direction=direction)
    return Fitted(ensemble, held_out, experts, features)


def _common_direction(directions: Mapping[str, Direction]) -> Direction:
    if len(set(directions.values())) != 1:
        said = ", ".join(f"{name} {direction}" for name, direction in directions.items())
        raise InputError(f"figures that are averaged must be better the same way, found {said}", field="figures")
    return next(iter(directions.values()))


class EnsembleMetric(Metric):
    """An ensemble as a metric of samples whose features are known."""

    name = NAME
    source = "VERT, section 5.1.5"

    def __init__(self, ensemble: Ensemble, judged: Judged, folders: Mapping[str, Path]) -> None:
        """Take the ensemble, what its judges said, and where.

        Raises:
            InputError: a feature is missing.
        """
        self.scores = {NAME: ensemble.direction}
        self._scores = dict(zip(judged.sample_ids, ensemble.apply(judged.features), strict=True))
        self._ensemble, self._judges = ensemble, _judges(ensemble, folders)

    def describe(self) -> dict[str, Any]:
        """Method, coefficients, what it was fitted on, and its judges."""
        return {**self._ensemble.model_dump(), "judges": dict(self._judges)}

    def score(self, pairs: Sequence[Pair]) -> MetricResult:
        """The ensemble's score of every pair; NaN where a judge gave none."""
        values = [self._scores.get(pair.sample_id, math.nan) for pair in pairs]
        missing = {place: "a judge has not scored it" for place, value in enumerate(values) if math.isnan(value)}
        return MetricResult({NAME: values}, failures=missing)


def apply_to_folders(
    ensemble: Ensemble,
    judged: Judged,
    folders: Mapping[str, Path],
    out: Path,
    *,
    run: Mapping[str, Any] | None = None,
    bootstrap: int = 500,
    seed: int = SEED,
) -> EvaluationResult:
    """Score the samples of results folders by an ensemble, and write a results folder of its own.

    Args:
        ensemble: fitted on judges of the same names.
        judged: what they said.
        folders: judge -> its results folder.
        out: folder of the results, as `radfact evaluate` writes them.
        run: what else `run.json` should hold, JSON values only.
        bootstrap: replicates for the interval; 0 for none.
        seed: of the bootstrap.

    Raises:
        InputError: a feature or a text is missing.
    """
    started = time.monotonic()
    metric = EnsembleMetric(ensemble, judged, folders)
    source = _with_reports(list(folders.values()))
    pairs, digests = read_pairs(source, judged.sample_ids), read_digests(source)
    evaluation = MetricRunner([MetricSelection.of(metric)], MetricResources()).run(
        pairs, bootstrap=bootstrap, seed=seed, folder=out
    )
    evaluation = replace(evaluation, report_digests={key: digests[key] for key in judged.sample_ids})
    judge = {"name": f"ensemble of {', '.join(metric.describe()['judges'])}", **metric.describe()}
    seconds = round(time.monotonic() - started, 3)
    write_results_and_page(evaluation, out, {**(run or {}), "judge": judge, "seconds": seconds})
    return evaluation


def _judges(ensemble: Ensemble, folders: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """Of every judge of an ensemble, by metric that it takes a figure of, who was asked there and how."""
    scores = {judge: read_scores(folder) for judge, folder in folders.items()}
    judges: dict[str, dict[str, Any]] = {}
    for feature in ensemble.coefficients:
        judge, _, figure = feature.rpartition("/")
        metric = metric_of_scores(scores[judge]).get(figure, figure)
        judges.setdefault(judge, {})[metric] = asked(scores[judge]).get(metric)
    return judges


def _with_reports(folders: Sequence[Path]) -> Path:
    """The first results folder that holds the reports as they came, or else the first one, which has them split."""
    return next((folder for folder in folders if read_scores(folder).splitter is None), folders[0])


def read_pairs(folder: Path, sample_ids: Sequence[str]) -> list[Pair]:
    """The reports of some samples of a results folder, their sentences joined by spaces.

    Raises:
        InputError: the folder has no reports, or a row is none.
    """
    path = folder / "sentences.jsonl"
    texts: dict[tuple[str, str], list[str]] = {}
    for line, row in read_jsonl(path):
        sample_id, side, text = (row.get(name) for name in ("sample_id", "side", "text"))
        if not (isinstance(sample_id, str) and isinstance(text, str) and side in ("candidate", "reference")):
            raise InputError("expected a sentence with sample_id, side and text", file=path, line=line)
        texts.setdefault((sample_id, str(side)), []).append(text)
    return [
        Pair(key, *(" ".join(texts.get((key, side), ())) for side in ("candidate", "reference"))) for key in sample_ids
    ]
