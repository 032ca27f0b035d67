"""ReFiSco: lines of candidate reports as radiologists corrected and graded them (paper 001, section 4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from radfact.errors import InputError
from radfact.io.csv_tables import read_csv
from radfact.meta.datasets.cells import need_columns, read_id, read_number
from radfact.meta.datasets.ratings import SEVERITY_MAX, Better, Rated, Ratings
from radfact.metrics.responses.corrections import SEVERITIES, Correction, Corrections, is_deletion, is_unchanged
from radfact.records import Pair

_MOST_SEVERE = max(SEVERITIES.values())


@dataclass(frozen=True, slots=True)
class _Columns:
    """Which columns of a version hold what; `candidate` tells candidates apart, and with `annotator` annotations."""

    candidate: tuple[str, ...]
    original: str
    edited: str
    severity: str
    annotator: str
    source: str
    comment: str | None


_V0 = _Columns(("id", "source"), "impression_original", "impression_edited", "score", "annotator", "source", None)
_V1 = _Columns(
    ("data_id", "report_type"),
    "original_line",
    "corrected_line",
    "error_clinical_severity",
    "annotator_id",
    "report_type",
    "comments",
)


def read_refisco_v0(path: Path) -> Ratings:
    """Read version 0: `[no edit]` keeps a line, `[delete]` takes it out, an empty original inserts one.

    Raises:
        InputError: naming file, line and field.
    """
    return _read(path, _V0)


def read_refisco_v1(path: Path) -> Ratings:
    """Read version 1, where a line without a correction stays as it is.

    Raises:
        InputError: naming file, line and field.
    """
    return _read(path, _V1)


def _read(path: Path, at: _Columns) -> Ratings:
    columns, rows = read_csv(path)
    need_columns(path, columns, (*at.candidate, at.original, at.edited, at.severity, at.annotator, at.source))
    reports: dict[tuple[str, ...], list[tuple[int, Mapping[str, str]]]] = {}
    for line, row in rows:
        own, *others = at.candidate
        key = (read_id(row[own], path, line, own), *(row[name].strip() for name in (*others, at.annotator)))
        reports.setdefault(key, []).append((line, row))
    samples = [_report(key, lines, at, path) for key, lines in reports.items()]
    better: dict[str, Better] = dict.fromkeys(("severity_sum", SEVERITY_MAX, "problem_lines"), "lower")
    return Ratings(samples, better, "severity_sum", "source")


def _report(key: Sequence[str], rows: Sequence[tuple[int, Mapping[str, str]]], at: _Columns, path: Path) -> Rated:
    lines: list[str] = []
    corrected: list[str] = []
    items: list[Correction] = []
    grades: list[int] = []
    for place, row in rows:
        original, edited = row[at.original].strip(), row[at.edited].strip()
        kept = edited in ("", original) or is_unchanged(edited)
        text = original if kept else None if is_deletion(edited) else edited
        if original:
            lines.append(original)
        if text:
            corrected.append(text)
        if original or text:
            severity = _severity(row[at.severity], path, place, at.severity, kept)
            grades.append(severity)
            # Other words for what is no error are no correction, as of a model's answer.
            if severity and not kept:
                comment = row.get(at.comment, "") if at.comment else ""
                items.append(Correction(len(lines) - 1 if original else None, text, severity, comment))
    corrections = Corrections(tuple(lines), tuple(items))
    values = {
        "severity_sum": float(sum(grades)),
        SEVERITY_MAX: float(max(grades, default=0)),
        "problem_lines": float(sum(map(bool, grades))),
    }
    rater, source = key[-1], rows[0][1][at.source].strip()
    pair = Pair("_".join(key), " ".join(lines), " ".join(corrected))
    ratings = {name: {rater: value} for name, value in values.items()}
    return Rated(pair, ratings, {"source": source}, corrections, "_".join(key[:-1]))


def _severity(said: str, path: Path, line: int, field: str, kept: bool) -> int:
    """0 to 4, as a number or in words; a line that stays may have none."""
    words = " ".join(said.lower().replace("-", " ").split())
    if words in SEVERITIES:
        return SEVERITIES[words]
    if not words and kept:
        return 0
    try:
        value = read_number(said, path, line, field)
    except InputError:
        value = math.nan
    if value not in range(_MOST_SEVERE + 1):
        raise InputError(
            f"expected 0 to {_MOST_SEVERE} or one of {', '.join(SEVERITIES)}; found '{said}'",
            file=path,
            line=line,
            field=field,
        )
    return int(value)
