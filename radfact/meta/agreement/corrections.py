"""FineRadScore beside radiologists: its corrections of reports that they have corrected, or counted the errors of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import Failure, RunError
from radfact.llm import ChatClient
from radfact.meta.agreement.analysis import Figures
from radfact.meta.agreement.line_corrections import (
    CategoryShares,
    Change,
    SeverityErrors,
    category_agreement,
    change_agreement,
    corrected_pairs,
    paraphrased,
    rater_errors,
    severity_errors,
    shuffled,
    written_pairs,
)
from radfact.meta.datasets.ratings import COUNTS, SEVERITY_MAX, Rated, Ratings
from radfact.metrics.fineradscore import FineRadScore, split_lines
from radfact.metrics.responses.corrections import Corrections
from radfact.records import Pair, narrative
from radfact.statistics.correlation import SEED
from radfact.statistics.error_counts import Share

Setting = Literal["original", "shuffled", "paraphrased"]
"""The reports as they are, the reference in another order, or the candidate in other words (sections 5 and 7)."""

Score = Callable[[Sequence[Pair], Path], Figures]
"""Figures of pairs, kept in a folder."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """A rated report and what a model corrects in it.

    Attributes:
        rated: by experts.
        pair: the reports as the model saw them.
        model: its corrections.
        expert: the radiologist's, of the same lines; None where the set has none.
    """

    rated: Rated
    pair: Pair
    model: Corrections
    expert: Corrections | None


@dataclass(frozen=True, slots=True)
class Answers:
    """The reports that the model has corrected, and why it has not the others."""

    reports: Sequence[Corrected]
    left_out: Mapping[str, str]


def correct(
    ratings: Ratings,
    metric: FineRadScore,
    *,
    setting: Setting = "original",
    rephraser: ChatClient | None = None,
    seed: int = SEED,
) -> Answers:
    """Have a model correct rated reports.

    Where radiologists have corrected lines, it is shown these very lines, with the numbers that they have there.

    Args:
        ratings: of the experts.
        metric: FineRadScore of the model.
        setting: `shuffled` puts the lines of the references in another order, `paraphrased` has every line of the
            candidates put in other words.
        rephraser: of the latter; by default the model that corrects.
        seed: of the order.

    Raises:
        RunError: nothing could be asked, or no answer can be used.
    """
    shown = {one.pair.sample_id: _lines(one) for one in ratings.samples}
    failed: dict[str, str] = {}
    if setting == "paraphrased":
        shown, failed = _paraphrased(shown, rephraser or metric.client)
    references = {one.pair.sample_id: narrative(one.pair.reference) for one in ratings.samples}
    if setting == "shuffled":
        references = {key: shuffled(text, seed=seed) for key, text in references.items()}
    said = metric.client.complete_all(
        [metric.request_for_lines(lines, references[key]) for key, lines in shown.items()]
    )
    answers: dict[str, Corrections | Failure] = dict(zip(shown, said, strict=True))
    reports = []
    for one in ratings.samples:
        key = one.pair.sample_id
        answer = answers.get(key)
        if isinstance(answer, Failure):
            failed[key] = answer.reason
        elif answer is not None:
            expert = one.corrections and replace(one.corrections, lines=answer.lines)
            pair = Pair(key, " ".join(answer.lines), references[key])
            reports.append(Corrected(one, pair, answer, expert))
    if not reports:
        raise RunError(next(iter(failed.values()), "no report to correct"))
    return Answers(reports, failed)


def _lines(one: Rated) -> tuple[str, ...]:
    return one.corrections.lines if one.corrections else split_lines(narrative(one.pair.candidate))


def _paraphrased(
    shown: Mapping[str, tuple[str, ...]], client: ChatClient
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """The same lines in other words; reports of which one could not be rephrased are out."""
    asked = list(dict.fromkeys(line for lines in shown.values() for line in lines))
    said = dict(zip(asked, paraphrased(client, asked), strict=True))
    found: dict[str, tuple[str, ...]] = {}
    failed: dict[str, str] = {}
    for key, lines in shown.items():
        answers = [said[line] for line in lines]
        reasons = [one.reason for one in answers if isinstance(one, Failure)]
        if reasons:
            failed[key] = f"not put in other words: {reasons[0]}"
        else:
            found[key] = tuple(" ".join(one.split()) for one in answers if isinstance(one, str))
    return found, failed


@dataclass(frozen=True, slots=True)
class Gain:
    """The mean of a figure before correction and after it, over the reports that have both."""

    base: float | None
    corrected: float | None
    n: int


@dataclass(frozen=True, slots=True)
class CorrectionFindings:
    """What paper 001 tells of FineRadScore beside radiologists.

    Attributes:
        changes: group -> what becomes of lines and reports -> how often as with the radiologist (tables 1, 4, 7).
        written: figure -> mean similarity of the text that was rewritten and inserted (tables 2, 5, 8).
        gains: figure -> likeness to the reference before and after correction (tables 3, 6, 9).
        severities: of the model, and of other raters: differences of the greatest severity of a report (section 6.4).
        categories: precision and recall by letter (appendix D).
    """

    changes: Mapping[str, Mapping[Change, Share]]
    written: Mapping[str, Share]
    gains: Mapping[str, Gain]
    severities: Mapping[str, SeverityErrors]
    categories: Mapping[str, CategoryShares]


def compare_corrections(answers: Answers, ratings: Ratings, score: Score, folder: Path) -> CorrectionFindings:
    """Set a model's corrections beside the experts'.

    Args:
        answers: of the model.
        ratings: that they are of; other raters of the same candidates are compared with each other.
        score: figures of texts.
        folder: of what is scored.

    Raises:
        RunError: no metric could score anything.
    """
    both = [(one, one.expert) for one in answers.reports if one.expert is not None]
    changes: dict[str, Mapping[Change, Share]] = {}
    severities: dict[str, SeverityErrors] = {}
    written: dict[str, Share] = {}
    gains: dict[str, Gain] = {}
    if both:
        for group, places in _groups(ratings, [one for one, _ in both]).items():
            here = [both[place] for place in places]
            changes[group] = change_agreement([expert for _, expert in here], [one.model for one, _ in here])
        expert, model = [expert for _, expert in both], [one.model for one, _ in both]
        severities["model"] = severity_errors(
            [_greatest_grade(one.rated) for one, _ in both], [max(one.severities, default=0) for one in model]
        )
        if others := _other_raters(ratings):
            severities["other raters"] = others
        written = _written(expert, model, score, folder)
        gains = _gains([one.pair for one, _ in both], model, score, folder)
    return CorrectionFindings(changes, written, gains, severities, _categories(answers.reports, ratings))


def _groups(ratings: Ratings, reports: Sequence[Corrected]) -> dict[str, list[int]]:
    groups = replace(ratings, samples=[one.rated for one in reports]).in_group(ratings.group)
    return groups if len(groups) > 2 else {"all": groups["all"]}


def _greatest_grade(rated: Rated) -> int:
    """Of all lines (section 6.4): a radiologist may grade one that he leaves as it is, and so makes no correction."""
    return int(rated.mean(SEVERITY_MAX))


def _other_raters(ratings: Ratings) -> SeverityErrors | None:
    """The disagreement of radiologists who have corrected the same candidate; None where there are none."""
    by_candidate: dict[str, list[int]] = {}
    for one in ratings.samples:
        if one.corrections is not None:
            key = one.candidate_id or one.pair.sample_id
            by_candidate.setdefault(key, []).append(_greatest_grade(one))
    given = list(by_candidate.values())
    return rater_errors(given) if any(len(one) > 1 for one in given) else None


def _written(
    expert: Sequence[Corrections], model: Sequence[Corrections], score: Score, folder: Path
) -> dict[str, Share]:
    pairs = written_pairs(expert, model)
    if not pairs:
        return {}
    figures = score(pairs, folder / "written")
    return {name: _mean(values) for name, values in figures.values.items()}


def _gains(pairs: Sequence[Pair], model: Sequence[Corrections], score: Score, folder: Path) -> dict[str, Gain]:
    before = score(pairs, folder / "uncorrected")
    after = score(corrected_pairs(pairs, model), folder / "corrected")
    found = {}
    for name in before.values:
        if name in after.values:
            rows = list(zip(before.values[name], after.values[name], strict=True))
            known = [row for row in rows if not math.isnan(sum(row))]
            first, second = (_mean([row[place] for row in known]) for place in (0, 1))
            found[name] = Gain(first.value, second.value, len(known))
    return found


def _mean(values: Sequence[float]) -> Share:
    known = [value for value in values if not math.isnan(value)]
    return Share(sum(known) / len(known) if known else None, len(known))


def has_categories(ratings: Ratings) -> bool:
    """Whether experts have counted errors by category and significance."""
    return all(f"{kind}_{letter}" in ratings.better for kind in COUNTS[1:] for letter in ERROR_CATEGORIES)


def _categories(reports: Sequence[Corrected], ratings: Ratings) -> dict[str, CategoryShares]:
    """What experts have counted is the mean of their numbers, significant or not, rounded, halves up."""
    if not has_categories(ratings):
        return {}
    known = [one for one in reports if not math.isnan(one.rated.mean("errors"))]
    expert = [{letter: _number(one.rated, letter) for letter in ERROR_CATEGORIES} for one in known]
    return category_agreement(expert, [one.model for one in known])


def _number(rated: Rated, letter: str) -> int:
    return math.floor(sum(rated.mean(f"{kind}_{letter}") for kind in COUNTS[1:]) + 0.5)
