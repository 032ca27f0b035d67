"""Readers of tables of reports, ids and expert error counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, InputError, check_unique_id, describe, list_columns
from radfact.io.columns import NAMES, Columns, check_columns, find_columns
from radfact.io.jsonl import read_jsonl, read_text
from radfact.meta.datasets.csv_rows import read_rows
from radfact.records import is_missing, narrative, parse_sentences

_REPORTS = ("report", "findings", *NAMES["reference"], "grounded_findings")


@dataclass(frozen=True, slots=True)
class SiteReport:
    """A reference report and its site."""

    sample_id: str
    site: str
    report: str


def read_reports(
    path: Path | str, *, default_site: str | None = None, columns: Columns | None = None
) -> list[SiteReport]:
    """Read reports from a CSV with `id`, `report` and `site`, or JSON Lines with the same fields or a manifest.

    The report of a manifest's sample is `findings`, or else the sentences of `grounded_findings`; samples where both
    are missing are skipped. `columns` are own names by field, with `reference` for the report.
    """
    path, columns = Path(path), check_columns(columns or {})
    names = (columns["reference"],) if "reference" in columns else _REPORTS
    rows: Iterable[tuple[int, Mapping[str, Any]]]
    if path.suffix.lower() == ".jsonl":
        rows = read_jsonl(path)
    else:
        required = ("id", *(() if default_site is not None else ("site",)))
        headings, csv_rows = read_rows(path, required, columns)
        if not {*names}.intersection(headings):
            message = f"expected this column, found {list_columns(headings)}"
            raise InputError(message, code=ErrorCode.MISSING_FIELD, file=path, line=1, field=names[0])
        rows = ((row.line, row.cells) for row in csv_rows)
    reports, seen = [], dict[str, int]()
    for line, row in rows:
        place = {"file": path, "line": line}
        id_field = find_columns(row, {"id": NAMES["id"]}, columns, place)["id"]
        sample_id = _text(row, id_field, place)
        if "findings" in row and all(is_missing(row.get(name)) for name in names):
            continue
        text = _report_text(row, names, place)
        site = _text(row, columns.get("site", "site"), place, default_site)
        check_unique_id(seen, sample_id, line, file=path, field=id_field)
        reports.append(SiteReport(sample_id, site, text))
    if not reports:
        raise InputError("expected reports, found none", code=ErrorCode.EMPTY_INPUT, file=path)
    return reports


def _report_text(row: Mapping[str, Any], names: Sequence[str], place: dict[str, Any]) -> str:
    names = [name for name in names if name in row] or names[:1]
    name = next((name for name in names if row.get(name) and not is_missing(row[name])), names[0])
    if isinstance(row.get(name), list):
        return narrative(parse_sentences(row[name], field=name, **place))
    return _text(row, name, place)


def _text(row: Mapping[str, Any], name: str, place: dict[str, Any], default: str | None = None) -> str:
    """Return a field without spaces around it; missing and empty fields have the default."""
    value = row.get(name)
    if not isinstance(value, str | None):
        raise InputError(f"expected text, found {describe(value)}", field=name, **place)
    text = default if is_missing(value) else str(value).strip() or default
    if text is None:
        raise InputError("expected text, found nothing", code=ErrorCode.MISSING_FIELD, field=name, **place)
    return text


def read_ids(path: Path | str) -> frozenset[str]:
    ids = frozenset(line.strip() for line in read_text(path).splitlines() if line.strip())
    if not ids:
        raise InputError("expected ids, found none", code=ErrorCode.EMPTY_INPUT, file=path)
    return ids


def read_counts(path: Path | str) -> dict[str, float]:
    """Read the number of errors that experts count in each candidate, from a CSV with `id` and `errors`.

    Several rows of one id are averaged; an empty cell is no rating.
    """
    counts: dict[str, list[float]] = {}
    for row in read_rows(Path(path), ("id", "errors"))[1]:
        sample_id, count = row.id("id"), row.number("errors", "a number from 0", lambda value: not value < 0)
        if not math.isnan(count):
            counts.setdefault(sample_id, []).append(count)
    return {sample_id: sum(values) / len(values) for sample_id, values in counts.items()}
