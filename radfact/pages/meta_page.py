"""Pages and CSV files of the commands `radfact meta`: tables, plots and sections."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from radfact.io.csv_tables import write_csv
from radfact.io.jsonl import open_atomic
from radfact.pages.markup import STATIC, TEMPLATES, assemble
from radfact.results.display import words

_SCORE_HEADINGS = ("score", "Metric")
_LONG = 40
"""Characters of a cell that is a text instead of a name or a number."""


@dataclass(frozen=True, slots=True)
class Tag:
    """A cell that a page marks as good (`yes`) or bad (`no`)."""

    text: str
    kind: Literal["yes", "no"]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings, the first cell the name; pages show display names of scores in the first column."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def select(self, headings: Sequence[str]) -> Table:
        columns = [self.headings.index(heading) for heading in headings]
        return Table(list(headings), [[row[column] for column in columns] for row in self.rows])

    def write(self, path: Path) -> None:
        """Write CSV with unrounded numbers; a cell without a value is empty."""
        write_csv(path, self.headings, self.rows)

    def as_markdown(self) -> str:
        """Return a Markdown table; numbers are aligned to the right."""
        lines = [self.headings, ["---", *["---:"] * (len(self.headings) - 1)]]
        lines += [[first, *map(format_cell, cells)] for first, *cells in self.rows]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    @property
    def is_text(self) -> list[bool]:
        """Whether each column has a long text: it is aligned to the left and breaks lines."""
        return [
            any(isinstance(row[index], str) and len(row[index]) > _LONG for row in self.rows)
            for index in range(len(self.headings))
        ]

    @property
    def cells(self) -> list[list[tuple[str, str]]]:
        """Text of each cell for a page, and the kind of its tag or an empty text."""
        display = words if self.headings[0] in _SCORE_HEADINGS else format_cell
        return [
            [(display(first), ""), *((format_cell(cell, missing="–"), getattr(cell, "kind", "")) for cell in cells)]
            for first, *cells in self.rows
        ]


@dataclass(frozen=True, slots=True)
class Plot:
    """A PNG file with its description."""

    path: Path
    description: str

    @property
    def image(self) -> str:
        """Content of the file as Base64."""
        return base64.b64encode(self.path.read_bytes()).decode()


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with tables, plots and paragraphs; if it is folded, a reader opens it to see them."""

    heading: str
    parts: Sequence[Table | Plot | str]
    is_folded: bool = False


def format_cell(cell: Any, *, missing: str = "-") -> str:
    """Return a number, with three decimals, or a text; `missing` for None and NaN."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return missing
    if isinstance(cell, float):
        return f"{cell:.3f}" if abs(cell) >= 0.0005 or cell == 0 else f"{cell:.1e}"
    return str(cell)


def write_page(path: Path, title: str, notes: Iterable[str], sections: Iterable[Section]) -> None:
    """Write a self-contained page without scripts: a heading with notes below it, and sections."""
    styles = [STATIC / name for name in ("base.css", "page.css", "meta.css")]
    with open_atomic(path) as handle:
        handle.write(assemble(TEMPLATES / "sections.html", styles, title=title, notes=list(notes), sections=sections))
