"""Readers of published rating sets and of plain tables."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import ErrorCode, InputError, check_unique_id, describe_choice, list_columns, suggest_name
from radfact.io.pairs import read_clusters
from radfact.llm.response_text import read_data
from radfact.meta.datasets.csv_rows import CsvRow, read_rows
from radfact.meta.datasets.ratings import (
    COUNTS,
    SEVERITY_MAX,
    Better,
    RatedReport,
    RatingSet,
    count_directions,
    count_quantities,
)
from radfact.metrics.llm.responses.corrections import SEVERITIES, Correction, Corrections, is_deletion, is_unchanged
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
        labels.append((row.cells, {"file": path, "line": row.line}))
    names = list(dict.fromkeys(quantity for quantity, _ in quantities.values()))
    by, clusters = read_clusters(labels, cluster, file=path)
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


_MAX_SEVERITY = max(SEVERITIES.values())


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of a version; `candidate` identifies a candidate, and together with `annotator` an annotation.

    A version that `has_edit_marks` writes [no edit] for an unchanged line, so that an empty correction is an error.
    """

    candidate: tuple[str, ...]
    original: str
    edited: str
    severity: str
    annotator: str
    source: str
    comment: str | None
    has_edit_marks: bool


_V0 = _Columns(("id", "source"), "impression_original", "impression_edited", "score", "annotator", "source", None, True)
_V1 = _Columns(
    ("data_id", "report_type"),
    "original_line",
    "corrected_line",
    "error_clinical_severity",
    "annotator_id",
    "report_type",
    "comments",
    False,
)


def read_refisco_v0(path: Path) -> RatingSet:
    """Read version 0: `[no edit]` keeps a line, `[delete]` deletes it, an empty original inserts one."""
    return _read(path, _V0)


def read_refisco_v1(path: Path) -> RatingSet:
    """Read version 1, in which a line without a correction is kept."""
    return _read(path, _V1)


def _read(path: Path, columns: _Columns) -> RatingSet:
    names = (columns.original, columns.edited, columns.severity, columns.annotator, columns.source)
    _, rows = read_rows(path, (*columns.candidate, *names))
    reports: dict[tuple[str, ...], list[CsvRow]] = {}
    for row in rows:
        key = tuple(row.id(name) for name in (*columns.candidate, columns.annotator))
        reports.setdefault(key, []).append(row)
    samples = [_report(key, lines, columns) for key, lines in reports.items()]
    better: dict[str, Better] = dict.fromkeys(("severity_sum", SEVERITY_MAX, "problem_lines"), "lower")
    return RatingSet(samples, better, "severity_sum", "source", cluster_by="study_id")


def _report(key: Sequence[str], rows: Sequence[CsvRow], columns: _Columns) -> RatedReport:
    lines: list[str] = []
    corrected: list[str] = []
    items: list[Correction] = []
    severities: list[int] = []
    for row in rows:
        original, edited = row.text(columns.original), row.text(columns.edited)
        if original and not edited and columns.has_edit_marks:
            message = "expected [no edit], [delete] or a line, found an empty cell"
            raise row.error(message, columns.edited, ErrorCode.MISSING_FIELD)
        is_unedited = edited in ("", original) or is_unchanged(edited)
        text = original if is_unedited else None if is_deletion(edited) else edited
        if original:
            lines.append(original)
        if text:
            corrected.append(text)
        if original or text:
            severity = _severity(row, columns.severity, is_unedited)
            severities.append(severity)
            # A rewording of a line without an error is no correction, as in the response of a model.
            if severity and not is_unedited:
                comment = row.cells.get(columns.comment, "") if columns.comment else ""
                items.append(Correction(len(lines) - 1 if original else None, text, severity, comment))
    values = {
        "severity_sum": float(sum(severities)),
        SEVERITY_MAX: float(max(severities, default=0)),
        "problem_lines": float(sum(map(bool, severities))),
    }
    rater = key[-1]
    return RatedReport(
        Pair("_".join(key), " ".join(lines), " ".join(corrected), key[0]),
        {name: {rater: value} for name, value in values.items()},
        {"source": rows[0].text(columns.source)},
        Corrections(tuple(lines), tuple(items)),
        "_".join(key[:-1]),
    )


