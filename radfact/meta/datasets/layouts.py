"""Readers of published rating sets and of plain tables."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import compress, product
from pathlib import Path
from typing import Any, Literal, get_args

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import ErrorCode, InputError, check_unique_id, list_columns, suggest_name
from radfact.io.columns import EXAMINATION, Columns
from radfact.io.yaml_files import read_yaml
from radfact.llm.response_text import read_data
from radfact.meta.datasets.ratings import (
    COUNTS,
    SEVERITY_MAX,
    Better,
    Count,
    RatedReport,
    RatingSet,
    count_directions,
    count_quantities,
)
from radfact.meta.datasets.rows import InputRow, read_report_table, read_rows
from radfact.metrics.llm.responses.corrections import DELETION, NO_EDIT, SEVERITIES, Correction, Corrections
from radfact.records import NO_CLUSTERS, Pair, PatientContext

Layout = Literal["plain", "rexval", "refisco-v0", "refisco-v1", "rate-eval", "radeval", "radevalx"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

_TABLES: Mapping[str, Any] = read_yaml(Path(__file__).with_suffix(".yaml"))
REXVAL_REPORTS = "50_samples_gt_and_candidates.csv"
REXVAL_RATINGS = "6_valid_raters_per_rater_error_categories.csv"
REXVAL_KEYS = ("study_number", "candidate_type", "rater_index", "error_category", "clinically_significant")
_BOOLEANS = {**dict.fromkeys(("true", "1", "1.0"), True), **dict.fromkeys(("false", "0", "0.0"), False)}
_GROUPS = ("site", "modality", "anatomy", "group")


def read_ratings(
    path: Path | str,
    layout: Layout = "plain",
    *,
    experts: Sequence[str] = (),
    better: Better | None = None,
    target: str | None = None,
    cluster: str | None = None,
    columns: Columns | None = None,
    texts_only: bool = False,
) -> RatingSet:
    """Read a set of expert ratings: a file or folder in a layout of `docs/meta.md`."""
    path = Path(path)
    readers: Mapping[Layout, Callable[[], RatingSet]] = {
        "plain": partial(_read_plain, path, experts, better, cluster, columns, texts_only),
        "rexval": partial(_read_rexval, path),
        "refisco-v0": partial(_read_refisco, path, layout),
        "refisco-v1": partial(_read_refisco, path, layout),
        "rate-eval": partial(_read_rate_eval, path, texts_only),
        "radeval": partial(_read_radeval, path),
        "radevalx": partial(_read_radevalx, path),
    }
    if columns and layout != "plain":
        message = f"expected --layout plain or preferences, found {layout}, whose columns have fixed names"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field="columns")
    ratings = readers[layout]()
    if layout != "plain" and cluster is not None:
        if cluster not in (NO_CLUSTERS, ratings.cluster_by):
            known = ", ".join(filter(None, (ratings.cluster_by, NO_CLUSTERS)))
            message = f"expected {known} with the layout {layout}, found '{cluster}'"
            raise InputError(message, code=ErrorCode.UNKNOWN_NAME, field="cluster")
        ratings = replace(ratings, cluster_by=None if cluster == NO_CLUSTERS else cluster)
    if not ratings.samples:
        raise InputError("expected rated reports, found none", code=ErrorCode.EMPTY_INPUT, file=path)
    if target is not None and target not in ratings.better:
        hint = suggest_name(target, ratings.better, f"quantities are {', '.join(ratings.better)}")
        raise InputError(f"unknown quantity '{target}'; {hint}", code=ErrorCode.UNKNOWN_NAME, field="target")
    return replace(ratings, target=target or ratings.target, notes=[*ratings.missing_notes(), *ratings.notes])


def _read_plain(
    path: Path,
    experts: Sequence[str],
    better: Better | None,
    cluster: str | None,
    columns: Columns | None,
    texts_only: bool,
) -> RatingSet:
    table = read_report_table(path, ("reference", "candidate"), cluster, columns, experts)
    named = count_directions() if table.has_raters else {}
    is_rating = [name.startswith("expert") or ":" in name or name in named for name in table.columns]
    selected = list(experts) or list(compress(table.columns, is_rating))
    if texts_only:
        selected, better = [], "higher"
    elif not selected:
        found = list_columns(table.columns)
        message = f"expected an expert column (QUANTITY:RATER, expert or expert_RATER), found {found}"
        raise InputError(message, code=ErrorCode.MISSING_FIELD, file=path, line=1)
    if better is None:
        message = "expected higher or lower: which ratings are better?"
        raise InputError(message, code=ErrorCode.MISSING_OPTION, field="better")
    quantities = _quantities(selected, path, has_raters=table.has_raters)
    groups = [name for name in _GROUPS if name in table.columns]
    samples = []
    for (key, by_rater), label in zip(table.rows.items(), table.clusters, strict=True):
        row, *_ = by_rater.values()
        ratings: dict[str, dict[str, float]] = {}
        for (rater, rated), (name, (quantity, own)) in product(by_rater.items(), quantities.items()):
            ratings.setdefault(quantity, {})[rater or own] = rated.number(name)
        pair = Pair(key, row.text("candidate"), row.text("reference"), label, PatientContext.of(row.cells))
        samples.append(RatedReport(pair, ratings, _groups(row, groups)))
    names = list(dict.fromkeys(quantity for quantity, _ in quantities.values()))
    directions = dict.fromkeys(names, better)
    target, group = next(iter(names), ""), next(iter(groups), None)
    return RatingSet(samples, directions, target, group, table.notes, cluster_by=table.by)


def _groups(row: InputRow, kinds: Iterable[str]) -> dict[str, str]:
    return {kind: text for kind in kinds if (text := row.text(kind))}


def _quantities(columns: Sequence[str], path: Path, *, has_raters: bool) -> dict[str, tuple[str, str]]:
    """Return the quantity and the rater of each column; in a table with raters, each column is a quantity."""
    quantities: dict[str, tuple[str, str]] = {}
    columns_of: dict[tuple[str, str], str] = {}
    for column in columns:
        quantity, colon, rater = (part.strip() for part in column.partition(":"))
        if not (colon and quantity and rater):
            is_default = column.startswith("expert")
            quantity = column if has_raters else "expert"
            rater = (column.removeprefix("expert").strip("_ ") or "1") if is_default else column
        quantities[column] = quantity, rater
        first = columns_of.setdefault((quantity, rater), column)
        if first != column:
            message = f"'{first}' and '{column}' are both rater '{rater}' of '{quantity}'; rename one of them"
            raise InputError(message, code=ErrorCode.DUPLICATE, file=path, line=1)
    return quantities


def _read_rexval(path: Path) -> RatingSet:
    """Read the counts of six radiologists of 200 candidates; a study's number is the row of its reports, from 0."""
    folder = path if path.is_dir() else path.parent
    reports = list(read_rows(folder / REXVAL_REPORTS, ("gt_report",))[1])
    counts: dict[tuple[int, str], dict[Count, float]] = {}
    lines: dict[tuple[int, str, Count], int] = {}
    letters = list(ERROR_CATEGORIES)
    for row in read_rows(folder / REXVAL_RATINGS, (*REXVAL_KEYS, "num_errors"))[1]:
        study = row.whole_number("study_number", 0, len(reports) - 1)
        method = row.id("candidate_type")
        if method not in reports[study].cells or method in ("study_id", "gt_report"):
            message = f"unknown candidate '{method}', which is no column of candidates in {REXVAL_REPORTS}"
            raise row.error(message, "candidate_type", ErrorCode.UNKNOWN_NAME)
        letter = letters[row.whole_number("error_category", 1, len(letters)) - 1]
        is_significant = row.choice("clinically_significant", _BOOLEANS, "True or False")
        kind = "significant" if is_significant else "insignificant"
        count = kind, letter, str(row.whole_number("rater_index", 0, 99))
        first = lines.setdefault((study, method, count), row.line)
        if first != row.line:
            message = f"duplicate count of {kind} errors of a category by this rater, first at line {first}"
            raise row.error(message, code=ErrorCode.DUPLICATE)
        counts.setdefault((study, method), {})[count] = row.count("num_errors")
    notes = _add_missing_counts(counts.values())
    samples = [
        RatedReport(
            Pair(f"{study}_{method}", reports[study].report(method), reports[study].report("gt_report"), str(study)),
            count_quantities(of_candidate),
            {"candidate_type": method},
        )
        for (study, method), of_candidate in sorted(counts.items())
    ]
    return RatingSet(samples, count_directions(), "errors", "candidate_type", notes, "study_id")


