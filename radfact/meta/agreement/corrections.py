"""FineRadScore compared with radiologists: correct rated reports with a model and evaluate its corrections.

Source: FineRadScore. Tables, sections and figures are those of the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import ErrorCode, Failure, RunError
from radfact.llm import ChatClient
from radfact.meta.agreement.line_corrections import (
    CategoryShares,
    Change,
    change_agreement,
    corrected_pairs,
    corrected_text_pairs,
    detect_categories,
    paraphrase,
    shuffle_lines,
)
from radfact.meta.datasets.ratings import COUNTS, SEVERITY_MAX, RatedReport, RatingSet
from radfact.meta.scores import ScoreFunction
from radfact.metrics.llm.fineradscore import FineRadScore, split_lines
from radfact.metrics.llm.responses.corrections import Corrections
from radfact.records import Pair, narrative
from radfact.statistics.correlation import SEED
from radfact.statistics.rater_agreement import (
    Mean,
    SeverityErrors,
    Share,
    rater_severity_errors,
    round_half_up,
    severity_errors,
)

Setting = Literal["original", "shuffled", "paraphrased"]
"""Original reports, references with shuffled lines, or candidates with paraphrased lines (sections 5 and 7)."""


@dataclass(frozen=True, slots=True)
class CorrectedReport:
    """A rated report with the corrections of a model.

    Attributes:
        rated: the rated report.
        pair: the reports as the model saw them.
        model: corrections of the model.
        expert: corrections of the radiologist, of the same lines; None in sets without corrections.
    """

    rated: RatedReport
    pair: Pair
    model: Corrections
    expert: Corrections | None


@dataclass(frozen=True, slots=True)
class CorrectionRun:
    """Reports that a model has corrected, and the reason for each report that it has not."""

    reports: Sequence[CorrectedReport]
    excluded: Mapping[str, str]


def correct_reports(
    ratings: RatingSet,
    metric: FineRadScore,
    *,
    setting: Setting = "original",
    paraphraser: ChatClient | None = None,
    seed: int = SEED,
) -> CorrectionRun:
    """Correct rated reports with a model.

    In sets with corrections of radiologists the model sees the same lines with the same numbers.
    """
    lines_by_id = {
        sample.pair.sample_id: sample.corrections.lines
        if sample.corrections
        else split_lines(narrative(sample.pair.candidate))
        for sample in ratings.samples
    }
    excluded: dict[str, str] = {}
    if setting == "paraphrased":
        lines_by_id, excluded = _paraphrase_lines(lines_by_id, paraphraser or metric.client)
    references = {sample.pair.sample_id: narrative(sample.pair.reference) for sample in ratings.samples}
    if setting == "shuffled":
        references = {key: shuffle_lines(text, seed=seed) for key, text in references.items()}
    requests = [metric.request_for_lines(lines, references[key]) for key, lines in lines_by_id.items()]
    results = metric.client.complete_all(requests)
    responses = dict(zip(lines_by_id, results, strict=True))
    reports = []
    for sample in ratings.samples:
        key = sample.pair.sample_id
        response = responses.get(key)
        if isinstance(response, Failure):
            excluded[key] = response.reason
        elif response is not None:
            expert = sample.corrections and replace(sample.corrections, lines=response.lines)
            pair = Pair(key, " ".join(response.lines), references[key])
            reports.append(CorrectedReport(sample, pair, response, expert))
    if not reports:
        raise RunError(next(iter(excluded.values()), "no report to correct"), code=ErrorCode.JUDGE_FAILED)
    return CorrectionRun(reports, excluded)


def _paraphrase_lines(
    lines_by_id: Mapping[str, tuple[str, ...]], client: ChatClient
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Paraphrase every line; a report with a line that fails is excluded."""
    texts = list(dict.fromkeys(line for lines in lines_by_id.values() for line in lines))
    paraphrases = dict(zip(texts, paraphrase(client, texts), strict=True))
    paraphrased: dict[str, tuple[str, ...]] = {}
    excluded: dict[str, str] = {}
    for key, lines in lines_by_id.items():
        results = [paraphrases[line] for line in lines]
        reasons = [result.reason for result in results if isinstance(result, Failure)]
        if reasons:
            excluded[key] = f"not paraphrased: {reasons[0]}"
        else:
            paraphrased[key] = tuple(" ".join(result.split()) for result in results if isinstance(result, str))
    return paraphrased, excluded


@dataclass(frozen=True, slots=True)
class Gain:
    """The mean of a score before and after correction, over the reports with both."""

    base: float | None
    corrected: float | None
    n: int


