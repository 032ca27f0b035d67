"""Writing a results folder."""

from __future__ import annotations

import csv
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from radfact.io.jsonl import open_atomic, write_json, write_jsonl
from radfact.io.outputs import RESULTS_FOLDER, lock_output, replace_files
from radfact.results.evaluation import EvaluationResult, MetricRun, SampleScore
from radfact.results.findings import FINDING_COLUMNS, finding_rows
from radfact.results.metric_cache import PENDING, publish_metrics
from radfact.results.schema import (
    RADFACT,
    VERSION,
    MetricRecord,
    ScoreRecord,
    ScoresFile,
)

_TOTALS = ("calls", "cached", "tokens_in", "tokens_out", "repairs", "retries", "failures")


def write_results(result: EvaluationResult, folder: Path | str, run: Mapping[str, Any] | None = None) -> None:
    """Write `samples.jsonl`, `sentences.jsonl`, `run.json`, `scores.json` and others, and the results of the metrics.

    The new files replace those of an earlier run together, once all are complete.

    Args:
        result: of an evaluation.
        folder: results folder, created if missing.
        run: further fields of `run.json` (versions, input, seconds), JSON values only.

    Raises:
        InputError: another process writes to the folder, or it contains files other than results.
    """
    with replace_results(result, Path(folder), run):
        pass


@contextmanager
def replace_results(result: EvaluationResult, folder: Path, run: Mapping[str, Any] | None = None) -> Iterator[Path]:
    """Write results like `write_results`, and yield the folder of the new files, where more files can be added.

    Args:
        result: as in `write_results`.
        folder: as in `write_results`.
        run: as in `write_results`.

    Raises:
        InputError: as in `write_results`.
    """
    with lock_output(folder, RESULTS_FOLDER):
        with replace_files(folder) as new:
            _write(result, new, run or {})
            publish_metrics(folder, new, _published(result))
            yield new
        shutil.rmtree(folder / PENDING, ignore_errors=True)


def _write(result: EvaluationResult, folder: Path, run: Mapping[str, Any]) -> None:
    write_jsonl(folder / "samples.jsonl", map(_sample_row, result.iter_samples()))
    write_jsonl(folder / "sentences.jsonl", (row.model_dump(mode="json") for row in result.iter_sentences()))
    if result.splitter is not None:
        write_jsonl(folder / "narratives.jsonl", (row.model_dump(mode="json") for row in result.iter_narratives()))
        write_jsonl(folder / "removed.jsonl", (row.model_dump(mode="json") for row in result.iter_removed()))
    if result.findings:
        with open_atomic(folder / "findings.csv") as handle:
            csv.writer(handle, lineterminator="\n").writerows([FINDING_COLUMNS, *finding_rows(result.findings)])
    record = {
        "version": VERSION,
        **run,
        **{name: sum(usage.get(name, 0) for usage in result.usage.values()) for name in _TOTALS},
        "usage": result.usage,
        "metrics": {
            name: {
                "seconds": metric_run.seconds,
                "reused": metric_run.reused,
                "variant": metric_run.metric.variant or None,
                "model": getattr(getattr(metric_run.metric, "client", None), "identity", None),
            }
            for name, metric_run in result.runs.items()
        },
        **_models(result),
        "options": {**run.get("options", {}), **result.options},
    }
    write_json(folder / "run.json", record)
    write_json(folder / "scores.json", scores_file(result).model_dump(mode="json"))


def scores_file(result: EvaluationResult) -> ScoresFile:
    """Return the content of `scores.json`."""
    deviations, units = result.repeat_sd, result.units
    return ScoresFile(
        version=VERSION,
        scores={
            name: ScoreRecord(**asdict(summary), repeat_sd=deviations.get(name), unit=units.get(name))
            for name, summary in result.summaries.items()
        },
        counts=result.counts,
        metrics={name: _metric_record(run) for name, run in result.runs.items()},
        unavailable=dict(result.unavailable),
        resampling=result.resampling,
        **_models(result),
    )


def _models(result: EvaluationResult) -> dict[str, Any]:
    return {"judge": result.judge, "splitter": result.splitter} if RADFACT in result.runs else {}


def _sample_row(sample: SampleScore) -> dict[str, Any]:
    return {
        "sample_id": sample.sample_id,
        "cluster": sample.cluster,
        **{name: None if math.isnan(value) else float(value) for name, value in sample.scores.items()},
        **sample.counts,
        "failure": sample.failure,
        "failures": sample.failures,
        "reports": sample.reports,
    }


def _metric_record(run: MetricRun) -> MetricRecord:
    client, repeats = getattr(run.metric, "client", None), run.result.repeats
    return MetricRecord(
        scores=tuple(run.directions),
        source=run.metric.source,
        variant=run.metric.variant or None,
        failed=len(run.result.failures),
        repeats=None if repeats is None else repeats.count,
        partly_failed=0 if repeats is None else repeats.partly_failed,
        model=getattr(client, "identity", None),
        settings=None if run.metric.name == RADFACT else run.metric.describe(),
        arguments=dict(run.arguments) or None,
    )


def _published(result: EvaluationResult) -> set[str] | None:
    """Return the metrics whose cached results are kept, None for all; responses of models stay in their cache.

    Results of a selected metric that is unavailable stay: they were paid for, and it may be available again.
    """
    builtin = {selection.entry.name for selection in result.selections if selection.entry.is_builtin}
    # The files of a custom metric have its own name, which is not known if it could not be created.
    return {*result.runs, *result.unavailable} if builtin.issuperset(result.unavailable) else None
