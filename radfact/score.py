"""RadFact: entailment verdicts and regions of a set of report pairs become figures."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from radfact.entailment.judge import Judge, Question, Status, Verdict
from radfact.errors import Failure, InputError, RunFailed
from radfact.files import Pair
from radfact.regions import Compat, spatially_entailed
from radfact.report import Box, Report, Sentence, normalised_text
from radfact.stats import Summary, harmonic_mean, summarise

OnFailure = Literal["drop", "not-entailed", "stop"]
Side = Literal["candidate", "reference"]
Spatial = Literal["entailed", "not_entailed", "no_boxes"]

KINDS = ("logical", "grounding", "spatial")
F1_PARTS = {f"{kind}_f1": (f"{kind}_precision", f"{kind}_recall") for kind in KINDS}
FIGURES = tuple(f"{kind}_{part}" for kind in KINDS for part in ("precision", "recall", "f1"))

_PARTS: dict[Side, str] = {"candidate": "precision", "reference": "recall"}


@dataclass(frozen=True, slots=True)
class SentenceScore:
    """One sentence as a hypothesis: what the judge said of it given the other report, and where it is seen.

    `status` and `spatial` are None where the judge gave no valid answer; `evidence` indexes the other report.
    """

    sample_id: str
    side: Side
    index: int
    text: str
    boxes: tuple[Box, ...] | None
    status: Status | None
    evidence: tuple[int, ...]
    spatial: Spatial | None
    why: str | None


@dataclass(frozen=True, slots=True)
class SampleScore:
    """One sample: its figures (NaN = no value), its numbers of sentences, and why it was left out, if it was."""

    sample_id: str
    figures: Mapping[str, float]
    counts: Mapping[str, int]
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of a set of samples, and everything that they were computed from, in input order."""

    figures: Mapping[str, Summary]
    samples: Sequence[SampleScore]
    sentences: Sequence[SentenceScore]
    counts: Mapping[str, int]
    judge: Mapping[str, Any] = field(default_factory=dict)

    def to_frame(self) -> Any:
        """The samples as a pandas DataFrame: one row a sample, NaN where a figure has no value.

        Raises:
            ImportError: pandas is not installed.
        """
        pandas = importlib.import_module("pandas")
        rows = [{**sample.figures, **sample.counts, "failure": sample.failure} for sample in self.samples]
        index = pandas.Index([sample.sample_id for sample in self.samples], name="sample_id")
        return pandas.DataFrame(rows, index=index)


@dataclass(frozen=True)
class _Sides:
    """The sentences of one sample, ready to be judged."""

    sample_id: str
    candidate: list[Sentence]
    reference: list[Sentence]

    def direction(self, side: Side) -> tuple[list[Sentence], list[Sentence]]:
        """(hypotheses, premises)."""
        return (self.candidate, self.reference) if side == "candidate" else (self.reference, self.candidate)

    def questions(self, side: Side) -> list[Question]:
        """One question a hypothesis; a sentence that says the same as an earlier one asks the earlier one's question.

        Nothing follows from an empty report, so then there is nothing to ask.
        """
        hypotheses, premises = self.direction(side)
        if not premises:
            return []
        texts = tuple(premise.text for premise in premises)
        first: dict[str, str] = {}
        return [Question(texts, first.setdefault(normalised_text(one.text), one.text)) for one in hypotheses]


def _split_offline(narrative: str) -> Sequence[str]:
    from radfact.sentences import split_narrative

    return split_narrative(narrative)


