"""Detection of injected errors by metrics: mean scores by number of errors, detected steps, F1 by category."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import write_json
from radfact.meta.agreement.analysis import CountAgreement, compare_counts, counted_quantity
from radfact.meta.agreement.report import CATEGORY_LEGEND, category_table
from radfact.meta.injection.records import InjectedReport, to_rating_set
from radfact.meta.injection.style import RuleStyler
from radfact.meta.scores import ScoreColumns, orient
from radfact.pages import plots
from radfact.pages.meta_page import PlotFolder, Section, Table, write_page
from radfact.records import Pair
from radfact.statistics.bootstrap import round_noise
from radfact.statistics.rater_agreement import Mean, mean_detected

_MIXED = "mixed"
_REWORDED = "reworded"
"""No error but another wording, with which a score should not get worse."""


@dataclass(frozen=True, slots=True)
class ScoreDetection:
    """Detection of errors of one category by one score.

    Attributes:
        score: name of the score.
        category: letter, `mixed` or `reworded`.
        curve: number of errors -> mean score; 0 is each report compared with itself.
        steps: share of the steps from one candidate of a report to the one with the next more errors at which the score
            gets worse; None without a step.
        n: number of steps.
        above_rewording: share of the candidates with one error that are worse than the reworded report without an
            error (the standard style by rules), since a score that reacts to words detects nothing; None without a
            candidate with one error, which is common for mixed errors.
    """

    score: str
    category: str
    curve: Mapping[int, Mean]
    steps: float | None
    n: int
    above_rewording: float | None


@dataclass(frozen=True, slots=True)
class DetectionResult:
    """Detection by score and category, and agreement of the scores that count errors.

    Source: VERT, figures 2 to 4 and table 7.
    """

    detections: Sequence[ScoreDetection]
    counts: Sequence[CountAgreement]


def detection_pairs(rows: Sequence[InjectedReport]) -> list[Pair]:
    """Return the pairs to score: all candidates, then each report against itself, then each reworded report.

    Raises:
        InputError: a candidate has the id of one of the latter.
    """
    references = {row.source_id: row.reference for row in rows}
    reworded = RuleStyler().standardize(list(references.values()))
    own = [Pair(f"{source}_0", text, text) for source, text in references.items()]
    own += [
        Pair(f"{source}_reworded", text if isinstance(text, str) else references[source], references[source])
        for source, text in zip(references, reworded, strict=True)
    ]
    sample_ids = {row.sample_id for row in rows}
    clash = next((pair.sample_id for pair in own if pair.sample_id in sample_ids), None)
    if clash is not None:
        raise InputError(
            f"expected another id, found '{clash}', which is reserved", code=ErrorCode.DUPLICATE, field="sample_id"
        )
    return [*(row.pair for row in rows), *own]


def detect(rows: Sequence[InjectedReport], scores: ScoreColumns) -> DetectionResult:
    """Measure which errors each score detects.

    Args:
        rows: candidates with their errors; a candidate without errors, reworded by a model, is ignored.
        scores: scores of `detection_pairs(rows)`.
    """
    sources = list(dict.fromkeys(row.source_id for row in rows))
    original = {source: len(rows) + index for index, source in enumerate(sources)}
    reworded = {source: len(rows) + len(sources) + index for index, source in enumerate(sources)}
    detections = []
    for name, values in scores.values.items():
        oriented = orient(values, scores.directions.get(name, "higher"))
        if oriented is None:
            continue
        worse = round_noise(oriented).tolist()
        for category in _categories(rows):
            indices = [i for i, row in enumerate(rows) if row.changes and (row.category or _MIXED) == category]
            used = dict.fromkeys(rows[i].source_id for i in indices)
            numbers = [float(len(rows[i].changes)) for i in indices] + [0.0] * len(used)
            curve = mean_detected(numbers, [values[i] for i in (*indices, *(original[source] for source in used))])
            chains: dict[str, list[int]] = {}
            for i in sorted(indices, key=lambda index: len(rows[index].changes)):
                chains.setdefault(rows[i].source_id, [original[rows[i].source_id]]).append(i)
            steps = [worse[b] - worse[a] for chain in chains.values() for a, b in pairwise(chain)]
            single = [i for i in indices if len(rows[i].changes) == 1]
            above, _ = _positive_share([worse[i] - worse[reworded[rows[i].source_id]] for i in single])
            detections.append(ScoreDetection(name, category, curve, *_positive_share(steps), above))
        rewording = [worse[reworded[source]] - worse[original[source]] for source in sources]
        detections.append(ScoreDetection(name, _REWORDED, {}, *_positive_share(rewording), None))
    of_candidates = ScoreColumns(
        {name: column[: len(rows)] for name, column in scores.values.items()}, scores.directions
    )
    return DetectionResult(detections, compare_counts(to_rating_set(rows), of_candidates))


def _positive_share(gaps: Sequence[float]) -> tuple[float | None, int]:
    known = [gap for gap in gaps if not math.isnan(gap)]
    return (sum(gap > 0 for gap in known) / len(known) if known else None), len(known)


def _categories(rows: Sequence[InjectedReport]) -> list[str]:
    present = {row.category or _MIXED for row in rows if row.changes}
    return [category for category in (*ERROR_CATEGORIES, _MIXED) if category in present]


def write_detection(
    result: DetectionResult,
    rows: Sequence[InjectedReport],
    folder: Path,
    record: Mapping[str, Any],
    notes: Sequence[str] = (),
) -> list[str]:
    """Write `detection.json`, CSV tables, plots and `detection.html`.

    Args:
        result: the detection.
        rows: candidates with their errors.
        folder: output folder.
        record: run details as JSON values.
        notes: sentences for the page.

    Returns:
        Sentences about missing plots.
    """
    categories = _categories(rows)
    numbers = {
        category: sum(len(row.changes) for row in rows if (row.category or _MIXED) == category)
        for category in categories
    }
    plotter = PlotFolder(folder)
    steps = _table_by_category(result, [*categories, _REWORDED], "steps")
    above = _table_by_category(result, categories, "above_rewording")
    curves = _curve_table(result)
    steps_text = (
        f"How often a score gets worse with one more error in the same report; under {_REWORDED}, how often it gets "
        f"worse with another wording of the same content, which it should not. {CATEGORY_LEGEND}"
    )
    sections = [
        Section("Detected errors", [steps, steps_text]),
        Section(
            "Errors compared with rewording",
            [above, "How often one error makes a report worse than another wording of the same content."],
        ),
        Section(
            "Mean by number of errors",
            [
                *_plots(result, plotter),
                curves,
                "Not every report offers more errors, so that larger numbers are means over fewer reports.",
            ],
        ),
    ]
    tables = {"steps": steps, "above_rewording": above, "curves": curves}
    if any(row.by_category for row in result.counts):
        tables["categories"] = category_table(result.counts)
        text = "F1 of the errors of each category, and share of reports with the right number of them."
        sections.append(Section("Errors by category", [tables["categories"], text]))
    for name, table in tables.items():
        table.write(folder / f"{name}.csv")
    write_json(folder / "detection.json", {**record, "errors": numbers, **_as_json(result)})
    amounts = ", ".join(f"{number} of ({category})" for category, number in numbers.items())
    injectors = ", ".join(sorted({row.by for row in rows}))
    introduction = f"{sum(numbers.values())} errors injected by {injectors}: {amounts}."
    page_notes = [introduction, *notes, *plotter.notes]
    write_page(folder / "detection.html", "Detection of injected errors", page_notes, sections)
    return plotter.notes


def detection_table(result: DetectionResult) -> Table:
    """Return one row per score and category."""
    rows = [[row.score, row.category, row.steps, row.n, row.above_rewording] for row in result.detections]
    return Table(["score", "category", "steps detected", "steps", "above rewording"], rows)


def _table_by_category(result: DetectionResult, categories: Sequence[str], attribute: str) -> Table:
    values = {(row.score, row.category): getattr(row, attribute) for row in result.detections}
    names = dict.fromkeys(row.score for row in result.detections)
    rows = [[name, *(values.get((name, category)) for category in categories)] for name in names]
    return Table(["score", *categories], rows)


def _curve_table(result: DetectionResult) -> Table:
    curved = [row for row in result.detections if row.curve]
    numbers = sorted({number for row in curved for number in row.curve})
    rows = [
        [row.score, row.category, *(row.curve[n].value if n in row.curve else None for n in numbers)] for row in curved
    ]
    return Table(["score", "category", *map(str, numbers)], rows)


def _as_json(result: DetectionResult) -> dict[str, Any]:
    detections = [
        {**asdict(row), "curve": {str(number): asdict(mean) for number, mean in row.curve.items()}}
        for row in result.detections
    ]
    counts = [row for row in result.counts if row.by_category]
    return {
        "detections": detections,
        "f1": {row.score: {letter: d.f1 for letter, d in row.by_category.items()} for row in counts},
        "accuracy": {row.score: {letter: asdict(share) for letter, share in row.accuracy.items()} for row in counts},
    }


def _plots(result: DetectionResult, plotter: PlotFolder) -> list[Any]:
    """Plot counts of errors against the true number, and all other scores."""
    quantities = to_rating_set([]).better
    counting: dict[str, dict[str, dict[int, float | None]]] = {}
    others: dict[str, dict[str, dict[int, float | None]]] = {}
    for row in result.detections:
        quantity = counted_quantity(row.score, quantities)
        # Counts of one category, and of insignificant errors, are in the table only.
        if row.curve and quantity in (None, "errors", "significant"):
            panels = others if quantity is None else counting
            panels.setdefault(row.score, {})[row.category] = {n: mean.value for n, mean in row.curve.items()}
    images = []
    if counting:
        images += plotter.draw(
            "detected",
            "Mean detected errors by the number of injected errors",
            lambda path: plots.curves(counting, path, x="injected errors", y="mean detected errors", diagonal=True),
        )
    if others:
        images += plotter.draw(
            "curves",
            "Mean by the number of injected errors",
            lambda path: plots.curves(others, path, x="injected errors", y="mean", diagonal=False),
        )
    return images
