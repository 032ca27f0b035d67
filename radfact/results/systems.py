"""A system as its results folder has it: figures that can be computed anew on any of its samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from radfact.io.jsonl import read_jsonl
from radfact.metrics.protocol import Counts
from radfact.metrics.registry import entries, select_metrics
from radfact.records import normalised_text
from radfact.results.metric_cache import read_metric_cache
from radfact.results.reader import read_sample_scores, read_scores
from radfact.results.schema import RADFACT, ScoresFile, metric_of_scores
from radfact.scoring.radfact import F1_PARTS
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


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of one system: counts by `sample_id`, and the function of their sum."""

    counts: Mapping[str, Counts]
    value: Callable[[Counts], float]

    @property
    def has_value(self) -> RowFilter:
        """Which samples have a value of their own: all that were scored, or of an F1 those with both of its parts."""
        return has_f1 if self.value is f1_from_counts else scored_rows

    @property
    def pairing(self) -> Pairing:
        """What of two systems can be compared: samples that both have scored, or of an F1 each part by itself."""
        return common_parts if self.value is f1_from_counts else common_rows

    def of(self, sample_ids: Sequence[str]) -> Counts:
        """(samples, k); NaN for a sample that was left out."""
        width = len(next(iter(self.counts.values()), ()))
        left_out = np.full(width, math.nan)
        return np.array([self.counts.get(key, left_out) for key in sample_ids], dtype=np.float64).reshape(-1, width)


@dataclass(frozen=True, slots=True)
class System:
    """What a results folder holds.

    Attributes:
        name: of the folder.
        sample_ids: in its order.
        directions: of its figures.
        columns: by figure; a pooled one whose metric is not known here has none.
        references: the text of each reference, normalised.
        asked: by metric, who was asked and how: judge, model, settings, arguments.
        metric_of: the metric of each figure.
    """

    name: str
    sample_ids: Sequence[str]
    directions: Mapping[str, Direction]
    columns: Mapping[str, Column]
    references: Mapping[str, str]
    asked: Mapping[str, Any]
    metric_of: Mapping[str, str]


def pooled_functions(metrics: Sequence[str] = ()) -> dict[str, Mapping[str, CountsFunction]]:
    """The functions of pooled figures, by metric and figure.

    Args:
        metrics: of a user's own, beside those of the table.

    Raises:
        InputError: one cannot be loaded.
    """
    declared = [(name, entry.declared) for name, entry in entries().items() if entry.is_builtin]
    declared += [(item.entry.name, item.entry.declared) for item in (select_metrics(metrics) if metrics else ())]
    return {metric.name or name: metric.pooled for name, metric in declared if metric is not None}


def read_system(folder: Path, name: str, functions: Mapping[str, Mapping[str, CountsFunction]]) -> System:
    """The figures of a results folder, ready to be resampled.

    Args:
        folder: results folder.
        name: of the system.
        functions: as `pooled_functions` gives them.

    Raises:
        InputError: it is not finished, or a file holds something else.
    """
    scores, samples = read_scores(folder), read_sample_scores(folder)
    rows, directions = samples.rows, samples.directions
    columns, pooled = _pooled(folder, scores, functions)
    for figure in directions:
        if figure in F1_PARTS and all(part in directions for part in F1_PARTS[figure]):
            parts = np.array([[row.get(part, math.nan) for part in F1_PARTS[figure]] for row in rows.values()])
            columns[figure] = Column(dict(zip(rows, f1_counts(parts), strict=True)), f1_from_counts)
        elif figure not in pooled and all(figure in row for row in rows.values()):
            counts = mean_counts([row[figure] for row in rows.values()])
            columns[figure] = Column(dict(zip(rows, counts, strict=True)), mean_from_counts)
    ordered = {figure: columns[figure] for figure in directions if figure in columns}
    return System(name, list(rows), directions, ordered, _references(folder), asked(scores), metric_of_scores(scores))


def _pooled(
    folder: Path, scores: ScoresFile, functions: Mapping[str, Mapping[str, CountsFunction]]
) -> tuple[dict[str, Column], set[str]]:
    """Columns of the pooled figures whose functions are known, and the names of all that are pooled."""
    columns: dict[str, Column] = {}
    pooled: set[str] = set()
    for metric in scores.metrics:
        kept = read_metric_cache(folder, metric)
        known = functions.get(metric, {})
        for place, names in enumerate(kept.file.pooled if kept else ()):
            pooled.update(names)
            if kept is not None and any(name in known for name in names):
                counts = dict(zip(kept.sample_ids, kept.counts(place), strict=True))
                columns |= {name: Column(counts, known[name]) for name in names if name in known}
    return columns, pooled


def asked(scores: ScoresFile) -> dict[str, Any]:
    """By metric of `scores.json`, who was asked and how; the address of a server is nothing to a figure."""
    judge = {"judge": scores.judge, "splitter": scores.splitter}
    found: dict[str, Any] = {RADFACT: judge} if RADFACT in scores.metrics else {}
    for name, one in scores.metrics.items():
        model = {key: value for key, value in (one.model or {}).items() if key != "base_url"}
        said = {"model": model, "settings": one.settings, "arguments": one.arguments}
        found[name] = {**found.get(name, {}), **said} if any(said.values()) else found.get(name, {})
    return found


def _references(folder: Path) -> dict[str, str]:
    path = folder / "sentences.jsonl"
    texts: dict[str, str] = {}
    for _, row in read_jsonl(path) if path.is_file() else ():
        if row.get("side") == "reference":
            key = str(row.get("sample_id"))
            texts[key] = f"{texts.get(key, '')} {row.get('text')}"
    return {key: normalised_text(text) for key, text in texts.items()}