def _add_missing_counts(counts: Collection[dict[Count, float]]) -> list[str]:
    """Add NaN for each count that a rater of a candidate does not have, unless the file lists no zero at all."""
    absent = [
        (of_candidate, count)
        for of_candidate in counts
        for count in product(COUNTS[1:], ERROR_CATEGORIES, {rater for *_, rater in of_candidate})
        if count not in of_candidate
    ]
    if not absent:
        return []
    if not any(0 in of_candidate.values() for of_candidate in counts):
        return [f"{len(absent)} counts are not in {REXVAL_RATINGS}, which lists no count of 0: they are read as 0."]
    for of_candidate, count in absent:
        of_candidate[count] = math.nan
    return [f"{len(absent)} counts are not in {REXVAL_RATINGS}, which lists counts of 0: they are missing."]


RADEVALX_FILES = "RadEval_clinically_significant_errors.csv", "RadEval-clinically_insignificant_errors.csv"
_RADEVALX_COUNTS = dict(zip("12345678", (*ERROR_CATEGORIES, "g", "h"), strict=True))
"""Two categories of uncertainty follow those of ReXVal; they only count in the totals."""


def _read_radevalx(path: Path) -> RatingSet:
    """Read the counts that two radiologists agreed on, in a file for each significance."""
    folder = path if path.is_dir() else path.parent
    counts: dict[str, dict[Count, float]] = {}
    rows: dict[str, InputRow] = {}
    for kind, name in zip(COUNTS[1:], RADEVALX_FILES, strict=True):
        lines: dict[str, int] = {}
        for row in read_rows(folder / name, ("report_id", "ground_truth", "M2Tr-Generation", *_RADEVALX_COUNTS))[1]:
            key = row.id("report_id")
            check_unique_id(lines, key, row.line, file=row.file, field="report_id")
            rows.setdefault(key, row)
            numbers = {(kind, letter, "consensus"): row.count(column) for column, letter in _RADEVALX_COUNTS.items()}
            counts.setdefault(key, {}).update(numbers)
    known = [number for of_report in counts.values() for number in of_report.values()]
    notes = []
    if (empty := sum(map(math.isnan, known))) and 0 not in known:
        notes = [f"{empty} counts are empty in files that list no count of 0: they are read as 0."]
        counts = {key: {name: 0.0 if math.isnan(n) else n for name, n in of.items()} for key, of in counts.items()}
    samples = [
        RatedReport(Pair(key, row.report("M2Tr-Generation"), row.report("ground_truth")), count_quantities(counts[key]))
        for key, row in rows.items()
    ]
    return RatingSet(samples, count_directions(), "significant", notes=notes)


