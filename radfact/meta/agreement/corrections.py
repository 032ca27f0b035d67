"""FineRadScore compared with radiologists, in the tables, sections and figures of its paper."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from radfact.errors import ErrorCode, Failure, RunError
from radfact.io.jsonl import write_jsonl
from radfact.llm import ChatClient, ChatRequest
from radfact.meta.datasets.ratings import COUNTS, SEVERITY_MAX, RatedReport, RatingSet, is_category_count
from radfact.meta.report import CATEGORY_LEGEND, AnalysisReport
from radfact.meta.scores import ScoreFunction
from radfact.metrics.llm.fineradscore import FineRadScore, split_lines
from radfact.metrics.llm.llm_metric import fill_prompt, load_prompt
from radfact.metrics.llm.responses.corrections import CATEGORY_NAMES, Corrections
from radfact.metrics.llm.responses.report_text import parse_report
from radfact.pages import plots
from radfact.pages.meta_page import Table
from radfact.records import Pair, narrative
from radfact.statistics.clusters import id_order
from radfact.statistics.correlation import SEED
from radfact.statistics.rater_agreement import (
    Mean,
    SeverityErrors,
    rater_severity_errors,
    round_half_up,
    severity_errors,
)

Setting = Literal["original", "shuffled", "paraphrased"]
"""Original reports, references with shuffled lines, or candidates with paraphrased lines (sections 5 and 7)."""

SEVERITY_COLUMNS = ("rater", "n", "mean absolute error", "equal", "within one")

Change = Literal["no_change", "delete", "rewrite", "insert", "no_insert"]
CHANGES: tuple[Change, ...] = get_args(Change)


@dataclass(frozen=True, slots=True)
class CorrectedReport:
    """A rated report as the model saw it, with its corrections and those of the radiologist, if any."""

    rated: RatedReport
    pair: Pair
    model: Corrections
    expert: Corrections | None


def correct_reports(
    ratings: RatingSet,
    metric: FineRadScore,
    *,
    setting: Setting = "original",
    paraphraser: ChatClient | None = None,
    seed: int = SEED,
) -> tuple[list[CorrectedReport], dict[str, str]]:
    """Return rated reports corrected by a model, by the lines of the radiologists, and reasons for the others."""
    samples = {sample.pair.sample_id: sample for sample in ratings.samples}
    lines_by_id = {
        key: sample.corrections.lines if sample.corrections else split_lines(narrative(sample.pair.candidate))
        for key, sample in samples.items()
    }
    excluded: dict[str, str] = {}
    if setting == "paraphrased":
        kinds = {key: sample.pair.context.examination for key, sample in samples.items()}
        lines_by_id, excluded = _paraphrase_lines(lines_by_id, kinds, paraphraser or metric.client)
    references = {key: narrative(sample.pair.reference) for key, sample in samples.items()}
    if setting == "shuffled":
        references = {key: shuffle_lines(text, seed=seed) for key, text in references.items()}
    requests = [metric.request_for_lines(lines, references[key]) for key, lines in lines_by_id.items()]
    reports = []
    for key, response in zip(lines_by_id, metric.client.complete_all(requests), strict=True):
        if isinstance(response, Failure):
            excluded[key] = response.reason
        else:
            sample, text = samples[key], " ".join(response.lines)
            pair = Pair(key, text, references[key], context=sample.pair.context)
            expert = sample.corrections and replace(sample.corrections, lines=response.lines)
            reports.append(CorrectedReport(sample, pair, response, expert))
    if not reports:
        raise RunError(next(iter(excluded.values()), "no report to correct"), code=ErrorCode.JUDGE_FAILED)
    return reports, excluded


def _paraphrase_lines(
    lines_by_id: Mapping[str, tuple[str, ...]], kinds: Mapping[str, str], client: ChatClient
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Paraphrase every line, by the kind of examination; a report with a line that fails is excluded."""
    texts = list(dict.fromkeys((line, kinds[key]) for key, lines in lines_by_id.items() for line in lines))
    paraphrases = dict(zip(texts, paraphrase(client, texts), strict=True))
    paraphrased: dict[str, tuple[str, ...]] = {}
    excluded: dict[str, str] = {}
    for key, lines in lines_by_id.items():
        results = [paraphrases[line, kinds[key]] for line in lines]
        reasons = [result.reason for result in results if isinstance(result, Failure)]
        if reasons:
            excluded[key] = f"not paraphrased: {reasons[0]}"
        else:
            paraphrased[key] = tuple(" ".join(result.split()) for result in results if isinstance(result, str))
    return paraphrased, excluded


@dataclass(frozen=True, slots=True)
class Gain:
    """The mean of a score before and after correction, over the reports with both."""

    base: float | None = None
    corrected: float | None = None
    n: int = 0


