"""Measure a judge against labeled judgments."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from radfact.errors import ErrorCode, Failure, InputError
from radfact.judges.prompt import Example, load_few_shots
from radfact.judges.protocol import Judge, Relation, Verdict, query_judge
from radfact.judges.response import match_evidence
from radfact.statistics.bootstrap import CountsFunction, harmonic_mean, summarize_counts
from radfact.statistics.clusters import clusters_of
from radfact.statistics.rater_agreement import kappa_from_counts

DEFAULT_LABELED = Path(__file__).with_name("labeled.json")
FAILED = "failed"

_SETS = {"used in development": True, "not used in development": False, "use unknown": None}

Confusion = Mapping[str, Mapping[str, int]]
"""Number of queries by label (entailment, neutral, ...), then by outcome (a status or relation, or `failed`)."""
_Rows = Sequence[tuple[Example, Verdict | Failure]]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of a judge with itself: a whole report per call against one sentence per call."""

    n: int
    share: float  # of the queries with the same status; a failure agrees with none
    accuracy_report: float
    accuracy_sentence: float


@dataclass(frozen=True, slots=True)
class JudgeCheck:
    """Scores of a judge on labeled queries, those of the entailed class; None without a denominator.

    A failed query counts as wrong, also in Cohen's kappa. `evidence_f1` is the micro F1 of evidence indices over
    entailed queries with evidence that are judged as entailed. `intervals` are 95% bootstrap intervals that draw the
    reports. `relations` counts a verdict without a relation under its status.
    """

    judge: str
    n: int
    failures: int
    accuracy: float
    precision: float | None
    recall: float | None
    f1: float | None
    evidence_f1: float | None
    kappa: float | None
    intervals: Mapping[str, tuple[float, float] | None]
    confusion: Confusion
    relations: Confusion
    by_topic: Mapping[str, Confusion]
    by_set: Mapping[str, Confusion]
    seconds: float
    calls: int
    tokens_in: int
    tokens_out: int
    agreement: Agreement | None = None


def load_labeled_queries(path: Path | str | None = None) -> list[Example]:
    """Read labeled judgments in the few-shot layout, which may have a `topic`; by default those of this package."""
    path = DEFAULT_LABELED if path is None else path
    labeled = load_few_shots(path, needs_evidence=False)
    for number, example in enumerate(labeled, start=1):
        if None in _evidence(example):
            message = f"expected sentences of the other report as evidence of phrase {number}, found other text"
            raise InputError(message, code=ErrorCode.MISMATCH, file=path)
    return labeled


def check_judge(judge: Judge, labeled: Sequence[Example]) -> JudgeCheck:
    """Run a judge on labeled queries and compute its scores; seconds and cost are without the calls for `agreement`."""
    if not labeled:
        raise InputError("expected at least one labeled judgment, found none", code=ErrorCode.EMPTY_INPUT)
    before, started = judge.usage(), time.perf_counter()
    verdicts = query_judge(judge, [example.query for example in labeled])
    seconds, after = time.perf_counter() - started, judge.usage()
    rows = list(zip(labeled, verdicts, strict=True))
    reports = ["\n".join(example.reference) for example in labeled]
    ids = [f"{report}\n{example.phrase}" for report, example in zip(reports, labeled, strict=True)]
    counts = np.array([_counts(*row) for row in rows], dtype=float)
    summaries = summarize_counts(counts, _SCORES, clusters=clusters_of("report", reports, ids))
    scores: dict[str, Any] = {name: summary.point for name, summary in summaries.items()}
    topics = dict.fromkeys(example.topic for example in labeled if example.topic is not None)
    sets = {name: _confusion([row for row in rows if row[0].development is used]) for name, used in _SETS.items()}
    return JudgeCheck(
        judge=judge.name,
        n=len(labeled),
        failures=sum(isinstance(verdict, Failure) for verdict in verdicts),
        **scores,
        intervals={
            name: None if score.low is None or score.high is None else (score.low, score.high)
            for name, score in summaries.items()
        },
        confusion=_confusion(rows),
        relations=_confusion([row for row in rows if row[0].label in get_args(Relation)], by_relation=True),
        by_topic={topic: _confusion([row for row in rows if row[0].topic == topic]) for topic in topics},
        by_set={name: counts for name, counts in sets.items() if counts},
        seconds=seconds,
        **{name: after.get(name, 0) - before.get(name, 0) for name in ("calls", "tokens_in", "tokens_out")},
        agreement=_agreement(judge, rows),
    )


