"""Rows of JSON Lines files by sample, from their place in the file."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import parse_rows, read_lines
from radfact.records import validate_model

_ModelT = TypeVar("_ModelT", bound=BaseModel)


class FileRows(Generic[_ModelT]):
    """Rows of a file, found by their offsets and validated when they are taken."""

    def __init__(
        self,
        path: Path,
        model: type[_ModelT],
        known: Container[str] | None = None,
        visit: Callable[[str, int, dict[str, Any]], None] | None = None,
    ) -> None:
        """Find the rows, all of which must be of a known sample, and visit `sample_id`, line and content of each."""
        self.path, self._model = path, model
        self._places: dict[str, list[tuple[int, int]]] = {}
        # The collector would examine what is kept of the rows again and again, which takes a third of the time.
        is_collecting = gc.isenabled()
        gc.disable()
        try:
            self._scan(known, visit)
        except OSError:
            # Raises the error that names the file.
            next(read_lines(path))
            raise
        finally:
            if is_collecting:
                gc.enable()

    def _scan(self, known: Container[str] | None, visit: Callable[[str, int, dict[str, Any]], None] | None) -> None:
        offset = 0
        with self.path.open("rb") as handle:
            for line, raw in enumerate(handle, start=1):
                if raw.strip():
                    row = self._parse_fast(raw, line)
                    sample_id = str(row.get("sample_id", ""))
                    if known is not None and sample_id not in known:
                        message = f"expected a sample of samples.jsonl, found {sample_id!r}"
                        raise self.error(message, line, "sample_id")
                    self._places.setdefault(sample_id, []).append((offset, line))
                    if visit is not None:
                        visit(sample_id, line, row)
                offset += len(raw)

    def take(self, sample_id: str) -> list[tuple[int, _ModelT]]:
        """Return the rows of a sample with their lines."""
        places = self._places.get(sample_id, [])
        taken: list[tuple[int, _ModelT]] = []
        if places:
            with self.path.open("rb") as handle:
                for offset, line in places:
                    handle.seek(offset)
                    row = self._parse(handle.readline(), line)
                    taken.append((line, validate_model(self._model, row, file=self.path, line=line)))
        return taken

    def error(self, message: str, line: int, field: str, code: ErrorCode = ErrorCode.MISMATCH) -> InputError:
        return InputError(message, code=code, file=self.path, line=line, field=field)

    def _parse_fast(self, raw: bytes, line: int) -> dict[str, Any]:
        """Return a row without a check of what `take` refuses, such as duplicate keys; this takes half of the time."""
        try:
            row = json.loads(raw)
        except (ValueError, RecursionError):
            row = None
        return row if isinstance(row, dict) else self._parse(raw, line)

    def _parse(self, raw: bytes, line: int) -> dict[str, Any]:
        try:
            text = raw.decode("utf-8-sig" if line == 1 else "utf-8").removesuffix("\n")
        except UnicodeDecodeError:
            raise InputError("not UTF-8 text", code=ErrorCode.FILE_UNREADABLE, file=self.path, line=line) from None
        [(_, row)] = parse_rows([text], self.path, line)
        return row
