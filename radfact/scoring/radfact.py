"""RadFact: entailment verdicts and regions of a set of report pairs become figures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from radfact.errors import Failure, InputError, RunError, brief
from radfact.io.pairs import Pair, Pairs, check_ids, narratives
from radfact.judges import Splitter, splitter_of
from radfact.judges.callable_judge import as_judge
from radfact.judges.callable_splitter import as_splitter
from radfact.judges.offline.judge import OfflineJudge, count_unread
from radfact.judges.protocol import EntailmentQuery, Judge, query_judge
from radfact.records import Report, Sentence, digest
from radfact.scoring.regions import Compat
from radfact.scoring.sample import (
    F1_PARTS,
    FIGURES,
    PARTS,
    Answers,
    OnFailure,
    Rules,
    Sample,
    SampleScore,
    SentenceScore,
    Side,
)
from radfact.statistics.bootstrap import Summary, summarize

if TYPE_CHECKING:
    from radfact.judges.callable_judge import JudgeFunction

Texts = Mapping[str, Sequence[str] | Failure]


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of a set of samples, and everything that they were computed from, in input order.

    `judge` and `splitter` describe who answered (no splitter where nothing was split), `options` hold those of
    `RadFact`, and `usage` what the answers of each cost.
    """

    figures: Mapping[str, Summary]
    samples: Sequence[SampleScore]
    sentences: Sequence[SentenceScore]
    counts: Mapping[str, int]
    judge: Mapping[str, Any] = field(default_factory=dict)
    splitter: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    usage: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def to_frame(self, rows: Literal["samples", "sentences"] = "samples") -> Any:
        """The samples, or the sentences, as a pandas DataFrame.

        Args:
            rows: `samples` gives one row a sample, indexed by `sample_id`, NaN where a figure has no value; `sentences`
                one row a sentence and direction, with the columns of `SentenceScore`.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise ImportError("a frame needs pandas: pip install pandas") from None
        if rows == "sentences":
            columns = list(SentenceScore.__dataclass_fields__)
            table = [[getattr(one, name) for name in columns] for one in self.sentences]
            return pandas.DataFrame(table, columns=columns)
        records = [{**sample.figures, **sample.counts, "failure": sample.failure} for sample in self.samples]
        index = pandas.Index([sample.sample_id for sample in self.samples], name="sample_id")
        return pandas.DataFrame(records, index=index)


class RadFact:
    """RadFact (paper 004, appendix C): which sentences of each report follow from the other one, and where they lie."""

    def __init__(
        self,
        judge: Judge | JudgeFunction,
        *,
        compat: Compat = "paper",
        threshold: float = 0.5,
        on_failure: OnFailure = "drop",
        bootstrap: int = 500,
        seed: int = 42,
        splitter: Splitter | Callable[[str], Sequence[str]] | None = None,
    ) -> None:
        """Take the judge and the options.

        Args:
            judge: answers the entailment questions; all of a set in one call, questions with the same premises
                adjacent. A plain function of (premises, hypothesis) will do, see
                `radfact.judges.callable_judge.CallableJudge`.
            compat: `paper` computes what the published implementation does, `exact` the same without its resolution.
            threshold: share in [0, 1] of a sentence's region that its evidence must cover.
            on_failure: what becomes of a sample with a question that the judge could not answer: `drop` leaves it out
                of every figure, `not-entailed` counts the sentence as not entailed, `stop` raises. A narrative that
                could not be split has no sentences to count, so its sample is left out in both of the first two.
            bootstrap: number of replicates for the intervals; 0 for none.
            seed: of the bootstrap.
            splitter: makes single-finding sentences of narratives, all in one call, or is a function of one narrative;
                by default the judge's model does, or the offline rules where it has none.

        Raises:
            InputError: an option has a value that it cannot have, or judge or splitter are of another kind.
        """
        for name, value, choices in (
            ("compat", compat, get_args(Compat)),
            ("on_failure", on_failure, get_args(OnFailure)),
        ):
            if value not in choices:
                raise InputError(f"expected one of {', '.join(choices)}, found {value!r}", field=name)
        if not 0 <= threshold <= 1:
            raise InputError(f"expected a share from 0 to 1, found {threshold!r}", field="threshold")
        for name, number in (("bootstrap", bootstrap), ("seed", seed)):
            if number < 0:
                raise InputError(f"expected 0 or more, found {number!r}", field=name)
        self.judge = as_judge(judge)
        self.rules = Rules(compat, threshold, on_failure)
        self.bootstrap, self.seed = bootstrap, seed
        self._splitter = None if splitter is None else as_splitter(splitter)

    @property
    def options(self) -> dict[str, Any]:
        """The options by name, as they stand in `run.json`."""
        return {**asdict(self.rules), "bootstrap": self.bootstrap, "seed": self.seed}

    def score(
        self, candidates: Iterable[Pair] | Sequence[Report], references: Sequence[Report] | None = None
    ) -> Result:
        """Score pairs, or a list of candidates against the list of their references (numbered from 0 then).

        Raises:
            InputError: the two lists differ in length or hold something else than reports, or an id stands twice.
            RunError: with `on_failure="stop"`, a question or a narrative stayed without a valid answer.
        """
        pairs = _as_pairs(candidates, references)
        unsplit = narratives(pairs)
        if unsplit and self._splitter is None:
            self._splitter = splitter_of(self.judge)
        splitter = self._splitter if unsplit else None
        askers = {"judge": self.judge} | ({"splitter": splitter} if splitter else {})
        before = {name: one.usage() for name, one in askers.items()}
        texts = self._split(splitter, unsplit) if splitter else {}
        samples = [_sample(pair, texts) for pair in pairs]
        if isinstance(candidates, Pairs):
            samples += [Sample(key, failure="no candidate report") for key in candidates.left_out]
        answers = self._ask(samples)
        scored: list[SampleScore] = []
        sentences: list[SentenceScore] = []
        for sample in samples:
            row, rows = sample.score(answers, self.rules)
            scored.append(row)
            sentences += rows
        asked = {
            "judgements": len(answers),
            "failed_judgements": sum(isinstance(answer, Failure) for answer in answers.values()),
            "narratives": len(texts),
            "failed_narratives": sum(isinstance(text, Failure) for text in texts.values()),
        }
        if self.judge.name == OfflineJudge.name:
            asked["unread_sentences"] = count_unread(one.why for one in sentences)
        return Result(
            figures=_figures(scored, self.bootstrap, self.seed),
            samples=scored,
            sentences=sentences,
            counts=_total(scored) | asked,
            judge=self.judge.describe(),
            splitter=splitter.describe() if splitter else None,
            options=self.options,
            usage={name: _since(before[name], one.usage()) for name, one in askers.items()},
        )

    async def ascore(
        self, candidates: Iterable[Pair] | Sequence[Report], references: Sequence[Report] | None = None
    ) -> Result:
        """Score as `score` does, in a thread of its own, so that the running loop is free meanwhile.

        Cancelling stops the waiting. Questions already put to a model run on until they are answered or the program
        ends; with a cache no answer is lost, and the same call asks only for what is missing.

        Raises:
            InputError: as `score`.
            RunError: as `score`.
        """
        outcome: concurrent.futures.Future[Result] = concurrent.futures.Future()

        def work() -> None:
            outcome.set_running_or_notify_cancel()
            try:
                outcome.set_result(self.score(candidates, references))
            except BaseException as error:
                outcome.set_exception(error)

        # A daemon, because a pool's threads would keep a program that was told to stop until the last answer.
        threading.Thread(target=work, name="radfact-score", daemon=True).start()
        return await asyncio.wrap_future(outcome)

    def _split(self, splitter: Splitter, unsplit: Sequence[str]) -> Texts:
        split = splitter.split(unsplit)
        if len(split) != len(unsplit):
            raise RunError(f"splitter '{splitter.name}' gave {len(split)} answers to {len(unsplit)} narratives")
        self._stop_at_failures([one for one in split if isinstance(one, Failure)], len(split), "narratives")
        return dict(zip(unsplit, split, strict=True))

    def _ask(self, samples: Sequence[Sample]) -> Answers:
        by_premises: dict[tuple[str, ...], dict[EntailmentQuery, None]] = {}
        for sample in samples:
            for side in PARTS:
                for question in sample.questions(side):
                    by_premises.setdefault(question.premises, {})[question] = None
        questions = [question for group in by_premises.values() for question in group]
        answers = query_judge(self.judge, questions) if questions else []
        self._stop_at_failures([one for one in answers if isinstance(one, Failure)], len(answers), "judgements")
        return dict(zip(questions, answers, strict=True))

    def _stop_at_failures(self, failures: Sequence[Failure], asked: int, noun: str) -> None:
        if failures and self.rules.on_failure == "stop":
            raise RunError(f"{len(failures)} of {asked} {noun} have no valid answer (first: {failures[0].reason})")


def _since(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """What was spent between two readings of an usage: who answers may have been asked by others, and before."""
    return {name: count - before.get(name, 0) for name, count in after.items()}


def _as_pairs(candidates: Iterable[Pair] | Sequence[Report], references: Sequence[Report] | None) -> list[Pair]:
    if isinstance(candidates, str) or isinstance(references, str):
        raise InputError("expected a list of reports, found one text")
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
    check_ids(pairs)
    for pair in pairs:
        for side, report in (("candidate", pair.candidate), ("reference", pair.reference)):
            if not _is_report(report):
                raise InputError(
                    f"expected a list of Sentence or one narrative, found {brief(report)}",
                    field=f"{pair.sample_id}.{side}",
                )
    return pairs


def _is_report(value: object) -> bool:
    """Whether it is one report: a list of reports and a list of sentences are easily taken for each other."""
    return isinstance(value, str) or (
        isinstance(value, list | tuple) and all(isinstance(one, Sentence) for one in value)
    )


def _sample(pair: Pair, texts: Texts) -> Sample:
    """The sentences of both reports; with a narrative on either side there are no regions to compare."""
    sides: dict[Side, Report] = {"candidate": pair.candidate, "reference": pair.reference}
    narrative = any(isinstance(report, str) for report in sides.values())
    sentences: dict[Side, Sequence[Sentence]] = {}
    failure = None
    for side, report in sides.items():
        if isinstance(report, str):
            split = texts[report] if report.strip() else ()
            if isinstance(split, Failure):
                failure = failure or f"the {side} report could not be split: {split.reason}"
                split = ()
            sentences[side] = [Sentence(text=text) for text in split if text.strip()]
        else:
            sentences[side] = [Sentence(text=one.text) for one in report] if narrative else report
    came = digest(pair.candidate, pair.reference)
    return Sample(pair.sample_id, sentences["candidate"], sentences["reference"], failure, came)


def _figures(samples: Sequence[SampleScore], replicates: int, seed: int) -> dict[str, Summary]:
    judged = [one.figures for one in samples if one.judged]
    values = {name: [figures[name] for figures in judged] for name in FIGURES if name not in F1_PARTS}
    summaries = summarize(values, f1=F1_PARTS, replicates=replicates, seed=seed)
    return {name: summaries[name] for name in FIGURES}


def _total(samples: Sequence[SampleScore]) -> dict[str, int]:
    left_out = sum(sample.failure is not None for sample in samples)
    totals = {"samples": len(samples), "scored": len(samples) - left_out, "left_out": left_out}
    for name in (f"{side}_sentences{kind}" for side in PARTS for kind in ("", "_with_boxes")):
        totals[name] = sum(sample.counts[name] for sample in samples)
    return totals
