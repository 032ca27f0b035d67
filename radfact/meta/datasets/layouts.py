"""Readers of published rating sets and of plain tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import ErrorCode, InputError, check_unique_id, describe_choice, list_columns, suggest_name
from radfact.io.cluster_labels import choose_labels, read_labels
from radfact.meta.datasets.csv_rows import CsvRow, read_rows
from radfact.meta.datasets.radeval import read_radeval
from radfact.meta.datasets.ratings import COUNTS, Better, RatedReport, RatingSet, count_directions, count_quantities
from radfact.meta.datasets.refisco import read_refisco_v0, read_refisco_v1
from radfact.records import NO_CLUSTERS, Pair, PatientContext

Layout = Literal["plain", "rexval", "refisco-v0", "refisco-v1", "rate-eval", "radeval"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

REXVAL_REPORTS = "50_samples_gt_and_candidates.csv"
REXVAL_RATINGS = "6_valid_raters_per_rater_error_categories.csv"
_REXVAL_COLUMNS = (
    "study_number",
    "candidate_type",
    "rater_index",
    "error_category",
    "clinically_significant",
    "num_errors",
)
_MAX_RATER = 99
_REXVAL_OTHERS = ("study_id", "gt_report")
"""Columns of the reports that hold no candidate."""
_GROUPS = ("site", "modality", "anatomy", "group")


def read_ratings(
    path: Path | str,
    layout: Layout = "plain",
    *,
    experts: Sequence[str] = (),
    better: Better | None = None,
    target: str | None = None,
    cluster: str | None = None,
    texts_only: bool = False,
) -> RatingSet:
    """Read a set of expert ratings.

    `plain`: a CSV with `id`, `reference`, `candidate`, expert columns, and optionally `site`, `modality`, `anatomy` or
    `group`. An expert column is `QUANTITY:RATER`, or `expert` or `expert_RATER` for the quantity `expert`.
    `rexval`: the folder with the set's two CSV files, or the file of ratings in it. `refisco-v0`, `refisco-v1`: the CSV
    of corrected lines. `rate-eval`: `rate_test.csv` or `rate_train.csv` of a task, or the folder with the former.
    `radeval`: the CSV of the expert set.
    """
    if layout not in LAYOUTS:
        raise InputError(
            f"expected one of {', '.join(LAYOUTS)}, found '{layout}'", code=ErrorCode.UNKNOWN_NAME, field="layout"
        )
    path = Path(path)
    if layout == "plain":
        ratings = _read_plain(path, experts, better, cluster, texts_only)
    else:
        readers: Mapping[str, Callable[[Path], RatingSet]] = {
            "rexval": _read_rexval,
            "refisco-v0": read_refisco_v0,
            "refisco-v1": read_refisco_v1,
            "rate-eval": partial(_read_rate_eval, texts_only=texts_only),
            "radeval": read_radeval,
        }
        ratings = readers[layout](path)
        if cluster not in (None, NO_CLUSTERS, ratings.cluster_by):
            known = ", ".join(filter(None, (ratings.cluster_by, NO_CLUSTERS)))
            message = f"expected {known} with the layout {layout}, found '{cluster}'"
            raise InputError(message, code=ErrorCode.UNKNOWN_NAME, field="cluster")
        ratings = replace(ratings, cluster_by=None) if cluster == NO_CLUSTERS else ratings
    if not ratings.samples:
        raise InputError("expected rated reports, found none", code=ErrorCode.EMPTY_INPUT, file=path)
    if target is not None and target not in ratings.better:
        hint = suggest_name(target, ratings.better, f"quantities are {', '.join(ratings.better)}")
        raise InputError(f"unknown quantity '{target}'; {hint}", code=ErrorCode.UNKNOWN_NAME, field="target")
    return replace(ratings, target=target or ratings.target, notes=[*ratings.missing_notes(), *ratings.notes])


def _read_plain(
    path: Path, experts: Sequence[str], better: Better | None, cluster: str | None, texts_only: bool
) -> RatingSet:
    columns, rows = read_rows(path, ("id", "reference", "candidate", *experts))
    selected = list(experts) or [name for name in columns if name.startswith("expert") or ":" in name]
    if texts_only:
        selected, better = [], "higher"
    elif not selected:
        message = f"expected an expert column (QUANTITY:RATER, expert or expert_RATER), found {list_columns(columns)}"
        raise InputError(message, code=ErrorCode.MISSING_FIELD, file=path, line=1)
    if better is None:
        raise InputError(
            "expected higher or lower: which ratings are better?", code=ErrorCode.MISSING_OPTION, field="better"
        )
    quantities = _quantities(selected, path)
    groups = [name for name in _GROUPS if name in columns]
    samples, seen = [], dict[str, int]()
    labels = []
    for row in rows:
        key = row.id("id")
        check_unique_id(seen, key, row.line, file=path, field="id")
        ratings: dict[str, dict[str, float]] = {}
        for name, (quantity, rater) in quantities.items():
            ratings.setdefault(quantity, {})[rater] = row.number(name)
        context = PatientContext.of(row.cells)
        pair = Pair(key, row.text("candidate"), row.text("reference"), context=context)
        samples.append(RatedReport(pair, ratings, _groups(row, {name: name for name in groups})))
        labels.append(read_labels(row.cells, cluster, file=path, line=row.line))
    names = list(dict.fromkeys(quantity for quantity, _ in quantities.values()))
    by, clusters = choose_labels(labels, cluster, file=path)
    samples = [
        replace(sample, pair=replace(sample.pair, cluster=label))
        for sample, label in zip(samples, clusters, strict=True)
    ]
    group = groups[0] if groups else None
    return RatingSet(samples, dict.fromkeys(names, better), names[0] if names else "", group, cluster_by=by)


def _groups(row: CsvRow, kinds: Mapping[str, str]) -> dict[str, str]:
    return {kind: text for column, kind in kinds.items() if (text := row.text(column))}


def _quantities(columns: Sequence[str], path: Path) -> dict[str, tuple[str, str]]:
    """Return the quantity and the rater of every expert column."""
    quantities: dict[str, tuple[str, str]] = {}
    columns_of: dict[tuple[str, str], str] = {}
    for column in columns:
        quantity, colon, rater = (part.strip() for part in column.partition(":"))
        if not (colon and quantity and rater):
            is_default = column.startswith("expert")
            quantity, rater = "expert", (column.removeprefix("expert").strip("_ ") or "1") if is_default else column
        quantities[column] = quantity, rater
        first = columns_of.setdefault((quantity, rater), column)
        if first != column:
            message = f"'{first}' and '{column}' are both rater '{rater}' of '{quantity}'; rename one of them"
            raise InputError(message, code=ErrorCode.DUPLICATE, file=path, line=1)
    return quantities


def _read_rexval(path: Path) -> RatingSet:
    """Read the counts of six radiologists of 200 candidates; a study's number is the row of its reports, from 0."""
    folder = path if path.is_dir() else path.parent
    _, report_rows = read_rows(folder / REXVAL_REPORTS, ("gt_report",))
    reports = list(report_rows)
    _, rating_rows = read_rows(folder / REXVAL_RATINGS, _REXVAL_COLUMNS)
    counts: dict[tuple[int, str], dict[str, dict[str, dict[str, float]]]] = {}
    lines: dict[tuple[int, str, str, int, str], int] = {}
    letters = list(ERROR_CATEGORIES)
    for row in rating_rows:
        study = row.whole_number("study_number", 0, len(reports) - 1)
        method = row.id("candidate_type")
        if method not in reports[study].cells or method in _REXVAL_OTHERS:
            message = f"unknown candidate '{method}', which is no column of candidates in {REXVAL_REPORTS}"
            raise row.error(message, "candidate_type", ErrorCode.UNKNOWN_NAME)
        category = row.whole_number("error_category", 1, len(letters))
        kind = "significant" if _boolean(row, "clinically_significant") else "insignificant"
        rater = str(row.whole_number("rater_index", 0, _MAX_RATER))
        first = lines.setdefault((study, method, kind, category, rater), row.line)
        if first != row.line:
            message = f"duplicate count of {kind} errors of a category by this rater, first at line {first}"
            raise row.error(message, code=ErrorCode.DUPLICATE)
        by_rater = counts.setdefault((study, method), {}).setdefault(kind, {}).setdefault(letters[category - 1], {})
        by_rater[rater] = row.count("num_errors")
    notes = _add_missing_counts(counts)
    samples = [
        RatedReport(
            Pair(f"{study}_{method}", reports[study].text(method), reports[study].text("gt_report"), str(study)),
            count_quantities(kinds),
            {"candidate_type": method},
        )
        for (study, method), kinds in sorted(counts.items())
    ]
    return RatingSet(samples, count_directions(), "errors", "candidate_type", notes, "study_id")


