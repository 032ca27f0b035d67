"""Cached results of metrics in a results folder, so that the same metric on the same input is not computed twice.

Results of the last complete run are in `metrics/`, results of the current or an interrupted run in `.pending/`.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from radfact.errors import InputError
from radfact.io.jsonl import CompressedRows, create_folder, dumps, read_json, read_jsonl, write_json, write_jsonl
from radfact.llm.cache import canonical_json
from radfact.metrics.protocol import Counts, Metric, MetricResult, PooledScore, directions_of
from radfact.records import NO_CONTEXT, Pair, Report, validate_model
from radfact.results.schema import METRICS_FOLDER, VERSION, MetricCacheFile, MetricCacheRow
from radfact.statistics.bootstrap import CountsFunction

PENDING = ".pending"

_row = TypeAdapter(tuple[str, Report, Report])


class MetricCache:
    """Results of metrics for one set of pairs, on disk.

    Args:
        folder: results folder.
        pairs: input; results of other pairs are not reused.
    """

    def __init__(self, folder: Path, pairs: Sequence[Pair]) -> None:
        self._folder, self._pairs = Path(folder), pairs
        self._input = _digest_pairs(pairs)

    def read(self, metric: Metric, identity: Mapping[str, Any] | None) -> MetricResult | None:
        """Return the cached result of a metric; None if there is none, or if it must be computed again.

        Args:
            metric: the metric.
            identity: everything that determines its result; None disables the cache.
        """
        key = self._key(identity)
        if key is None:
            return None
        for folder in (self._folder / PENDING, self._folder):
            with suppress(InputError):
                cached = read_metric_cache(folder, metric.name)
                if cached is not None and cached.file.key == key and cached.is_of(self._pairs):
                    break
        else:
            return None
        result = cached.to_result(metric.pooled)
        # A server that was unavailable may be back; its earlier responses are in the response cache.
        return (
            None if result is None or result.failures or (result.repeats and result.repeats.partly_failed) else result
        )

    def write(self, metric: Metric, identity: Mapping[str, Any] | None, result: MetricResult) -> None:
        """Write the result of a metric to `.pending/`; `publish_metrics` adds it to the files of the complete run.

        Args:
            metric: that was computed.
            identity: everything that determines its result; None disables the cache.
            result: of the metric.
        """
        path = self._folder / PENDING / METRICS_FOLDER / f"{metric.name}.json"
        path.unlink(missing_ok=True)
        groups: dict[int, list[str]] = {}
        for name, pooled in result.pooled.items():
            groups.setdefault(id(pooled.counts), []).append(name)
        tables = [result.pooled[names[0]].counts for names in groups.values()]

        def row(index: int, pair: Pair) -> dict[str, Any]:
            scores = {name: float(column[index]) for name, column in result.values.items()}
            counts = [list(map(float, table[index])) for table in tables]
            return {
                "sample_id": pair.sample_id,
                "scores": {name: None if math.isnan(value) else value for name, value in scores.items()},
                "counts": [[None if math.isnan(value) else value for value in row] for row in counts],
                "failure": result.failures.get(index),
                "details": result.details[index] if result.details else {},
            }

        write_jsonl(path.with_suffix(".jsonl"), (row(index, pair) for index, pair in enumerate(self._pairs)))
        file = MetricCacheFile(
            key=self._key(identity),
            scores=directions_of(metric),
            pooled=list(groups.values()),
            usage=dict(result.usage),
            usage_by_role={role: dict(usage) for role, usage in result.usage_by_role.items()},
            counts=dict(result.counts),
            has_details=bool(result.details),
            repeats=result.repeats,
        )
        write_json(path, file.model_dump(mode="json"))

    def _key(self, identity: Mapping[str, Any] | None) -> str | None:
        if identity is None:
            return None
        return hashlib.sha256(canonical_json({**identity, "input": self._input, "schema": VERSION})).hexdigest()


@dataclass(frozen=True, slots=True)
class CachedMetric:
    """The cached result of a metric, as stored on disk. `details` holds the details of the rows."""

    file: MetricCacheFile
    rows: Sequence[MetricCacheRow]
    details: CompressedRows

    @property
    def sample_ids(self) -> list[str]:
        """Ids in the order of the rows."""
        return [row.sample_id for row in self.rows]

    def is_of(self, pairs: Sequence[Pair]) -> bool:
        """Return whether there is one row per pair, in order, all with the same scores and counts."""
        shapes = {(tuple(row.scores), tuple(map(len, row.counts))) for row in self.rows}
        groups = len(self.file.pooled)
        return (
            self.sample_ids == [pair.sample_id for pair in pairs]
            and len(shapes) == 1
            and all(len(row.counts) == groups for row in self.rows)
        )

    def counts(self, group: int) -> Counts:
        """Return the counts of one group of pooled scores, (samples, k)."""
        return np.array([list(map(_number, row.counts[group])) for row in self.rows], dtype=np.float64)

    def to_result(self, functions: Mapping[str, CountsFunction]) -> MetricResult | None:
        """Return the result as the metric gave it; None if a pooled score has no function.

        Args:
            functions: of the pooled scores, by name.
        """
        pooled = {}
        for group, names in enumerate(self.file.pooled):
            counts = self.counts(group)
            for name in names:
                if name not in functions:
                    return None
                pooled[name] = PooledScore(counts, functions[name])
        names = list(self.rows[0].scores) if self.rows else []
        return MetricResult(
            {name: [_number(row.scores[name]) for row in self.rows] for name in names},
            pooled=pooled,
            details=self.details if self.file.has_details else (),
            failures={index: row.failure for index, row in enumerate(self.rows) if row.failure is not None},
            usage=self.file.usage,
            usage_by_role=self.file.usage_by_role,
            counts=self.file.counts,
            repeats=self.file.repeats,
        )


def read_metric_cache(folder: Path, name: str) -> CachedMetric | None:
    """Read the cached result of a metric from a results folder; None if there is none, or if it is incomplete.

    Args:
        folder: results folder.
        name: of the metric.

    Raises:
        InputError: a file does not match its schema.
    """
    path = folder / METRICS_FOLDER / f"{name}.json"
    if not path.is_file():
        return None
    lines = path.with_suffix(".jsonl")
    rows, details = [], CompressedRows()
    for line, values in read_jsonl(lines):
        row = validate_model(MetricCacheRow, values, file=lines, line=line)
        details.append(row.details)
        rows.append(row.model_copy(update={"details": {}}))
    return CachedMetric(validate_model(MetricCacheFile, read_json(path), file=path), rows, details)


def _digest_pairs(pairs: Sequence[Pair]) -> str:
    """Return the SHA-256 digest of the pairs as a JSON list, without holding the list in memory."""
    text = hashlib.sha256(b"[")
    for index, pair in enumerate(pairs):
        row = _row.dump_python((pair.sample_id, pair.candidate, pair.reference), mode="json", exclude_none=True)
        if pair.context != NO_CONTEXT:
            row = [*row, asdict(pair.context)]
        text.update(b", " if index else b"")
        text.update(dumps(row).encode(errors="replace"))
    text.update(b"]")
    return text.hexdigest()


def publish_metrics(results: Path, target: Path, names: Iterable[str] | None) -> None:
    """Add the cached results of metrics to the files of a complete run, as hard links if possible.

    Args:
        results: results folder.
        target: folder of the new files, in which `metrics/` is created.
        names: metrics whose results are added, if there are any; None for all.
    """
    copied = target / METRICS_FOLDER
    for folder in (results, results / PENDING):
        for path in sorted((folder / METRICS_FOLDER).glob("*.json*")):
            if path.suffix in (".json", ".jsonl") and (names is None or path.stem in names):
                create_folder(copied)
                (copied / path.name).unlink(missing_ok=True)
                try:
                    (copied / path.name).hardlink_to(path)
                except OSError:  # a file system without hard links
                    shutil.copyfile(path, copied / path.name)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
