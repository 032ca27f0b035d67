"""Metrics against each other, and against the experts report by report: paired tests and the largest disagreements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from radfact.errors import ErrorCode, InputError, suggest_name
from radfact.meta.datasets.preferences import PreferenceSet
from radfact.meta.datasets.ratings import RatingSet
from radfact.meta.scores import ScoreColumns, orient
from radfact.optional import load_stats
from radfact.statistics.bootstrap import round_noise
from radfact.statistics.correlation import REPLICATES, ROUNDS, SEED, KendallDifference, compare_kendall
from radfact.statistics.rater_agreement import Preference, prefer_by_score
from radfact.statistics.significance import adjust_holm

LISTED = 10
"""Reports of each score in a list of disagreements."""


@dataclass(frozen=True, slots=True)
class MetricContrast:
    """Agreement of a score with experts, compared with that of the baseline; `p_holm` is p adjusted by Holm's method.

    `kendall.first` is tau-b of the baseline, `kendall.second` that of the score.
    """

    score: str
    baseline: str
    kendall: KendallDifference
    p_holm: float | None = None


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A report that a score and the experts rank differently.

    Attributes:
        score: name of the score.
        sample_id: id of the report.
        expert: mean rating of the experts.
        value: value of the score.
        expert_rank: rank among the reports by the experts, 0 = best, 1 = worst.
        score_rank: likewise by the score.
    """

    score: str
    sample_id: str
    expert: float
    value: float
    expert_rank: float
    score_rank: float


@dataclass(frozen=True, slots=True)
class WrongPreference:
    """A row in which a score prefers the candidate that the experts do not, or neither."""

    score: str
    row_id: str
    confidence: float
    expert: Preference
    preferred: Preference
    first: float
    second: float


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
    columns = {name: column for name in scores.values if (column := scores.oriented(name)) is not None}
    if baseline is not None and baseline not in columns:
        hint = suggest_name(baseline, columns, f"scores are {', '.join(columns)}")
        raise InputError(f"unknown score '{baseline}'; {hint}", code=ErrorCode.UNKNOWN_NAME, field="baseline")
    first = baseline or next(iter(columns), None)
    if first is None or len(columns) < 2:
        return []
    expert = orient(ratings.means(ratings.target), ratings.better[ratings.target]) or []
    draws = {"replicates": replicates, "rounds": rounds, "seed": seed}
    contrasts = [
        MetricContrast(name, first, compare_kendall(expert, columns[first], column, clusters=ratings.clusters, **draws))
        for name, column in columns.items()
        if name != first
    ]
    adjusted = adjust_holm([contrast.kendall.p for contrast in contrasts])
    return [replace(contrast, p_holm=p) for contrast, p in zip(contrasts, adjusted, strict=True)]


def find_disagreements(ratings: RatingSet, scores: ScoreColumns, *, listed: int = LISTED) -> list[Disagreement]:
    """Return the reports whose ranks by a score and by the experts differ most, by score, the largest first."""
    target = ratings.means(ratings.target)
    expert = np.array(orient(target, ratings.better[ratings.target]))
    results = []
    for name, values in scores.values.items():
        column = scores.oriented(name)
        if column is None:
            continue
        known = np.flatnonzero(~np.isnan(expert) & ~np.isnan(column))
        if len(known) < 2:
            continue
        ranks = [_relative_ranks(np.array(side)[known].tolist()) for side in (expert, column)]
        order = sorted(range(len(known)), key=lambda place: -round(abs(ranks[1][place] - ranks[0][place]), 9))
        for place in order[:listed]:
            index = int(known[place])
            if ranks[0][place] != ranks[1][place]:
                pair = ratings.samples[index].pair
                row = (target[index], values[index], ranks[0][place], ranks[1][place])
                results.append(Disagreement(name, pair.sample_id, *row))
    return results


def _relative_ranks(values: Sequence[float]) -> list[float]:
    """Return ranks from 0 (smallest) to 1 (largest); equal values have their mean rank."""
    ranks = load_stats().rankdata(round_noise(values))
    return [float(rank - 1) / (len(values) - 1) for rank in ranks]


def find_wrong_preferences(
    preferences: PreferenceSet, scores: ScoreColumns, *, listed: int = LISTED
) -> list[WrongPreference]:
    """Return the rows in which a score does not prefer the experts' candidate, by score, the surest experts first."""
    half = len(preferences.first)
    results = []
    for name, values in scores.values.items():
        column = scores.oriented(name)
        if column is None:
            continue
        preferred = prefer_by_score(column[:half], column[half:], direction="lower")
        wrong = [
            WrongPreference(
                name,
                preferences.first[index].sample_id.removesuffix("_1"),
                preferences.confidence[index],
                expert,
                ours,
                values[index],
                values[half + index],
            )
            for index, (expert, ours) in enumerate(zip(preferences.expert, preferred, strict=True))
            if expert is not None and ours is not None and ours != expert
        ]
        wrong.sort(key=lambda row: (-row.confidence, -_distance(row)))
        results += wrong[:listed]
    return results


def _distance(row: WrongPreference) -> float:
    distance = abs(row.first - row.second)
    return 0.0 if math.isnan(distance) else distance
