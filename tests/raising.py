"""Expectation of an error by its location, field and code, whatever its wording."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from radfact.errors import InputError, RunError


@contextmanager
def raises(expected: str) -> Iterator[pytest.ExceptionInfo[InputError | RunError]]:
    """Expect an error on one line, given as `FILE:LINE: FIELD: code` without the parts that it does not have.

    Args:
        expected: such as "pairs.json:3: boxes: invalid-value"; the file without its folder.
    """
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
