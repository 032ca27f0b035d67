"""Systems as results folders: scores that can be computed again on any of their samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from radfact.io.jsonl import read_json, read_jsonl
from radfact.machine import PROJECT
from radfact.metrics.protocol import Counts
from radfact.metrics.radfact.scores import F1_PARTS
from radfact.metrics.registry import entries, select_metrics
from radfact.records import normalize_text, validate_model
from radfact.results.reader import SampleScores, read_run, read_sample_scores, read_scores, read_texts
from radfact.results.schema import METRICS_FOLDER, RADFACT, MetricFile, MetricRow, ScoresFile
from radfact.statistics.bootstrap import CountsFunction, Direction, RowFilter, scored_rows
from radfact.statistics.significance import (
    Pairing,
    common_parts,
    common_rows,
    f1_counts,
    f1_from_counts,
    has_f1,
    mean_counts,
    mean_from_counts,
)

REFERENCE_SUFFIX = "_reference"
"""Suffix of scores of the reference reports themselves."""


@dataclass(frozen=True, slots=True)
class Column:
    """One score of one system: counts by `sample_id`, and the function of their sum."""

    counts: Mapping[str, Counts]
    value: CountsFunction

    @property
    def has_value(self) -> RowFilter:
        """Selects the samples with a value: those that are scored, or for an F1 those with both of its parts."""
        return has_f1 if self.value is f1_from_counts else scored_rows

    @property
    def pairing(self) -> Pairing:
        """Selects what two systems have in common: samples that both have scored, or for an F1 each part by itself."""
        return common_parts if self.value is f1_from_counts else common_rows

    def of(self, sample_ids: Sequence[str]) -> Counts:
        """Return the counts (samples, k) of some samples; NaN for a sample that is excluded."""
        width = len(next(iter(self.counts.values()), ()))
        missing = np.full(width, math.nan)
        return np.array([self.counts.get(key, missing) for key in sample_ids], dtype=np.float64).reshape(-1, width)


@dataclass(frozen=True, slots=True)
class System:
    """The content of a results folder."""

    name: str
    scores: ScoresFile
    samples: SampleScores
    directions: Mapping[str, Direction]
    columns: Mapping[str, Column]
    references: Mapping[str, str]
    version: str | None = None
    """Version of this package that scored."""

    @property
    def cluster_by(self) -> str | None:
        """What the samples of a cluster share; None if there are no clusters."""
        return None if self.scores.resampling is None else self.scores.resampling.by

    @property
    def variants(self) -> dict[str, str | None]:
        return {name: record.variant for name, record in self.scores.metrics.items()}


def pooled_functions(metrics: Sequence[str] = ()) -> dict[str, Mapping[str, CountsFunction]]:
    """Return the functions of pooled scores, by metric and score, including those of its variants."""
    selected = [entry for entry in entries().values() if entry.is_builtin]
    selected += [selection.entry for selection in (select_metrics(metrics) if metrics else ())]
    functions: dict[str, dict[str, CountsFunction]] = {}
    for entry in selected:
        for metric in (entry.declared, *(variant.declared for variant in entry.variants.values())):
            functions.setdefault(metric.name or entry.name, {}).update(metric.pooled)
    return dict(functions)


def read_system(folder: Path, name: str, functions: Mapping[str, Mapping[str, CountsFunction]]) -> System:
    """Read the scores of a results folder, ready to be resampled, without those of the references alone."""
    scores, samples = read_scores(folder), read_sample_scores(folder)
    rows = samples.rows
    directions = {
        score: direction
        for score, direction in samples.directions.items()
        if not (score.endswith(REFERENCE_SUFFIX) and score.removesuffix(REFERENCE_SUFFIX) in samples.directions)
    }
    columns: dict[str, Column] = {}
    pooled: set[str] = set()
    for metric in scores.metrics:
        known = functions.get(metric, {})
        for names, counts in _pooled_counts(folder / METRICS_FOLDER, metric):
            pooled.update(names)
            columns |= {name: Column(counts, known[name]) for name in names if name in known}
    for score in directions:
        if score in F1_PARTS and all(part in directions for part in F1_PARTS[score]):
            parts = np.array([[row.get(part, math.nan) for part in F1_PARTS[score]] for row in rows.values()])
            columns[score] = Column(dict(zip(rows, f1_counts(parts), strict=True)), f1_from_counts)
        elif score not in pooled and all(score in row for row in rows.values()):
            means = mean_counts([row[score] for row in rows.values()])
            columns[score] = Column(dict(zip(rows, means, strict=True)), mean_from_counts)
    ordered = {score: columns[score] for score in directions if score in columns}
    texts = read_texts(folder) if (folder / "sentences.jsonl").is_file() else {}
    references = {key: normalize_text(text) for (key, side), text in texts.items() if side == "reference"}
    version = read_run(folder).versions.get(PROJECT)
    return System(name, scores, samples, directions, ordered, references, version)


def _pooled_counts(folder: Path, metric: str) -> Iterator[tuple[list[str], dict[str, Counts]]]:
    """Yield the pooled scores of a metric that share counts, and these counts (k,) by sample id."""
    description, lines = folder / f"{metric}.json", folder / f"{metric}.jsonl"
    if not description.is_file():
        return
    groups = validate_model(MetricFile, read_json(description), file=description).pooled
    rows = [validate_model(MetricRow, values, file=lines, line=line) for line, values in read_jsonl(lines)]
    for index, names in enumerate(groups):
        # None, a missing count, becomes NaN.
        yield names, {row.sample_id: np.array(row.counts[index], dtype=np.float64) for row in rows}


def metric_settings(scores: ScoresFile) -> dict[str, Any]:
    """Return judge, model, settings and arguments by metric; the address of a server does not change a score."""
    judge = {"judge": scores.judge, "splitter": scores.splitter}
    settings: dict[str, Any] = {RADFACT: judge} if RADFACT in scores.metrics else {}
    for name, metric in scores.metrics.items():
        model = {key: value for key, value in (metric.model or {}).items() if key != "base_url"}
        own = {"model": model, "settings": metric.settings, "arguments": metric.arguments}
        settings[name] = {**settings.get(name, {}), **(own if any(own.values()) else {})}
    return settings
