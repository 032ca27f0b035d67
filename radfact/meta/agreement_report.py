"""The agreement of metrics with experts as files: JSON, CSV, plots and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from radfact.errors import InputError
from radfact.jsonl import write_json
from radfact.meta import plots
from radfact.meta.agreement import Agreement, Counted, CountError, Figures, Raters
from radfact.meta.correlation import COEFFICIENTS
from radfact.meta.page import Picture, Section, Table, shown, write_page
from radfact.meta.ratings import Ratings
from radfact.metrics.notation import CATEGORIES
from radfact.metrics.preferences import Accuracy

MOST_PANELS = 16
"""Of a scatter plot: the figures that agree best."""


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
    """Mean absolute errors of counts."""
    headings = ["figure", "experts' quantity", "mean absolute error", "standard deviation", "n"]
    return Table(headings, [[e.figure, e.quantity, e.mean, e.deviation, e.n] for e in found])


def detection_table(found: Sequence[Counted]) -> Table:
    """F1 by category of error."""
    rows = [[one.figure, *(one.by_category[letter].f1 for letter in CATEGORIES)] for one in found if one.by_category]
    return Table(["figure", *(f"F1 ({letter})" for letter in CATEGORIES)], rows)


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
    overall = [one for one in findings.agreements if one.group == "all"]
    sections: list[Section] = []
    notes: list[str] = []
    if findings.agreements:
        table = agreement_table(findings.agreements)
        table.write(folder / "agreement.csv")
        said = (
            f"Experts: {ratings.target}. Metrics and experts are turned so that higher is worse: a positive "
            f"coefficient means that both call the same reports bad. Intervals: {record['bootstrap']} resamples, "
            f"seed {record['seed']}."
        )
        pictures, missing = _draw(findings.agreements, ratings, figures, folder, group)
        notes += missing
        sections.append(Section("Agreement with experts", [overview(overall), said, *pictures]))
        if len(overall) < len(findings.agreements):
            inner = [one for one in findings.agreements if one.group != "all"]
            sections.append(Section(f"By {group or ratings.group}", [overview(inner)]))
    sections += _count_sections(findings, folder)
    if findings.preferences:
        table = preference_table(findings.preferences)
        table.write(folder / "preferences.csv")
        said = "How often the figure prefers the candidate that the experts prefer (paper 000, table 6 and figure 6)."
        sections.append(Section("Preferences", [table, said]))
    if findings.raters:
        rater_table(findings.raters).write(folder / "inter_rater.csv")
        quantities = dict.fromkeys(one.quantity for one in findings.raters)
        parts: list[Table | str] = []
        for quantity in quantities:
            parts += [f"Kendall's tau-b, {quantity}:", rater_matrix(findings.raters, quantity)]
        sections.append(Section("The experts among themselves", [*parts, rater_table(findings.raters)]))
    write_json(folder / "agreement.json", {**record, **_as_json(findings)})
    write_page(folder / "agreement.html", "Agreement of metrics with experts", [*ratings.notes, *notes], sections)
    return notes


def _draw(
    found: Sequence[Agreement], ratings: Ratings, figures: Figures, folder: Path, group: str | None
) -> tuple[list[Picture], list[str]]:
    ranked = sorted(
        (one for one in found if one.group == "all" and one.coefficients["kendall"].value is not None),
        key=lambda one: -abs(one.coefficients["kendall"].value or 0),
    )
    best = {one.figure: figures.values[one.figure] for one in ranked[:MOST_PANELS]}
    if not best:
        return [], []
    try:
        pictures = [
            Picture(plots.forest(found, folder / "forest", coefficient="kendall"), "Kendall's tau-b with intervals"),
            Picture(
                plots.scatter(
                    ratings.means(ratings.target),
                    best,
                    ratings.in_group(group or ratings.group),
                    folder / "scatter",
                    label=f"experts: {ratings.target}",
                ),
                "Figures against experts",
            ),
        ]
    except InputError as error:
        return [], [f"Without plots: {error}"]
    return pictures, []


def _count_sections(findings: Findings, folder: Path) -> list[Section]:
    sections = []
    if findings.errors:
        table = error_table(findings.errors)
        table.write(folder / "count_errors.csv")
        sections.append(Section("Counts of errors", [table]))
    if findings.counts:
        rows = [
            [one.figure, one.quantity, true, mean.value, mean.n]
            for one in findings.counts
            for true, mean in one.detected.items()
        ]
        table = Table(["figure", "experts' quantity", "experts' number", "mean detected", "n"], rows)
        table.write(folder / "detected.csv")
        parts: list[Table] = [table]
        if any(one.by_category for one in findings.counts):
            parts.append(detection_table(findings.counts))
            parts[-1].write(folder / "detection_f1.csv")
        sections.append(Section("Detected errors", parts))
    return sections


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
            }
            for one in findings.counts
        ],
        "preferences": {
            figure: {f"{level:g}": asdict(one) for level, one in levels.items()}
            for figure, levels in (findings.preferences or {}).items()
        },
    }
