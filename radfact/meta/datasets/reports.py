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
from radfact.meta.datasets.csv_rows import group_rows, missing_reports, read_rows
from radfact.records import is_missing, narrative, parse_sentences
from radfact.statistics.rater_agreement import describe_agreement

_EXAMINATION = (("modality", "imaging_modality"), ("anatomy", "region", "body_region", "body_part", "bodypart"))
_REPORTS = ("report", "findings", *NAMES["reference"], "grounded_findings")


@dataclass(frozen=True, slots=True)
class SiteReport:
    """A reference report and its site, modality and region of the body; "" = not known."""

    sample_id: str
    site: str
    report: str
    modality: str = ""
    anatomy: str = ""

    @property
    def labels(self) -> dict[str, Any]:
        return {name: getattr(self, name) or None for name in ("site", "modality", "anatomy")}


def read_reports(
    path: Path | str,
    *,
    default_site: str | None = None,
    examination: tuple[str, str] = ("", ""),
    columns: Columns | None = None,
) -> tuple[list[SiteReport], list[str]]:
    """Read reports from a CSV with `id`, `report` and `site`, or JSON Lines with the same fields or a manifest.

    Rows may have `modality` and `anatomy` (or `region`, `body_part`), in any case; `examination` is for rows without.

    The report of a manifest's sample is `findings`, or else the sentences of `grounded_findings`. Rows without a report
    are excluded, which the notes say. `columns` are own names by field, with `reference` for the report.
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
    reports, seen, without = [], dict[str, int](), list[int]()
    for line, row in rows:
        place = {"file": path, "line": line}
        id_field = find_columns(row, {"id": NAMES["id"]}, columns, place)["id"]
        sample_id = _text(row, id_field, place)
        if not (text := _report_text(row, names, place)):
            without.append(line)
            continue
        site = _text(row, columns.get("site", "site"), place, default_site)
        check_unique_id(seen, sample_id, line, file=path, field=id_field)
        by_name = {name.strip().lower().replace(" ", "_"): value for name, value in row.items()}
        fields = [next(filter(by_name.__contains__, accepted), accepted[0]) for accepted in _EXAMINATION]
        known = [_text(by_name, name, place, default) for name, default in zip(fields, examination, strict=True)]
        reports.append(SiteReport(sample_id, site, text, *known))
    if not reports:
        raise InputError("expected reports, found none", code=ErrorCode.EMPTY_INPUT, file=path)
    return reports, missing_reports(without, len(reports) + len(without))


def _report_text(row: Mapping[str, Any], names: Sequence[str], place: dict[str, Any]) -> str:
    names = [name for name in names if name in row] or names[:1]
    name = next((name for name in names if row.get(name) and not is_missing(row[name])), names[0])
    if isinstance(row.get(name), list):
        return narrative(parse_sentences(row[name], field=name, **place))
    return _text(row, name, place, "" if name in row else None)


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


def read_rater_counts(path: Path | str) -> dict[str, dict[str, float]]:
    """Read experts' numbers of errors by id and rater; a CSV with `id`, `errors` and `rater` if there are several."""
    columns, rows = read_rows(Path(path), ("id", "errors"))
    counts: dict[str, dict[str, float]] = {}
    for sample_id, by_rater in group_rows(rows, columns, rated=["errors"]).items():
        for rater, row in by_rater.items():
            count = row.number("errors", "a number from 0", lambda value: not value < 0)
            if not math.isnan(count):
                counts.setdefault(sample_id, {})[rater] = count
    return counts


def agreement_notes(path: Path | str) -> list[str]:
    """Return a sentence about the agreement of the raters of `read_rater_counts`, if there are several."""
    rated = [[*values.values()] for values in read_rater_counts(path).values()]
    return [describe_agreement(rated, "interval", "errors")] if any(len(values) > 1 for values in rated) else []


def read_counts(path: Path | str) -> dict[str, float]:
    """Read the mean of the numbers of `read_rater_counts` by id."""
    return {key: math.fsum(counts.values()) / len(counts) for key, counts in read_rater_counts(path).items()}
