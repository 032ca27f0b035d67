"""Writing a results folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from radfact.io.csv_tables import write_csv
from radfact.io.jsonl import write_json, write_jsonl
from radfact.io.outputs import RESULTS_FOLDER, lock_output, replace_files
from radfact.metrics.protocol import Metric, MetricResult, directions_of, group_by_counts
from radfact.records import Pair
from radfact.results.evaluation import EvaluationResult, MetricRun, json_number
from radfact.results.schema import METRICS_FOLDER, RADFACT, VERSION, MetricFile, MetricRecord, ScoreRecord, ScoresFile

_IN_OTHER_FILES = ("counts", "sentences", "removed")
"""Details of RadFact that are in `samples.jsonl`, `sentences.jsonl` and `removed.jsonl`."""
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
    with lock_output(Path(folder), RESULTS_FOLDER), replace_files(Path(folder)) as new:
        write_files(result, new, run or {})


def write_files(result: EvaluationResult, folder: Path, run: Mapping[str, Any]) -> None:
    """Write the files of `write_results` to a folder."""
    write_jsonl(folder / "samples.jsonl", (sample.row() for sample in result.iter_samples()))
    write_jsonl(folder / "sentences.jsonl", result.sentence_rows())
    if result.splitter is not None:
        write_jsonl(folder / "narratives.jsonl", result.narrative_rows())
        write_jsonl(folder / "removed.jsonl", result.removed_rows())
    if result.findings:
        from radfact.findings.details import FINDING_COLUMNS, finding_rows

        write_csv(folder / "findings.csv", FINDING_COLUMNS, finding_rows(result.findings))
    for name, metric_run in result.runs.items():
        # All that a whole RadFact without repeats has is in the files above.
        if name != RADFACT or metric_run.result.repeats or not metric_run.selection.is_whole:
            _write_metric(folder / METRICS_FOLDER / name, metric_run.metric, metric_run.result, result.pairs)
    record = {
        "version": VERSION,
        **run,
        **{name: sum(usage.get(name, 0) for usage in result.usage.values()) for name in _TOTALS},
        "usage": result.usage,
        "metrics": {
            name: {
                "seconds": metric_run.seconds,
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


def _write_metric(path: Path, metric: Metric, result: MetricResult, pairs: Sequence[Pair]) -> None:
    """Write the result of a metric to files with the suffixes `.jsonl` and `.json`."""
    groups = group_by_counts(result.pooled)

    def rows() -> Iterator[dict[str, Any]]:
        for index, pair in enumerate(pairs):
            details = result.details[index] if result.details else {}
            if metric.name == RADFACT:
                details = {name: value for name, value in details.items() if name not in _IN_OTHER_FILES}
            yield {
                "sample_id": pair.sample_id,
                "scores": {name: json_number(column[index]) for name, column in result.values.items()},
                "counts": [list(map(json_number, counts[index])) for _, counts in groups],
                "failure": result.failures.get(index),
                "details": details,
            }

    write_jsonl(path.with_name(f"{path.name}.jsonl"), rows())
    file = MetricFile(
        scores=directions_of(metric),
        pooled=[names for names, _ in groups],
        usage=dict(result.usage),
        usage_by_role={role: dict(usage) for role, usage in result.usage_by_role.items()},
        counts=dict(result.counts),
        has_details=bool(result.details),
        repeats=result.repeats,
    )
    write_json(path.with_name(f"{path.name}.json"), file.model_dump(mode="json"))


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
