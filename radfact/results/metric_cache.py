"""Results of metrics on disk, so that the same metric on the same input is not computed twice.

The results of a finished run are in `metrics/` by name, those of an interrupted run in `.pending/` by key. A result is
reused only if its key, made of everything that determines it, is that of this run.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from radfact.errors import InputError
from radfact.io.jsonl import CompressedRows, dumps, read_json, read_jsonl, write_json, write_jsonl
from radfact.metrics.protocol import Counts, Metric, MetricResult, PooledScore, directions_of
from radfact.records import NO_CONTEXT, Pair, Report, validate_model
from radfact.results.schema import METRICS_FOLDER, RADFACT, VERSION, MetricCacheFile, MetricCacheRow
from radfact.statistics.bootstrap import CountsFunction

PENDING = ".pending"
_IN_OTHER_FILES = ("counts", "sentences", "removed")
"""Details of RadFact that are in `samples.jsonl`, `sentences.jsonl` and `removed.jsonl`."""


class MetricCache:
    """Results of metrics for one set of pairs in a results folder.

    RadFact is not among them: its rows are in other files, and the responses of its judge have their own cache.
    """

    def __init__(self, folder: Path, pairs: Sequence[Pair]) -> None:
        self._folder, self._pairs, self._input = folder, pairs, ""

    def read(self, metric: Metric, identity: Mapping[str, Any] | None) -> tuple[MetricResult, Path] | None:
        """Return the result of a metric with this identity and the path of its files, if it can be reused."""
        if (key := self._key(metric, identity)) is None:
            return None
        for path in (self._folder / PENDING / key, self._folder / METRICS_FOLDER / metric.name):
            with suppress(InputError):
                cached = read_metric_files(path)
                if cached is None or cached.file.key != key or not cached.is_of(self._pairs):
                    continue
                result = cached.to_result(metric.pooled)
                # A server that was unavailable may be back; its earlier responses are in the response cache.
                if result is not None and not result.failures and not (result.repeats and result.repeats.partly_failed):
                    return result, path
        return None

    def write(self, metric: Metric, identity: Mapping[str, Any] | None, result: MetricResult) -> Path | None:
        """Write the result of a metric and return the path of its files, unless its identity is not known."""
        if (key := self._key(metric, identity)) is None:
            return None
        path = self._folder / PENDING / key
        write_metric_files(path, metric, result, self._pairs, key)
        return path

    def _key(self, metric: Metric, identity: Mapping[str, Any] | None) -> str | None:
        if identity is None or metric.name == RADFACT:
            return None
        self._input = self._input or _digest_pairs(self._pairs)
        content = {**identity, "input": self._input, "schema": VERSION}
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def write_metric_files(
    path: Path, metric: Metric, result: MetricResult, pairs: Sequence[Pair], key: str | None = None
) -> None:
    """Write the result of a metric to files with the suffixes `.jsonl` and, last, `.json`."""
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

    write_jsonl(path.with_name(f"{path.name}.jsonl"), rows())
    file = MetricCacheFile(
        key=key,
        scores=directions_of(metric),
        pooled=list(groups.values()),
        usage=dict(result.usage),
        usage_by_role={role: dict(usage) for role, usage in result.usage_by_role.items()},
        counts=dict(result.counts),
        has_details=bool(result.details),
        repeats=result.repeats,
    )
    write_json(path.with_name(f"{path.name}.json"), file.model_dump(mode="json"))


@dataclass(frozen=True, slots=True)
class CachedMetric:
    """The result of a metric as stored on disk. `details` holds the details of the rows."""

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
        is_uniform = len(shapes) == 1 and all(len(counts) == len(self.file.pooled) for _, counts in shapes)
        return is_uniform and self.sample_ids == [pair.sample_id for pair in pairs]

    def counts(self, group: int) -> Counts:
        """Return the counts of one group of pooled scores, (samples, k)."""
        return np.array([list(map(_number, row.counts[group])) for row in self.rows], dtype=np.float64)

    def to_result(self, functions: Mapping[str, CountsFunction]) -> MetricResult | None:
        """Return the result as the metric gave it; None if a pooled score has no function."""
        pooled: dict[str, PooledScore] = {}
        for group, names in enumerate(self.file.pooled):
            if not functions.keys() >= set(names):
                return None
            counts = self.counts(group)
            pooled |= {name: PooledScore(counts, functions[name]) for name in names}
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
    """Read the result of a metric from a results folder; None if there is none."""
    return read_metric_files(folder / METRICS_FOLDER / name)


def read_metric_files(path: Path) -> CachedMetric | None:
    """Read the files of `write_metric_files`."""
    description, lines = path.with_name(f"{path.name}.json"), path.with_name(f"{path.name}.jsonl")
    if not description.is_file():
        return None
    rows, details = [], CompressedRows()
    for line, values in read_jsonl(lines):
        row = validate_model(MetricCacheRow, values, file=lines, line=line)
        details.append(row.details)
        rows.append(row.model_copy(update={"details": {}}))
    return CachedMetric(validate_model(MetricCacheFile, read_json(description), file=description), rows, details)


def _digest_pairs(pairs: Sequence[Pair]) -> str:
    """Return the SHA-256 digest of everything that a metric can read of the pairs."""
    text = hashlib.sha256()
    for pair in pairs:
        context = None if pair.context == NO_CONTEXT else asdict(pair.context)
        row = [pair.sample_id, _plain(pair.candidate), _plain(pair.reference), context]
        text.update(f"{dumps(row)}\n".encode(errors="replace"))
    return text.hexdigest()


def _plain(report: Report) -> Any:
    if isinstance(report, str):
        return report
    return [sentence.model_dump(mode="json", exclude_none=True) for sentence in report]


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _json_number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
