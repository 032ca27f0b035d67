"""Exports of a results folder: scores in the layout of the published command, and reports in that of ReXrank."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, NonNegativeInt

from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import write_json
from radfact.io.outputs import record_files
from radfact.io.pairs import read_candidates_and_references, read_pairs
from radfact.io.rexrank import read_rexrank, write_rexrank
from radfact.metrics.radfact.scores import F1_PARTS, PARTS, SCORES
from radfact.records import NO_CLUSTERS, digest, validate_model
from radfact.results.evaluation import json_number
from radfact.results.reader import iter_samples, read_digests, read_run, read_scores
from radfact.results.schema import RadFactSampleRow, ScoresFile
from radfact.statistics.bootstrap import bootstrap, summarize
from radfact.statistics.clusters import clusters_of

# The published names, in the published order, and the columns of samples.jsonl that hold their values.
_PARTS = ("logical", "spatial", "grounding")
_MEANS = {f"{part}_{kind}": f"{part}_{kind}" for part in _PARTS for kind in ("precision", "recall")} | {
    f"num_{side}_phrases{kind}": f"{side}_sentences{kind}" for kind in ("", "_with_boxes") for side in PARTS
}
_F1 = {f"{part}_f1": F1_PARTS[f"{part}_f1"] for part in _PARTS}
_QUANTILES = {"p2.5th": 0.025, "p25th": 0.25, "median": 0.5, "p75th": 0.75, "p97.5th": 0.975}
_TOLERANCE = 1e-9


class _Draws(BaseModel):
    bootstrap: NonNegativeInt
    seed: NonNegativeInt
    numbered: bool = False


def export(folder: Path | str, path: Path | str | None = None) -> Path:
    """Write the scores of a results folder as the published command writes them: one object with flat keys.

    A score has the keys `SCORE/mean`, `/stderr`, `/p2.5th`, `/p25th`, `/median`, `/p75th` and `/p97.5th`, over the
    bootstrap replicates of the run, which draw samples, as published, or the clusters of the run. Keys without the name
    of a score are those of the logical F1. A run without replicates has one key per score. Samples that are excluded
    for a failed judgment are the published `num_invalid_processed_samples`, those without two reports to judge are not
    counted. Values are not rounded; where the published command writes NaN, this one writes null. Counters of the
    published client alone (phrases that a model rewrote, calls of its splitter) are absent.
    """
    folder = Path(folder)
    scores, run = read_scores(folder), read_run(folder)
    draws = validate_model(_Draws, run.options, file=folder / "run.json", field="options")
    samples = [row for row in iter_samples(folder, RadFactSampleRow) if row.is_judged]
    ids = [sample.reports or "" if draws.numbered else sample.sample_id for sample in samples]
    clusters = clusters_of(None, [sample.cluster for sample in samples], ids)
    settings = {"replicates": draws.bootstrap, "seed": draws.seed, "clusters": clusters}
    _check_consistency(scores, samples, settings, folder)
    stem = Path(run.input.files[0]).stem if run.input.files else folder.resolve().name
    # The published command writes zeros for scores of boxes in narratives.
    boxes = any(sample.candidate_sentences_with_boxes or sample.reference_sentences_with_boxes for sample in samples)
    flat = _flat(samples, settings, zero_boxes=scores.splitter is not None and not boxes)
    return _write(folder / f"radfact_scores_{stem}.json", path, lambda path: write_json(path, flat))


def export_rexrank(folder: Path | str, path: Path | str | None = None) -> Path:
    """Write the scored reports, read again from the input files, as a ReXrank file with predictions."""
    folder = Path(folder)
    run = read_run(folder)
    digests = {key: reports for key, reports in read_digests(folder).items() if reports is not None}
    files = [Path(file) for file in run.input.files]
    if not files:
        message = "expected the input files of the run, found none; only runs on files can be exported"
        raise InputError(message, code=ErrorCode.MISSING_FIELD, file=folder / "run.json", field="input.files")
    how = {"missing": "refuse", "section": None, "columns": None} | run.options
    how = {name: how[name] for name in ("missing", "section", "columns")} | {"cluster": NO_CLUSTERS}
    pairs = read_pairs(files[0], **how) if len(files) == 1 else read_candidates_and_references(*files, **how)
    by_id = {pair.sample_id: pair for pair in pairs}
    for key, expected in digests.items():
        pair = by_id.get(key)
        if pair is None or expected != digest(pair.candidate, pair.reference):
            message = f"expected the scored reports of sample '{key}', found changed ones or none; score the file again"
            raise InputError(message, code=ErrorCode.MISMATCH, file=files[0])
    scored = replace(pairs, pairs=tuple(by_id[key] for key in digests))
    default = folder / f"rexrank_{files[0].stem}.json"
    return _write(
        default, path, lambda path: write_rexrank(scored, path, read_rexrank(files[-1], how["columns"] or {}))
    )


def _write(default: Path, path: Path | str | None, write: Callable[[Path], None]) -> Path:
    """Write an export to a path, or to a file of the results folder, which the next run then replaces."""
    write(chosen := default if path is None else Path(path))
    if path is None:
        record_files(default.parent, [chosen])
    return chosen


def _check_consistency(
    scores: ScoresFile, samples: Sequence[RadFactSampleRow], settings: dict[str, Any], folder: Path
) -> None:
    """Check that the scores are those of these samples and options, or the export would have other numbers."""
    columns = {name: _column(samples, name) for name in _MEANS if name in SCORES}
    for name, summary in summarize(columns, f1=_F1, **settings).items():
        for kind in ("point", "median"):
            actual, expected = getattr(scores.scores.get(name), kind, None), getattr(summary, kind)
            if (actual is None) != (expected is None) or (expected is not None and abs(actual - expected) > _TOLERANCE):
                raise InputError(
                    f"samples.jsonl and the seed in run.json give {expected}, found {actual}; score the pairs again",
                    code=ErrorCode.MISMATCH,
                    file=folder / "scores.json",
                    field=f"scores.{name}.{kind}",
                )


def _flat(
    samples: Sequence[RadFactSampleRow], settings: dict[str, Any], *, zero_boxes: bool
) -> dict[str, float | None]:
    scored = [float(sample.failure is None) for sample in samples]
    values = {name: _column(samples, column) for name, column in _MEANS.items()}
    if settings["replicates"]:
        drawn = bootstrap({**values, "num_samples": scored}, f1=_F1, **settings)
    else:
        points = summarize({**values, "num_samples": scored}, f1=_F1, **settings)
        drawn = {name: np.array([np.nan if score.point is None else score.point]) for name, score in points.items()}
    # Moved to the end, because an F1 precedes it in the published order.
    drawn["num_samples"] = drawn.pop("num_samples") * len(samples)
    width = len(drawn["num_samples"])
    failed = sum(sample.failed_sentences for sample in samples)
    judged = sum(sample.candidate_sentences + sample.reference_sentences for sample in samples)
    drawn["num_llm_failures"] = np.full(width, float(failed))
    drawn["num_llm_success"] = np.full(width, float(judged - failed))
    drawn["num_invalid_processed_samples"] = len(samples) - drawn["num_samples"]
    if zero_boxes:
        drawn |= {name: np.zeros(width) for name in drawn if name.startswith(("spatial", "grounding"))}
    if not settings["replicates"]:
        return {name: json_number(values[0]) for name, values in drawn.items()}
    flat = _statistics(drawn["logical_f1"])
    for name, replicates in drawn.items():
        flat |= {f"{name}/{kind}": value for kind, value in _statistics(replicates).items()}
    return flat


def _column(samples: Sequence[RadFactSampleRow], name: str) -> list[float]:
    values = [getattr(sample, name) if sample.failure is None else None for sample in samples]
    return [math.nan if value is None else float(value) for value in values]


def _statistics(replicates: NDArray[np.float64]) -> dict[str, float | None]:
    known = replicates[~np.isnan(replicates)]
    if not known.size:
        return dict.fromkeys(["mean", "stderr", *_QUANTILES])
    quantiles = np.quantile(known, list(_QUANTILES.values())).tolist()
    # The population's deviation, as published.
    return {"mean": float(known.mean()), "stderr": float(known.std()), **dict(zip(_QUANTILES, quantiles, strict=True))}
