"""The scores that a model card reports, from results folders and checks of judges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_json
from radfact.judges.check import confusion_accuracy
from radfact.results.reader import read_run, read_scores
from radfact.results.schema import RADFACT, describe_models, metric_of_scores
from radfact.statistics.proportions import wilson_interval

_CHECK_SCORES = ("precision", "recall", "f1", "evidence_f1")


class CardScore(NamedTuple):
    """A score of a model card.

    Attributes:
        name: of the score.
        value: on the test set.
        low, high: 95% interval; None if it is not known.
        n: samples with a value; None if it is not known.
        unit: range or unit; None for 0 to 1.
        judge: judge or language model that it was computed with; None without one.
    """

    name: str
    value: float
    low: float | None
    high: float | None
    n: int | None
    unit: str | None = None
    judge: str | None = None

    @property
    def interval(self) -> str:
        """The interval as text."""
        return "unknown" if self.low is None or self.high is None else f"{self.low:.3f} to {self.high:.3f}"


@dataclass(frozen=True)
class TestScores:
    """Scores on one test set.

    Attributes:
        name: of the test set, as its user gives it; None if it is not known.
        scores: scores with a value.
        notes: sentences on how they were computed, and on scores without a value.
    """

    __test__ = False  # pytest collects classes with this beginning

    name: str | None
    scores: tuple[CardScore, ...]
    notes: tuple[str, ...]


def read_test_scores(text: str, fingerprint: str) -> TestScores:
    """Read the scores of a model."""
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
    rows = tuple(
        CardScore(label, s.point, s.low, s.high, s.n, s.unit, judges.get(metrics.get(label, RADFACT)))
        for label, s in scores.scores.items()
        if s.point is not None
    )
    counts = scores.counts
    notes = [f"{counts.get('scored', 'unknown')} of {counts.get('samples', 'unknown')} samples are scored."]
    by = scores.resampling.by if scores.resampling else None
    units = "samples" if by is None else f"groups of samples with the same `{by}`"
    notes.append(f"Intervals are 95% bootstrap intervals over {units if scores.resampling else 'unknown units'}.")
    if not models:
        notes.append(
            "The drafts do not name their model, so it is not verified that these scores belong to this model."
        )
    if empty := [label for label, s in scores.scores.items() if s.point is None]:
        notes.append(f"Scores without a value: {', '.join(f'`{label}`' for label in empty)}.")
    notes += [f"`{metric}` is computed with `{judge}`." for metric, judge in judges.items()]
    notes += [f"`{metric}` was not computed." for metric in scores.unavailable]
    return TestScores(name or None, rows, tuple(notes))


def _read_check(name: str | None, file: Path) -> TestScores:
    check = read_json(file)
    try:
        confusion, n = check["confusion"], int(check["n"])
        accuracy = confusion_accuracy(confusion)
        rest = list(_check_scores(check, n))
    except (TypeError, KeyError, ValueError):
        raise InputError("expected the file of radfact judge-check", code=ErrorCode.INVALID_FORMAT, file=file) from None
    rows = rest
    if accuracy is not None:
        low, high = wilson_interval(round(accuracy * n), n) or (None, None)
        rows = [CardScore("accuracy", accuracy, low, high, n), *rest]
    notes = (
        f"{n} labeled judgments, {check.get('failures', 'unknown')} without a valid verdict.",
        "The interval of the accuracy is a 95% Wilson interval, which assumes independent judgments.",
        "The file does not identify the judge's weights, so it is not verified that these scores belong to this model.",
    )
    return TestScores(name, tuple(rows), notes)


def _check_scores(check: dict[str, Any], n: int) -> Iterator[CardScore]:
    for name in _CHECK_SCORES:
        if check[name] is not None:
            yield CardScore(name, float(check[name]), None, None, n)


def without_paths(name: str) -> str:
    """Return the name of a judge without the folders of its path on this machine."""
    kind, colon, rest = name.partition(":")
    return f"{kind}:{Path(rest).name}" if colon and kind == "vllm" else name