def confusion_accuracy(confusion: Confusion) -> float | None:
    """Return the accuracy of a confusion matrix; None if it is empty."""
    total = sum(sum(row.values()) for row in confusion.values())
    correct = sum(
        row.get("entailment" if label == "entailment" else "not_entailment", 0) for label, row in confusion.items()
    )
    return correct / total if total else None


def _outcome(verdict: Verdict | Failure, *, by_relation: bool = False) -> str:
    return FAILED if isinstance(verdict, Failure) else (by_relation and verdict.relation) or verdict.status


def _evidence(example: Example) -> set[int | None]:
    """Return the indices of the premises that decide an example; None among them for a text that is no premise."""
    return {match_evidence(text, example.reference) for text in example.evidence}


def _counts(example: Example, verdict: Verdict | Failure) -> list[int]:
    """Return the counts of a query that `_SCORES` are functions of, first the confusion matrix, entailed first."""
    is_entailed, outcome = example.status == "entailment", _outcome(verdict)
    is_correct, named, labeled = outcome == example.status, set[int | None](), set[int | None]()
    if is_entailed and is_correct and example.evidence and isinstance(verdict, Verdict):
        named, labeled = set(verdict.evidence), _evidence(example)
    # A failure counts as the wrong status.
    confusion = [
        is_entailed == row and is_correct == (row == column) for row in (True, False) for column in (True, False)
    ]
    return [*confusion, outcome == "entailment", len(named & labeled), len(named), len(labeled)]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


_KAPPA = kappa_from_counts((0, 1))
_SCORES: Mapping[str, CountsFunction] = {
    "accuracy": lambda counts: _ratio(counts[0] + counts[3], counts[:4].sum()),
    "precision": lambda counts: _ratio(counts[0], counts[4]),
    "recall": lambda counts: _ratio(counts[0], counts[0] + counts[1]),
    "f1": lambda counts: harmonic_mean(_SCORES["precision"](counts), _SCORES["recall"](counts)),
    "evidence_f1": lambda counts: harmonic_mean(_ratio(counts[5], counts[6]), _ratio(counts[5], counts[7])),
    "kappa": lambda counts: _KAPPA(counts[:4]),
}


def _confusion(rows: _Rows, *, by_relation: bool = False) -> Confusion:
    counts: dict[str, Counter[str]] = {}
    for example, verdict in rows:
        counts.setdefault(example.label, Counter())[_outcome(verdict, by_relation=by_relation)] += 1
    return {label: dict(row) for label, row in counts.items()}


def _agreement(judge: Judge, rows: _Rows) -> Agreement | None:
    from radfact.judges.llm_judge import LLMJudge

    if not isinstance(judge, LLMJudge) or judge.prompt.batch != "report":
        return None
    by_sentence = LLMJudge(judge.name, judge.client, replace(judge.prompt, batch="sentence"))
    verdicts = query_judge(by_sentence, [example.query for example, _ in rows])
    single = [(example, verdict) for (example, _), verdict in zip(rows, verdicts, strict=True)]
    same = sum(_outcome(a) == _outcome(b) != FAILED for (_, a), (_, b) in zip(rows, single, strict=True))
    accuracies = (confusion_accuracy(_confusion(both)) or 0.0 for both in (rows, single))
    return Agreement(len(rows), same / len(rows), *accuracies)
