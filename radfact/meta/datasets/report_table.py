"""Tables of reports in and out: reports by site, counts of experts, pairs for `radfact evaluate`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radfact.errors import InputError, brief, check_unique_id
from radfact.html.meta_page import Table
from radfact.io.csv_tables import read_csv
from radfact.io.jsonl import read_jsonl, read_text
from radfact.meta.datasets.cells import need_columns, read_id, read_number
from radfact.records import Pair, narrative


@dataclass(frozen=True, slots=True)
class SiteReport:
    """A reference report and the site that it comes from."""

    sample_id: str
    site: str
    report: str


def pair_table(pairs: Sequence[Pair]) -> Table:
    """Pairs in the published narrative layout."""
    rows = [[one.sample_id, narrative(one.candidate), narrative(one.reference)] for one in pairs]
    return Table(["example_id", "prediction", "target"], rows)


def read_reports(path: Path | str, *, default_site: str | None = None) -> list[SiteReport]:
    """Read reports: a CSV with `id`, `report` and perhaps `site`, or JSON Lines with `sample_id` or `id` and the same.

    Args:
        path: `.csv` or `.jsonl`.
        default_site: of reports without one; None refuses them.

    Raises:
        InputError: naming file, line and field.
    """
    path = Path(path)
    if path.suffix.lower() == ".jsonl":
        rows: Iterable[tuple[int, Mapping[str, Any]]] = read_jsonl(path)
    else:
        columns, rows = read_csv(path)
        need_columns(path, columns, ("id", "report", *(() if default_site is not None else ("site",))))
    reports, seen = [], dict[str, int]()
    for line, row in rows:
        key_field, key = _text(row, ("id", "sample_id"), path, line)
        _, text = _text(row, ("report", "findings"), path, line)
        _, site = _text(row, ("site",), path, line, default_site)
        check_unique_id(seen, key, line, file=path, field=key_field)
        reports.append(SiteReport(key, site, text))
    if not reports:
        raise InputError("holds no reports", file=path)
    return reports


def _text(
    row: Mapping[str, Any], names: Sequence[str], path: Path, line: int, default: str | None = None
) -> tuple[str, str]:
    """The first of some fields that is not empty: its name, and its text without the blanks around it."""
    for name in names:
        value = row.get(name)
        if not isinstance(value, str | None):
            raise InputError(f"expected a text, found {brief(value)}", file=path, line=line, field=name)
        if value and value.strip():
            return name, value.strip()
    if default is None:
        raise InputError("missing or empty; expected a text", file=path, line=line, field=names[0])
    return names[0], default


def read_ids(path: Path | str) -> frozenset[str]:
    """Read ids, one a line.

    Raises:
        InputError: the file cannot be read, or holds none.
    """
    ids = frozenset(line.strip() for line in read_text(path).splitlines() if line.strip())
    if not ids:
        raise InputError("holds no ids", file=path)
    return ids


def read_counts(path: Path | str) -> dict[str, float]:
    """Read the experts' number of errors of each candidate: a CSV with `id` and `errors`.

    Several rows of one id are averaged, an empty cell is no rating.

    Raises:
        InputError: naming file, line and field.
    """
    path = Path(path)
    columns, rows = read_csv(path)
    need_columns(path, columns, ("id", "errors"))
    counts: dict[str, list[float]] = {}
    for line, row in rows:
        key = read_id(row["id"], path, line, "id")
        count = read_number(row["errors"], path, line, "errors") if row["errors"].strip() else math.nan
        if count < 0:
            raise InputError(f"expected a number from 0, found '{row['errors']}'", file=path, line=line, field="errors")
        if not math.isnan(count):
            counts.setdefault(key, []).append(count)
    return {key: sum(values) / len(values) for key, values in counts.items()}
