"""The agreement of metrics with experts as files: JSON, CSV, plots and a page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from radfact.jsonl import write_json
from radfact.meta import plots
from radfact.meta.agreement import Agreement, Counted, CountError, Figures, Raters
from radfact.meta.correlation import COEFFICIENTS
from radfact.meta.drawing import Drawing
from radfact.meta.page import Section, Table, shown, write_page
from radfact.meta.ratings import Ratings
from radfact.metrics.notation import CATEGORIES
from radfact.metrics.preferences import Accuracy

MOST_PANELS = 16
"""Of a scatter plot: the figures that agree best."""
_BINS = 10
"""Of a histogram of ratings that are no whole numbers."""


@dataclass(frozen=True, slots=True)
class Findings:
    """All that is known of how metrics agree with experts.

    `preferences`: figure -> least confidence -> accuracy, where the experts chose between two candidates.
    """

    agreements: Sequence[Agreement]
    raters: Sequence[Raters] = ()
    errors: Sequence[CountError] = ()
    counts: Sequence[Counted] = ()
    preferences: Mapping[str, Mapping[float, Accuracy]] | None = None


def agreement_table(found: Sequence[Agreement]) -> Table:
    """A row a figure and group, all coefficients with their intervals."""
    headings = ["figure", "group", "n"]
    headings += [f"{name}{part}" for name in COEFFICIENTS for part in ("", " low", " high")]
    rows = []
    for one in found:
        estimates = [one.coefficients[name] for name in COEFFICIENTS]
        rows.append([one.figure, one.group, estimates[0].n, *(x for e in estimates for x in (e.value, e.low, e.high))])
    return Table(headings, rows)


def short_table(found: Sequence[Agreement]) -> Table:
    """What a console has room for: coefficients over all samples, and the interval of the first."""
    rows = []
    for one in (one for one in found if one.group == "all"):
        estimates = [one.coefficients[name] for name in COEFFICIENTS]
        first = estimates[0]
        rows.append([one.figure, first.n, first.value, first.low, first.high, *(e.value for e in estimates[1:])])
    return Table(["figure", "n", COEFFICIENTS[0], "low", "high", *COEFFICIENTS[1:]], rows)


def overview(found: Sequence[Agreement]) -> Table:
    """The same as a person reads it: a coefficient and its interval in one cell."""
    rows = [[one.figure, one.group, *_cells(one)] for one in found]
    return Table(["figure", "group", "n", *COEFFICIENTS], rows)


def _cells(one: Agreement) -> list[str]:
    estimates = [one.coefficients[name] for name in COEFFICIENTS]
    intervals = (
        shown(e.value) + (f" ({e.low:.2f} to {e.high:.2f})" if e.low is not None and e.high is not None else "")
        for e in estimates
    )
    return [str(estimates[0].n), *intervals]


def rater_table(found: Sequence[Raters]) -> Table:
    """A row a quantity and pair of raters."""
    headings = ["quantity", "first", "second", "n", "kendall", "low", "high", "mean absolute difference"]
    return Table(
        headings,
        [
            [r.quantity, r.first, r.second, r.kendall.n, r.kendall.value, r.kendall.low, r.kendall.high,
             r.mean_absolute_difference]
            for r in found
        ],
    )  # fmt: skip


def rater_matrix(found: Sequence[Raters], quantity: str) -> Table:
    """Kendall's tau-b of every two raters of a quantity, as a matrix."""
    here = [one for one in found if one.quantity == quantity]
    names = sorted({name for one in here for name in (one.first, one.second)})
    values = {frozenset((one.first, one.second)): one.kendall.value for one in here}
    rows = [
        [name, *(1.0 if name == other else values.get(frozenset((name, other))) for other in names)] for name in names
    ]
    return Table(["rater", *names], rows)


def error_table(found: Sequence[CountError]) -> Table:
    """Mean absolute errors of counts, a row a figure and expert."""
    headings = ["figure", "experts' quantity", "expert", "mean absolute error", "standard deviation", "n"]
    return Table(headings, [[e.figure, e.quantity, e.rater, e.mean, e.deviation, e.n] for e in found])


