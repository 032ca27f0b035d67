"""The results folder of several metrics: what each said, kept as soon as it is done, and all of it together."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from radfact.errors import InputError
from radfact.html.green_summary import SUMMARY_FILE
from radfact.html.markup import Row
from radfact.io.jsonl import dumps, read_json, read_jsonl, write_json, write_jsonl
from radfact.io.pairs import Pair
from radfact.llm.cache import canonical_json
from radfact.metrics.protocol import Counts, Metric, Pooled, Scored
from radfact.metrics.registry import is_ours
from radfact.records import Report, Sentence, digest, validated
from radfact.results.evaluation import Evaluation, MetricRun
from radfact.results.radfact_writer import sentence_row
from radfact.scoring.sample import SentenceScore, Side
from radfact.statistics.bootstrap import CountsFunction, Direction

RADFACT = "radfact"
_COUNTED = ("calls", "cached", "tokens_in", "tokens_out", "repairs", "retries", "failures")
KEPT = "metrics"
"""Folder in the results folder: a metric's `NAME.jsonl` has a line a sample (figures, counts, details), and
`NAME.json`, written after it, says what it was computed from."""


class Store:
    """What metrics said of some pairs, on disk."""

    def __init__(self, folder: Path, pairs: Sequence[Pair]) -> None:
        """Take the results folder, and the pairs that decide what of it can be used."""
        self._folder, self._pairs = Path(folder), pairs
        rows = [[one.sample_id, _plain(one.candidate), _plain(one.reference)] for one in pairs]
        self._input = hashlib.sha256(dumps(rows).encode(errors="replace")).hexdigest()

    def read(self, metric: Metric, identity: Mapping[str, Any] | None) -> Scored | None:
        """What a metric said of the same pairs, all of which it could score; None where it must be asked (again).

        Args:
            metric: to be asked otherwise.
            identity: all that decides what it says; one that cannot be told is asked.
        """
        key = self._key(identity)
        if key is None:
            return None
        try:
            kept = read_kept(self._folder, metric.name)
        except InputError:
            return None
        if kept is None or kept.record.get("key") != key or not kept.is_of(self._pairs):
            return None
        scored = kept.scored(getattr(metric, "pooled", {}))
        # A server that was away may be there again; answers that were had are in the cache.
        return None if scored is None or scored.failures else scored

    def write(self, metric: Metric, identity: Mapping[str, Any] | None, scored: Scored) -> None:
        """Keep what a metric said; replaced when the same metric is done again."""
        path = self._folder / KEPT / f"{metric.name}.json"
        path.unlink(missing_ok=True)
        groups: dict[int, list[str]] = {}
        for name, pooled in scored.pooled.items():
            groups.setdefault(id(pooled.counts), []).append(name)
        counts = [scored.pooled[names[0]].counts for names in groups.values()]
        write_jsonl(
            path.with_suffix(".jsonl"),
            (
                {
                    "sample_id": pair.sample_id,
                    "figures": {name: _finite(column[place]) for name, column in scored.values.items()},
                    "counts": [[_finite(value) for value in table[place]] for table in counts],
                    "failure": scored.failures.get(place),
                    "details": scored.details[place] if scored.details else {},
                }
                for place, pair in enumerate(self._pairs)
            ),
        )
        record = {
            "key": self._key(identity),
            "figures": dict(metric.figures),
            "pooled": list(groups.values()),
            "usage": dict(scored.usage),
            "has_details": bool(scored.details),
        }
        write_json(path, record)

    def _key(self, identity: Mapping[str, Any] | None) -> str | None:
        if identity is None:
            return None
        return hashlib.sha256(canonical_json({**identity, "input": self._input})).hexdigest()


@dataclass(frozen=True, slots=True)
class Kept:
    """What a metric said, as it stands in a results folder."""

    record: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]

    @property
    def sample_ids(self) -> list[str]:
        """In the order of the rows."""
        return [str(row["sample_id"]) for row in self.rows]

    def is_of(self, pairs: Sequence[Pair]) -> bool:
        """Whether there is a row of the same figures and counts a pair, in their order."""
        shapes = {(tuple(row["figures"]), tuple(map(len, row["counts"]))) for row in self.rows}
        groups = len(self.record["pooled"])
        return (
            self.sample_ids == [pair.sample_id for pair in pairs]
            and len(shapes) == 1
            and all(len(row["counts"]) == groups for row in self.rows)
        )

    def counts(self, place: int) -> Counts:
        """(samples, k) of one group of pooled figures, by its place in the record."""
        return np.array([list(map(_number, row["counts"][place])) for row in self.rows], dtype=np.float64)

    def scored(self, functions: Mapping[str, CountsFunction]) -> Scored | None:
        """As the metric gave it; None where a pooled figure has no function any more.

        Args:
            functions: of the pooled figures, by name.
        """
        pooled = {}
        for place, names in enumerate(self.record["pooled"]):
            counts = self.counts(place)
            for name in names:
                if name not in functions:
                    return None
                pooled[name] = Pooled(counts, functions[name])
        names = self.rows[0]["figures"] if self.rows else {}
        return Scored(
            {name: [_number(row["figures"][name]) for row in self.rows] for name in names},
            pooled=pooled,
            details=[row["details"] for row in self.rows] if self.record["has_details"] else (),
            failures={place: row["failure"] for place, row in enumerate(self.rows) if row["failure"] is not None},
            usage=self.record["usage"],
        )


class _Record(Row):
    key: str | None
    figures: dict[str, Direction]
    pooled: list[list[str]]
    usage: dict[str, int]
    has_details: bool


class _KeptRow(Row):
    sample_id: str
    figures: dict[str, float | None]
    counts: list[list[float | None]]
    failure: str | None
    details: dict[str, Any]


def read_kept(folder: Path, name: str) -> Kept | None:
    """What a metric left in a results folder; None where it left nothing, or was cut short.

    Args:
        folder: the results folder.
        name: of the metric.

    Raises:
        InputError: a file holds something else.
    """
    path = folder / KEPT / f"{name}.json"
    if not path.is_file():
        return None
    record = validated(_Record, read_json(path), file=path)
    lines = path.with_suffix(".jsonl")
    rows = [validated(_KeptRow, row, file=lines, line=line).model_dump() for line, row in read_jsonl(lines)]
    return Kept(record.model_dump(), rows)


def write_evaluation(evaluation: Evaluation, folder: Path, run: Mapping[str, Any] | None = None) -> None:
    """Write `samples.jsonl`, `sentences.jsonl`, `run.json` and, last of all, `scores.json`, each whole or not at all.

    Where RadFact is among the metrics, its columns and its sentences are as `radfact score` writes them; otherwise
    `sentences.jsonl` holds the reports as they are, without verdicts.

    Args:
        evaluation: as scored.
        folder: results folder, made if it is not there.
        run: what else `run.json` should hold, JSON values only.
    """
    for name in ("scores.json", "report.html", SUMMARY_FILE):
        (folder / name).unlink(missing_ok=True)
    _leave_only(evaluation, folder / KEPT)
    radfact = evaluation.runs.get(RADFACT)
    details = radfact.scored.details if radfact else ()
    who = evaluation.settings_of_radfact
    write_jsonl(folder / "samples.jsonl", _sample_rows(evaluation, details))
    sentences = (row for detail in details for row in detail["sentences"]) if radfact else _reports(evaluation.pairs)
    write_jsonl(folder / "sentences.jsonl", sentences)
    spent = {name: _spent(one) for name, one in evaluation.runs.items()}
    options = {**(run or {}).get("options", {}), **who.pop("options", {}), **evaluation.options}
    counts = {name: sum(usage.get(name, 0) for usage in spent.values()) for name in _COUNTED}
    made = {name: {"seconds": one.seconds, "reused": one.reused} for name, one in evaluation.runs.items()}
    write_json(
        folder / "run.json",
        {**(run or {}), **counts, "usage": spent, "metrics": made, **who, "options": options},
    )
    write_json(
        folder / "scores.json",
        {
            "figures": {name: asdict(one) for name, one in evaluation.figures.items()},
            **who,
            "counts": _counts(evaluation, details),
            "metrics": {name: _metric_record(one) for name, one in evaluation.runs.items()},
            "unavailable": dict(evaluation.unavailable),
        },
    )


def _leave_only(evaluation: Evaluation, folder: Path) -> None:
    """Take away what an earlier run left of metrics that this one was not asked for; answers stay in the cache.

    What was asked for and could not be had stays: it was paid for, and may be had again.
    """
    ours = {choice.entry.name for choice in evaluation.choices if is_ours(choice.entry)}
    if not ours.issuperset(evaluation.unavailable):
        # The files of another's metric are called as it calls itself, which is not known of one that was not made.
        return
    wanted = {*evaluation.runs, *evaluation.unavailable}
    for path in folder.glob("*.json*"):
        if path.suffix in (".json", ".jsonl") and path.stem not in wanted:
            path.unlink(missing_ok=True)


def _metric_record(run: MetricRun) -> dict[str, Any]:
    describe = getattr(run.metric, "describe", None)
    client = getattr(run.metric, "client", None)
    return {
        "figures": list(run.figures),
        "source": run.choice.entry.source,
        "failed": len(run.scored.failures),
        "model": getattr(client, "identity", None),
        **({} if describe is None or run.metric.name == RADFACT else {"settings": describe()}),
        **({"arguments": dict(run.arguments)} if run.arguments else {}),
    }


def _spent(run: MetricRun) -> dict[str, int]:
    return {name: count for name, count in run.scored.usage.items() if name not in ("planned", "done")}


def _counts(evaluation: Evaluation, details: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    total = len(evaluation.pairs) + len(evaluation.left_out)
    failed = sum(bool(one) for one in evaluation.failures)
    counts = {"samples": total, "scored": len(evaluation.pairs) - failed, "left_out": failed + len(evaluation.left_out)}
    for name in details[0]["counts"] if details else ():
        counts[name] = sum(detail["counts"][name] for detail in details)
    return counts


def _sample_rows(evaluation: Evaluation, details: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    values = evaluation.values
    for place, (pair, failures) in enumerate(zip(evaluation.pairs, evaluation.failures, strict=True)):
        # Of RadFact alone where it was scored, because `radfact export` takes its samples by it.
        failure = failures.get(RADFACT) if details else "; ".join(failures.values()) or None
        yield {
            "sample_id": pair.sample_id,
            **{name: _finite(column[place]) for name, column in values.items()},
            **(details[place]["counts"] if details else {}),
            "failure": failure,
            "failures": failures,
            "reports": evaluation.reports.get(pair.sample_id, digest(pair.candidate, pair.reference)),
        }
    zeros = dict.fromkeys(details[0]["counts"], 0) if details else {}
    for key in evaluation.left_out:
        reason = "no candidate report"
        nothing = dict.fromkeys(values)
        yield {
            "sample_id": key,
            **nothing,
            **zeros,
            "failure": reason,
            "failures": dict.fromkeys(evaluation.runs, reason),
        }


def _reports(pairs: Sequence[Pair]) -> Iterator[dict[str, Any]]:
    """Both reports of each pair as rows of `sentences.jsonl`; a narrative is one row."""
    sides: tuple[Side, ...] = ("candidate", "reference")
    for pair in pairs:
        for side in sides:
            report: Report = getattr(pair, side)
            if isinstance(report, str):
                report = [Sentence(text=report)] if report.strip() else []
            for index, one in enumerate(report):
                located = (one.boxes, one.masks, one.prior_boxes)
                yield sentence_row(SentenceScore(pair.sample_id, side, index, one.text, *located, None, (), None, None))


def _plain(report: Report) -> Any:
    return report if isinstance(report, str) else [one.model_dump(mode="json", exclude_none=True) for one in report]


def _finite(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
