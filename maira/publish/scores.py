"""The scores that a model card reports, from results folders and checks of judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_json
from radfact.judges.check import confusion_accuracy
from radfact.results.reader import read_run, read_scores
from radfact.results.schema import RADFACT, ScoreRecord, describe_models, metric_of_scores
from radfact.statistics.proportions import wilson_interval

_CHECK_SCORES = ("precision", "recall", "f1", "evidence_f1")


@dataclass(frozen=True)
class TestScores:
    """Scores on one test set.

    Attributes:
        name: of the test set, as its user gives it; None if it is not known.
        scores: scores with a value, by name.
        notes: sentences on how they were computed, and on scores without a value.
        judges: judge or language model of the scores that were computed with one.
    """

    __test__ = False  # pytest collects classes with this beginning

    name: str | None
    scores: Mapping[str, ScoreRecord]
    notes: Sequence[str]
    judges: Mapping[str, str] = field(default_factory=dict)


def read_test_scores(text: str, fingerprint: str) -> TestScores:
    """Read the scores of a model, from [NAME=]PATH."""
    name, _, path = text.rpartition("=")
    source = Path(path)
    if source.is_file():
        return _read_check(name or None, source)
    scores, run = read_scores(source), read_run(source)
    models = run.input.models
    if others := [model for model in models if model.rpartition("@")[2] != fingerprint]:
        raise InputError(
            f"expected scores of the checkpoint with the fingerprint {fingerprint}, found those of {others[0]}",
            code=ErrorCode.MISMATCH,
            file=source,
            field="models",
        )
    judges = {metric: without_paths(judge) for metric, judge in describe_models(scores).items()}
    metrics = metric_of_scores(scores)
    known = {label: score for label, score in scores.scores.items() if score.point is not None}
    counts = scores.counts
    notes = [f"{counts.get('scored', 'unknown')} of {counts.get('samples', 'unknown')} samples are scored."]
    by = scores.resampling.by if scores.resampling else None
    units = "samples" if by is None else f"groups of samples with the same `{by}`"
    notes.append(f"Intervals are 95% bootstrap intervals over {units if scores.resampling else 'unknown units'}.")
    if not models:
        notes.append(
            "The drafts do not name their model, so it is not verified that these scores belong to this model."
        )
    if empty := [label for label in scores.scores if label not in known]:
        notes.append(f"Scores without a value: {', '.join(f'`{label}`' for label in empty)}.")
    notes += [f"`{metric}` is computed with `{judge}`." for metric, judge in judges.items()]
    notes += [f"`{metric}` was not computed." for metric in scores.unavailable]
    readers = {label: judges[metric] for label in known if (metric := metrics.get(label, RADFACT)) in judges}
    return TestScores(name or None, known, notes, readers)


def _read_check(name: str | None, file: Path) -> TestScores:
    check = read_json(file)
    scores = {}
    try:
        n = int(check["n"])
        if (accuracy := confusion_accuracy(check["confusion"])) is not None:
            low, high = wilson_interval(round(accuracy * n), n) or (None, None)
            scores["accuracy"] = ScoreRecord(point=accuracy, low=low, high=high, n=n)
        scores |= {
            label: ScoreRecord(point=float(check[label]), n=n) for label in _CHECK_SCORES if check[label] is not None
        }
    except (TypeError, KeyError, ValueError):
        raise InputError("expected the file of radfact judge-check", code=ErrorCode.INVALID_FORMAT, file=file) from None
    notes = (
        f"{n} labeled judgments, {check.get('failures', 'unknown')} without a valid verdict.",
        "The interval of the accuracy is a 95% Wilson interval, which assumes independent judgments.",
        "The file does not identify the judge's weights, so it is not verified that these scores belong to this model.",
    )
    return TestScores(name, scores, notes)


def without_paths(name: str) -> str:
    """Return the name of a judge without the folders of its path on this machine."""
    kind, colon, rest = name.partition(":")
    return f"{kind}:{Path(rest).name}" if colon and kind == "vllm" else name
