"""Runs `radfact meta` in this process, for the tests of its commands."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import pytest

from radfact.cli.main import main


def run_meta(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The exit code of `radfact meta ARGUMENTS`."""
    monkeypatch.delenv("RADFACT_JUDGE", raising=False)
    monkeypatch.setattr(sys, "argv", ["radfact", "meta", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def write_table(path: Path, header: list[str], rows: list[list[Any]]) -> Path:
    """A CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle).writerows([header, *rows])
    return path
