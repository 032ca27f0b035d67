"""Report of the agreement of metrics with experts: JSON, CSV, plots and a page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any

from radfact.error_categories import ERROR_CATEGORIES
from radfact.io.jsonl import write_json
from radfact.meta.agreement.analysis import CountAgreement, CountError, MetricAgreement, RaterAgreement
from radfact.meta.agreement.contrasts import LISTED, Disagreement, MetricContrast, WrongPreference
from radfact.meta.datasets.ratings import RatingSet
from radfact.meta.scores import ScoreColumns
from radfact.pages import plots
from radfact.pages.markup import words
from radfact.pages.meta_page import PlotFolder, Section, Table, format_cell, write_page
from radfact.records import narrative
from radfact.statistics.clusters import resampling_of
from radfact.statistics.correlation import COEFFICIENTS
from radfact.statistics.rater_agreement import PreferenceAccuracy, round_half_up

_MAX_PANELS = 16
"""Panels of the scatter plot, for the scores that agree best."""
_BINS = 10
"""Bins of a histogram of ratings that are not whole numbers."""

CATEGORY_LEGEND = "; ".join(f"({letter}) {name}" for letter, name in ERROR_CATEGORIES.items()) + "."
"""Sentence with the names of the categories of errors."""

Preferences = Mapping[str, Mapping[float, PreferenceAccuracy]]
"""Score -> minimum confidence -> accuracy."""


@dataclass(frozen=True, slots=True)
class AgreementResult:
    """Agreement of metrics with experts; `preferences` if the experts chose between two candidates.

    Attributes:
        contrasts: paired tests of scores against a baseline.
        disagreements: reports that scores and experts rank differently.
        wrong_preferences: rows in which scores and experts prefer different candidates.
    """

    agreements: Sequence[MetricAgreement]
    raters: Sequence[RaterAgreement] = ()
    errors: Sequence[CountError] = ()
    counts: Sequence[CountAgreement] = ()
    preferences: Preferences = field(default_factory=dict)
    contrasts: Sequence[MetricContrast] = ()
    disagreements: Sequence[Disagreement] = ()
    wrong_preferences: Sequence[WrongPreference] = ()


def write_agreement(
    result: AgreementResult,
    ratings: RatingSet,
    scores: ScoreColumns,
    folder: Path,
    record: Mapping[str, Any],
    group: str | None,
) -> list[str]:
    """Write `agreement.json`, CSV tables, plots and `agreement.html`.

    Args:
        result: the agreement.
        ratings: ratings of the experts.
        scores: scores of the metrics.
        folder: output folder.
        record: run details such as files, options and seed, as JSON values.
        group: kind of group of the correlations.

    Returns:
        Sentences about what is not plotted, and why.
    """
    plotter = PlotFolder(folder)
    sections = [
        *_correlation_sections(result.agreements, ratings, scores, record, group or ratings.group, plotter),
        *_contrast_sections(result.contrasts, record, folder),
        *_rating_sections(ratings, plotter),
        *_count_error_sections(result.errors, folder),
        *_count_sections(result.counts, plotter),
        *_preference_sections(result.preferences, plotter),
        *_rater_sections(result.raters, folder),
        *_disagreement_sections(result, ratings, folder),
    ]
    matches = [asdict(match) for match in scores.matches]
    models = dict(scores.models)
    write_json(folder / "agreement.json", {**record, "models": models, "results_folders": matches, **_as_json(result)})
    mismatches = [note for match in scores.matches for note in match.notes()]
    on_page = _missing_values(result, display_names=True)
    notes = list(dict.fromkeys((*scores.model_notes(), *ratings.notes, *mismatches, *on_page, *plotter.notes)))
    write_page(folder / "agreement.html", "Agreement of metrics with experts", notes, sections)
    return list(dict.fromkeys((*_missing_values(result, display_names=False), *plotter.notes)))


def _missing_values(result: AgreementResult, *, display_names: bool) -> list[str]:
    """Return sentences about scores that are in no plot."""
    no_coefficient = [
        agreement.score
        for agreement in result.agreements
        if agreement.group == "all" and agreement.coefficients["kendall"].value is None
    ]
    no_accuracy = [
        name for name, levels in result.preferences.items() if all(level.value is None for level in levels.values())
    ]
    kinds = (
        ("coefficient", no_coefficient, "fewer than three values, or all the same"),
        ("accuracy", no_accuracy, "no pair in which both the score and the experts prefer a candidate"),
    )
    return [
        f"Without {kind} and in no plot: {', '.join(map(words, names) if display_names else names)} ({reason})."
        for kind, names, reason in kinds
        if names
    ]


def _correlation_sections(
    agreements: Sequence[MetricAgreement],
    ratings: RatingSet,
    scores: ScoreColumns,
    record: Mapping[str, Any],
    group: str | None,
    plotter: PlotFolder,
) -> list[Section]:
    if not agreements:
        return []
    agreement_table(agreements).write(plotter.folder / "agreement.csv")
    text = (
        f"Experts: {ratings.target}. For coefficients, metrics and experts are oriented so that higher is worse: "
        "positive means that both rate the same reports as bad. Scatter plots show both on their own scales. "
        f"Intervals: {record['bootstrap']} bootstrap replicates, seed {record['seed']}, "
        f"{resampling_of(ratings.clusters, len(ratings.samples)).describe()}."
    )
    kendall = {row.score: row.coefficients["kendall"].value for row in agreements if row.group == "all"}
    ranked = sorted((name for name, value in kendall.items() if value is not None), key=lambda n: -abs(kendall[n] or 0))
    best = {name: scores.values[name] for name in ranked[:_MAX_PANELS]}
    images = []
    if best:
        expert, groups = ratings.means(ratings.target), ratings.indices_by_group(group)
        label = f"experts: {ratings.target}, {ratings.better[ratings.target]} is better"
        rows = [(row.score, row.group, row.coefficients["kendall"]) for row in agreements]
        images += plotter.draw("forest", "Kendall's tau-b with intervals", lambda path: plots.forest(rows, path))
        images += plotter.draw(
            "scatter",
            "Scores against experts",
            lambda path: plots.scatter(expert, best, groups, path, directions=scores.directions, label=label),
        )
    overall = [row for row in agreements if row.group == "all"]
    within = [row for row in agreements if row.group != "all"]
    sections = [Section("Agreement with experts", [overview(overall), text, *images])]
    return [*sections, Section(f"By {group}", [overview(within)])] if within else sections


def contrast_table(contrasts: Sequence[MetricContrast]) -> Table:
    """Return Kendall's tau-b of each score and of the baseline over the same samples, with p of their difference."""
    baseline = contrasts[0].baseline if contrasts else "baseline"
    rows = []
    for row in contrasts:
        test, gap = row.kendall, row.kendall.difference
        rows.append([row.score, gap.n, test.first, test.second, gap.value, gap.low, gap.high, test.p, row.p_holm])
    return Table(["score", "n", baseline, "kendall", "difference", "low", "high", "p", "Holm"], rows)