def category_table(found: Sequence[Counted]) -> Table:
    """F1 and accuracy by category of error."""
    headings = ["figure", *(f"{kind} ({letter})" for kind in ("F1", "accuracy") for letter in CATEGORIES)]
    rows = [
        [one.figure, *(d.f1 for d in one.by_category.values()), *(mean.value for mean in one.accuracy.values())]
        for one in found
        if one.by_category
    ]
    return Table(headings, rows)


def preference_table(found: Mapping[str, Mapping[float, Accuracy]]) -> Table:
    """Accuracy by least confidence."""
    rows = [
        [figure, level, one.n, one.value, one.low, one.high]
        for figure, levels in found.items()
        for level, one in levels.items()
    ]
    return Table(["figure", "confidence at least", "n", "accuracy", "low", "high"], rows)


def write_agreement(
    findings: Findings, ratings: Ratings, figures: Figures, folder: Path, record: Mapping[str, Any], group: str | None
) -> list[str]:
    """Write `agreement.json`, CSV tables, plots and `agreement.html`.

    Args:
        findings: to be written.
        ratings: that they are of.
        figures: likewise.
        folder: made if it is not there.
        record: how it was made: files, options, seed; JSON values.
        group: kind of group that correlations were taken in.

    Returns:
        What could not be drawn, and why.
    """
    drawing = Drawing(folder)
    sections = [
        *_correlations(findings.agreements, ratings, figures, record, group or ratings.group, drawing),
        *_ratings(ratings, drawing),
        *_errors(findings.errors, folder),
        *_counts(findings.counts, drawing),
        *_preferences(findings.preferences or {}, drawing),
        *_raters(findings.raters, folder),
    ]
    write_json(folder / "agreement.json", {**record, **_as_json(findings)})
    notes = list(dict.fromkeys((*ratings.notes, *drawing.notes)))
    write_page(folder / "agreement.html", "Agreement of metrics with experts", notes, sections)
    return list(dict.fromkeys(drawing.notes))


def _correlations(
    found: Sequence[Agreement],
    ratings: Ratings,
    figures: Figures,
    record: Mapping[str, Any],
    group: str | None,
    drawing: Drawing,
) -> list[Section]:
    if not found:
        return []
    agreement_table(found).write(drawing.folder / "agreement.csv")
    said = (
        f"Experts: {ratings.target}. Metrics and experts are turned so that higher is worse: a positive "
        f"coefficient means that both call the same reports bad. Intervals: {record['bootstrap']} resamples, "
        f"seed {record['seed']}."
    )
    ranked = sorted(
        ((-abs(value), one.figure) for one in found if (value := _overall(one)) is not None), key=lambda row: row[0]
    )
    best = {name: figures.values[name] for _, name in ranked[:MOST_PANELS]}
    unknown = [one.figure for one in found if one.group == "all" and _overall(one) is None]
    if unknown:
        drawing.notes.append(
            f"Without a coefficient, and in no plot: {', '.join(unknown)} (fewer than three values, or all the same)."
        )
    if best:
        expert, groups = ratings.means(ratings.target), ratings.in_group(group)
        drawing.add("forest", "Kendall's tau-b with intervals", lambda path: plots.forest(found, path))
        drawing.add(
            "scatter",
            "Figures against experts",
            lambda path: plots.scatter(expert, best, groups, path, label=f"experts: {ratings.target}"),
        )
    inner = [one for one in found if one.group != "all"]
    overall = [one for one in found if one.group == "all"]
    sections = [Section("Agreement with experts", [overview(overall), said, *drawing.taken()])]
    return [*sections, Section(f"By {group}", [overview(inner)])] if inner else sections


def _overall(one: Agreement) -> float | None:
    return one.coefficients["kendall"].value if one.group == "all" else None


