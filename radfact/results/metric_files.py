"""Results of the metrics in a results folder: `metrics/NAME.json` and `metrics/NAME.jsonl`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from radfact.io.jsonl import read_json, read_jsonl, write_json, write_jsonl
from radfact.metrics.protocol import Counts, Metric, MetricResult, directions_of
from radfact.records import Pair, validate_model
from radfact.results.schema import METRICS_FOLDER, RADFACT, MetricFile, MetricRow

_IN_OTHER_FILES = ("counts", "sentences", "removed")
"""Details of RadFact that are in `samples.jsonl`, `sentences.jsonl` and `removed.jsonl`."""


@dataclass(frozen=True, slots=True)
class PooledCounts:
    """Counts (samples, k) of pooled scores that share them."""

    names: Sequence[str]
    sample_ids: Sequence[str]
    counts: Counts


def write_metric_files(folder: Path, metric: Metric, result: MetricResult, pairs: Sequence[Pair]) -> None:
    """Write the result of a metric to a results folder."""
    groups: dict[int, list[str]] = {}
    for name, pooled in result.pooled.items():
        groups.setdefault(id(pooled.counts), []).append(name)
    tables = [result.pooled[names[0]].counts for names in groups.values()]

    def rows() -> Iterator[dict[str, Any]]:
        for index, pair in enumerate(pairs):
            details = result.details[index] if result.details else {}
            if metric.name == RADFACT:
                details = {name: value for name, value in details.items() if name not in _IN_OTHER_FILES}
            yield {
                "sample_id": pair.sample_id,
                "scores": {name: _json_number(column[index]) for name, column in result.values.items()},
                "counts": [list(map(_json_number, table[index])) for table in tables],
                "failure": result.failures.get(index),
                "details": details,
            }

    write_jsonl(_path(folder, metric.name, ".jsonl"), rows())
    file = MetricFile(
        scores=directions_of(metric),
        pooled=list(groups.values()),
        usage=dict(result.usage),
        usage_by_role={role: dict(usage) for role, usage in result.usage_by_role.items()},
        counts=dict(result.counts),
        has_details=bool(result.details),
        repeats=result.repeats,
    )
    write_json(_path(folder, metric.name, ".json"), file.model_dump(mode="json"))


def read_pooled_counts(folder: Path, name: str) -> list[PooledCounts]:
    """Read the counts of the pooled scores of a metric from a results folder."""
    description, lines = _path(folder, name, ".json"), _path(folder, name, ".jsonl")
    if not description.is_file():
        return []
    groups = validate_model(MetricFile, read_json(description), file=description).pooled
    if not groups:
        return []
    rows = [validate_model(MetricRow, values, file=lines, line=line) for line, values in read_jsonl(lines)]
    ids = [row.sample_id for row in rows]
    tables = ([list(map(_number, row.counts[index])) for row in rows] for index in range(len(groups)))
    return [
        PooledCounts(names, ids, np.array(table, dtype=np.float64)) for names, table in zip(groups, tables, strict=True)
    ]


def _path(folder: Path, name: str, suffix: str) -> Path:
    return folder / METRICS_FOLDER / f"{name}{suffix}"


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _json_number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
