"""The plots of one folder of results: drawn where matplotlib is there, and otherwise named as missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from radfact.errors import InputError
from radfact.html.meta_page import Picture


@dataclass
class Drawing:
    """Plots of a folder.

    Attributes:
        folder: of the files.
        pictures: that were drawn and not yet taken.
        notes: what could not be drawn, and why.
    """

    folder: Path
    pictures: list[Picture] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, says: str, draw: Callable[[Path], Path]) -> None:
        """Draw a plot; where matplotlib is missing, note it.

        Args:
            name: of its files, without suffix.
            says: what it shows, in words.
            draw: writes the files of a path without suffix, and gives the PNG.
        """
        try:
            self.pictures.append(Picture(draw(self.folder / name), says))
        except InputError as error:
            self.notes.append(f"Without plots: {error}")

    def taken(self) -> list[Picture]:
        """The pictures since the last time, for a section."""
        pictures, self.pictures = self.pictures, []
        return pictures
