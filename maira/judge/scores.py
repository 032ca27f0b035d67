"""Training examples of GREEN and VERT, labeled by another model, by injected errors, or by experts' ratings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from maira.judge.pairing import ReportPair
from maira.judge.samples import Labeled, TrainingExample, label_in_turn
from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import ErrorCode, Failure, InputError
from radfact.judges.offline_splitter import split_narrative
from radfact.llm import ChatClient
from radfact.meta.datasets.layouts import Layout
from radfact.meta.datasets.ratings import RatingSet, check_scale
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
_SCALES: Mapping[Layout, tuple[float, float]] = {"rate-eval": (0, 5)}
"""Lowest and highest rating of published sets (VERT, section 3)."""


def make_score_examples(
    pairs: Sequence[ReportPair], task: ScoreTask, teachers: Mapping[str, ChatClient | None]
) -> Labeled:
    """Make examples with GREEN's assessments, or VERT's scores; None instead of a client labels by injected errors."""

    def label(client: ChatClient | None, pairs: Sequence[ReportPair]) -> Sequence[Assessment | str | None]:
        if client is None:
            return [None if paired.injected is None else assess_errors(paired.injected) for paired in pairs]
        metric = (Green if task == "green" else Vert)(client)
        answers = client.complete_all(metric.requests([TextPair.of(paired.pair) for paired in pairs]))
        return [answer.reason if isinstance(answer, Failure) else answer for answer in answers]

    def make(name: str, paired: ReportPair, teacher: str, answer: Assessment) -> TrainingExample:
        if task == "vert" and isinstance(answer, ScoredAssessment):
            return _make_vert_example(paired, answer.score, teacher)
        score = green_score(answer.matched.count, assessment.total(answer.significant))
        return TrainingExample(paired, name, _prompt(Green, paired), format_assessment(answer), teacher, score)

    return label_in_turn({paired.pair.sample_id: paired for paired in pairs}, teachers, label, make)


def make_rating_examples(
    ratings: RatingSet, layout: Layout, option: tuple[float, float] | None, file: Path
) -> tuple[Labeled, tuple[float, float]]:
    """Make VERT's prompt about every rated pair, with the mean rating as a share of the scale (VERT, section 4.1.4)."""
    scale = option or _SCALES.get(layout)
    if scale is None:
        message = f"give the lowest and highest rating of the layout {layout}, such as 0 5"
        raise InputError(message, code=ErrorCode.MISSING_OPTION, field="scale")
    lowest, highest = check_scale(scale)
    examples: list[TrainingExample] = []
    failures: dict[str, str] = {}
    # Pairs with the same reference are held out together.
    sources: dict[str, str] = {}
    for sample in ratings.samples:
        rating = sample.mean(ratings.target)
        if math.isnan(rating):
            failures[sample.pair.sample_id] = f"no rating of {ratings.target}"
            continue
        if not lowest <= rating <= highest:
            outside = f"is outside of the scale {lowest:g} to {highest:g}"
            message = f"the rating {rating:g} of '{sample.pair.sample_id}' {outside}"
            raise InputError(message, file=file, field=ratings.target)
        share = (rating - lowest) / (highest - lowest)
        score = share if ratings.better[ratings.target] == "higher" else 1 - share
        source = sources.setdefault(narrative(sample.pair.reference), sample.pair.sample_id)
        examples.append(_make_vert_example(ReportPair(sample.pair, "rated", source), score, "experts"))
    return (examples, failures), scale


def _make_vert_example(paired: ReportPair, score: float, teacher: str) -> TrainingExample:
    return TrainingExample(paired, paired.pair.sample_id, _prompt(VertTuned, paired), f"{score:.1f}", teacher, score)


def _prompt(metric: type[LLMMetric[Any]], paired: ReportPair) -> tuple[tuple[str, str], ...]:
    no_client: Any = None  # only the request is made
    return metric(no_client).request(TextPair.of(paired.pair)).messages


def format_assessment(answer: Assessment) -> str:
    """Format an assessment as GREEN's response (appendix A.1); ValueError if parsing it gives other counts."""
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
    """Return the assessment of injected errors, all significant; VERT's score is 1 - 0.15 x errors (appendix D.6)."""
    texts: dict[str, tuple[str, ...]] = dict.fromkeys(ERROR_CATEGORIES, ())
    for change in injected.changes:
        texts[change.category] += (_error(change),)
    shared = {normalize_text(sentence) for sentence in ReportSentences.of(injected.candidate).sentences}
    matched = (text for text in ReportSentences.of(injected.reference).sentences if normalize_text(text) in shared)
    findings = tuple(map(_clean, matched))
    kinds = [ERROR_CATEGORIES[letter].lower() for letter in ERROR_CATEGORIES if texts[letter]]
    significant = {name: assessment.CategoryErrors(count=len(errors), errors=errors) for name, errors in texts.items()}
    return ScoredAssessment(
        explanation=f"The candidate differs from the reference: {'; '.join(kinds)}." if kinds else "No differences.",
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
