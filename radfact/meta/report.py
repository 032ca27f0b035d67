"""Page, tables, plots and JSON file of one analysis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import InputError
from radfact.io.jsonl import write_json
from radfact.io.yaml_files import read_yaml
from radfact.pages.meta_page import Plot, Section, Table, write_page

CATEGORY_LEGEND = "; ".join(f"({letter}) {name}" for letter, name in ERROR_CATEGORIES.items()) + "."
"""Sentence with the names of the categories of errors."""
_SECTIONS: Mapping[str, tuple[str, str]] = read_yaml(Path(__file__).with_suffix(".yaml"))
"""Heading and text of sections by name."""


class AnalysisReport:
    """Sections of a page whose tables and plots are also files in the output folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sections: list[Section] = []
        self.missing_plots: dict[str, None] = {}

    def add(self, heading: str, *parts: Table | Plot | str, file: str | None = None) -> None:
        """Add a section; its first table becomes `FILE.csv`, and an empty one omits the section."""
        table = next((part for part in parts if isinstance(part, Table)), None)
        if table is None or table.rows:
            self._sections.append(Section(heading, parts))
            if table is not None and file is not None:
                self.write_table(file, table)

    def section(self, name: str, *parts: Table | Plot, **values: Any) -> None:
        """Add a section with the heading and the text of a name in `report.yaml`; its table becomes `NAME.csv`."""
        place = next(index for index, part in enumerate(parts, start=1) if isinstance(part, Table))
        heading, text = (part.format(legend=CATEGORY_LEGEND, **values) for part in _SECTIONS[name])
        self.add(heading, *parts[:place], text, *parts[place:], file=name)

    def write_table(self, file: str, table: Table) -> None:
        """Write `FILE.csv`, of a table that no section has or that is not its first."""
        table.write(self._folder / f"{file}.csv")

    def draw(
        self, file: str, description: str, plot: Callable[..., Path], data: Any, *others: Any, **options: Any
    ) -> list[Plot]:
        """Return the plot of some data; none without data or without matplotlib, which `missing_plots` says."""
        try:
            return [Plot(plot(data, *others, self._folder / file, **options), description)] if data else []
        except InputError as error:
            self.missing_plots[f"Without plots: {error}"] = None
            return []

    def write(self, file: str, title: str, record: Mapping[str, Any], notes: Iterable[str]) -> list[str]:
        """Write `FILE.json` and `FILE.html`, and return sentences about missing plots."""
        write_json(self._folder / f"{file}.json", record)
        write_page(self._folder / f"{file}.html", title, dict.fromkeys((*notes, *self.missing_plots)), self._sections)
        return list(self.missing_plots)
