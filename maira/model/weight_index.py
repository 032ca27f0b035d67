"""Indexes of weights in several files, which may name files of their own folder only."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_json
from radfact.records import validate_model


class _Index(BaseModel):
    weight_map: dict[str, str]


def indexed_files(index: Path) -> list[Path]:
    """Return the files that an index names; they may be links, as in Hugging Face's cache."""
    names = sorted({*validate_model(_Index, read_json(index), file=index).weight_map.values()})
    if outside := [name for name in names if name != Path(name).name or "\\" in name or name == ".."]:
        message = f"expected names of files in this folder, found '{outside[0]}'"
        raise InputError(message, code=ErrorCode.INVALID_VALUE, file=index, field="weight_map")
    return [index.parent / name for name in names]


def check_indexes(folder: Path) -> None:
    """Check all indexes of a folder before a library reads the files that they name."""
    for index in sorted(folder.glob("*.index.json")):
        indexed_files(index)
