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
from radfact.metrics.error_agreement import Mean, mean_detected
from radfact.metrics.notation import CATEGORIES

MIXED = "mixed"


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
    """

    figure: str
    category: str
    curve: Mapping[int, Mean]
    steps: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Detected:
    """All figures and kinds; `counts` of those figures that count errors (paper 003, figures 2 to 4, table 7)."""

    noticed: Sequence[Noticed]
    counts: Sequence[Counted]


def detection_pairs(rows: Sequence[Injected]) -> list[Pair]:
    """The pairs to score: every candidate, and each report against itself."""
    own = {row.source_id: Pair(f"{row.source_id}_0", row.reference, row.reference) for row in rows}
    taken = {row.sample_id for row in rows}
    clash = next((pair.sample_id for pair in own.values() if pair.sample_id in taken), None)
    if clash is not None:
        raise InputError(f"'{clash}' is kept for the report against itself", field="sample_id")
    return [*(row.pair for row in rows), *own.values()]


def detect(rows: Sequence[Injected], figures: Figures) -> Detected:
    """What each figure notices.

    Args:
        rows: candidates with their errors.
        figures: of `detection_pairs(rows)`.
    """
    own = {source: len(rows) + place for place, source in enumerate(dict.fromkeys(row.source_id for row in rows))}
    noticed = []
    for name, values in figures.values.items():
        direction = figures.directions.get(name, "higher")
        worse = orient(values, direction)
        if worse is None:
            continue
        for category in _categories(rows):
            places = [place for place, row in enumerate(rows) if (row.category or MIXED) == category]
            sources = dict.fromkeys(rows[place].source_id for place in places)
            at = [*places, *(own[source] for source in sources)]
            number = [float(len(rows[place].changes)) for place in places] + [0.0] * len(sources)
            share, n = _steps(rows, places, own, worse)
            curve = mean_detected(number, [values[place] for place in at])
            noticed.append(Noticed(name, category, curve, share, n))
    of_candidates = Figures({name: column[: len(rows)] for name, column in figures.values.items()}, figures.directions)
    return Detected(noticed, counted(as_ratings(rows), of_candidates))


def _categories(rows: Sequence[Injected]) -> list[str]:
    there = {row.category or MIXED for row in rows}
    return [one for one in (*CATEGORIES, MIXED) if one in there]


def _steps(
    rows: Sequence[Injected], places: Sequence[int], own: Mapping[str, int], worse: Sequence[float]
) -> tuple[float | None, int]:
    by_source: dict[str, list[int]] = {}
    for place in sorted(places, key=lambda one: len(rows[one].changes)):
        by_source.setdefault(rows[place].source_id, [own[rows[place].source_id]]).append(place)
    gaps = [worse[b] - worse[a] for chain in by_source.values() for a, b in pairwise(chain)]
    known = [gap for gap in gaps if not math.isnan(gap)]
    return (sum(gap > 0 for gap in known) / len(known) if known else None), len(known)


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
    steps = Table(["figure", *categories], [[name, *(share.get((name, one)) for one in categories)] for name in names])
    numbers = sorted({number for one in found.noticed for number in one.curve})
    curves = Table(
        ["figure", "category", *map(str, numbers)],
        [
            [one.figure, one.category, *(one.curve[k].value if k in one.curve else None for k in numbers)]
            for one in found.noticed
        ],
    )
    steps.write(folder / "steps.csv")
    curves.write(folder / "curves.csv")
    missing: list[str] = []
    pictures: list[Picture] = []
    try:
        pictures = _draw(found, folder)
    except InputError as error:
        missing.append(f"Without plots: {error}")
    kinds = "; ".join(f"({letter}) {words}" for letter, words in CATEGORIES.items())
    said = f"How often a figure gets worse when one more error is put into the same report. {kinds}."
    sections = [Section("Errors noticed", [steps, said]), Section("Mean by number of errors", [*pictures, curves])]
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
