"""What GREEN and VERT should say of a pair: by another model, or by the errors that were put in on purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from maira.judge.pairing import ReportPair
from maira.judge.samples import ChatMessage
from maira.judge.training_examples import ExampleSet, TrainingExample, chat_messages
from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import Failure
from radfact.judges.offline.splitter import split_narrative
from radfact.llm import ChatClient
from radfact.meta.injection.records import InjectedError, InjectedReport
from radfact.meta.injection.sentences import ReportSentences
from radfact.metrics.green import Green, green_score
from radfact.metrics.llm_metric import LLMMetric
from radfact.metrics.responses.assessment import SECTION_TITLES, Assessment, CategoryErrors, parse_assessment
from radfact.metrics.vert import Vert, VertTuned
from radfact.records import TextPair, narrative, normalised_text

ScoreTask = Literal["green", "vert"]
_LOSS = 0.15
"""What a significant error takes from VERT's score (paper 003, D.6)."""
_OMITTED = frozenset("bf")
"""Kinds of errors that lie in what the candidate leaves out."""


def make_score_examples(
    pairs: Sequence[ReportPair], task: ScoreTask, teachers: Mapping[str, ChatClient | None]
) -> ExampleSet:
    """GREEN's answers, or VERT's scores with one decimal, about pairs.

    Args:
        pairs: reports.
        task: "green" or "vert".
        teachers: clients of models by name, asked in their order, each what none before has answered; None in the place
            of a client takes the errors that were put in as labels, of pairs that have such.

    Raises:
        RunError: a teacher cannot be reached.
    """
    lesson = ExampleSet()
    answers: list[Assessment | Failure | None] = [None] * len(pairs)
    by = [""] * len(pairs)
    for name, client in teachers.items():
        places = [place for place, answer in enumerate(answers) if not isinstance(answer, Assessment)]
        for place, answer in zip(places, _assess([pairs[one] for one in places], task, client), strict=True):
            answers[place], by[place] = answer or answers[place], name
    for paired, answer, teacher in zip(pairs, answers, by, strict=True):
        if isinstance(answer, Failure):
            lesson.failures[paired.pair.sample_id] = answer.reason
        elif answer is not None:
            try:
                lesson.taught.append(_taught(paired, task, answer, teacher))
            except ValueError as error:
                reason = f"the teacher's answer cannot be written down: {error}"
                lesson.failures[paired.pair.sample_id] = reason
    return lesson


def _assess(
    pairs: Sequence[ReportPair], task: ScoreTask, client: ChatClient | None
) -> Sequence[Assessment | Failure | None]:
    if client is None:
        return [None if one.injected is None else assess_errors(one.injected) for one in pairs]
    return (Green if task == "green" else Vert)(client).query([TextPair.of(report_pair.pair) for report_pair in pairs])


def _taught(paired: ReportPair, task: ScoreTask, answer: Assessment, teacher: str) -> TrainingExample:
    if task == "vert":
        return make_vert_example(paired, answer.score, teacher)
    score = green_score(answer.matched, answer.significant.total)
    name = paired.pair.sample_id
    return TrainingExample(paired, name, _ask(Green, paired), format_assessment(answer), teacher, score=score)


def make_vert_example(paired: ReportPair, score: float, teacher: str) -> TrainingExample:
    """The question about a pair, and its score with one decimal (paper 003, section 4.1.4).

    Args:
        paired: the reports.
        score: in [0, 1].
        teacher: whose it is.
    """
    name = paired.pair.sample_id
    return TrainingExample(paired, name, _ask(VertTuned, paired), f"{score:.1f}", teacher, score=score)


def _ask(metric: type[LLMMetric[Any]], paired: ReportPair) -> tuple[ChatMessage, ...]:
    asked = metric(_NOBODY).request(narrative(paired.pair.candidate), narrative(paired.pair.reference))
    return chat_messages(asked.messages)


def format_assessment(answer: Assessment) -> str:
    """An answer in GREEN's notation (paper 000, appendix A.1).

    Raises:
        ValueError: read again, it would say something else.
    """
    findings = "; ".join(answer.findings)
    text = "\n\n".join(
        (
            f"{SECTION_TITLES['explanation']}:\n{answer.explanation}".rstrip(),
            f"{SECTION_TITLES['significant']}:\n{_error_lines(answer.significant)}",
            f"{SECTION_TITLES['insignificant']}:\n{_error_lines(answer.insignificant)}",
            f"{SECTION_TITLES['matched']}:\n{answer.matched}. {findings}".rstrip(),
        )
    )
    again = parse_assessment(text)
    for said, meant in ((again.significant, answer.significant), (again.insignificant, answer.insignificant)):
        if said.counts != meant.counts:
            raise ValueError("its errors are not told apart")
    if again.matched != answer.matched:
        raise ValueError("its matched findings are not told apart")
    return text


def _error_lines(errors: CategoryErrors) -> str:
    return "\n".join(
        f"({letter}) {name}: {count}. {'; '.join(said)}".rstrip()
        for (letter, name), count, said in zip(
            ERROR_CATEGORIES.items(), errors.counts, errors.explanations, strict=True
        )
    )


def assess_errors(injected: InjectedReport) -> Assessment:
    """What GREEN and VERT should say of errors that were put in; each counts as significant.

    The findings that match are the sentences that reference and candidate share, and VERT's score is that of paper 003,
    D.6: max(0, 1 - 0.15 x errors).
    """
    said: dict[str, list[str]] = {letter: [] for letter in ERROR_CATEGORIES}
    for change in injected.changes:
        said[change.category].append(_error(change))
    kept = {normalised_text(one) for one in ReportSentences.of(injected.candidate).sentences}
    findings = tuple(
        _clean(one) for one in ReportSentences.of(injected.reference).sentences if normalised_text(one) in kept
    )
    counts = tuple(len(said[letter]) for letter in ERROR_CATEGORIES)
    kinds = [ERROR_CATEGORIES[letter].lower() for letter in ERROR_CATEGORIES if said[letter]]
    explanation = f"The candidate differs from the reference: {'; '.join(kinds)}." if kinds else "No differences."
    none = CategoryErrors((0,) * len(ERROR_CATEGORIES), ((),) * len(ERROR_CATEGORIES))
    errors = CategoryErrors(counts, tuple(tuple(said[letter]) for letter in ERROR_CATEGORIES))
    return Assessment(errors, none, len(findings), findings, explanation, max(0.0, 1 - _LOSS * sum(counts)))


def _error(change: InjectedError) -> str:
    """The findings that are wrong, or of an omission those that are missing."""
    own, other = change.modified, change.original
    if change.category in _OMITTED:
        own, other = other, own
    findings = split_narrative(f"{own or other}.")
    kept = {normalised_text(one) for one in split_narrative(f"{other}.")} if own and other else set()
    return _clean(" ".join([one for one in findings if normalised_text(one) not in kept] or findings))


def _clean(text: str) -> str:
    return " ".join(text.replace(";", ",").split()).rstrip(".")


class _Nobody:
    """In the place of a client where only questions are written."""


_NOBODY: Any = _Nobody()
