"""Whether metrics notice errors that were put in: curves by number and kind, steps that are noticed, F1 by kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from radfact.errors import InputError
from radfact.files import Pair
from radfact.jsonl import write_json
from radfact.meta import plots
from radfact.meta.agreement import Counted, Figures, counted, counted_as, orient
from radfact.meta.agreement_report import detection_table
from radfact.meta.injected import Injected, as_ratings
from radfact.meta.page import Picture, Section, Table, write_page
from radfact.meta.style import RuleStyler
from radfact.metrics.error_agreement import Mean, mean_detected
from radfact.metrics.notation import CATEGORIES

MIXED = "mixed"
REWORDED = "reworded"
"""No error at all, the same in other words: here a figure should not get worse."""

_ABOVE = "How often one error makes a report worse than other words for the same content do."
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
            rewording changes no report.
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
        rows: candidates with their errors.
        figures: of `detection_pairs(rows)`.
    """
    at = _Places.of(rows)
    noticed = []
    for name, values in figures.values.items():
        worse = orient(values, figures.directions.get(name, "higher"))
        if worse is None:
            continue
        for category in _categories(rows):
            places = [place for place, row in enumerate(rows) if (row.category or MIXED) == category]
            sources = dict.fromkeys(rows[place].source_id for place in places)
            shown = [*places, *(at.own[source] for source in sources)]
            number = [float(len(rows[place].changes)) for place in places] + [0.0] * len(sources)
            curve = mean_detected(number, [values[place] for place in shown])
            steps = _steps(rows, places, at, worse)
            single = [place for place in places if len(rows[place].changes) == 1 or category == MIXED]
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
    # A mean of the same numbers in another order is the same mean.
    return (sum(gap > 1e-9 for gap in known) / len(known) if known else None), len(known)


def _categories(rows: Sequence[Injected]) -> list[str]:
    there = {row.category or MIXED for row in rows}
    return [one for one in (*CATEGORIES, MIXED) if one in there]


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
    names = list(dict.fromkeys(one.figure for one in found.noticed))
    categories = _categories(rows)
    share = {(one.figure, one.category): one.steps for one in found.noticed}
    columns = [*categories, REWORDED]
    steps = Table(["figure", *columns], [[name, *(share.get((name, one)) for one in columns)] for name in names])
    over = {(one.figure, one.category): one.above_rewording for one in found.noticed}
    above = Table(["figure", *categories], [[name, *(over.get((name, one)) for one in categories)] for name in names])
    numbers = sorted({number for one in found.noticed for number in one.curve})
    curves = Table(
        ["figure", "category", *map(str, numbers)],
        [
            [one.figure, one.category, *(one.curve[k].value if k in one.curve else None for k in numbers)]
            for one in found.noticed
            if one.curve
        ],
    )
    steps.write(folder / "steps.csv")
    above.write(folder / "above_rewording.csv")
    curves.write(folder / "curves.csv")
    missing: list[str] = []
    pictures: list[Picture] = []
    try:
        pictures = _draw(found, folder)
    except InputError as error:
        missing.append(f"Without plots: {error}")
    kinds = "; ".join(f"({letter}) {words}" for letter, words in CATEGORIES.items())
    said = (
        f"How often a figure gets worse when one more error is put into the same report; under {REWORDED}, how often "
        f"it gets worse though nothing but words has changed, which it should not. {kinds}."
    )
    sections = [
        Section("Errors noticed", [steps, said]),
        Section("Errors set apart from rewording", [above, _ABOVE]),
        Section("Mean by number of errors", [*pictures, curves, _FEWER]),
    ]
    if any(one.by_category for one in found.counts):
        table = detection_table(found.counts)
        table.write(folder / "detection_f1.csv")
        sections.append(Section("Kinds of errors told apart (F1)", [table]))
    amounts = {
        category: sum(len(row.changes) for row in rows if (row.category or MIXED) == category)
        for category in categories
    }
    made = ", ".join(f"{number} of ({category})" for category, number in amounts.items())
    by = ", ".join(sorted({row.by for row in rows}))
    introduction = f"{sum(amounts.values())} errors put in by {by}: {made}."
    write_json(
        folder / "detection.json",
        {
            **record,
            "errors": amounts,
            "noticed": [
                {**asdict(one), "curve": {str(k): asdict(m) for k, m in one.curve.items()}} for one in found.noticed
            ],
            "f1": {
                one.figure: {k: d.f1 for k, d in one.by_category.items()} for one in found.counts if one.by_category
            },
        },
    )
    write_page(
        folder / "detection.html", "Errors put in, and what metrics notice", [introduction, *notes, *missing], sections
    )
    return missing


def _draw(found: Detected, folder: Path) -> list[Picture]:
    """Counts of errors against the true number, and all other figures."""
    quantities = as_ratings([]).better
    lines: dict[bool, dict[str, dict[str, dict[int, float]]]] = {True: {}, False: {}}
    for one in found.noticed:
        counts = counted_as(one.figure, quantities)
        if not one.curve:
            continue
        if counts is not None and counts not in ("errors", "significant"):
            continue  # one category alone, or insignificant ones
        panel = lines[counts is not None].setdefault(one.figure, {})
        panel[one.category] = {number: mean.value for number, mean in one.curve.items()}
    pictures = []
    for numbers, name, label in ((True, "detected", "mean detected errors"), (False, "curves", "mean")):
        if lines[numbers]:
            path = plots.curves(lines[numbers], folder / name, x="errors put in", y=label, diagonal=numbers)
            pictures.append(Picture(path, f"{label} by the number of errors put in"))
    return pictures