def _read_rate_eval(path: Path, texts_only: bool) -> RatingSet:
    required = ("gt_report", "similar_report", *(() if texts_only else ("Score",)))
    samples = []
    for index, row in enumerate(read_rows(path / "rate_test.csv" if path.is_dir() else path, required)[1]):
        reports, context = (row.report("similar_report"), row.report("gt_report")), PatientContext.of(row.cells)
        ratings = {} if texts_only else {"score": {"1": row.number("Score")}}
        samples.append(RatedReport(Pair(str(index), *reports, context=context), ratings, _groups(row, EXAMINATION)))
    group = "modality" if any("modality" in sample.groups for sample in samples) else None
    return RatingSet(samples, {"score": "higher"}, "score", group, numbered=True)


def _read_refisco(path: Path, layout: Layout) -> RatingSet:
    columns: Mapping[str, str] = _TABLES["refisco"][layout]
    reports: dict[tuple[str, ...], list[InputRow]] = {}
    for row in read_rows(path, list(columns.values()))[1]:
        key = tuple(row.id(columns[name]) for name in ("study", "source", "annotator"))
        reports.setdefault(key, []).append(row)
    # One version marks unchanged lines, so that an empty correction is an error; in both, an empty original is an
    # inserted line.
    has_edit_marks = layout == "refisco-v0"
    samples = [_report(key, lines, columns, has_edit_marks) for key, lines in reports.items()]
    better: dict[str, Better] = dict.fromkeys(("severity_sum", SEVERITY_MAX, "problem_lines"), "lower")
    return RatingSet(samples, better, "severity_sum", "source", cluster_by="study_id")