@dataclass(frozen=True, slots=True)
class CorrectionResult:
    """Agreement of FineRadScore with radiologists.

    Attributes:
        changes: group -> change of the radiologist -> how often the model makes it (tables 1, 4 and 7).
        text_similarity: score -> mean over rewritten and inserted text (tables 2, 5 and 8).
        gains: score -> similarity to the reference before and after correction (tables 3, 6 and 9).
        severities: differences of the greatest severity of a report, of the model and of other raters (section 6.4).
        categories: precision and recall by letter (appendix D).
    """

    changes: Mapping[str, Mapping[Change, Share]]
    text_similarity: Mapping[str, Mean]
    gains: Mapping[str, Gain]
    severities: Mapping[str, SeverityErrors]
    categories: Mapping[str, CategoryShares]


def evaluate_corrections(
    run: CorrectionRun, ratings: RatingSet, score: ScoreFunction, folder: Path
) -> CorrectionResult:
    """Compare a model's corrections with the experts'."""
    reports = [report for report in run.reports if report.expert is not None]
    expert = [report.expert for report in run.reports if report.expert is not None]
    model = [report.model for report in reports]
    changes: dict[str, Mapping[Change, Share]] = {}
    severities: dict[str, SeverityErrors] = {}
    similarity: dict[str, Mean] = {}
    gains: dict[str, Gain] = {}
    if reports:
        groups = replace(ratings, samples=[report.rated for report in reports]).indices_by_group(ratings.group)
        # A single group has the same reports as all.
        for group, indices in groups.items() if len(groups) > 2 else [("all", groups["all"])]:
            changes[group] = change_agreement([expert[i] for i in indices], [model[i] for i in indices])
        severities["model"] = severity_errors(
            [_max_severity(report.rated) for report in reports],
            [max(corrections.severities, default=0) for corrections in model],
        )
        if others := _other_raters(ratings):
            severities["other raters"] = others
        if pairs := corrected_text_pairs(expert, model):
            scores = score(pairs, folder / "text_similarity")
            similarity = {name: Mean.of(values) for name, values in scores.values.items()}
        gains = _gains([report.pair for report in reports], model, score, folder)
    return CorrectionResult(changes, similarity, gains, severities, _categories(run.reports, ratings))


def _max_severity(rated: RatedReport) -> int:
    """Return the maximum over all lines (section 6.4), including lines with a severity that are kept as they are."""
    return int(rated.mean(SEVERITY_MAX))


def _other_raters(ratings: RatingSet) -> SeverityErrors | None:
    """Compare radiologists who corrected the same candidate; None without such a candidate."""
    by_candidate: dict[str, list[int]] = {}
    for sample in ratings.samples:
        if sample.corrections is not None:
            key = sample.candidate_id or sample.pair.sample_id
            by_candidate.setdefault(key, []).append(_max_severity(sample))
    severities = list(by_candidate.values())
    return rater_severity_errors(severities) if any(len(raters) > 1 for raters in severities) else None


def _gains(pairs: Sequence[Pair], model: Sequence[Corrections], score: ScoreFunction, folder: Path) -> dict[str, Gain]:
    before = score(pairs, folder / "uncorrected")
    after = score(corrected_pairs(pairs, model), folder / "corrected")
    gains = {}
    for name in before.values:
        if name in after.values:
            rows = zip(before.values[name], after.values[name], strict=True)
            known = [row for row in rows if not math.isnan(sum(row))]
            first, second = (Mean.of([row[i] for row in known]).value for i in (0, 1))
            gains[name] = Gain(first, second, len(known))
    return gains


def has_categories(ratings: RatingSet) -> bool:
    """Return whether experts have counted errors by category and significance."""
    return all(f"{kind}_{letter}" in ratings.better for kind in COUNTS[1:] for letter in ERROR_CATEGORIES)


def _categories(reports: Sequence[CorrectedReport], ratings: RatingSet) -> dict[str, CategoryShares]:
    """Compare categories with the mean count of experts, significant or not, rounded half up."""
    if not has_categories(ratings):
        return {}
    known = [report for report in reports if not math.isnan(report.rated.mean("errors"))]
    expert = [
        {
            letter: int(round_half_up(sum(report.rated.mean(f"{kind}_{letter}") for kind in COUNTS[1:])))
            for letter in ERROR_CATEGORIES
        }
        for report in known
    ]
    return detect_categories(expert, [report.model for report in known])