@dataclass(frozen=True)
class RadFact:
    """RadFact (paper 004, appendix C): which sentences of each report follow from the other one, and where they lie.

    Args:
        judge: answers the entailment questions; all of a set in one call, questions with the same premises adjacent.
        compat: `paper` computes what the published implementation does, `exact` the same without its resolution.
        threshold: share in [0, 1] of a sentence's region that its evidence must cover.
        on_failure: what becomes of a sample with a question that the judge could not answer: `drop` leaves it out of
            every figure, `not-entailed` counts the sentence as not entailed, `stop` raises.
        bootstrap: number of replicates for the intervals; 0 for none.
        seed: of the bootstrap.
        splitter: makes single-finding sentences of a narrative; by default the offline one.

    Raises:
        InputError: an option has a value that it cannot have.
    """

    judge: Judge
    compat: Compat = "paper"
    threshold: float = 0.5
    on_failure: OnFailure = "drop"
    bootstrap: int = 500
    seed: int = 42
    splitter: Callable[[str], Sequence[str]] = _split_offline

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("compat", self.compat, get_args(Compat)),
            ("on_failure", self.on_failure, get_args(OnFailure)),
        ):
            if value not in choices:
                raise InputError(f"expected one of {', '.join(choices)}, found {value!r}", field=name)
        if not 0 <= self.threshold <= 1:
            raise InputError(f"expected a share from 0 to 1, found {self.threshold!r}", field="threshold")
        for name, number in (("bootstrap", self.bootstrap), ("seed", self.seed)):
            if number < 0:
                raise InputError(f"expected 0 or more, found {number!r}", field=name)

    def score(
        self, candidates: Iterable[Pair] | Sequence[Report], references: Sequence[Report] | None = None
    ) -> Result:
        """Score pairs, or a list of candidates against the list of their references (numbered from 0 then).

        Raises:
            InputError: the two lists differ in length, or an id stands twice.
            RunFailed: with `on_failure="stop"`, a question stayed without a valid answer.
        """
        samples = [self._sides(pair) for pair in _as_pairs(candidates, references)]
        answers = self._ask(samples)
        failures = [answer for answer in answers.values() if isinstance(answer, Failure)]
        if failures and self.on_failure == "stop":
            raise RunFailed(
                f"{len(failures)} of {len(answers)} judgements have no valid answer (first: {failures[0].reason})"
            )
        scored: list[SampleScore] = []
        sentences: list[SentenceScore] = []
        for sample in samples:
            row, rows = self._score_sample(sample, answers)
            scored.append(row)
            sentences += rows
        return Result(
            figures=_figures(scored, self.bootstrap, self.seed),
            samples=scored,
            sentences=sentences,
            counts=_total(scored) | {"judgements": len(answers), "failed_judgements": len(failures)},
            judge=self.judge.describe(),
        )

    def _sides(self, pair: Pair) -> _Sides:
        """Sentences of both reports; with a narrative on either side there are no regions to compare."""
        reports = [pair.candidate, pair.reference]
        if any(isinstance(report, str) for report in reports):
            return _Sides(pair.sample_id, *([Sentence(text=text) for text in self._texts(one)] for one in reports))
        return _Sides(pair.sample_id, *(list(report) for report in reports if not isinstance(report, str)))

    def _texts(self, report: Report) -> list[str]:
        if not isinstance(report, str):
            return [sentence.text for sentence in report]
        return [text for text in self.splitter(report) if text.strip()] if report.strip() else []

    def _ask(self, samples: Sequence[_Sides]) -> dict[Question, Verdict | Failure]:
        by_premises: dict[tuple[str, ...], dict[Question, None]] = {}
        for sample in samples:
            for side in _PARTS:
                for question in sample.questions(side):
                    by_premises.setdefault(question.premises, {})[question] = None
        questions = [question for group in by_premises.values() for question in group]
        answers = self.judge.judge(questions) if questions else []
        if len(answers) != len(questions):
            raise RunFailed(f"judge '{self.judge.name}' gave {len(answers)} answers to {len(questions)} questions")
        return {question: _checked(answer, question) for question, answer in zip(questions, answers, strict=True)}

    def _score_sample(
        self, sample: _Sides, answers: Mapping[Question, Verdict | Failure]
    ) -> tuple[SampleScore, list[SentenceScore]]:
        rows: list[SentenceScore] = []
        counts: dict[str, int] = {}
        figures: dict[str, float] = {}
        failures: list[Failure] = []
        for side, part in _PARTS.items():
            asked = [answers[question] for question in sample.questions(side)]
            failures += [answer for answer in asked if isinstance(answer, Failure)]
            of_side = self._score_sentences(sample, side, asked)
            rows += of_side
            located = [row for row in of_side if row.spatial != "no_boxes"]
            counts |= {f"{side}_sentences": len(of_side), f"{side}_sentences_with_boxes": len(located)}
            figures |= {f"{kind}_{part}": value for kind, value in _fractions(of_side).items()}
        failure = failures[0].reason if failures and self.on_failure == "drop" else None
        figures |= {name: harmonic_mean(figures[p], figures[r]) for name, (p, r) in F1_PARTS.items()}
        figures = {name: figures[name] if failure is None else math.nan for name in FIGURES}
        return SampleScore(sample.sample_id, figures, counts, failure), rows

    def _score_sentences(self, sample: _Sides, side: Side, answers: Sequence[Verdict | Failure]) -> list[SentenceScore]:
        hypotheses, premises = sample.direction(side)
        if not premises:
            answers = [Verdict("not_entailment", why="the other report is empty")] * len(hypotheses)
        occurrences = _occurrences(premises, self.compat)
        return [
            self._score_sentence(sample.sample_id, side, index, hypothesis, premises, answer, occurrences)
            for index, (hypothesis, answer) in enumerate(zip(hypotheses, answers, strict=True))
        ]

    def _score_sentence(
        self,
        sample_id: str,
        side: Side,
        index: int,
        hypothesis: Sentence,
        premises: Sequence[Sentence],
        answer: Verdict | Failure,
        occurrences: Sequence[Sequence[int]],
    ) -> SentenceScore:
        status: Status | None = None
        why: str | None
        evidence: tuple[int, ...] = ()
        spatial: Spatial | None = "not_entailed" if hypothesis.has_region else "no_boxes"
        if isinstance(answer, Failure):
            why = f"no valid answer: {answer.reason}"
            if self.on_failure == "not-entailed":
                status = "not_entailment"
            elif hypothesis.has_region:
                spatial = None
        else:
            status, why = answer.status, answer.why
            evidence = tuple(dict.fromkeys(place for named in answer.evidence for place in occurrences[named]))
            if (
                status == "entailment"
                and hypothesis.has_region
                and spatially_entailed(
                    hypothesis, [premises[i] for i in evidence], compat=self.compat, threshold=self.threshold
                )
            ):
                spatial = "entailed"
        return SentenceScore(sample_id, side, index, hypothesis.text, hypothesis.boxes, status, evidence, spatial, why)


