"""Pages of tables and plots, and the same tables as CSV."""

from __future__ import annotations

import base64
import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from radfact.html.markup import STATIC, assemble, words
from radfact.io.jsonl import open_atomic

_OF_FIGURES = ("figure", "Metric")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; a cell is a text, a number or None, and the first one of a row names it.

    Where the first column is that of figures (of metrics, in tables of paper 002), a page writes their names out.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def only(self, headings: Sequence[str]) -> Table:
        """Some of the columns, where there is no room for all."""
        places = [self.headings.index(one) for one in headings]
        return Table(list(headings), [[row[place] for place in places] for row in self.rows])

    def write(self, path: Path) -> None:
        """Write it as CSV, numbers in full; a cell without a value is empty."""
        with open_atomic(path) as handle:
            writer = csv.writer(handle, lineterminator="\n")
            writer.writerow(self.headings)
            writer.writerows([["" if cell is None else cell for cell in row] for row in self.rows])

    def as_html(self) -> str:
        """As markup."""
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.headings)
        name_of = words if self.headings[0] in _OF_FIGURES else shown
        body = "".join(
            f'<tr><th scope="row">{escape(name_of(first))}</th>'
            + "".join(f"<td>{escape(shown(cell, none='–'))}</td>" for cell in cells)
            + "</tr>"
            for first, *cells in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot in a PNG file, and what it shows in words."""

    path: Path
    says: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, and below it tables, pictures and paragraphs."""

    heading: str
    parts: Sequence[Table | Picture | str]


def shown(cell: Any, *, none: str = "-") -> str:
    """A cell as a person reads it: numbers in three decimals, a dash for none (on consoles the plain one)."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return none
    if isinstance(cell, float):
        return f"{cell:.3f}" if abs(cell) >= 0.0005 or cell == 0 else f"{cell:.1e}"
    return str(cell)


def write_page(path: Path, title: str, notes: Iterable[str], sections: Iterable[Section]) -> None:
    """Write a page in one piece: nothing in it is loaded or run."""
    html = assemble(
        STATIC / "sections.html",
        [STATIC / "page.css", STATIC / "meta.css"],
        [],
        {},
        title=escape(title),
        notes="".join(f"<p>{escape(note)}</p>" for note in notes),
        sections="".join(_section(number, one) for number, one in enumerate(sections)),
    )
    with open_atomic(path) as handle:
        handle.write(html)


def _section(number: int, section: Section) -> str:
    parts = "".join(_part(part) for part in section.parts)
    return (
        f'<section aria-labelledby="section-{number}"><h2 id="section-{number}">{escape(section.heading)}</h2>'
        f"{parts}</section>"
    )


def _part(part: Table | Picture | str) -> str:
    if isinstance(part, str):
        return f'<p class="hint">{escape(part)}</p>'
    if isinstance(part, Table):
        return f'<div class="panel">{part.as_html()}</div>'
    data = base64.b64encode(part.path.read_bytes()).decode()
    return (
        f'<div class="panel"><figure><img src="data:image/png;base64,{data}" alt="{escape(part.says)}"></figure></div>'
    )
