"""Published scores of other systems on a public test split, and your scores among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from radfact.errors import ErrorCode, InputError, suggest_name
from radfact.io.yaml_files import read_yaml
from radfact.results.reader import read_scores

TABLES = Path(__file__).with_name("published.yaml")


@dataclass(frozen=True, slots=True)
class LeaderboardRow:
    """The scores of a system.

    Attributes:
        name: of the system; of the results folder for local scores.
        origin: institution and year; for local scores, the number of samples.
        values: by score; None for none.
        is_local: whether the scores come from a results folder.
    """

    name: str
    origin: str
    values: Mapping[str, float | None]
    is_local: bool = False


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """Published scores on one split.

    Attributes:
        name: that selects the table.
        title: benchmark, split and sections.
        source: URL.
        access_date: day on which the source was read.
        note: what limits a comparison.
        columns: name of a score here -> name in the source; the first one orders the rows, higher is better.
        rows: of systems.
    """

    name: str
    title: str
    source: str
    access_date: str
    note: str
    columns: Mapping[str, str]
    rows: tuple[LeaderboardRow, ...]


@cache
def published_tables() -> Mapping[str, PublishedTable]:
    """Read the tables of published scores by name."""
    tables = {}
    for name, fields in read_yaml(TABLES).items():
        columns = fields["columns"]
        rows = tuple(
            LeaderboardRow(model, f"{institution}, {year}", dict(zip(columns, values, strict=True)))
            for model, institution, year, *values in fields["rows"]
        )
        texts = {key: str(fields[key]) for key in ("title", "source", "access_date", "note")}
        tables[name] = PublishedTable(name=name, columns=columns, rows=rows, **texts)
    return tables


def find_published(name: str) -> PublishedTable:
    """Return the table of a name.

    Raises:
        InputError: no table has the name.
    """
    tables = published_tables()
    if name not in tables:
        hint = suggest_name(name, tables, f"tables are {', '.join(tables)}")
        raise InputError(
            f"unknown table of published scores '{name}'; {hint}", code=ErrorCode.UNKNOWN_NAME, field="published"
        )
    return tables[name]


def add_local_rows(table: PublishedTable, folders: Sequence[Path | str]) -> list[LeaderboardRow]:
    """Return the rows of a table with those of results folders, ordered by the first score; rows without it last.

    Args:
        table: published scores.
        folders: results folders.

    Raises:
        InputError: a folder is not finished, or has none of the scores.
    """
    rows = list(table.rows)
    for folder in folders:
        scores = read_scores(folder).scores
        values = {name: scores[name].point if name in scores else None for name in table.columns}
        if all(value is None for value in values.values()):
            raise InputError(
                f"expected one of the scores {', '.join(table.columns)}, found none; use 'radfact evaluate --metrics "
                "rexrank'",
                code=ErrorCode.MISMATCH,
                file=Path(folder) / "scores.json",
            )
        counts = sorted({n for name in table.columns if name in scores and (n := scores[name].n) is not None})
        samples = " to ".join(map(str, dict.fromkeys([counts[0], counts[-1]]))) if counts else "unknown"
        name = Path(folder).resolve().name
        rows.append(LeaderboardRow(name, f"this run, {samples} samples", values, is_local=True))
    first = next(iter(table.columns))

    def order(row: LeaderboardRow) -> float:
        value = row.values[first]
        return float("inf") if value is None else -value

    return sorted(rows, key=order)