def _severity(row: CsvRow, column: str, is_unedited: bool) -> int:
    """Read 0 to 4, as a number or in words; an unedited line without one has no error."""
    words = " ".join(row.text(column).lower().replace("-", " ").split())
    if words in SEVERITIES:
        return SEVERITIES[words]
    if not words and is_unedited:
        return 0
    try:
        value = row.number(column)
    except InputError:
        value = math.nan
    if value not in range(_MAX_SEVERITY + 1):
        expected = f"0 to {_MAX_SEVERITY} or one of {', '.join(SEVERITIES)}"
        raise row.error(f"expected {expected}, found {describe_choice(row.text(column))}", column)
    return int(value)


_GRAMMAR = "g"
"""The seventh category of RadEval's experts: an inarticulate report (VERT, section 3)."""

_CATEGORY_PATTERNS = {
    "a": r"false (?:prediction|report|finding)",
    "b": r"omission of (?:a )?finding|omitted finding|miss(?:ed|ing) (?:a )?finding",
    "c": r"location|position",
    "d": r"severity",
    "e": r"mention(?:s|ing)?\b.*comparison|comparison\b.*(?:absent|not (?:present|in))|unsupported comparison",
    "f": r"omi(?:ssion of|tting|tted) (?:a )?(?:comparison|change)",
    _GRAMMAR: r"grammar|inarticulate|readab",
}
_CATEGORIES = (*ERROR_CATEGORIES, _GRAMMAR)
_LINE = re.compile(r"^[\s\-*•(]*(?:\(?[a-g1-7]\)?[.):]\s*)?(?P<name>[^:=]+?)\s*[:=]\s*(?P<count>.*)$", re.IGNORECASE)
_COUNT = re.compile(r"([0-9]+)(?:\.0*)?[,;]?")

_AMBIGUOUS = "ambiguous"
_SIGNIFICANCE = re.compile(r"signific(?:ant|ance)")
_NO_SIGNIFICANCE = re.compile(
    r"(?:in|no[nt] ?(?:(?:of|any|clinical|clinically) )*"
    r"|\b(?:no|without|lacking) (?:(?:of|any|clinical) )*(?=significance))signific(?:ant|ance)"
)
_DOUBT = re.compile(
    r"\b(?:no|non|not|without|lacking|little|low|less|minor|unclear|unknown|uncertain|possibly|potentially|perhaps|maybe|"
    r"questionabl[ey]|borderline)\b"
)
"""Words that make a heading ambiguous."""


def read_radeval(path: Path) -> RatingSet:
    """Read three annotated candidates per row; a missing count is NaN, and so are all of an invalid annotation."""
    texts = [f"{kind}{number}" for kind in ("prediction", "annotation") for number in (1, 2, 3)]
    _, rows = read_rows(path, ("annotator", "type", "ground_truth", *texts))
    samples: list[RatedReport] = []
    notes: list[str] = []
    for index, row in enumerate(rows):
        rater = row.id("annotator")
        for number in (1, 2, 3):
            candidate = row.text(f"prediction{number}")
            if not candidate:
                error = row.error(
                    "expected a report, found an empty cell", f"prediction{number}", ErrorCode.MISSING_FIELD
                )
                notes.append(f"{error}; the candidate is skipped.")
                continue
            try:
                counts = parse_annotation(row.cells[f"annotation{number}"])
                missing = [
                    f"{kind} ({letter})" for kind in counts for letter, n in counts[kind].items() if math.isnan(n)
                ]
                problem = f"expected the number of errors: {', '.join(missing)}" if missing else ""
            except ValueError as invalid:
                problem = str(invalid)
                counts = {kind: dict.fromkeys(_CATEGORIES, math.nan) for kind in COUNTS[1:]}
            if problem:
                notes.append(f"{row.error(problem, f'annotation{number}')}; these counts are missing.")
            by_rater = {
                kind: {letter: {rater: value} for letter, value in letters.items()} for kind, letters in counts.items()
            }
            pair = Pair(f"{index}_{number}", candidate, row.text("ground_truth"), str(index))
            samples.append(RatedReport(pair, count_quantities(by_rater), {"type": row.text("type")}))
    return RatingSet(samples, count_directions(), "significant", "type", notes, "study_id")


