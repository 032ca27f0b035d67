"""Detection of injected errors by metrics: mean scores by number of errors, detected steps, F1 by category."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import ErrorCode, InputError
from radfact.meta.agreement.analysis import CountAgreement, compare_counts, counted_quantity
from radfact.meta.agreement.report import category_table
from radfact.meta.datasets.ratings import count_directions
from radfact.meta.injection.records import InjectedReport, to_rating_set
from radfact.meta.injection.rewording import KINDS
from radfact.meta.report import AnalysisReport
from radfact.meta.scores import ScoreColumns
from radfact.pages import plots
from radfact.pages.meta_page import Plot, Table
from radfact.records import Pair
from radfact.statistics.bootstrap import Summary, round_noise, summarize
from radfact.statistics.clusters import clusters_of
from radfact.statistics.rater_agreement import Mean, mean_detected

_MIXED = "mixed"
_REWORDED = "reworded"
"""No error but another wording, with which a score should not get worse."""
COSTLY = 0.02


@dataclass(frozen=True, slots=True)
class ScoreDetection:
    """Detection of errors of one category (a letter, `mixed` or `reworded`) by one score.

    `curve` is the mean score by number of errors, 0 for each report compared with itself; `steps` is the share of the
    `n` steps to the next more errors at which the score gets worse; `above_rewording` is the share of single errors
    that are worse than a candidate of the same report without an error, None without such candidates.
    """

    score: str
    category: str
    curve: Mapping[int, Mean]
    steps: float | None
    n: int
    above_rewording: float | None


@dataclass(frozen=True, slots=True)
class RewordingCost:
    """Share of the harmless rewordings of one kind, or of `all`, that cost more than `COSTLY` of a score's range."""

    score: str
    kind: str
    share: Summary
    mean: float | None


@dataclass(frozen=True, slots=True)
class DetectionResult:
    """Detection by score and category, and agreement of scores that count errors (VERT, figures 2 to 4, table 7)."""

    detections: Sequence[ScoreDetection]
    counts: Sequence[CountAgreement]
    rewordings: Sequence[RewordingCost] = ()


def detection_pairs(rows: Sequence[InjectedReport]) -> list[Pair]:
    """Return the pairs to score: all candidates, then each report against itself."""
    sources = {row.source_id: row.pair for row in rows}
    own = [replace(pair, sample_id=f"{source}_0", candidate=pair.reference) for source, pair in sources.items()]
    sample_ids = {row.sample_id for row in rows}
    if clash := next((pair.sample_id for pair in own if pair.sample_id in sample_ids), None):
        message = f"expected another id, found '{clash}', which is reserved"
        raise InputError(message, code=ErrorCode.DUPLICATE, field="sample_id")
    return [*(row.pair for row in rows), *own]


def detect(rows: Sequence[InjectedReport], scores: ScoreColumns) -> DetectionResult:
    """Measure by scores of `detection_pairs(rows)` which errors are detected; one without errors is reworded."""
    sources = dict.fromkeys(row.source_id for row in rows)
    original = {source: index for index, source in enumerate(sources, start=len(rows))}
    numbers = [*(float(len(row.changes)) for row in rows), *(0.0 for _ in sources)]
    reworded: dict[str, list[int]] = {}
    for index in (index for index, row in enumerate(rows) if not row.changes):
        reworded.setdefault(rows[index].source_id, []).append(index)
    detections = []
    for name, column in scores.oriented.items():
        values, worse = scores.values[name], round_noise(column)
        for category, indices in _by_category(rows).items():
            chains = {rows[i].source_id: [original[rows[i].source_id]] for i in indices}
            for i in sorted(indices, key=numbers.__getitem__):
                chains[rows[i].source_id].append(i)
            scored = [i for chain in chains.values() for i in chain]
            curve = mean_detected([numbers[i] for i in scored], [values[i] for i in scored])
            steps = _share_worse(worse, [step for chain in chains.values() for step in pairwise(chain)])
            single = [i for i in indices if numbers[i] == 1 and rows[i].source_id in reworded]
            above = _share_worse(worse, [(r, i) for i in single for r in reworded[rows[i].source_id]])
            detections.append(ScoreDetection(name, category, curve, steps.value, steps.n, above.value))
        if reworded:
            pairs = [(original[source], index) for source, indices in reworded.items() for index in indices]
            steps = _share_worse(worse, pairs)
            detections.append(ScoreDetection(name, _REWORDED, {}, steps.value, steps.n, None))
    of_candidates = replace(scores, values={name: column[: len(rows)] for name, column in scores.values.items()})
    counts = compare_counts(to_rating_set(rows), of_candidates)
    costs = [cost for name in scores.oriented for cost in _rewording_costs(name, rows, scores, original)]
    return DetectionResult(detections, counts, costs)


