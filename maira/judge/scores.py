"""Training examples of GREEN and VERT, labeled by another model or by injected errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from maira.judge.pairing import ReportPair
from maira.judge.samples import ChatMessage
from maira.judge.training_examples import ExampleSet, TrainingExample, chat_messages
from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import Failure
from radfact.judges.offline_splitter import split_narrative
from radfact.llm import ChatClient
from radfact.meta.injection.records import InjectedError, InjectedReport, ReportSentences
from radfact.metrics.llm.green import Green, compute_counts, green_score
from radfact.metrics.llm.llm_metric import LLMMetric
from radfact.metrics.llm.responses import assessment
from radfact.metrics.llm.responses.assessment import SECTION_TITLES, Assessment, ScoredAssessment
from radfact.metrics.llm.vert import Vert, VertTuned
from radfact.records import TextPair, narrative, normalize_text

ScoreTask = Literal["green", "vert"]
_PENALTY = 0.15
"""Loss of VERT's score by a significant error (VERT, appendix D.6)."""
_OMISSION_CATEGORIES = frozenset("bf")


def make_score_examples(
    pairs: Sequence[ReportPair], task: ScoreTask, teachers: Mapping[str, ChatClient | None]
) -> ExampleSet:
    """Make examples with GREEN's assessments, or VERT's scores with one decimal.

    Args:
        pairs: reports.
        task: "green" or "vert".
        teachers: clients of models by name, in order; each scores the pairs without a response so far. None instead
            of a client labels pairs by their injected errors, if any.

    Raises:
        RunError: a teacher cannot be reached.
    """
    example_set = ExampleSet()
    answers: list[Assessment | Failure | None] = [None] * len(pairs)
    sources = [""] * len(pairs)
    for name, client in teachers.items():
        indices = [index for index, answer in enumerate(answers) if not isinstance(answer, Assessment)]
        new_answers = _assess([pairs[index] for index in indices], task, client)
        for index, answer in zip(indices, new_answers, strict=True):
            answers[index], sources[index] = answer or answers[index], name
    for paired, answer, teacher in zip(pairs, answers, sources, strict=True):
        if isinstance(answer, Failure):
            example_set.failures[paired.pair.sample_id] = answer.reason
        elif answer is not None:
            try:
                example_set.examples.append(_make_example(paired, task, answer, teacher))
            except ValueError as error:
                example_set.failures[paired.pair.sample_id] = f"the teacher's answer cannot be formatted: {error}"
    return example_set


def _assess(
    pairs: Sequence[ReportPair], task: ScoreTask, client: ChatClient | None
) -> Sequence[Assessment | Failure | None]:
    if client is None:
        return [None if paired.injected is None else assess_errors(paired.injected) for paired in pairs]
    return (Green if task == "green" else Vert)(client).query([TextPair.of(report_pair.pair) for report_pair in pairs])


def _make_example(paired: ReportPair, task: ScoreTask, answer: Assessment, teacher: str) -> TrainingExample:
    if task == "vert" and isinstance(answer, ScoredAssessment):
        return make_vert_example(paired, answer.score, teacher)
    score = green_score(answer.matched.count, assessment.total(answer.significant))
    name = paired.pair.sample_id
    return TrainingExample(paired, name, _prompt(Green, paired), format_assessment(answer), teacher, score=score)


def make_vert_example(paired: ReportPair, score: float, teacher: str) -> TrainingExample:
    """Make the example of a pair and its score with one decimal.

    Source: VERT, section 4.1.4.

    Args:
        paired: the reports.
        score: in [0, 1].
        teacher: source of the score.
    """
    name = paired.pair.sample_id
    return TrainingExample(paired, name, _prompt(VertTuned, paired), f"{score:.1f}", teacher, score=score)


def _prompt(metric: type[LLMMetric[Any]], paired: ReportPair) -> tuple[ChatMessage, ...]:
    no_client: Any = None  # only the request is made
    request = metric(no_client).request(narrative(paired.pair.candidate), narrative(paired.pair.reference))
    return chat_messages(request.messages)


def format_assessment(answer: Assessment) -> str:
    """Format an assessment as GREEN's response.

    Source: GREEN, appendix A.1.

    Raises:
        ValueError: parsed again, the text would have other counts.
    """
    findings = "; ".join(answer.matched.findings)
    text = "\n\n".join(
        (
            f"{SECTION_TITLES['explanation']}:\n{answer.explanation}".rstrip(),
            f"{SECTION_TITLES['significant']}:\n{_error_lines(answer.significant)}",
            f"{SECTION_TITLES['insignificant']}:\n{_error_lines(answer.insignificant)}",
            f"{SECTION_TITLES['matched']}:\n{answer.matched.count}. {findings}".rstrip(),
        )
    )
    found = compute_counts("green", assessment.parse_assessment(text))
    for name, count in compute_counts("green", answer).items():
        if found[name] != count:
            raise ValueError(f"expected {name} {count}, found {found[name]}")
    return text


def _error_lines(errors: assessment.Errors) -> str:
    return "\n".join(
        f"({letter}) {name}: {errors[letter].count}. {'; '.join(errors[letter].errors)}".rstrip()
        for letter, name in ERROR_CATEGORIES.items()
    )


def assess_errors(injected: InjectedReport) -> ScoredAssessment:
    """Return the assessment of injected errors, each of which counts as significant.

    Matched findings are the sentences that reference and candidate share, and VERT's score is max(0, 1 - 0.15 x
    errors). Source: VERT, appendix D.6.
    """
    texts: dict[str, tuple[str, ...]] = dict.fromkeys(ERROR_CATEGORIES, ())
    for change in injected.changes:
        texts[change.category] += (_error(change),)
    shared = {normalize_text(sentence) for sentence in ReportSentences.of(injected.candidate).sentences}
    findings = tuple(
        _clean(sentence)
        for sentence in ReportSentences.of(injected.reference).sentences
        if normalize_text(sentence) in shared
    )
    kinds = [ERROR_CATEGORIES[letter].lower() for letter in ERROR_CATEGORIES if texts[letter]]
    explanation = f"The candidate differs from the reference: {'; '.join(kinds)}." if kinds else "No differences."
    significant = {name: assessment.CategoryErrors(count=len(errors), errors=errors) for name, errors in texts.items()}
    return ScoredAssessment(
        explanation=explanation,
        significant=significant,
        insignificant={},
        matched=assessment.MatchedFindings(count=len(findings), findings=findings),
        score=max(0.0, 1 - _PENALTY * len(injected.changes)),
    )


def _error(change: InjectedError) -> str:
    """Return the wrong findings of an error, or the missing ones of an omission."""
    own, other = change.modified, change.original
    if change.category in _OMISSION_CATEGORIES:
        own, other = other, own
    findings = split_narrative(f"{own or other}.")
    shared = {normalize_text(sentence) for sentence in split_narrative(f"{other}.")} if own and other else set()
    return _clean(" ".join([sentence for sentence in findings if normalize_text(sentence) not in shared] or findings))


def _clean(text: str) -> str:
    return " ".join(text.replace(";", ",").split()).rstrip(".")
