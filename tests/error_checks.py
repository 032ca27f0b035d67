"""Checks of errors by code and fields, which stay when the wording changes."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.coco import read_coco
from radfact.records import Sentence


@contextmanager
def raises_code(code: ErrorCode, match: str | None = None, **fields: Any) -> Iterator[None]:
    """Expect an error with a code and the fields `file`, `line` and `field`; `match` is for names and numbers."""
    with pytest.raises((InputError, RunError), match=match) as caught:
        yield
    assert caught.value.code is code
    assert {name: getattr(caught.value, name) for name in fields} == fields


@contextmanager
def raises(expected: str) -> Iterator[pytest.ExceptionInfo[InputError | RunError]]:
    """Expect an error on one line, such as "pairs.json:3: boxes: invalid-value", without the parts that it lacks."""
    with pytest.raises((InputError, RunError)) as caught:
        yield caught
    assert summary(caught.value) == expected, str(caught.value)
    assert "\n" not in str(caught.value)


def summary(error: InputError | RunError) -> str:
    """Return location, field and code of an error as `raises` takes them."""
    if isinstance(error, RunError):
        return str(error.code)
    location = "" if error.file is None else Path(error.file).name
    if error.line is not None:
        location = f"{location}:{error.line}" if location else f"line {error.line}"
    return ": ".join(part for part in (location, error.field, str(error.code)) if part)


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file can grow beyond some bytes; not for longer than it must, since pytest's own log is a file too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def reports_of_coco(*paths: Path) -> dict[str, list[Sentence]]:
    """Return the reports of a COCO file, or raise its first fault."""
    read = read_coco(*paths)
    for fault in read.faults.values():
        raise fault
    return read.reports
