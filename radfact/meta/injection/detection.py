"""Whether metrics notice errors that were put in: curves by number and kind, steps that are noticed, F1 by kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import InputError
from radfact.html import plots
from radfact.html.meta_page import Section, Table, write_page
from radfact.html.plot_files import Drawing
from radfact.io.jsonl import write_json
from radfact.meta.agreement.analysis import Counted, Figures, counted, counted_as, orient
from radfact.meta.agreement.tables import category_table, kinds_of_errors
from radfact.meta.injection.records import Injected, as_ratings
from radfact.meta.injection.style import RuleStyler
from radfact.records import Pair
from radfact.statistics.bootstrap import round_noise
from radfact.statistics.error_counts import Mean, mean_detected

MIXED = "mixed"
REWORDED = "reworded"
"""No error at all, the same in other words: here a figure should not get worse."""

_ABOVE = "How often one error makes a report worse than other words for the same content do."
_TOLD_APART = "F1 of the errors of each kind, and in how many reports their number is right."
_FEWER = "Not every report has room for more errors, so that greater numbers are means over fewer reports."


@dataclass(frozen=True, slots=True)
class Noticed:
    """One figure and errors of one kind.

    Attributes:
        figure: of a metric.
        category: letter, or `mixed`.
        curve: number of errors -> mean of the figure; 0 is each report against itself.
        steps: share of the steps from one candidate of a report to that with the next more errors at which the figure
            gets worse; a figure that stays the same has not noticed. None where there is no step.
        n: number of steps.
        above_rewording: share of the candidates with one error that are worse than the same report without an error in
            other words (the standard style by rules): a figure that minds words alone has noticed nothing. None where
            no candidate has one error, as often where kinds are mixed.
    """

    figure: str
    category: str
    curve: Mapping[int, Mean]
    steps: float | None
    n: int
    above_rewording: float | None


@dataclass(frozen=True, slots=True)
class Detected:
    """All figures and kinds; `counts` of those figures that count errors (paper 003, figures 2 to 4, table 7)."""

    noticed: Sequence[Noticed]
    counts: Sequence[Counted]


def detection_pairs(rows: Sequence[Injected]) -> list[Pair]:
    """The pairs to score: every candidate, each report against itself, and each in other words against itself.

    Raises:
        InputError: a candidate has the id of one of the latter.
    """
    references = {row.source_id: row.reference for row in rows}
    reworded = RuleStyler().standardise(list(references.values()))
    own = [Pair(f"{source}_0", text, text) for source, text in references.items()]
    own += [
        Pair(f"{source}_reworded", text if isinstance(text, str) else references[source], references[source])
        for source, text in zip(references, reworded, strict=True)
    ]
    taken = {row.sample_id for row in rows}
    clash = next((pair.sample_id for pair in own if pair.sample_id in taken), None)
    if clash is not None:
        raise InputError(f"'{clash}' is kept for the report against itself", field="sample_id")
    return [*(row.pair for row in rows), *own]


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the pairs of `detection_pairs` stand: each report against itself, and in other words."""

    own: Mapping[str, int]
    reworded: Mapping[str, int]

    @classmethod
    def of(cls, rows: Sequence[Injected]) -> _Places:
        sources = list(dict.fromkeys(row.source_id for row in rows))
        first, second = len(rows), len(rows) + len(sources)
        return cls(
            {source: first + place for place, source in enumerate(sources)},
            {source: second + place for place, source in enumerate(sources)},
        )


def detect(rows: Sequence[Injected], figures: Figures) -> Detected:
    """What each figure notices.

    Args:
        rows: candidates with their errors; one without any, which a model has put in other words, is no step and on no
            curve.
        figures: of `detection_pairs(rows)`.
    """
    at = _Places.of(rows)
    noticed = []
    for name, values in figures.values.items():
        turned = orient(values, figures.directions.get(name, "higher"))
        if turned is None:
            continue
        # A mean of the same numbers in another order is the same mean.
        worse = round_noise(turned).tolist()
        for category in _categories(rows):
            places = [place for place, row in enumerate(rows) if row.changes and _kind(row) == category]
            sources = dict.fromkeys(rows[place].source_id for place in places)
            shown = [*places, *(at.own[source] for source in sources)]
            number = [float(len(rows[place].changes)) for place in places] + [0.0] * len(sources)
            curve = mean_detected(number, [values[place] for place in shown])
            steps = _steps(rows, places, at, worse)
            single = [place for place in places if len(rows[place].changes) == 1]
            above = [worse[place] - worse[at.reworded[rows[place].source_id]] for place in single]
            noticed.append(Noticed(name, category, curve, *_share_above(steps), _share_above(above)[0]))
        rewording = [worse[at.reworded[source]] - worse[place] for source, place in at.own.items()]
        noticed.append(Noticed(name, REWORDED, {}, *_share_above(rewording), None))
    of_candidates = Figures({name: column[: len(rows)] for name, column in figures.values.items()}, figures.directions)
    return Detected(noticed, counted(as_ratings(rows), of_candidates))


