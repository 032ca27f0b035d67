"""The page of a results file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_stages.cases import FAILED, Results
from radfact.pages.meta_page import Section, Table, Tag, write_page

Rows = Sequence[dict[str, Any]]


def write_gpu_page(results: Results, path: Path) -> None:
    """Write the targets, the measurements without a value, and the last run of each case.

    Args:
        results: results to show.
        path: path of the HTML file.
    """
    runs = list(results.last_runs().values())
    last = [row for rows in runs for row in rows]
    devices = sorted({row["device"] for row in last if row["device"]})
    versions = ", ".join(f"{name} {version}" for name, version in (last[-1]["versions"] if last else {}).items())
    targets = [row for row in last if row["passed"] is not None]
    notes = [
        f"Measured on {', '.join(devices) or 'no device yet'} with {versions}.",
        f"{sum(row['passed'] for row in targets)} of {len(targets)} targets reached.",
    ]
    sections = [Section("Targets", [_targets(targets)])] if targets else []
    if unmeasured := [row for row in last if row["value"] is None]:
        sections.append(Section("Not measured", [_reasons(unmeasured)]))
    for stage in dict.fromkeys(row["stage"] for row in last):
        cases = [rows for rows in runs if rows[0]["stage"] == stage]
        # Cases with options measure the same under different conditions.
        is_comparison = any("=" in rows[0]["case"] for rows in cases)
        if table := _comparison(cases) if is_comparison else _list(cases):
            sections.append(Section(stage.capitalize(), [table]))
    write_page(path, "GPU benchmark", notes, sections)


def _targets(rows: Rows) -> Table:
    cells = [
        [
            f"{row['stage']} {row['case']}: {row['name']}",
            row["value"],
            row["target"],
            Tag("reached", "yes") if row["passed"] else Tag("missed", "no"),
        ]
        for row in rows
    ]
    return Table(["measurement", "value", "target", "result"], cells)


def _reasons(rows: Rows) -> Table:
    cells = [
        [
            f"{row['stage']} {row['case']}" + (f": {row['name']}" if row["name"] != "outcome" else ""),
            Tag("failed", "no") if row["outcome"] == FAILED else row["outcome"] if row["name"] == "outcome" else None,
            row["reason"],
        ]
        for row in rows
    ]
    return Table(["case", "outcome", "reason"], cells)


def _list(cases: Sequence[Rows]) -> Table | None:
    """Return the values of cases that measure different things; None without values."""
    cells = [[row["name"], row["value"], row["unit"]] for rows in cases for row in rows if row["value"] is not None]
    return Table(["measurement", "value", "unit"], cells) if cells else None


def _comparison(cases: Sequence[Rows]) -> Table | None:
    """Return a row per case and a column per measurement; None without values."""
    values = [{_heading(row): row["value"] for row in rows if row["value"] is not None} for rows in cases]
    headings = list(dict.fromkeys(heading for row in values for heading in row))
    cells = [[rows[0]["case"], *map(row.get, headings)] for rows, row in zip(cases, values, strict=True) if row]
    return Table(["case", *headings], cells) if cells else None


def _heading(row: dict[str, Any]) -> str:
    return f"{row['name']}, {row['unit']}" if row["unit"] else str(row["name"])
