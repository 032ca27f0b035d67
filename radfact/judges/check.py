"""Is a judge any good: its verdicts against labelled judgements."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from radfact.errors import Failure, InputError
from radfact.judges.prompt import Label, load_few_shots
from radfact.judges.protocol import EntailmentQuery, Judge, Verdict, query_judge
from radfact.judges.response import match_evidence
from radfact.statistics.bootstrap import harmonic_mean

DEFAULT_LABELLED = Path(__file__).with_name("labeled.json")
FAILED = "failed"

Confusion = Mapping[str, Mapping[str, int]]
"""Counts by label (entailment, neutral, ...) and then by what the judge said (a status, or failed)."""
_Answers = Sequence[Verdict | Failure]
_Scores = tuple[float | None, float | None, float | None]
"""Precision, recall and F1."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """A question with its right answer; `evidence` indexes the premises, `topic` says what the question is about."""

    question: EntailmentQuery
    label: Label
    evidence: tuple[int, ...]
    topic: str | None = None

    @property
    def entailed(self) -> bool:
        """Whether the right answer is entailment."""
        return self.label == "entailment"


@dataclass(frozen=True, slots=True)
class Agreement:
    """Asking for a report at a time against asking for a sentence at a time, on the same `n` questions.

    `share` of them have the same status both ways (a failed answer agrees with none); the accuracies are as in `Check`.
    """

    n: int
    share: float
    accuracy_report: float
    accuracy_sentence: float


@dataclass(frozen=True, slots=True)
class Check:
    """What a judge got right of `n` labelled questions.

    A question without a valid answer counts as wrong: it lowers the accuracy, and the recall if it is entailed.
    Precision, recall and F1 are those of the entailed class. `evidence_f1` is the micro F1 of evidence indices over
    the questions that are labelled entailment and answered so. A value without a denominator is None.
    `seconds` are those of the clock; `calls`, `tokens_in` and `tokens_out` what the answers cost.
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
    by_topic: Mapping[str, Confusion]
    seconds: float
    calls: int
    tokens_in: int
    tokens_out: int
    agreement: Agreement | None = None

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return asdict(self)


def load_labelled(path: Path | str | None = None) -> list[Labelled]:
    """Read labelled judgements in the published few-shot layout; a phrase may carry a `topic` too.

    Args:
        path: the file; by default the judgements that come with this package.

    Raises:
        InputError: the file cannot be read, or names the field or the evidence that is wrong.
    """
    path = DEFAULT_LABELLED if path is None else path
    labelled = []
    for example in load_few_shots(path):
        evidence = []
        for text in example.evidence:
            index = match_evidence(text, example.reference)
            if index is None:
                raise InputError(
                    f"the evidence '{text:.80}' of '{example.phrase:.80}' is no sentence of the other report", file=path
                )
            evidence.append(index)
        question = EntailmentQuery(example.reference, example.phrase)
        labelled.append(Labelled(question, example.label, tuple(evidence), example.topic))
    return labelled


def check(judge: Judge, labelled: Sequence[Labelled]) -> Check:
    """Put labelled questions to a judge and compare.

    A model that is asked for a report at a time is asked for a sentence at a time too, so that what this changes is
    measured; seconds and costs are those of the former alone.

    Raises:
        InputError: there are no questions.
        RunError: the judge cannot be reached, or does not answer every question.
    """
    if not labelled:
        raise InputError("there are no labelled questions to check the judge with")
    questions = [one.question for one in labelled]
    before, started = judge.usage(), time.perf_counter()
    answers = query_judge(judge, questions)
    seconds, after = time.perf_counter() - started, judge.usage()
    cost = {name: after.get(name, 0) - before.get(name, 0) for name in ("calls", "tokens_in", "tokens_out")}
    precision, recall, f1 = _entailed_class(labelled, answers)
    topics = dict.fromkeys(one.topic for one in labelled if one.topic is not None)
    return Check(
        judge=judge.name,
        n=len(labelled),
        failures=sum(isinstance(answer, Failure) for answer in answers),
        accuracy=_accuracy(labelled, answers),
        precision=precision,
        recall=recall,
        f1=f1,
        evidence_f1=_evidence_f1(labelled, answers),
        confusion=_confusion(labelled, answers),
        by_topic={topic: _confusion(labelled, answers, topic) for topic in topics},
        seconds=seconds,
        **cost,
        agreement=_agreement(judge, labelled, answers),
    )


def accuracy_of(confusion: Confusion) -> float | None:
    """The share of right answers in a confusion; None if it is empty."""
    total = sum(sum(row.values()) for row in confusion.values())
    right = sum(
        row.get("entailment" if label == "entailment" else "not_entailment", 0) for label, row in confusion.items()
    )
    return right / total if total else None


def _said(answer: Verdict | Failure) -> str:
    return FAILED if isinstance(answer, Failure) else answer.status


def _accuracy(labelled: Sequence[Labelled], answers: _Answers) -> float:
    right = ("entailment" if one.entailed else "not_entailment" for one in labelled)
    return sum(_said(answer) == status for answer, status in zip(answers, right, strict=True)) / len(labelled)


def _entailed_class(labelled: Sequence[Labelled], answers: _Answers) -> _Scores:
    said = [_said(answer) == "entailment" for answer in answers]
    both = sum(yes and one.entailed for yes, one in zip(said, labelled, strict=True))
    return _scores(both, sum(said), sum(one.entailed for one in labelled))


def _scores(both: int, found: int, wanted: int) -> _Scores:
    precision = both / found if found else None
    recall = both / wanted if wanted else None
    f1 = None if precision is None or recall is None else harmonic_mean(precision, recall)
    return precision, recall, f1


def _evidence_f1(labelled: Sequence[Labelled], answers: _Answers) -> float | None:
    both = found = wanted = 0
    for one, answer in zip(labelled, answers, strict=True):
        if one.entailed and isinstance(answer, Verdict) and answer.status == "entailment":
            both += len(set(answer.evidence) & set(one.evidence))
            found += len(set(answer.evidence))
            wanted += len(set(one.evidence))
    return _scores(both, found, wanted)[2]


def _confusion(labelled: Sequence[Labelled], answers: _Answers, topic: str | None = None) -> Confusion:
    counts: dict[str, Counter[str]] = {}
    for one, answer in zip(labelled, answers, strict=True):
        if topic is None or one.topic == topic:
            counts.setdefault(one.label, Counter())[_said(answer)] += 1
    return {label: dict(row) for label, row in counts.items()}


def _agreement(judge: Judge, labelled: Sequence[Labelled], answers: _Answers) -> Agreement | None:
    from radfact.judges.llm_judge import LLMJudge

    if not isinstance(judge, LLMJudge) or judge.batch != "report":
        return None
    alone = query_judge(judge.one_by_one(), [one.question for one in labelled])
    same = sum(_said(a) == _said(b) != FAILED for a, b in zip(answers, alone, strict=True))
    n = len(labelled)
    return Agreement(n, same / n, _accuracy(labelled, answers), _accuracy(labelled, alone))