def _steps(rows: Sequence[Injected], places: Sequence[int], at: _Places, worse: Sequence[float]) -> list[float]:
    """By how much each report gets worse from one candidate to that with the next more errors."""
    by_source: dict[str, list[int]] = {}
    for place in sorted(places, key=lambda one: len(rows[one].changes)):
        by_source.setdefault(rows[place].source_id, [at.own[rows[place].source_id]]).append(place)
    return [worse[b] - worse[a] for chain in by_source.values() for a, b in pairwise(chain)]


def _share_above(gaps: Sequence[float]) -> tuple[float | None, int]:
    known = [gap for gap in gaps if not math.isnan(gap)]
    return (sum(gap > 0 for gap in known) / len(known) if known else None), len(known)


def _kind(row: Injected) -> str:
    return row.category or MIXED


def _categories(rows: Sequence[Injected]) -> list[str]:
    there = {_kind(row) for row in rows if row.changes}
    return [one for one in (*ERROR_CATEGORIES, MIXED) if one in there]


def write_detected(
    found: Detected, rows: Sequence[Injected], folder: Path, record: Mapping[str, Any], notes: Sequence[str] = ()
) -> list[str]:
    """Write `detection.json`, CSV tables, the curves and `detection.html`; what could not be drawn is returned.

    Args:
        found: to be written.
        rows: that it is of.
        folder: made if it is not there.
        record: how it was made, JSON values.
        notes: sentences for the page.
    """
    categories = _categories(rows)
    amounts = {category: sum(len(row.changes) for row in rows if _kind(row) == category) for category in categories}
    drawing = Drawing(folder)
    _draw(found, drawing)
    steps, above = _by_kind(found, [*categories, REWORDED], "steps"), _by_kind(found, categories, "above_rewording")
    curves = _curves(found)
    said = (
        f"How often a figure gets worse when one more error is put into the same report; under {REWORDED}, how often "
        f"it gets worse though nothing but words has changed, which it should not. {kinds_of_errors()}"
    )
    sections = [
        Section("Errors noticed", [steps, said]),
        Section("Errors set apart from rewording", [above, _ABOVE]),
        Section("Mean by number of errors", [*drawing.taken(), curves, _FEWER]),
    ]
    tables = {"steps": steps, "above_rewording": above, "curves": curves}
    if any(one.by_category for one in found.counts):
        tables["categories"] = category_table(found.counts)
        sections.append(Section("Kinds of errors told apart", [tables["categories"], _TOLD_APART]))
    for name, table in tables.items():
        table.write(folder / f"{name}.csv")
    write_json(folder / "detection.json", {**record, "errors": amounts, **_as_json(found)})
    made = ", ".join(f"{number} of ({category})" for category, number in amounts.items())
    by = ", ".join(sorted({row.by for row in rows}))
    introduction = f"{sum(amounts.values())} errors put in by {by}: {made}."
    said_first = [introduction, *notes, *drawing.notes]
    write_page(folder / "detection.html", "Errors put in, and what metrics notice", said_first, sections)
    return drawing.notes


def _by_kind(found: Detected, kinds: Sequence[str], name: str) -> Table:
    """One number of every figure, a column a kind of error."""
    shares = {(one.figure, one.category): getattr(one, name) for one in found.noticed}
    figures = dict.fromkeys(one.figure for one in found.noticed)
    return Table(["figure", *kinds], [[figure, *(shares.get((figure, kind)) for kind in kinds)] for figure in figures])


def _curves(found: Detected) -> Table:
    curved = [one for one in found.noticed if one.curve]
    numbers = sorted({number for one in curved for number in one.curve})
    rows = [
        [one.figure, one.category, *(one.curve[k].value if k in one.curve else None for k in numbers)] for one in curved
    ]
    return Table(["figure", "category", *map(str, numbers)], rows)


def _as_json(found: Detected) -> dict[str, Any]:
    noticed = [{**asdict(one), "curve": {str(k): asdict(m) for k, m in one.curve.items()}} for one in found.noticed]
    told_apart = [one for one in found.counts if one.by_category]
    return {
        "noticed": noticed,
        "f1": {one.figure: {letter: d.f1 for letter, d in one.by_category.items()} for one in told_apart},
        "accuracy": {one.figure: {letter: asdict(m) for letter, m in one.accuracy.items()} for one in told_apart},
    }


def _draw(found: Detected, drawing: Drawing) -> None:
    """Counts of errors against the true number, and all other figures."""
    quantities = as_ratings([]).better
    counting: dict[str, dict[str, dict[int, float]]] = {}
    others: dict[str, dict[str, dict[int, float]]] = {}
    for one in found.noticed:
        quantity = counted_as(one.figure, quantities)
        # Counts of one category alone, and of insignificant errors, are in the table.
        if one.curve and quantity in (None, "errors", "significant"):
            panels = others if quantity is None else counting
            panels.setdefault(one.figure, {})[one.category] = {number: m.value for number, m in one.curve.items()}
    if counting:
        drawing.add(
            "detected",
            "Mean detected errors by the number of errors put in",
            lambda path: plots.curves(counting, path, x="errors put in", y="mean detected errors", diagonal=True),
        )
    if others:
        drawing.add(
            "curves",
            "Mean by the number of errors put in",
            lambda path: plots.curves(others, path, x="errors put in", y="mean", diagonal=False),
        )