def _contrast_sections(contrasts: Sequence[MetricContrast], record: Mapping[str, Any], folder: Path) -> list[Section]:
    if not contrasts:
        return []
    table, baseline = contrast_table(contrasts), words(contrasts[0].baseline)
    table.write(folder / "metric_contrasts.csv")
    text = (
        f"Kendall's tau-b of each score minus that of {baseline}, over the n reports with both scores and a rating; "
        f"interval from {record['bootstrap']} paired bootstrap replicates, p from {record['rounds']} permutations that "
        f"swap the ranks of the two scores. Holm: p adjusted for all {len(contrasts)} tests of this table."
    )
    return [Section(f"Scores compared with {baseline}", [table, text])]


def _disagreement_sections(result: AgreementResult, ratings: RatingSet, folder: Path) -> list[Section]:
    """List the reports on which a score and the experts differ most, with their texts."""
    if result.wrong_preferences:
        headings = ["score", "row", "confidence", "experts prefer", "score prefers", "first", "second"]
        rows = [list(astuple(row)) for row in result.wrong_preferences]
        table = Table(headings, rows)
        table.write(folder / "disagreements.csv")
        text = (
            f"Rows in which a score does not prefer the experts' candidate: up to {LISTED} of each, the surest first."
        )
        return [Section("Largest disagreements", [table, text])]
    if not result.disagreements:
        return []
    pairs = {sample.pair.sample_id: sample.pair for sample in ratings.samples}
    headings = ["score", "report", "experts", "value", "experts' rank", "rank by the score", "reference", "candidate"]
    rows = []
    for row in result.disagreements:
        pair = pairs[row.sample_id]
        rows.append([*astuple(row), narrative(pair.reference), narrative(pair.candidate)])
    table = Table(headings, rows)
    table.write(folder / "disagreements.csv")
    text = (
        f"Reports whose ranks by a score and by the experts differ most, up to {LISTED} of each score. Ranks run from "
        "0 (best report) to 1 (worst)."
    )
    return [Section("Largest disagreements", [table, text])]


