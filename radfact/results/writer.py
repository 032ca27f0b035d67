"""Writing a results folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from radfact.io.jsonl import write_json, write_jsonl
from radfact.results.evaluation import EvaluationResult, MetricRun, SampleScore
from radfact.results.schema import (
    GREEN_SUMMARY_FILE,
    METRICS_FOLDER,
    RADFACT,
    VERSION,
    MetricRecord,
    ScoreRecord,
    ScoresFile,
)

_TOTALS = ("calls", "cached", "tokens_in", "tokens_out", "repairs", "retries", "failures")


def write_results(result: EvaluationResult, folder: Path | str, run: Mapping[str, Any] | None = None) -> None:
    """Write `samples.jsonl`, `sentences.jsonl`, `run.json` and, last, `scores.json`, each file atomically.

    Results of an earlier run are replaced, its page is removed.

    Args:
        result: of an evaluation.
        folder: results folder, created if missing.
        run: further fields of `run.json` (versions, input, seconds), JSON values only.
    """
    folder = Path(folder)
    # A folder with scores.json is complete: without it, an interrupted run leaves no mixture of two runs.
    for name in ("scores.json", "report.html", GREEN_SUMMARY_FILE):
        (folder / name).unlink(missing_ok=True)
    _remove_other_metrics(result, folder / METRICS_FOLDER)
    write_jsonl(folder / "samples.jsonl", map(_sample_row, result.samples))
    write_jsonl(folder / "sentences.jsonl", (row.model_dump(mode="json") for row in result.sentences))
    run = run or {}
    models: dict[str, Any] = {"judge": result.judge, "splitter": result.splitter} if RADFACT in result.runs else {}
    record = {
        "version": VERSION,
        **run,
        **{name: sum(usage.get(name, 0) for usage in result.usage.values()) for name in _TOTALS},
        "usage": result.usage,
        "metrics": {
            name: {"seconds": metric_run.seconds, "reused": metric_run.reused}
            for name, metric_run in result.runs.items()
        },
        **models,
        "options": {**run.get("options", {}), **result.options},
    }
    write_json(folder / "run.json", record)
    scores = ScoresFile(
        version=VERSION,
        scores={name: ScoreRecord.model_validate(asdict(summary)) for name, summary in result.scores.items()},
        counts=result.counts,
        metrics={name: _metric_record(run) for name, run in result.runs.items()},
        unavailable=dict(result.unavailable),
        **models,
    )
    write_json(folder / "scores.json", scores.model_dump(mode="json"))


def _sample_row(sample: SampleScore) -> dict[str, Any]:
    return {
        "sample_id": sample.sample_id,
        **{name: None if math.isnan(value) else float(value) for name, value in sample.scores.items()},
        **sample.counts,
        "failure": sample.failure,
        "failures": sample.failures,
        "reports": sample.reports,
    }


def _metric_record(run: MetricRun) -> MetricRecord:
    client = getattr(run.metric, "client", None)
    return MetricRecord(
        scores=tuple(run.directions),
        source=run.metric.source,
        failed=len(run.result.failures),
        model=getattr(client, "identity", None),
        settings=None if run.metric.name == RADFACT else run.metric.describe(),
        arguments=dict(run.arguments) or None,
    )


def _remove_other_metrics(result: EvaluationResult, folder: Path) -> None:
    """Remove the cached results of metrics that were not selected; responses of models stay in their cache.

    Results of a selected metric that is unavailable stay: they were paid for, and it may be available again.
    """
    builtin = {selection.entry.name for selection in result.selections if selection.entry.is_builtin}
    if not builtin.issuperset(result.unavailable):
        # The files of a custom metric have its own name, which is not known if it could not be created.
        return
    selected = {*result.runs, *result.unavailable}
    for path in folder.glob("*.json*"):
        if path.suffix in (".json", ".jsonl") and path.stem not in selected:
            path.unlink(missing_ok=True)
