"""Readers of tables of reports, ids and expert error counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, InputError, check_unique_id, describe
from radfact.io.jsonl import read_jsonl, read_text
from radfact.meta.datasets.csv_rows import read_rows
from radfact.records import narrative, parse_sentences

_REPORTS = ("report", "findings", "grounded_findings")


@dataclass(frozen=True, slots=True)
class SiteReport:
    """A reference report and its site."""

    sample_id: str
    site: str
    report: str


def read_reports(path: Path | str, *, default_site: str | None = None) -> list[SiteReport]:
    """Read reports from a CSV with `id`, `report` and `site`, or JSON Lines with the same fields or a manifest.

    The report of a manifest's sample is `findings`, or else the sentences of `grounded_findings`; samples where both
    are null are skipped.
    """
    path = Path(path)
    rows: Iterable[tuple[int, Mapping[str, Any]]]
    if path.suffix.lower() == ".jsonl":
        rows = read_jsonl(path)
    else:
        _, csv_rows = read_rows(path, ("id", "report", *(() if default_site is not None else ("site",))))
        rows = ((row.line, row.cells) for row in csv_rows)
    reports, seen = [], dict[str, int]()
    for line, row in rows:
        place = {"file": path, "line": line}
        id_field, sample_id = _first_text(row, ("id", "sample_id"), place)
        if "findings" in row and all(row.get(name) is None for name in _REPORTS):
            continue
        text = _report_text(row, place)
        _, site = _first_text(row, ("site",), place, default_site)
        check_unique_id(seen, sample_id, line, file=path, field=id_field)
        reports.append(SiteReport(sample_id, site, text))
    if not reports:
        raise InputError("expected reports, found none", code=ErrorCode.EMPTY_INPUT, file=path)
    return reports


def _report_text(row: Mapping[str, Any], place: dict[str, Any]) -> str:
    if not any(row.get(name) for name in _REPORTS[:2]) and (grounded := row.get(_REPORTS[2])):
        return narrative(parse_sentences(grounded, field=_REPORTS[2], **place))
    return _first_text(row, _REPORTS[:2], place)[1]


def _first_text(
    row: Mapping[str, Any], names: Sequence[str], place: dict[str, Any], default: str | None = None
) -> tuple[str, str]:
    """Return the first field with text: its name and its stripped text."""
    for name in names:
        value = row.get(name)
        if not isinstance(value, str | None):
            raise InputError(f"expected text, found {describe(value)}", field=name, **place)
        if value and value.strip():
            return name, value.strip()
    if default is None:
        raise InputError("expected text, found nothing", code=ErrorCode.MISSING_FIELD, field=names[0], **place)
    return names[0], default


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