def _add_missing_counts(counts: Mapping[tuple[int, str], dict[str, dict[str, dict[str, float]]]]) -> list[str]:
    """Add NaN for each count that a rater of a candidate does not have, unless the file lists no zero at all."""
    absent: list[tuple[dict[str, float], str]] = []
    numbers: list[float] = []
    for kinds in counts.values():
        cells = [
            kinds.setdefault(kind, {}).setdefault(letter, {}) for kind in COUNTS[1:] for letter in ERROR_CATEGORIES
        ]
        raters = {rater for cell in cells for rater in cell}
        absent += [(cell, rater) for cell in cells for rater in raters - cell.keys()]
        numbers += [number for cell in cells for number in cell.values()]
    if not absent:
        return []
    if 0 not in numbers:
        return [f"{len(absent)} counts are not in {REXVAL_RATINGS}, which lists no count of 0: they are read as 0."]
    for cell, rater in absent:
        cell[rater] = math.nan
    return [f"{len(absent)} counts are not in {REXVAL_RATINGS}, which lists counts of 0: they are missing."]


def _boolean(row: CsvRow, column: str) -> bool:
    text = row.text(column).lower()
    if text not in ("true", "false", "1", "0", "1.0", "0.0"):
        raise row.error(f"expected True or False, found {describe_choice(text)}", column)
    return text in ("true", "1", "1.0")


def _read_rate_eval(path: Path, *, texts_only: bool) -> RatingSet:
    """Read paragraphs (or sentences) with a similarity score."""
    required = ("gt_report", "similar_report", *(() if texts_only else ("Score",)))
    columns, rows = read_rows(path / "rate_test.csv" if path.is_dir() else path, required)
    kinds = {name: name.lower() for name in columns if name.lower() in ("modality", "anatomy")}
    samples: list[RatedReport] = []
    for row in rows:
        pair = Pair(str(len(samples)), row.text("similar_report"), row.text("gt_report"))
        samples.append(
            RatedReport(pair, {} if texts_only else {"score": {"1": row.number("Score")}}, _groups(row, kinds))
        )
    return RatingSet(samples, {"score": "higher"}, "score", "modality" if "modality" in kinds.values() else None)
