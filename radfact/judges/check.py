"""Measure a judge against labeled judgments."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from radfact.errors import ErrorCode, Failure, InputError
from radfact.judges.prompt import Example, load_few_shots
from radfact.judges.protocol import Judge, Relation, Verdict, query_judge
from radfact.judges.response import match_evidence
from radfact.statistics.bootstrap import harmonic_mean

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

    A failed query counts as wrong. `evidence_f1` is the micro F1 of evidence indices over entailed queries with
    evidence that are judged as entailed. `relations` counts a verdict without a relation under its status.
    """

    judge: str
    n: int
    failures: int
    accuracy: float
    precision: float | None
    recall: float | None
    f1: float | None
    evidence_f1: float | None
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
    """Read labeled judgments in the published few-shot layout; by default those of this package.

    In addition, a phrase may have a `topic`, an example may have `development`, and an entailment may have no evidence.
    """
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
    confusion = _confusion(rows)
    of_entailed = confusion.get("entailment", {})
    judged_entailed = sum(row.get("entailment", 0) for row in confusion.values())
    precision, recall, f1 = _scores(of_entailed.get("entailment", 0), judged_entailed, sum(of_entailed.values()))
    topics = dict.fromkeys(example.topic for example in labeled if example.topic is not None)
    sets = {name: _confusion([row for row in rows if row[0].development is used]) for name, used in _SETS.items()}
    return JudgeCheck(
        judge=judge.name,
        n=len(labeled),
        failures=sum(isinstance(verdict, Failure) for verdict in verdicts),
        accuracy=confusion_accuracy(confusion) or 0.0,
        precision=precision,
        recall=recall,
        f1=f1,
        evidence_f1=_evidence_f1(rows),
        confusion=confusion,
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


def _scores(true_positives: int, predicted: int, actual: int) -> tuple[float | None, float | None, float | None]:
    precision = true_positives / predicted if predicted else None
    recall = true_positives / actual if actual else None
    f1 = None if precision is None or recall is None else harmonic_mean(precision, recall)
    return precision, recall, f1


def _evidence(example: Example) -> set[int | None]:
    """Return the indices of the premises that decide an example; None among them for a text that is no premise."""
    return {match_evidence(text, example.reference) for text in example.evidence}


def _evidence_f1(rows: _Rows) -> float | None:
    evidence = [
        (set(verdict.evidence), _evidence(example))
        for example, verdict in rows
        if isinstance(verdict, Verdict) and example.status == verdict.status == "entailment" and example.evidence
    ]
    common = sum(len(named & labeled) for named, labeled in evidence)
    return _scores(common, sum(len(named) for named, _ in evidence), sum(len(labeled) for _, labeled in evidence))[2]


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
