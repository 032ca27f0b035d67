"""Rows of JSON Lines files by sample, from their place in the file, and rows of a result in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pydantic import BaseModel

from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import parse_rows, read_lines
from radfact.records import validate_model

# A file of results begins each line like this, which is faster to read than the whole row.
_BEGIN = re.compile(rb'\{"sample_id": "([^"\\]*)"')


_RowT = TypeVar("_RowT")
_ModelT = TypeVar("_ModelT", bound=BaseModel)


class Rows(Protocol[_RowT]):
    """Rows of each sample with their lines; `path` is their file, for errors."""

    path: Path

    def take(self, sample_id: str) -> list[tuple[int | None, _RowT]]:
        """Return the rows of a sample."""


class MemoryRows(Generic[_ModelT]):
    """Rows in memory, which have no lines."""

    path = Path()

    def __init__(self, model: type[_ModelT], rows: Iterable[Mapping[str, Any]]) -> None:
        """Group the fields of rows by sample."""
        self._model = model
        self._rows: dict[str, list[Mapping[str, Any]]] = {}
        for row in rows:
            self._rows.setdefault(row["sample_id"], []).append(row)

    def take(self, sample_id: str) -> list[tuple[int | None, _ModelT]]:
        """Return the rows of a sample."""
        return [(None, self._model.model_validate(row)) for row in self._rows.get(sample_id, [])]


class FileRows(Generic[_ModelT]):
    """Rows of a file, found by their offsets and validated when they are taken."""

    def __init__(self, path: Path, model: type[_ModelT]) -> None:
        """Name the file; `scan` finds its rows."""
        self.path, self._model = path, model
        self._places: dict[str, list[tuple[int, int]]] = {}

    def scan(self) -> Iterator[tuple[str, int, bytes]]:
        """Find the rows, and yield `sample_id`, line and text of each."""
        offset = 0
        try:
            with self.path.open("rb") as handle:
                for line, raw in enumerate(handle, start=1):
                    if raw.strip():
                        begin = _BEGIN.match(raw)
                        sample_id = begin[1].decode("utf-8", "replace") if begin else self.parse(raw, line)["sample_id"]
                        self._places.setdefault(str(sample_id), []).append((offset, line))
                        yield str(sample_id), line, raw
                    offset += len(raw)
        except OSError:
            # Raises the error that names the file.
            next(read_lines(self.path))
            raise

    def parse(self, raw: bytes, line: int) -> dict[str, Any]:
        """Return a row of the file without validation; one without an id has an empty one."""
        try:
            row = json.loads(raw.decode())
        except (ValueError, RecursionError):
            row = None
        found: dict[str, Any] = row if isinstance(row, dict) else self._parse_strictly(raw, line)
        found.setdefault("sample_id", "")
        return found

    def _parse_strictly(self, raw: bytes, line: int) -> dict[str, Any]:
        try:
            text = raw.decode("utf-8-sig" if line == 1 else "utf-8").removesuffix("\n")
        except UnicodeDecodeError:
            raise InputError("not UTF-8 text", code=ErrorCode.FILE_UNREADABLE, file=self.path, line=line) from None
        [(_, row)] = parse_rows([text], self.path, line)
        return row

    def take(self, sample_id: str) -> list[tuple[int | None, _ModelT]]:
        """Return the rows of a sample with their lines."""
        places = self._places.get(sample_id, [])
        taken: list[tuple[int | None, _ModelT]] = []
        if places:
            with self.path.open("rb") as handle:
                for offset, line in places:
                    handle.seek(offset)
                    row = self._parse_strictly(handle.readline(), line)
                    taken.append((line, validate_model(self._model, row, file=self.path, line=line)))
        return taken