def _report(
    key: Sequence[str], rows: Sequence[InputRow], columns: Mapping[str, str], has_edit_marks: bool
) -> RatedReport:
    lines: list[str] = []
    corrected: list[str] = []
    items: list[Correction] = []
    severities: list[int] = []
    for row in rows:
        original, edited = row.text(columns["original"]), row.text(columns["edited"])
        if original and not edited and has_edit_marks:
            message = "expected [no edit], [delete] or a line, found an empty cell"
            raise row.error(message, columns["edited"], ErrorCode.MISSING_FIELD)
        is_unedited = edited in ("", original) or bool(NO_EDIT.fullmatch(edited))
        text = original if is_unedited else None if DELETION.fullmatch(edited) else edited
        if original:
            lines.append(original)
        if text:
            corrected.append(text)
        if original or text:
            severity = _severity(row, columns["severity"], is_unedited)
            severities.append(severity)
            # A rewording of a line without an error is no correction, as in the response of a model.
            if severity and not is_unedited:
                comment = row.cells.get("comments", "")
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
        {"source": key[1]},
        Corrections(tuple(lines), tuple(items)),
        "_".join(key[:-1]),
    )


def _severity(row: InputRow, column: str, is_unedited: bool) -> int:
    """Read 0 to 4, as a number or in words; an unedited line without one has no error."""
    words = " ".join(row.text(column).lower().replace("-", " ").split())
    if words in SEVERITIES:
        return SEVERITIES[words]
    if not words and is_unedited:
        return 0
    highest = max(SEVERITIES.values())
    expected = f"0 to {highest} or one of {', '.join(SEVERITIES)}"
    return int(row.number(column, expected, lambda value: value in range(highest + 1)))


_CATEGORIES: Mapping[str, str] = _TABLES["categories"]
_LINE, _COUNT, _SIGNIFICANCE, _NO_SIGNIFICANCE, _DOUBT = map(
    re.compile, (_TABLES[name] for name in ("line", "count", "significance", "no_significance", "doubt"))
)
_AMBIGUOUS = "ambiguous"


def _read_radeval(path: Path) -> RatingSet:
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
                problem = row.error("expected a report, found an empty cell", f"prediction{number}")
                notes.append(f"{problem}; the candidate is skipped.")
                continue
            try:
                counts = parse_annotation(row.cells[f"annotation{number}"])
                missing = [f"{kind} ({letter})" for (kind, letter), count in counts.items() if math.isnan(count)]
                reason = f"expected the number of errors: {', '.join(missing)}" if missing else ""
            except ValueError as invalid:
                reason, counts = str(invalid), dict.fromkeys(product(COUNTS[1:], _CATEGORIES), math.nan)
            if reason:
                notes.append(f"{row.error(reason, f'annotation{number}')}; these counts are missing.")
            of_rater = {(kind, letter, rater): count for (kind, letter), count in counts.items()}
            pair = Pair(f"{index}_{number}", candidate, row.report("ground_truth"), str(index))
            samples.append(RatedReport(pair, count_quantities(of_rater), {"type": row.text("type")}))
    return RatingSet(samples, count_directions(), "significant", "type", notes, "study_id", numbered=True)


def parse_annotation(text: str) -> dict[tuple[str, str], float]:
    """Parse counts by significance and letter (also g, grammar), an object or lines under headings; NaN if missing."""
    counts: dict[tuple[str, str], float] = {}
    for kind, name, count in _entries(text):
        if kind == _AMBIGUOUS:
            raise ValueError(f"expected significant or insignificant errors, found an ambiguous heading above '{name}'")
        matching = (letter for letter, pattern in _CATEGORIES.items() if re.search(pattern, name, re.IGNORECASE))
        letter = next(matching, name.strip("() ").lower())
        if letter not in _CATEGORIES:
            raise ValueError(f"expected a category of errors, found '{name}'")
        if (kind, letter) in counts:
            raise ValueError(f"duplicate category '{name}'")
        whole = None if isinstance(count, bool) else _COUNT.fullmatch(str(count).strip())
        counts[kind, letter] = float(whole[1]) if whole else math.nan
    if all(map(math.isnan, counts.values())):
        raise ValueError("expected counts of errors by significance and category")
    return dict.fromkeys(product(COUNTS[1:], _CATEGORIES), math.nan) | counts


def _entries(text: str) -> Iterator[tuple[str, str, Any]]:
    if isinstance(data := read_data(text.strip()), str | None):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            data = ast.literal_eval(text.strip())
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
