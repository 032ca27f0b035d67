"""The page of a results file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_stages.cases import Results
from radfact.html.meta_page import Section, Table, Tag, write_page

HEADINGS = ["case", "measurement", "value", "unit", "target", "result"]


def write_gpu_page(results: Results, path: Path) -> None:
    """Write the last run of each case as a table per stage.

    Args:
        results: to show.
        path: HTML file.
    """
    runs = results.last_runs()
    stages: dict[str, list[list[Any]]] = {}
    for (stage, case), rows in runs.items():
        for row in rows:
            stages.setdefault(stage, []).append(_cells(case, row))
    devices = sorted({row["device"] for rows in runs.values() for row in rows if row["device"]})
    last = [row for rows in runs.values() for row in rows]
    reached = [row["passed"] for row in last if row["passed"] is not None]
    versions = ", ".join(f"{name} {version}" for name, version in (last[-1]["versions"] if last else {}).items())
    notes = [
        f"Measured on {', '.join(devices) or 'no device yet'} with {versions}.",
        f"{sum(reached)} of {len(reached)} targets reached. Cases without a value have the reason instead.",
    ]
    sections = [Section(stage, [Table(HEADINGS, rows)]) for stage, rows in stages.items()]
    write_page(path, "GPU benchmark", notes, sections)


def _cells(case: str, row: dict[str, Any]) -> list[Any]:
    result: Any = None
    if row["passed"] is not None:
        result = Tag("reached", "yes") if row["passed"] else Tag("missed", "no")
    elif row["outcome"] == "failed":
        result = Tag("failed", "no")
    elif row["value"] is None:
        result = row["outcome"] if row["outcome"] != "measured" else None
    value = row["reason"] if row["value"] is None else row["value"]
    return [case, row["name"], value, row["unit"], row["target"], result]