@dataclass(frozen=True, slots=True)
class CorrectionResult:
    """Agreement of FineRadScore with radiologists (the tables); empty where a set has no corrections or categories."""

    changes: dict[str, dict[Change, Mean]] = field(default_factory=dict)  # by group: how often the model makes each
    text_similarity: dict[str, Mean] = field(default_factory=dict)
    gains: dict[str, Gain] = field(default_factory=dict)
    severities: dict[str, SeverityErrors] = field(default_factory=dict)
    categories: dict[str, dict[str, Mean]] = field(default_factory=dict)


def evaluate_corrections(
    corrected: Sequence[CorrectedReport], ratings: RatingSet, score: ScoreFunction, folder: Path
) -> CorrectionResult:
    """Compare a model's corrections with the experts'; texts are scored by `score`, into subfolders of `folder`."""
    result = CorrectionResult(categories=_categories(corrected, ratings) if ratings.has_categories else {})
    if not (reports := [report for report in corrected if report.expert is not None]):
        return result
    groups = replace(ratings, samples=[report.rated for report in reports]).indices_by_group(ratings.group)
    # A single group has the same reports as all.
    for group, indices in groups.items() if len(groups) > 2 else [("all", groups["all"])]:
        result.changes[group] = change_agreement([reports[index] for index in indices])
    greatest = [max(report.model.severities, default=0) for report in reports]
    samples = sorted(ratings.samples, key=lambda sample: id_order(sample.pair.sample_id))
    by_raters = replace(ratings, samples=[sample for sample in samples if sample.corrections is not None]).candidates()
    # The maximum over all lines (section 6.4), including lines with a severity that are kept as they are.
    of_raters = [[int(sample.mean(SEVERITY_MAX)) for sample in samples] for samples in by_raters]
    errors = {
        "model": severity_errors([int(report.rated.mean(SEVERITY_MAX)) for report in reports], greatest),
        "other raters": rater_severity_errors(of_raters),
    }
    result.severities.update({name: error for name, error in errors.items() if error is not None})
    if texts := corrected_text_pairs(reports):
        scores = score(texts, folder / "text_similarity").values
        result.text_similarity.update({name: Mean.of(values) for name, values in scores.items()})
    before = score([report.pair for report in reports], folder / "uncorrected").values
    pairs = [replace(report.pair, candidate=report.model.corrected_report()) for report in reports]
    after = score(pairs, folder / "corrected").values
    for name in filter(after.__contains__, before):
        known = [row for row in zip(before[name], after[name], strict=True) if not math.isnan(sum(row))]
        first, second = (Mean.of(row[i] for row in known).value for i in (0, 1))
        result.gains[name] = Gain(first, second, len(known))
    return result


def _categories(reports: Sequence[CorrectedReport], ratings: RatingSet) -> dict[str, dict[str, Mean]]:
    """Return whether a report has any error of a category, compared with the mean count of experts, rounded half up."""
    counts = [*filter(is_category_count, ratings.better)]
    known = [report for report in reports if not math.isnan(sum(map(report.rated.mean, counts)))]
    shares = {}
    for letter in CATEGORY_NAMES:
        means = [sum(report.rated.mean(f"{kind}_{letter}") for kind in COUNTS[1:]) for report in known]
        predicted = [any(letter in item.categories for item in report.model.items) for report in known]
        cases = [(round_half_up(mean) > 0, is_found) for mean, is_found in zip(means, predicted, strict=True)]
        shares[letter] = {
            "precision": Mean.of(is_true for is_true, is_found in cases if is_found),
            "recall": Mean.of(is_found for is_true, is_found in cases if is_true),
        }
    return shares


def change_table(result: CorrectionResult) -> Table:
    headings = ["reports", *(f"{change.replace('_', ' ')}{part}" for change in CHANGES for part in ("", ", n"))]
    rows = [[group, *_values_and_numbers(shares)] for group, shares in result.changes.items()]
    return Table(headings, rows)


def _values_and_numbers(means: Mapping[Any, Mean]) -> list[float | None]:
    return [value for mean in means.values() for value in (mean.value, mean.n)]


def text_table(result: CorrectionResult) -> Table:
    rows = []
    for name in dict.fromkeys((*result.text_similarity, *result.gains)):
        text, gain = result.text_similarity.get(name, Mean(None, 0)), result.gains.get(name, Gain())
        rows.append([name, *astuple(text), *astuple(gain)])
    return Table(["score", "corrected text", "texts", "base", "corrected", "reports"], rows)


def severity_table(result: CorrectionResult) -> Table:
    gaps = sorted({gap for errors in result.severities.values() for gap in errors.shares})
    rows = []
    for name, errors in result.severities.items():
        within_one = sum(share for gap, share in errors.shares.items() if abs(gap) <= 1)
        shares = [errors.shares.get(gap, 0.0) for gap in gaps]
        rows.append([name, errors.n, errors.mean_absolute, errors.shares.get(0, 0.0), within_one, *shares])
    return Table([*SEVERITY_COLUMNS, *(f"{gap:+d}" for gap in gaps)], rows)


