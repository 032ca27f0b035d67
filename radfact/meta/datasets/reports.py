"""Readers of tables of reports, ids and expert error counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, InputError, check_unique_id, list_columns
from radfact.io.columns import NAMES, Columns, check_columns, find_columns, with_own_names
from radfact.io.jsonl import read_jsonl, read_text
from radfact.meta.datasets.ratings import RatedReport, RatingSet, count_directions
from radfact.meta.datasets.rows import InputRow, group_rows, missing_reports, read_rows
from radfact.records import Pair, is_missing, narrative, parse_sentences

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
    """Read reports from a CSV or JSON Lines with `id`, `report`, `site`; `examination` is that of rows without one."""
    path, columns = Path(path), check_columns(columns or {})
    accepted = ("reference",) if "reference" in columns else _REPORTS
    rows: Iterable[InputRow]
    if path.suffix.lower() == ".jsonl":
        rows = _read_objects(path, columns)
    else:
        required = ("id", *(() if default_site is not None else ("site",)))
        headings, rows = read_rows(path, required, columns)
        if "reference" not in columns and not {*accepted}.intersection(headings):
            message = f"expected this column, found {list_columns(headings)}"
            raise InputError(message, code=ErrorCode.MISSING_FIELD, file=path, line=1, field=accepted[0])
    reports, seen, without = [], dict[str, int](), list[int]()
    for row in rows:
        sample_id = row.id("id")
        if not (text := _report_text(row, accepted)):
            without.append(row.line)
            continue
        site = row.text("site") or default_site
        if site is None:
            raise row.error("expected a site, found none", "site", ErrorCode.MISSING_FIELD)
        check_unique_id(seen, sample_id, row.line, file=path, field=row.column("id"))
        known = (row.text("modality") or examination[0], row.text("anatomy") or examination[1])
        reports.append(SiteReport(sample_id, site, text, *known))
    if not reports:
        raise InputError("expected reports, found none", code=ErrorCode.EMPTY_INPUT, file=path)
    return reports, missing_reports(without, len(reports) + len(without))


def _read_objects(path: Path, columns: Columns) -> Iterator[InputRow]:
    for line, row in read_jsonl(path):
        place = {"file": path, "line": line}
        names = find_columns(row, {"id": NAMES["id"]}, columns, place)
        yield InputRow(path, line, with_own_names(row, columns, place), {**columns, **names})


def _report_text(row: InputRow, accepted: Sequence[str]) -> str:
    present = {name: row.cells[row.column(name)] for name in accepted if row.column(name) in row.cells}
    if not present:
        raise row.error("expected a report, found none", accepted[0], ErrorCode.MISSING_FIELD)
    name = next((name for name, value in present.items() if value and not is_missing(value)), next(iter(present)))
    if isinstance(present[name], list):
        return narrative(parse_sentences(present[name], file=row.file, line=row.line, field=row.column(name)))
    return row.text(name)


def read_ids(path: Path | str) -> frozenset[str]:
    ids = frozenset(line.strip() for line in read_text(path).splitlines() if line.strip())
    if not ids:
        raise InputError("expected ids, found none", code=ErrorCode.EMPTY_INPUT, file=path)
    return ids


def read_counts(path: Path | str) -> RatingSet:
    """Read experts' numbers of errors by report, and optionally by rater and category, as ratings without texts."""
    columns, rows = read_rows(Path(path), ("id", "errors"))
    named = ["errors", *(name for name in columns if name in count_directions() and name != "errors")]
    number = partial(InputRow.number, expected="a number from 0", accepts=lambda value: not value < 0)
    samples = []
    for sample_id, by_rater in group_rows(rows, columns, rated=named).items():
        counts = {name: {rater: number(row, name) for rater, row in by_rater.items()} for name in named}
        samples.append(RatedReport(Pair(sample_id, "", ""), counts))
    return RatingSet(samples, dict.fromkeys(named, "lower"), "errors")
