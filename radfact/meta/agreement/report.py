"""The agreement of metrics with experts as files: JSON, CSV, plots and a page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from radfact.html import plots
from radfact.html.markup import words
from radfact.html.meta_page import Section, Table, write_page
from radfact.html.plot_files import Drawing
from radfact.io.jsonl import write_json
from radfact.meta.agreement.analysis import Agreement, Counted, CountError, Figures, Raters
from radfact.meta.agreement.preferences import Accuracy
from radfact.meta.agreement.tables import (
    agreement_table,
    category_table,
    error_table,
    kinds_of_errors,
    overview,
    preference_table,
    rater_matrix,
    rater_table,
)
from radfact.meta.datasets.ratings import Ratings

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
    unvalued = [*_without_coefficient(findings.agreements), *_without_preference(findings.preferences or {})]
    matches = [asdict(one) for one in figures.matches]
    write_json(folder / "agreement.json", {**record, "scores": matches, **_as_json(findings)})
    matched = [note for one in figures.matches for note in one.notes()]
    on_page = [one.said(words) for one in unvalued]
    notes = list(dict.fromkeys((*ratings.notes, *matched, *on_page, *drawing.notes)))
    write_page(folder / "agreement.html", "Agreement of metrics with experts", notes, sections)
    return list(dict.fromkeys((*(one.said(str) for one in unvalued), *drawing.notes)))


@dataclass(frozen=True, slots=True)
class _Unvalued:
    """Figures that are in no plot because they lack something, and why."""

    lacking: str
    figures: Sequence[str]
    why: str

    def said(self, name_of: Callable[[str], str]) -> str:
        """A sentence, with names as a page or as a console has them."""
        return f"Without a {self.lacking}, and in no plot: {', '.join(map(name_of, self.figures))} ({self.why})."


def _without_coefficient(found: Sequence[Agreement]) -> list[_Unvalued]:
    names = [one.figure for one in found if one.group == "all" and _overall(one) is None]
    return [_Unvalued("coefficient", names, "fewer than three values, or all the same")] if names else []


def _without_preference(found: Mapping[str, Mapping[float, Accuracy]]) -> list[_Unvalued]:
    names = [name for name, levels in found.items() if all(one.value is None for one in levels.values())]
    return [_Unvalued("value", names, "there is no pair in which both it and the experts prefer one")] if names else []


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
        f"Experts: {ratings.target}. For the coefficients metrics and experts are turned so that higher is worse: a "
        "positive one means that both call the same reports bad. Scatter plots have both on their own scales. "
        f"Intervals: {record['bootstrap']} resamples, seed {record['seed']}."
    )
    ranked = sorted(
        ((-abs(value), one.figure) for one in found if (value := _overall(one)) is not None), key=lambda row: row[0]
    )
    best = {name: figures.values[name] for _, name in ranked[:MOST_PANELS]}
    if best:
        expert, groups = ratings.means(ratings.target), ratings.in_group(group)
        label = f"experts: {ratings.target}, {ratings.better[ratings.target]} is better"
        drawing.add("forest", "Kendall's tau-b with intervals", lambda path: plots.forest(found, path))
        drawing.add(
            "scatter",
            "Figures against experts",
            lambda path: plots.scatter(expert, best, groups, path, directions=figures.directions, label=label),
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


def _preferences(found: Mapping[str, Mapping[float, Accuracy]], drawing: Drawing) -> list[Section]:
    if not found:
        return []
    table = preference_table(found)
    table.write(drawing.folder / "preferences.csv")
    known = {name: levels for name, levels in found.items() if any(one.value is not None for one in levels.values())}
    if known:
        labels = {"x": "experts' confidence, at least", "y": "share of preferences met"}
        drawing.add("preferences", "Preferences by confidence", lambda path: plots.bands(known, path, **labels))
    said = (
        "How often the figure prefers the candidate that the experts prefer (paper 000, table 6 and figure 6). Ties, "
        "the share of pairs in which it prefers neither, count as not met."
    )
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
