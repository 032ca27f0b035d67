"""Pages and CSV files of the commands `radfact meta`: tables, plots and sections."""

from __future__ import annotations

import base64
import csv
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Literal

from radfact.errors import InputError
from radfact.io.jsonl import open_atomic
from radfact.pages.markup import STATIC, assemble, words

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
    """Rows under headings; a cell is text, a number or None, and the first cell names the row.

    If the first column holds scores (metrics, in tables of the ReXamine-Global paper), a page shows display names.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def select(self, headings: Sequence[str]) -> Table:
        """Return some of the columns."""
        columns = [self.headings.index(heading) for heading in headings]
        return Table(list(headings), [[row[column] for column in columns] for row in self.rows])

    def write(self, path: Path) -> None:
        """Write CSV with unrounded numbers; a cell without a value is empty."""
        with open_atomic(path) as handle:
            writer = csv.writer(handle, lineterminator="\n")
            writer.writerow(self.headings)
            writer.writerows([["" if cell is None else cell for cell in row] for row in self.rows])

    def as_markdown(self) -> str:
        """Return a Markdown table; numbers are aligned to the right."""
        lines = [self.headings, ["---", *["---:"] * (len(self.headings) - 1)]]
        lines += [[first, *map(format_cell, cells)] for first, *cells in self.rows]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def as_html(self) -> str:
        """Return markup; columns with a long text are aligned to the left and break lines."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.headings)
        styles = [
            ' class="text"' if any(isinstance(cell, str) and len(cell) > _LONG for cell in column) else ""
            for column in columns
        ]
        head = "".join(
            f'<th scope="col"{style}>{escape(name)}</th>' for name, style in zip(self.headings, styles, strict=True)
        )
        display = words if self.headings[0] in _SCORE_HEADINGS else format_cell
        body = "".join(
            f'<tr><th scope="row">{escape(display(first))}</th>'
            + "".join(f"<td{style}>{_cell(cell)}</td>" for cell, style in zip(cells, styles[1:], strict=True))
            + "</tr>"
            for first, *cells in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


@dataclass(frozen=True, slots=True)
class Plot:
    """A PNG file with its description."""

    path: Path
    description: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with tables, plots and paragraphs."""

    heading: str
    parts: Sequence[Table | Plot | str]


@dataclass
class PlotFolder:
    """Plots of one results folder; without matplotlib nothing is drawn.

    Attributes:
        folder: folder of the files.
        notes: sentences about missing plots.
    """

    folder: Path
    notes: list[str] = field(default_factory=list)

    def draw(self, name: str, description: str, plot: Callable[[Path], Path]) -> list[Plot]:
        """Draw a plot and return it as the parts of a section, or add a note if matplotlib is missing.

        Args:
            name: name of the files, without suffix.
            description: text alternative.
            plot: writes the files for a path without suffix, and returns the PNG.
        """
        try:
            return [Plot(plot(self.folder / name), description)]
        except InputError as error:
            self.notes.append(f"Without plots: {error}")
            return []


def _cell(cell: Any) -> str:
    text = escape(format_cell(cell, missing="–"))
    return f'<span class="tag {cell.kind}">{text}</span>' if isinstance(cell, Tag) else text


def format_cell(cell: Any, *, missing: str = "-") -> str:
    """Return a cell as text; numbers get three decimals.

    Args:
        cell: a number, a text or None.
        missing: text of None and NaN.
    """
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return missing
    if isinstance(cell, float):
        return f"{cell:.3f}" if abs(cell) >= 0.0005 or cell == 0 else f"{cell:.1e}"
    return str(cell)


def write_page(path: Path, title: str, notes: Iterable[str], sections: Iterable[Section]) -> None:
    """Write a self-contained page without scripts.

    Args:
        path: HTML file.
        title: title and heading.
        notes: sentences below the heading.
        sections: sections in order.
    """
    html = assemble(
        STATIC / "sections.html",
        [STATIC / "page.css", STATIC / "meta.css"],
        [],
        {},
        title=escape(title),
        notes="".join(f"<p>{escape(note)}</p>" for note in notes),
        sections="".join(_section(number, section) for number, section in enumerate(sections)),
    )
    with open_atomic(path) as handle:
        handle.write(html)


def _section(number: int, section: Section) -> str:
    parts = "".join(_part(part) for part in section.parts)
    return (
        f'<section aria-labelledby="section-{number}"><h2 id="section-{number}">{escape(section.heading)}</h2>'
        f"{parts}</section>"
    )


def _part(part: Table | Plot | str) -> str:
    if isinstance(part, str):
        return f'<p class="hint">{escape(part)}</p>'
    if isinstance(part, Table):
        return f'<div class="panel">{part.as_html()}</div>'
    data = base64.b64encode(part.path.read_bytes()).decode()
    image = f'<img src="data:image/png;base64,{data}" alt="{escape(part.description)}">'
    return f'<div class="panel"><figure>{image}</figure></div>'
