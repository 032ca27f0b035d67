"""Reader of ReFiSco: lines of candidate reports with the corrections and severities of radiologists.

Source: FineRadScore, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from radfact.errors import ErrorCode, InputError, describe_choice
from radfact.meta.datasets.csv_rows import CsvRow, read_rows
from radfact.meta.datasets.ratings import SEVERITY_MAX, Better, RatedReport, RatingSet
from radfact.metrics.llm.responses.corrections import SEVERITIES, Correction, Corrections, is_deletion, is_unchanged
from radfact.records import Pair

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
