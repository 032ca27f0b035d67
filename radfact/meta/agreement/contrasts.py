"""Metrics against each other, and against the experts report by report: paired tests and the largest disagreements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from radfact.errors import ErrorCode, InputError, suggest_name
from radfact.meta.datasets.ratings import RatingSet
from radfact.meta.scores import ScoreColumns, orient
from radfact.optional import load_module
from radfact.statistics.bootstrap import round_noise
from radfact.statistics.correlation import REPLICATES, ROUNDS, SEED, KendallDifference, compare_kendall
from radfact.statistics.significance import adjust_holm

LISTED = 10
"""Reports of each score in a list of disagreements."""


@dataclass(frozen=True, slots=True)
class MetricContrast:
    """Agreement of a score (`kendall.second`) compared with the baseline (`first`); p, also by Holm's method."""

    score: str
    baseline: str
    kendall: KendallDifference
    p_holm: float | None = None


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A report that a score and the experts' mean rank differently; ranks are from 0 = best to 1 = worst."""

    score: str
    sample_id: str
    expert: float
    value: float
    expert_rank: float
    score_rank: float


def compare_metrics(
    ratings: RatingSet,
    scores: ScoreColumns,
    baseline: str | None = None,
    *,
    replicates: int = REPLICATES,
    rounds: int = ROUNDS,
    seed: int = SEED,
) -> list[MetricContrast]:
    """Test each score against the baseline: does it agree better or worse with the experts' target?"""
    columns = scores.oriented
    if baseline is not None and baseline not in columns:
        hint = suggest_name(baseline, columns, f"scores are {', '.join(columns)}")
        raise InputError(f"unknown score '{baseline}'; {hint}", code=ErrorCode.UNKNOWN_NAME, field="baseline")
    if not columns:
        return []
    first = baseline or next(iter(columns))
    expert = orient(ratings.means(ratings.target), ratings.better[ratings.target])
    draws = {"replicates": replicates, "rounds": rounds, "seed": seed}
    contrasts = [
        MetricContrast(name, first, compare_kendall(expert, columns[first], column, clusters=ratings.clusters, **draws))
        for name, column in columns.items()
        if name != first
    ]
    adjusted = adjust_holm([contrast.kendall.p for contrast in contrasts])
    return [replace(contrast, p_holm=p) for contrast, p in zip(contrasts, adjusted, strict=True)]


def find_disagreements(ratings: RatingSet, scores: ScoreColumns) -> list[Disagreement]:
    """Return the reports whose ranks by a score and by the experts differ most, by score, the largest first."""
    target = ratings.means(ratings.target)
    expert = np.array(orient(target, ratings.better[ratings.target]))
    results, order = [], np.array(ratings.clusters.order, dtype=np.intp)
    for name, column in scores.oriented.items():
        known = order[~np.isnan(expert + np.array(column))[order]]
        if len(known) < 2:
            continue
        theirs, ours = (_relative_ranks(np.array(side)[known].tolist()) for side in (expert, column))
        rows = sorted(zip(known.tolist(), theirs, ours, strict=True), key=lambda row: -round(abs(row[2] - row[1]), 9))
        for index, *ranks in rows[:LISTED]:
            if ranks[0] != ranks[1]:
                sample_id, value = ratings.samples[index].pair.sample_id, scores.values[name][index]
                results.append(Disagreement(name, sample_id, target[index], value, *ranks))
    return results


def _relative_ranks(values: Sequence[float]) -> list[float]:
    """Return ranks from 0 (smallest) to 1 (largest); equal values have their mean rank."""
    ranks = load_module("scipy.stats").rankdata(round_noise(values))
    return [float(rank - 1) / (len(values) - 1) for rank in ranks]