def _rewording_costs(
    name: str, rows: Sequence[InjectedReport], scores: ScoreColumns, original: Mapping[str, int]
) -> list[RewordingCost]:
    worse, costs = scores.oriented[name], []
    bounds = re.match(r"(-?[\d.]+) to ([\d.]+)", scores.units.get(name, ""))
    width = float(bounds[2]) - float(bounds[1]) if bounds else 1.0
    present = {row.rewording for row in rows if row.rewording}
    for kind in ("all", *filter(present.__contains__, KINDS)) if present else ():
        chosen = [(i, row) for i, row in enumerate(rows) if row.rewording and kind in ("all", row.rewording)]
        gaps = [(worse[i] - worse[original[row.source_id]]) / width for i, row in chosen]
        clusters = clusters_of("report", [row.source_id for _, row in chosen], [row.sample_id for _, row in chosen])
        costly = [math.nan if math.isnan(gap) else float(gap > COSTLY + 1e-9) for gap in gaps]
        share = summarize({kind: costly}, clusters=clusters)[kind]
        costs.append(RewordingCost(name, kind, share, Mean.of(gaps).value))
    return costs


def rewording_table(costs: Sequence[RewordingCost]) -> Table:
    shares = [(row, row.share) for row in costs]
    rows = [[row.score, row.kind, share.n, share.point, share.low, share.high, row.mean] for row, share in shares]
    return Table(["score", "rewording", "n", "costly", "low", "high", "mean cost"], rows)


def _share_worse(worse: NDArray[np.float64], steps: Sequence[tuple[int, int]]) -> Mean:
    """Return the share of the steps from one index to another at which a score gets worse."""
    gaps = (worse[after] - worse[before] for before, after in steps)
    return Mean.of(gap > 0 for gap in gaps if not math.isnan(gap))


def _by_category(rows: Sequence[InjectedReport]) -> dict[str, list[int]]:
    """Return the indices of the candidates with errors, by letter or `mixed`."""
    categories = {i: row.category or _MIXED for i, row in enumerate(rows) if row.changes}
    by_category = {name: [i for i in categories if categories[i] == name] for name in (*ERROR_CATEGORIES, _MIXED)}
    return {name: indices for name, indices in by_category.items() if indices}


def write_detection(
    result: DetectionResult,
    rows: Sequence[InjectedReport],
    folder: Path,
    record: Mapping[str, Any],
    notes: Sequence[str] = (),
) -> list[str]:
    """Write `detection.json`, CSV tables, plots and `detection.html`; return sentences about missing plots."""
    report = AnalysisReport(folder)
    numbers = {name: sum(len(rows[i].changes) for i in indices) for name, indices in _by_category(rows).items()}
    steps = {(row.score, row.category): row.steps for row in result.detections}
    above = {(row.score, row.category): row.above_rewording for row in result.detections}
    means = {(row.score, row.category, n): mean.value for row in result.detections for n, mean in row.curve.items()}
    report.section("steps", _pivot(["score"], steps, [*numbers, _REWORDED]), reworded=_REWORDED)
    report.section("above_rewording", _pivot(["score"], above, [*numbers]))
    report.section("rewordings", rewording_table(result.rewordings), costly=COSTLY)
    curves = _pivot(["score", "category"], means, sorted({number for *_, number in means}))
    report.section("curves", *_plots(result, report), curves)
    report.add(
        "Errors by category",
        category_table(result.counts),
        "F1 of the errors of each category, and share of reports with the right number of them.",
        file="categories",
    )
    amounts = ", ".join(f"{number} of ({category})" for category, number in numbers.items())
    injectors = ", ".join(sorted({row.by for row in rows}))
    introduction = f"{sum(numbers.values())} errors injected by {injectors}{f': {amounts}' if amounts else ''}."
    details = {
        "errors": numbers,
        "detections": [asdict(row) for row in result.detections],
        "rewordings": [asdict(row) for row in result.rewordings],
        "f1": {row.score: row.f1 for row in result.counts if row.f1},
        "accuracy": {row.score: asdict(row)["accuracy"] for row in result.counts if row.f1},
    }
    return report.write("detection", "Detection of injected errors", {**record, **details}, [introduction, *notes])


def detection_table(result: DetectionResult) -> Table:
    rows = [[row.score, row.category, row.steps, row.n, row.above_rewording] for row in result.detections]
    return Table(["score", "category", "steps detected", "steps", "above rewording"], rows)


def _pivot(headings: Sequence[str], cells: Mapping[tuple[Any, ...], Any], columns: Sequence[Any]) -> Table:
    """Return a table with a column for each last part of the keys, and a row for each rest."""
    keys = dict.fromkeys(key[:-1] for key in cells)
    rows = [[*key, *(cells.get((*key, column)) for column in columns)] for key in keys]
    return Table([*headings, *map(str, columns)], rows)


def _plots(result: DetectionResult, report: AnalysisReport) -> list[Plot]:
    """Plot counts of errors against the true number, and all other scores."""
    counting: dict[str, dict[str, dict[int, float | None]]] = {}
    others: dict[str, dict[str, dict[int, float | None]]] = {}
    for row in result.detections:
        quantity = counted_quantity(row.score, count_directions())
        # Counts of one category, and of insignificant errors, are in the table only.
        if row.curve and quantity in (None, "errors", "significant"):
            panels = others if quantity is None else counting
            panels.setdefault(row.score, {})[row.category] = {n: mean.value for n, mean in row.curve.items()}
    by, x, y = "by the number of injected errors", "injected errors", "mean detected errors"
    detected = report.draw("detected", f"Mean detected errors {by}", plots.curves, counting, x=x, y=y, diagonal=True)
    return [*detected, *report.draw("curves", f"Mean {by}", plots.curves, others, x=x, y="mean", diagonal=False)]
