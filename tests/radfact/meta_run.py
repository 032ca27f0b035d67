"""Runs `radfact meta` in this process, for the tests of its commands."""

import csv
import io
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer

from radfact.cli.main import main
from radfact.errors import ErrorCode
from radfact.io.jsonl import write_json, write_jsonl

Serve = Callable[..., ChatServer]
"""The fixture `serve`: starts a server that responds with a function of (request, number of the request)."""


def _run(arguments: tuple[object, ...], exit_code: int) -> tuple[str, str]:
    """Return standard output and standard error, each in one line."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.delenv("RADFACT_JUDGE", raising=False)
        patch.setattr(sys, "argv", ["radfact", "meta", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert int(ended.value.code or 0) == exit_code, err.getvalue()
    return " ".join(out.getvalue().split()), " ".join(err.getvalue().split())


def run_meta(*arguments: object, exit_code: int = 0) -> str:
    """Run `radfact meta ARGUMENTS`, which must end with the exit code; return what it prints, in one line."""
    return _run(arguments, exit_code)[0]


def refuse_meta(*arguments: object, exit_code: int = 2) -> tuple[ErrorCode, str]:
    """Run `radfact meta ARGUMENTS`, which must fail with one line; return its error code and the line."""
    _, error = _run(arguments, exit_code)
    assert "Traceback" not in error
    match = re.search(r"\[([a-z-]+)\]$", error)
    assert match, error
    return ErrorCode(match[1]), error


def write_table(path: Path, header: list[str], rows: list[list[Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle).writerows([header, *rows])
    return path


def write_scores(folder: Path, values: list[float | None], *, name: str = "m", direction: str = "lower") -> Path:
    write_jsonl(folder / "samples.jsonl", [{"sample_id": str(i), name: value} for i, value in enumerate(values)])
    texts = [{"sample_id": str(i), "side": "candidate", "text": "c"} for i in range(len(values))]
    write_jsonl(folder / "sentences.jsonl", texts)
    write_json(folder / "scores.json", {"version": 3, "scores": {name: {"point": 1, "direction": direction}}})
    return folder