def _ratings(ratings: Ratings, drawing: Drawing) -> list[Section]:
    """How often experts gave each rating (paper 003, figures 5 and 6), on their own scale."""
    known = [value for value in ratings.means(ratings.target) if not math.isnan(value)]
    if not known:
        return []
    given = (value for one in ratings.samples for value in one.ratings.get(ratings.target, {}).values())
    least, width = min(known), (max(known) - min(known)) / _BINS or 1.0
    if all(math.isnan(value) or value == value // 1 for value in given):
        places, width = [float(math.floor(value + 0.5)) for value in known], 1.0
    else:
        # The greatest belongs to the last part, as in any histogram.
        places = [least + width * (min((value - least) // width, _BINS - 1) + 0.5) for value in known]
    counts = {place: float(number) for place, number in Counter(places).items()}
    label = f"experts: {ratings.target}"
    drawing.add(
        "ratings",
        "Histogram of the experts' ratings",
        lambda path: plots.bars({label: counts}, path, x=f"{label}, mean of all", y="reports", width=width),
    )
    return [Section("The experts' ratings", drawing.taken())] if drawing.pictures else []


def _errors(found: Sequence[CountError], folder: Path) -> list[Section]:
    if not found:
        return []
    table = error_table(found)
    table.write(folder / "count_errors.csv")
    said = "Paper 000, tables 2 and 4: how far the number of errors lies from that of the mean expert, and of each."
    return [Section("Counts of errors", [table, said])]


def _counts(found: Sequence[Counted], drawing: Drawing) -> list[Section]:
    if not found:
        return []
    folder = drawing.folder
    rows = [
        [one.figure, one.quantity, true, mean.value, mean.n] for one in found for true, mean in one.detected.items()
    ]
    table = Table(["figure", "experts' quantity", "experts' number", "mean detected", "n"], rows)
    table.write(folder / "detected.csv")
    lines = {
        one.figure: {"mean detected": {true: mean.value for true, mean in one.detected.items()}}
        for one in found
        if one.detected
    }
    if lines:
        drawing.add(
            "detected",
            "Mean detected errors by the experts' number",
            lambda path: plots.curves(lines, path, x="experts' number", y="mean detected", diagonal=True),
        )
    said = "Mean number of errors that are detected by how many the experts count (paper 003, figure 2)."
    sections = [Section("Detected errors", [table, said, *drawing.taken()])]
    if any(one.by_category for one in found):
        by_category = category_table(found)
        by_category.write(folder / "categories.csv")
        said = (
            "F1 of the errors in each category (paper 003, figure 4), and in how many reports the number is that of "
            f"the mean expert, rounded (paper 000, table 4). {kinds_of_errors()}"
        )
        sections.append(Section("By category of error", [by_category, said]))
    return sections


def kinds_of_errors() -> str:
    """What the letters of the categories stand for."""
    return "; ".join(f"({letter}) {words}" for letter, words in CATEGORIES.items()) + "."


def _preferences(found: Mapping[str, Mapping[float, Accuracy]], drawing: Drawing) -> list[Section]:
    if not found:
        return []
    table = preference_table(found)
    table.write(drawing.folder / "preferences.csv")
    known = {name: levels for name, levels in found.items() if any(one.value is not None for one in levels.values())}
    if known:
        labels = {"x": "experts' confidence, at least", "y": "share of preferences met"}
        drawing.add("preferences", "Preferences by confidence", lambda path: plots.bands(known, path, **labels))
    said = "How often the figure prefers the candidate that the experts prefer (paper 000, table 6 and figure 6)."
    return [Section("Preferences", [table, said, *drawing.taken()])]


def _raters(found: Sequence[Raters], folder: Path) -> list[Section]:
    if not found:
        return []
    table = rater_table(found)
    table.write(folder / "inter_rater.csv")
    parts: list[Table | str] = []
    for quantity in dict.fromkeys(one.quantity for one in found):
        parts += [f"Kendall's tau-b, {quantity}:", rater_matrix(found, quantity)]
    return [Section("The experts among themselves", [*parts, table])]


def _as_json(findings: Findings) -> dict[str, Any]:
    return {
        "agreement": [asdict(one) for one in findings.agreements],
        "inter_rater": [asdict(one) for one in findings.raters],
        "count_errors": [asdict(one) for one in findings.errors],
        "counted": [
            {
                "figure": one.figure,
                "quantity": one.quantity,
                "detected": {str(true): asdict(mean) for true, mean in one.detected.items()},
                "f1": {letter: detection.f1 for letter, detection in one.by_category.items()},
                "accuracy": {letter: asdict(mean) for letter, mean in one.accuracy.items()},
            }
            for one in findings.counts
        ],
        "preferences": {
            figure: {f"{level:g}": asdict(one) for level, one in levels.items()}
            for figure, levels in (findings.preferences or {}).items()
        },
    }
