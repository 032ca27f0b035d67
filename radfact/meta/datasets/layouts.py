"""Readers of published sets of expert ratings, and of plain tables, from local files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import InputError, check_unique_id
from radfact.io.csv_tables import read_csv
from radfact.meta.datasets.cells import need_columns, read_count, read_id, read_number, read_whole
from radfact.meta.datasets.error_labels import read_annotation
from radfact.meta.datasets.ratings import Better, Rated, Ratings, count_directions, count_quantities
from radfact.meta.datasets.refisco import read_refisco_v0, read_refisco_v1
from radfact.records import Pair

Layout = Literal["plain", "rexval", "refisco-v0", "refisco-v1", "rate-eval", "radeval"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

REXVAL_REPORTS = "50_samples_gt_and_candidates.csv"
REXVAL_RATINGS = "6_valid_raters_per_rater_error_categories.csv"
_REXVAL_COLUMNS = ("study_number", "candidate_type", "rater_index", "error_category", "clinically_significant")
_GROUPS = ("site", "modality", "anatomy", "group")


def read_ratings(
    path: Path | str,
    layout: Layout = "plain",
    *,
    experts: Sequence[str] = (),
    better: Better | None = None,
    target: str | None = None,
) -> Ratings:
    """Read a set of expert ratings.

    `plain`: a CSV with `id`, `reference`, `candidate`, expert columns, and perhaps `site`, `modality`, `anatomy` or
    `group`. An expert column is `QUANTITY:RATER`, or `expert` or `expert_RATER` of the quantity `expert`.
    `rexval`: the folder with the set's two CSV files, or the ratings among them. `refisco-v0`, `refisco-v1`: the CSV
    of corrected lines. `rate-eval`: `rate_test.csv` or `rate_train.csv` of a task, or the folder with the former.
    `radeval`: the expert set's CSV.

    Args:
        path: file or folder.
        layout: one of `LAYOUTS`.
        experts: of a plain table, the columns to take; by default all that are named like one.
        better: of a plain table, which way its ratings are better.
        target: the quantity that stands for the whole opinion; by default the set's own.

    Raises:
        InputError: naming file, line and field of what is missing or wrong.
    """
    if layout not in LAYOUTS:
        raise InputError(f"expected one of {', '.join(LAYOUTS)}, found '{layout}'", field="layout")
    path = Path(path)
    if layout == "plain":
        ratings = _read_plain(path, experts, better)
    else:
        readers: Mapping[str, Callable[[Path], Ratings]] = {
            "rexval": _read_rexval,
            "refisco-v0": read_refisco_v0,
            "refisco-v1": read_refisco_v1,
            "rate-eval": _read_rate_eval,
            "radeval": _read_radeval,
        }
        ratings = readers[layout](path)
    if not ratings.samples:
        raise InputError("holds no rated report", file=path)
    if target is not None:
        if target not in ratings.better:
            raise InputError(f"no such quantity '{target}'; there are {', '.join(ratings.better)}", field="target")
        ratings = Ratings(ratings.samples, ratings.better, target, ratings.group, ratings.notes)
    return ratings


def _read_plain(path: Path, experts: Sequence[str], better: Better | None) -> Ratings:
    columns, rows = read_csv(path)
    need_columns(path, columns, ("id", "reference", "candidate", *experts))
    chosen = list(experts) or [name for name in columns if name.startswith("expert") or ":" in name]
    if not chosen:
        raise InputError(
            f"no expert column (QUANTITY:RATER, expert or expert_RATER); found {', '.join(columns)}", file=path, line=1
        )
    if better is None:
        raise InputError("say which way the ratings are better: higher or lower", field="better")
    meaning = _meanings(chosen, path)
    groups = [name for name in _GROUPS if name in columns]
    samples, seen = [], dict[str, int]()
    for line, row in rows:
        key = read_id(row["id"], path, line, "id")
        check_unique_id(seen, key, line, file=path, field="id")
        ratings: dict[str, dict[str, float]] = {}
        for name, (quantity, rater) in meaning.items():
            if row[name].strip():
                ratings.setdefault(quantity, {})[rater] = read_number(row[name], path, line, name)
        pair = Pair(key, row["candidate"].strip(), row["reference"].strip())
        samples.append(Rated(pair, ratings, {name: row[name] for name in groups if row[name]}))
    quantities = list(dict.fromkeys(quantity for quantity, _ in meaning.values()))
    return Ratings(samples, dict.fromkeys(quantities, better), quantities[0], groups[0] if groups else None)


def _meanings(columns: Sequence[str], path: Path) -> dict[str, tuple[str, str]]:
    """Quantity and rater of every column."""
    meaning: dict[str, tuple[str, str]] = {}
    columns_of: dict[tuple[str, str], str] = {}
    for name in columns:
        meaning[name] = quantity, rater = _quantity(name)
        first = columns_of.setdefault(meaning[name], name)
        if first != name:
            raise InputError(
                f"'{first}' and '{name}' are both what rater '{rater}' says of '{quantity}'; rename one of them",
                file=path,
                line=1,
            )
    return meaning


def _quantity(column: str) -> tuple[str, str]:
    quantity, colon, rater = (part.strip() for part in column.partition(":"))
    if colon and quantity and rater:
        return quantity, rater
    if column.startswith("expert"):
        return "expert", column.removeprefix("expert").strip("_ ") or "1"
    return "expert", column


def _read_rexval(path: Path) -> Ratings:
    """Six radiologists' counts of 200 candidates; a study's number is the row of its reports, from 0."""
    folder = path if path.is_dir() else path.parent
    reports = folder / REXVAL_REPORTS
    columns, rows = read_csv(reports)
    need_columns(reports, columns, ("gt_report",))
    texts = [row for _, row in rows]
    ratings = folder / REXVAL_RATINGS
    columns, rated = read_csv(ratings)
    need_columns(ratings, columns, (*_REXVAL_COLUMNS, "num_errors"))
    counts: dict[tuple[int, str], dict[str, dict[str, dict[str, float]]]] = {}
    lines: dict[tuple[int, str, str, int, str], int] = {}
    letters = list(ERROR_CATEGORIES)
    for line, row in rated:
        number = read_whole(row["study_number"], ratings, line, "study_number", len(texts) - 1)
        method = row["candidate_type"]
        if method not in texts[number]:
            raise InputError(
                f"{REXVAL_REPORTS} has no column '{method}'", file=ratings, line=line, field="candidate_type"
            )
        category = read_whole(row["error_category"], ratings, line, "error_category", len(letters), least=1)
        kind = "significant" if _truth(row, ratings, line) else "insignificant"
        rater = row["rater_index"].strip()
        first = lines.setdefault((number, method, kind, category, rater), line)
        if first != line:
            raise InputError(
                f"counts the {kind} errors of a category that line {first} has counted for this candidate and rater",
                file=ratings,
                line=line,
            )
        by_rater = counts.setdefault((number, method), {}).setdefault(kind, {}).setdefault(letters[category - 1], {})
        by_rater[rater] = read_count(row["num_errors"], ratings, line, "num_errors")
    samples = [
        Rated(
            Pair(f"{number}_{method}", texts[number][method].strip(), texts[number]["gt_report"].strip()),
            count_quantities(kinds),
            {"candidate_type": method},
        )
        for (number, method), kinds in sorted(counts.items())
    ]
    return Ratings(samples, count_directions(), "errors", "candidate_type")


def _truth(row: Mapping[str, str], path: Path, line: int) -> bool:
    said = row["clinically_significant"].strip().lower()
    if said not in ("true", "false", "1", "0", "1.0", "0.0"):
        raise InputError(
            f"expected True or False, found '{said}'", file=path, line=line, field="clinically_significant"
        )
    return said in ("true", "1", "1.0")


def _read_rate_eval(path: Path) -> Ratings:
    """Paragraphs (or sentences) with a score, the higher the more alike."""
    path = path / "rate_test.csv" if path.is_dir() else path
    columns, rows = read_csv(path)
    need_columns(path, columns, ("gt_report", "similar_report", "Score"))
    kinds = {name: name.lower() for name in columns if name.lower() in ("modality", "anatomy")}
    samples: list[Rated] = []
    for line, row in rows:
        score = read_number(row["Score"], path, line, "Score") if row["Score"].strip() else math.nan
        pair = Pair(str(len(samples)), row["similar_report"].strip(), row["gt_report"].strip())
        samples.append(
            Rated(pair, {"score": {"1": score}}, {kind: row[name] for name, kind in kinds.items() if row[name]})
        )
    return Ratings(samples, {"score": "higher"}, "score", "modality" if "modality" in kinds.values() else None)


def _read_radeval(path: Path) -> Ratings:
    """Three annotated candidates a row; a cell of annotations that cannot be read leaves its candidate unrated."""
    columns, rows = read_csv(path)
    need_columns(path, columns, ("annotator", "type", "ground_truth"))
    need_columns(path, columns, [f"{kind}{number}" for kind in ("prediction", "annotation") for number in (1, 2, 3)])
    samples: list[Rated] = []
    notes: list[str] = []
    for place, (line, row) in enumerate(rows):
        for number in (1, 2, 3):
            candidate, said = row[f"prediction{number}"].strip(), row[f"annotation{number}"]
            if not candidate:
                continue
            try:
                counts = read_annotation(said)
            except ValueError as error:
                notes.append(f"{path}, line {line}, field 'annotation{number}': {error}; left without a rating")
                counts = {}
            named = {
                kind: {letter: {row["annotator"] or "1": value} for letter, value in letters.items()}
                for kind, letters in counts.items()
            }
            pair = Pair(f"{place}_{number}", candidate, row["ground_truth"].strip())
            samples.append(Rated(pair, count_quantities(named), {"type": row["type"]}))
    return Ratings(samples, count_directions(), "significant", "type", notes)