def _as_pairs(candidates: Iterable[Pair] | Sequence[Report], references: Sequence[Report] | None) -> list[Pair]:
    given = list(candidates)
    if references is None:
        pairs = [one for one in given if isinstance(one, Pair)]
        if len(pairs) != len(given):
            raise InputError("expected pairs, or a list of candidates and the list of their references")
    else:
        reports = [one for one in given if not isinstance(one, Pair)]
        if len(reports) != len(references):
            raise InputError(f"{len(reports)} candidates but {len(references)} references; expected as many of each")
        pairs = [Pair(str(i), *both) for i, both in enumerate(zip(reports, references, strict=True))]
    seen: set[str] = set()
    for pair in pairs:
        if pair.sample_id in seen:
            raise InputError(f"'{pair.sample_id}' stands twice; ids must be unique", field="sample_id")
        seen.add(pair.sample_id)
    return pairs


def _occurrences(premises: Sequence[Sentence], compat: Compat) -> list[list[int]]:
    """For every premise the premises that evidence naming its text means.

    The published implementation looks evidence up by its text and takes the first hit; `exact` takes all of them.
    """
    places: dict[str, list[int]] = {}
    keys = [normalised_text(premise.text) for premise in premises]
    for index, key in enumerate(keys):
        places.setdefault(key, []).append(index)
    return [places[key][:1] if compat == "paper" else places[key] for key in keys]


def _checked(answer: Verdict | Failure, question: Question) -> Verdict | Failure:
    """A verdict that breaks the protocol is no answer: it must not become a score in silence."""
    if isinstance(answer, Failure):
        return answer
    if answer.status == "entailment" and not answer.evidence:
        return Failure("entailment without evidence")
    if any(not 0 <= index < len(question.premises) for index in answer.evidence):
        return Failure(f"evidence {list(answer.evidence)} outside of the {len(question.premises)} premises")
    return answer


def _fractions(rows: Sequence[SentenceScore]) -> dict[str, float]:
    """Figures of one direction; a zero denominator gives NaN, never 0 and never 1."""
    entailed = [row for row in rows if row.status == "entailment"]
    located = [row for row in rows if row.spatial != "no_boxes"]
    both = sum(row.spatial == "entailed" for row in rows)
    return {
        "logical": _ratio(len(entailed), len(rows)),
        "grounding": _ratio(both, sum(row.spatial != "no_boxes" for row in entailed)),
        "spatial": _ratio(both, len(located)),
    }


def _ratio(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator else math.nan


def _figures(samples: Sequence[SampleScore], replicates: int, seed: int) -> dict[str, Summary]:
    values = {name: [one.figures[name] for one in samples] for name in FIGURES if name not in F1_PARTS}
    summaries = summarise(values, f1=F1_PARTS, replicates=replicates, seed=seed)
    return {name: summaries[name] for name in FIGURES}


def _total(samples: Sequence[SampleScore]) -> dict[str, int]:
    left_out = sum(sample.failure is not None for sample in samples)
    totals = {"samples": len(samples), "scored": len(samples) - left_out, "left_out": left_out}
    for side in _PARTS:
        for name in (f"{side}_sentences", f"{side}_sentences_with_boxes"):
            totals[name] = sum(sample.counts[name] for sample in samples)
    return totals