def _rating_sections(ratings: RatingSet, plotter: PlotFolder) -> list[Section]:
    """Histogram of the mean ratings on their own scale (VERT, figures 5 and 6)."""
    known = [value for value in ratings.means(ratings.target) if not math.isnan(value)]
    if not known:
        return []
    values = (value for sample in ratings.samples for value in sample.ratings.get(ratings.target, {}).values())
    lowest, width = min(known), (max(known) - min(known)) / _BINS or 1.0
    if all(math.isnan(value) or value == value // 1 for value in values):
        positions, width = [float(round_half_up(value)) for value in known], 1.0
    else:
        # The maximum belongs to the last bin.
        positions = [lowest + width * (min((value - lowest) // width, _BINS - 1) + 0.5) for value in known]
    counts = {position: float(number) for position, number in Counter(positions).items()}
    label = f"experts: {ratings.target}"
    images = plotter.draw(
        "ratings",
        "Histogram of expert ratings",
        lambda path: plots.bars({label: counts}, path, x=f"{label}, mean of all", y="reports", width=width),
    )
    return [Section("Expert ratings", images)] if images else []


def _count_error_sections(errors: Sequence[CountError], folder: Path) -> list[Section]:
    if not errors:
        return []
    headings = ["score", "experts' quantity", "expert", "mean absolute error", "standard deviation", "n"]
    table = Table(headings, [[e.score, e.quantity, e.rater, e.mean, e.deviation, e.n] for e in errors])
    table.write(folder / "count_errors.csv")
    text = "Difference of the number of errors from that of the mean expert, and of each (GREEN, tables 2 and 4)."
    return [Section("Counts of errors", [table, text])]


def _count_sections(counts: Sequence[CountAgreement], plotter: PlotFolder) -> list[Section]:
    if not counts:
        return []
    rows = [
        [row.score, row.quantity, true, mean.value, mean.n] for row in counts for true, mean in row.detected.items()
    ]
    table = Table(["score", "experts' quantity", "experts' number", "mean detected", "n"], rows)
    table.write(plotter.folder / "detected.csv")
    lines = {
        row.score: {"mean detected": {true: mean.value for true, mean in row.detected.items()}}
        for row in counts
        if row.detected
    }
    images = []
    if lines:
        images = plotter.draw(
            "detected",
            "Mean detected errors by the experts' number",
            lambda path: plots.curves(lines, path, x="experts' number", y="mean detected", diagonal=True),
        )
    text = "Mean number of detected errors by the experts' number (VERT, figure 2)."
    sections = [Section("Detected errors", [table, text, *images])]
    if any(row.by_category for row in counts):
        by_category = category_table(counts)
        by_category.write(plotter.folder / "categories.csv")
        text = (
            "F1 of the errors in each category (VERT, figure 4), and share of reports with the number of the mean "
            f"expert, rounded (GREEN, table 4). {CATEGORY_LEGEND}"
        )
        sections.append(Section("Errors by category", [by_category, text]))
    return sections


def _preference_sections(preferences: Preferences, plotter: PlotFolder) -> list[Section]:
    if not preferences:
        return []
    table = preference_table(preferences)
    table.write(plotter.folder / "preferences.csv")
    known = {name: levels for name, levels in preferences.items() if any(e.value is not None for e in levels.values())}
    images = []
    if known:
        labels = {"x": "minimum confidence of the experts", "y": "share of preferences met"}
        images = plotter.draw(
            "preferences", "Preferences by confidence", lambda path: plots.bands(known, path, **labels)
        )
    text = (
        "How often the score prefers the experts' candidate (GREEN, table 6 and figure 6). Ties, the share of pairs "
        "without a preference of the score, count as not met."
    )
    return [Section("Preferences", [table, text, *images])]


def _rater_sections(raters: Sequence[RaterAgreement], folder: Path) -> list[Section]:
    if not raters:
        return []
    headings = ["quantity", "first", "second", "n", "kendall", "low", "high", "mean absolute difference"]
    rows = [
        [row.quantity, row.first, row.second, e.n, e.value, e.low, e.high, row.mean_absolute_difference]
        for row in raters
        for e in (row.kendall,)
    ]
    table = Table(headings, rows)
    table.write(folder / "inter_rater.csv")
    parts: list[Table | str] = []
    for quantity in dict.fromkeys(row.quantity for row in raters):
        parts += [f"Kendall's tau-b, {quantity}:", _rater_matrix([row for row in raters if row.quantity == quantity])]
    return [Section("Agreement between experts", [*parts, table])]


def _rater_matrix(raters: Sequence[RaterAgreement]) -> Table:
    names = sorted({name for row in raters for name in (row.first, row.second)})
    values = {frozenset((row.first, row.second)): row.kendall.value for row in raters}
    rows = [
        [name, *(1.0 if name == other else values.get(frozenset((name, other))) for other in names)] for name in names
    ]
    return Table(["rater", *names], rows)


def _as_json(result: AgreementResult) -> dict[str, Any]:
    return {
        "agreement": [asdict(row) for row in result.agreements],
        "metric_contrasts": [asdict(row) for row in result.contrasts],
        "disagreements": [*map(asdict, result.disagreements), *map(asdict, result.wrong_preferences)],
        "inter_rater": [asdict(row) for row in result.raters],
        "count_errors": [asdict(row) for row in result.errors],
        "count_agreement": [
            {
                "score": row.score,
                "quantity": row.quantity,
                "detected": {str(true): asdict(mean) for true, mean in row.detected.items()},
                "f1": {letter: detection.f1 for letter, detection in row.by_category.items()},
                "accuracy": {letter: asdict(mean) for letter, mean in row.accuracy.items()},
            }
            for row in result.counts
        ],
        "preferences": {
            name: {f"{level:g}": asdict(accuracy) for level, accuracy in levels.items()}
            for name, levels in result.preferences.items()
        },
    }


def agreement_table(agreements: Sequence[MetricAgreement]) -> Table:
    """Return all coefficients with their intervals, one row per score and group."""
    headings = ["score", "group", "n"]
    headings += [f"{name}{part}" for name in COEFFICIENTS for part in ("", " low", " high")]
    rows = []
    for row in agreements:
        estimates = [row.coefficients[name] for name in COEFFICIENTS]
        rows.append([row.score, row.group, estimates[0].n, *(x for e in estimates for x in (e.value, e.low, e.high))])
    return Table(headings, rows)


def short_table(agreements: Sequence[MetricAgreement]) -> Table:
    """Return the coefficients over all samples with the interval of the first, for a console."""
    rows = []
    for row in agreements:
        if row.group == "all":
            first, *others = (row.coefficients[name] for name in COEFFICIENTS)
            rows.append([row.score, first.n, first.value, first.low, first.high, *(e.value for e in others)])
    return Table(["score", "n", COEFFICIENTS[0], "low", "high", *COEFFICIENTS[1:]], rows)


def overview(agreements: Sequence[MetricAgreement]) -> Table:
    """Return the coefficients, each with its interval in one cell, for a page."""
    rows = []
    for row in agreements:
        estimates = [row.coefficients[name] for name in COEFFICIENTS]
        cells = [
            e.value if e.low is None or e.high is None else f"{format_cell(e.value)} ({e.low:.2f} to {e.high:.2f})"
            for e in estimates
        ]
        rows.append([row.score, row.group, estimates[0].n, *cells])
    return Table(["score", "group", "n", *COEFFICIENTS], rows)


def category_table(counts: Sequence[CountAgreement]) -> Table:
    """Return F1 and accuracy by category of errors."""
    headings = ["score", *(f"{kind} ({letter})" for kind in ("F1", "accuracy") for letter in ERROR_CATEGORIES)]
    rows = [
        [row.score, *(d.f1 for d in row.by_category.values()), *(share.value for share in row.accuracy.values())]
        for row in counts
        if row.by_category
    ]
    return Table(headings, rows)


def preference_table(preferences: Preferences) -> Table:
    """Return accuracy and ties by minimum confidence."""
    rows = [
        [name, level, accuracy.n, accuracy.value, accuracy.low, accuracy.high, accuracy.ties]
        for name, levels in preferences.items()
        for level, accuracy in levels.items()
    ]
    return Table(["score", "minimum confidence", "n", "accuracy", "low", "high", "ties"], rows)