def parse_annotation(text: str) -> dict[str, dict[str, float]]:
    """Parse error counts by significance and letter: GREEN's six categories and `g` for grammar; NaN if missing.

    An object `{significant: {CATEGORY: n}, insignificant: {CATEGORY: n}}` in JSON, YAML or Python syntax, or lines
    `CATEGORY: n` under headings such as "significant", "not significant", "without clinical significance". A count is
    missing if its category is, or if it is anything but a whole number.
    """
    counts: dict[str, dict[str, float]] = {}
    for kind, name, count in _entries(text):
        if kind == _AMBIGUOUS:
            raise ValueError(f"expected significant or insignificant errors, found an ambiguous heading above '{name}'")
        patterns = _CATEGORY_PATTERNS.items()
        letter = next((letter for letter, pattern in patterns if re.search(pattern, name, re.IGNORECASE)), None)
        if letter is None:
            letter = name.strip("() ").lower()
            if letter not in _CATEGORIES:
                raise ValueError(f"expected a category of errors, found '{name}'")
        of_kind = counts.setdefault(kind, {})
        if letter in of_kind:
            raise ValueError(f"duplicate category '{name}'")
        of_kind[letter] = _count(count)
    if all(math.isnan(number) for of_kind in counts.values() for number in of_kind.values()):
        raise ValueError("expected counts of errors by significance and category")
    return {kind: dict.fromkeys(_CATEGORIES, math.nan) | counts.get(kind, {}) for kind in COUNTS[1:]}


def _entries(text: str) -> Iterator[tuple[str, str, Any]]:
    """Yield significance, category and count."""
    data = _load(text.strip())
    if isinstance(data, Mapping) and any(isinstance(inner, Mapping) for inner in data.values()):
        for heading, inner in data.items():
            kind = _significance(str(heading))
            if kind and isinstance(inner, Mapping):
                for name, count in inner.items():
                    yield kind, str(name), count
        return
    # Lines of headings and counts are YAML as well, but all on one level.
    kind = None
    for line in text.splitlines():
        match = _LINE.match(line)
        heading = _significance(line)
        if heading and (match is None or _significance(match["name"])):
            kind = heading
        elif match and kind:
            yield kind, match["name"], match["count"]


def _load(text: str) -> Any:
    if (data := read_data(text)) is not None and not isinstance(data, str):
        return data
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        return ast.literal_eval(text)
    return None


def _significance(heading: str) -> str | None:
    """Return significant, insignificant or ambiguous; None for a heading without significance."""
    expanded = re.sub(r"n['’]t\b", " not", heading.lower())
    words = " ".join(re.findall(r"[^\W_]+", expanded))
    mentions, negated = len(_SIGNIFICANCE.findall(words)), len(_NO_SIGNIFICANCE.findall(words))
    if not mentions:
        return None
    if 0 < negated < mentions or _DOUBT.search(_NO_SIGNIFICANCE.sub("", words)):
        return _AMBIGUOUS
    return "insignificant" if negated else "significant"


def _count(count: Any) -> float:
    match = None if isinstance(count, bool) else _COUNT.fullmatch(str(count).strip())
    return float(match[1]) if match else math.nan