def category_shares_table(result: CorrectionResult) -> Table:
    rows = [[f"({letter})", *_values_and_numbers(shares)] for letter, shares in result.categories.items()]
    return Table(["category", "precision", "reports of the model", "recall", "reports of the experts"], rows)


def write_corrections(
    result: CorrectionResult,
    reports: Sequence[CorrectedReport],
    excluded: Mapping[str, str],
    folder: Path,
    record: Mapping[str, Any],
    *,
    setting: Setting,
    notes: Sequence[str] = (),
) -> list[str]:
    """Write `corrections.json`, `corrections.jsonl`, CSV tables, a plot and the page; return notes on missing plots."""
    report = AnalysisReport(folder)
    first = 1 + 3 * get_args(Setting).index(setting)
    report.section("changes", change_table(result), table=first)
    report.section("texts", text_table(result), tables=f"{first + 1} and {first + 2}")
    columns = {
        name: {float(gap): share for gap, share in errors.shares.items()} for name, errors in result.severities.items()
    }
    labels = {"x": "severity, minus the radiologist's", "y": "share of reports"}
    description = "Differences of the greatest severity of a report"
    images = report.draw("severities", description, plots.bars, columns, **labels, width=1.0)
    report.section("severities", severity_table(result), *images)
    report.add(
        "Categories of errors (appendix D)",
        category_shares_table(result),
        "Whether a report has any error of a category. For the experts it has one if the mean of their counts, "
        f"significant or not, is at least 0.5. {CATEGORY_LEGEND}",
        file="categories",
    )
    report.add("Excluded", Table(["report", "reason"], list(excluded.items())))
    lines = ({"sample_id": row.pair.sample_id, **row.model.as_record()} for row in reports)
    write_jsonl(folder / "corrections.jsonl", lines)
    about = {**record, "setting": setting, "reports": len(reports), "excluded": dict(excluded)}
    return report.write("corrections", "FineRadScore compared with radiologists", about | asdict(result), notes)


def line_changes(corrections: Corrections) -> list[Change]:
    """Return the change of each line of the candidate (no_change, delete or rewrite), then insert or no_insert."""
    changes: list[Change] = ["no_change"] * len(corrections.lines)
    for number, item in corrections.by_line().items():
        changes[number] = "delete" if item.text is None else "rewrite"
    return [*changes, "insert" if corrections.insertions else "no_insert"]


def change_agreement(reports: Sequence[CorrectedReport]) -> dict[Change, Mean]:
    """Return how often the model makes the radiologist's change (tables 1, 4 and 7)."""
    # Insertions are compared per report, since the same content may be inserted in one line or three.
    both = ((line_changes(row.expert), line_changes(row.model)) for row in reports if row.expert is not None)
    cases = [case for changes in both for case in zip(*changes, strict=True)]
    return {change: Mean.of(own == change for true, own in cases if true == change) for change in CHANGES}


def corrected_text_pairs(reports: Sequence[CorrectedReport]) -> list[Pair]:
    """Pair the model's corrected text with the radiologist's; reports without either are excluded."""
    texts = [(_corrected_text(report.model), _corrected_text(report.expert)) for report in reports]
    contexts = [report.pair.context for report in reports]
    return [Pair(str(i), *both, context=contexts[i]) for i, both in enumerate(texts) if any(both)]


def _corrected_text(corrections: Corrections | None) -> str:
    """Return all rewritten and inserted lines as one text, which tables 2, 5 and 8 compare per report."""
    if corrections is None:
        return ""
    rewritten = [item.text for _, item in sorted(corrections.by_line().items()) if item.text is not None]
    return " ".join([*rewritten, *corrections.insertions])


def shuffle_lines(report: str, *, seed: int = 42) -> str:
    """Return a report with its lines in another order, if it has at least two different ones (section 7.1)."""
    lines = list(split_lines(report))
    if len(set(lines)) < 2:
        return report
    generator, order = random.Random(f"{seed} {report}"), lines[:]
    while order == lines:
        generator.shuffle(order)
    return " ".join(order)


def paraphrase(client: ChatClient, texts: Sequence[tuple[str, str]]) -> list[str | Failure]:
    """Paraphrase texts with the kinds of their examinations (section 7.2); nothing checks that the content is equal."""
    requests = []
    for text, kind in texts:
        prompt = fill_prompt(load_prompt("paraphrase"), report=text, examination=kind)
        requests.append(ChatRequest((("user", prompt),), partial(parse_report, source=text, requires_overlap=False)))
    return client.complete_all(requests)
