"""Report of the agreement of metrics with experts: JSON, CSV, plots and a page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from itertools import permutations
from operator import attrgetter
from pathlib import Path
from typing import Any

from radfact.error_categories import ERROR_CATEGORIES
from radfact.meta.agreement.analysis import (
    LISTED,
    CountAgreement,
    CountError,
    Disagreement,
    MetricAgreement,
    MetricContrast,
    RaterAgreement,
)
from radfact.meta.agreement.preferences import WrongPreference
from radfact.meta.datasets.ratings import RatingSet
from radfact.meta.report import AnalysisReport
from radfact.meta.scores import ScoreColumns
from radfact.pages import plots
from radfact.pages.meta_page import Table, format_cell
from radfact.records import narrative
from radfact.results.display import words
from radfact.statistics.correlation import COEFFICIENTS, Coefficient
from radfact.statistics.rater_agreement import PreferenceAccuracy, round_half_up

_MAX_PANELS = 16
"""Panels of the scatter plot, for the scores that agree best."""
_BINS = 10
"""Bins of a histogram of ratings that are not whole numbers."""

Preferences = Mapping[str, Mapping[float, PreferenceAccuracy]]
"""Score -> minimum confidence -> accuracy."""


@dataclass(frozen=True, slots=True)
class AgreementResult:
    """Agreement of metrics with experts; fields have the names and the order of `agreement.json`."""

    agreement: Sequence[MetricAgreement]
    metric_contrasts: Sequence[MetricContrast] = ()
    disagreements: Sequence[Disagreement | WrongPreference] = ()
    inter_rater: Sequence[RaterAgreement] = ()
    count_errors: Sequence[CountError] = ()
    count_agreement: Sequence[CountAgreement] = ()
    preferences: Preferences = field(default_factory=dict)


def write_agreement(
    result: AgreementResult,
    ratings: RatingSet,
    scores: ScoreColumns,
    folder: Path,
    record: Mapping[str, Any],
    group: str | None,
) -> list[str]:
    """Write `agreement.json`, CSV tables, plots and `agreement.html`; return sentences about what is not plotted."""
    report = AnalysisReport(folder)
    _add_correlations(report, result.agreement, ratings, scores, record, group or ratings.group)
    _add_contrasts(report, result.metric_contrasts, record)
    _add_ratings(report, ratings)
    _add_counts(report, result)
    _add_preferences(report, result.preferences)
    add_raters(report, result.inter_rater)
    _add_disagreements(report, result.disagreements, ratings)
    levels = {
        name: {f"{level:g}": asdict(accuracy) for level, accuracy in accuracies.items()}
        for name, accuracies in result.preferences.items()
    }
    matches = [asdict(match) for match in scores.matches]
    mismatches = [note for match in scores.matches for note in match.notes()]
    notes = [*scores.model_notes(), *ratings.notes, *mismatches, *_missing_values(result, display_names=True)]
    about = {**record, "models": dict(scores.models), "results_folders": matches}
    details = {**about, **asdict(result), "preferences": levels}
    missing = report.write("agreement", "Agreement of metrics with experts", details, notes)
    return [*_missing_values(result, display_names=False), *missing]


def _missing_values(result: AgreementResult, *, display_names: bool) -> list[str]:
    """Return sentences about scores that are in no plot."""
    overall = (row for row in result.agreement if row.group == "all")
    no_coefficient = [row.score for row in overall if row.coefficients["kendall"].value is None]
    no_accuracy = [name for name, levels in result.preferences.items() if not _has_accuracy(levels)]
    kinds = (
        ("coefficient", no_coefficient, "fewer than three values, or all the same"),
        ("accuracy", no_accuracy, "no pair in which both the score and the experts prefer a candidate"),
    )
    return [
        f"Without {kind} and in no plot: {', '.join(map(words, names) if display_names else names)} ({reason})."
        for kind, names, reason in kinds
        if names
    ]


def _has_accuracy(levels: Mapping[float, PreferenceAccuracy]) -> bool:
    return any(accuracy.value is not None for accuracy in levels.values())


def _add_correlations(
    report: AnalysisReport,
    agreements: Sequence[MetricAgreement],
    ratings: RatingSet,
    scores: ScoreColumns,
    record: Mapping[str, Any],
    group: str | None,
) -> None:
    if not agreements:
        return
    text = (
        f"Experts: {ratings.target}. For coefficients, metrics and experts are oriented so that higher is worse: "
        "positive means that both rate the same reports as bad. Scatter plots show both on their own scales. "
        f"Intervals: {record['bootstrap']} bootstrap replicates, seed {record['seed']}, "
        f"{ratings.clusters.resampling().describe()}. "
        "p: two-sided, of a coefficient of 0, for which all reports are independent."
    )
    kendall = [(row.score, row.group, row.coefficients["kendall"]) for row in agreements]
    sizes = {score: abs(e.value) for score, label, e in kendall if label == "all" and e.value is not None}
    images = []
    if sizes:
        best = sorted(sizes, key=lambda name: -sizes[name])[:_MAX_PANELS]
        label = "Kendall's tau-b with experts (positive: both rate the same reports as bad)"
        images += report.draw("forest", "Kendall's tau-b with intervals", plots.forest, {label: kendall})
        images += report.draw(
            "scatter",
            "Scores against experts",
            plots.scatter,
            ratings.means(ratings.target),
            {name: scores.values[name] for name in best},
            ratings.indices_by_group(group),
            directions=scores.directions,
            label=f"experts: {ratings.target}, {ratings.better[ratings.target]} is better",
        )
    report.write_table("agreement", _coefficients(agreements, _ALL_PARTS))
    overall, grouped = ([row for row in agreements if (row.group == "all") == is_all] for is_all in (True, False))
    report.add("Agreement with experts", _coefficients(overall, _WITH_INTERVALS), text, *images)
    report.add(f"By {group}", _coefficients(grouped, _WITH_INTERVALS))


def contrast_table(contrasts: Sequence[MetricContrast]) -> Table:
    rows = []
    for row in contrasts:
        test, gap = row.kendall, row.kendall.difference
        rows.append([row.score, gap.n, test.first, test.second, gap.value, gap.low, gap.high, test.p, row.p_holm])
    return Table(["score", "n", contrasts[0].baseline, "kendall", "difference", "low", "high", "p", "Holm"], rows)


def _add_contrasts(report: AnalysisReport, contrasts: Sequence[MetricContrast], record: Mapping[str, Any]) -> None:
    if not contrasts:
        return
    values = {"baseline": words(contrasts[0].baseline), "tests": len(contrasts)}
    draws = {name: record[name] for name in ("bootstrap", "rounds")}
    report.section("metric_contrasts", contrast_table(contrasts), **values, **draws)


def _add_disagreements(
    report: AnalysisReport, found: Sequence[Disagreement | WrongPreference], ratings: RatingSet
) -> None:
    """List the reports on which a score and the experts differ most, with their texts."""
    rows = [list(astuple(row)) for row in found]
    if ratings.samples:
        headings = ["score", "report", "experts", "value", "experts' rank", "rank by the score"]
        headings += ["reference", "candidate"]
        pairs = {pair.sample_id: pair for pair in ratings.pairs}
        rows = [[*row, narrative(pairs[row[1]].reference), narrative(pairs[row[1]].candidate)] for row in rows]
        text = (
            f"Reports whose ranks by a score and by the experts differ most, up to {LISTED} of each score. Ranks run "
            "from 0 (best report) to 1 (worst)."
        )
    else:
        headings = ["score", "row", "confidence", "experts prefer", "score prefers", "first", "second"]
        text = (
            f"Rows in which a score does not prefer the experts' candidate: up to {LISTED} of each, the surest first."
        )
    report.add("Largest disagreements", Table(headings, rows), text, file="disagreements")


def _add_ratings(report: AnalysisReport, ratings: RatingSet) -> None:
    """Add a histogram of the mean ratings on their own scale (VERT, figures 5 and 6)."""
    if not (known := [value for value in ratings.means(ratings.target) if not math.isnan(value)]):
        return
    values = (value for sample in ratings.samples for value in sample.ratings.get(ratings.target, {}).values())
    lowest, width = min(known), (max(known) - min(known)) / _BINS or 1.0
    if all(math.isnan(value) or value == value // 1 for value in values):
        positions, width = [float(round_half_up(value)) for value in known], 1.0
    else:
        # The maximum belongs to the last bin.
        positions = [lowest + width * (min((value - lowest) // width, _BINS - 1) + 0.5) for value in known]
    counts = {position: float(number) for position, number in Counter(positions).items()}
    label = f"experts: {ratings.target}"
    labels = {"x": f"{label}, mean of all", "y": "reports"}
    images = report.draw("ratings", "Histogram of expert ratings", plots.bars, {label: counts}, **labels, width=width)
    if images:
        report.add("Expert ratings", *images)


def _add_counts(report: AnalysisReport, result: AgreementResult) -> None:
    headings = ["score", "experts' quantity", "expert", "mean absolute error", "standard deviation", "n"]
    report.section("count_errors", Table(headings, [astuple(error) for error in result.count_errors]))
    counts = result.count_agreement
    rows = [[row.score, row.quantity, true, m.value, m.n] for row in counts for true, m in row.detected.items()]
    means = {row.score: {"mean detected": {n: mean.value for n, mean in row.detected.items()}} for row in counts}
    images = report.draw(
        "detected",
        "Mean detected errors by the experts' number",
        plots.curves,
        {score: curves for score, curves in means.items() if curves["mean detected"]},
        x="experts' number",
        y="mean detected",
        diagonal=True,
    )
    table = Table(["score", "experts' quantity", "experts' number", "mean detected", "n"], rows)
    report.section("detected", table, *images)
    report.section("categories", category_table(counts))


def _add_preferences(report: AnalysisReport, preferences: Preferences) -> None:
    known = {name: levels for name, levels in preferences.items() if _has_accuracy(levels)}
    labels = {"x": "minimum confidence of the experts", "y": "share of preferences met"}
    images = report.draw("preferences", "Preferences by confidence", plots.bands, known, **labels)
    report.section("preferences", preference_table(preferences), *images)


def add_raters(report: AnalysisReport, raters: Sequence[RaterAgreement]) -> None:
    if not raters:
        return
    headings = ["quantity", "first", "second", "n", "kendall", "low", "high", "mean absolute difference"]
    rows = []
    parts: list[Table | str] = []
    for quantity in dict.fromkeys(row.quantity for row in raters):
        of_quantity = [row for row in raters if row.quantity == quantity]
        parts += [f"Kendall's tau-b, {quantity}:", _rater_matrix(of_quantity)]
        for row in of_quantity:
            e = row.kendall
            rows.append([quantity, row.first, row.second, e.n, e.value, e.low, e.high, row.mean_absolute_difference])
    report.write_table("inter_rater", Table(headings, rows))
    report.add("Agreement between experts", *parts, Table(headings, rows))


def _rater_matrix(raters: Sequence[RaterAgreement]) -> Table:
    values = {pair: row.kendall.value for row in raters for pair in permutations((row.first, row.second))}
    names = sorted({name for name, _ in values})
    cells = [[name, *(1.0 if other == name else values.get((name, other)) for other in names)] for name in names]
    return Table(["rater", *names], cells)


def _with_interval(e: Coefficient) -> float | str | None:
    has_interval = e.low is not None and e.high is not None
    return f"{format_cell(e.value)} ({e.low:.2f} to {e.high:.2f})" if has_interval else e.value


_ALL_PARTS = {"": attrgetter("value"), " low": attrgetter("low"), " high": attrgetter("high"), " p": attrgetter("p")}
_WITH_INTERVALS: Mapping[str, Callable[[Coefficient], Any]] = {"": _with_interval, " p": attrgetter("p")}


def _coefficients(agreements: Sequence[MetricAgreement], parts: Mapping[str, Callable[[Coefficient], Any]]) -> Table:
    rows = []
    for row in agreements:
        cells = [part(e) for e in row.coefficients.values() for part in parts.values()]
        rows.append([row.score, row.group, row.coefficients["kendall"].n, *cells])
    return Table(["score", "group", "n", *(f"{name}{part}" for name in COEFFICIENTS for part in parts)], rows)


def short_table(heading: str, estimates: Mapping[str, Mapping[str, Coefficient]]) -> Table:
    """Return coefficients by name, each with its p and the first with its interval, for a console."""
    rows = []
    for name, coefficients in estimates.items():
        first, *others = (coefficients[coefficient] for coefficient in COEFFICIENTS)
        more = [cell for e in others for cell in (e.value, e.p)]
        rows.append([name, first.n, first.value, first.low, first.high, first.p, *more])
    return Table([heading, "n", COEFFICIENTS[0], "low", "high", "p", "spearman", "p", "pearson", "p"], rows)


def category_table(counts: Sequence[CountAgreement]) -> Table:
    headings = ["score", *(f"{kind} ({letter})" for kind in ("F1", "accuracy") for letter in ERROR_CATEGORIES)]
    known = [row for row in counts if row.f1]
    rows = [[row.score, *row.f1.values(), *(share.value for share in row.accuracy.values())] for row in known]
    return Table(headings, rows)


def preference_table(preferences: Preferences) -> Table:
    accuracies = [(name, level, a) for name, levels in preferences.items() for level, a in levels.items()]
    rows = [[name, level, a.n, a.value, a.low, a.high, a.ties] for name, level, a in accuracies]
    return Table(["score", "minimum confidence", "n", "accuracy", "low", "high", "ties"], rows)
