"""Checks of errors by code and fields, which stay when the wording changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from radfact.errors import ErrorCode, InputError, RunError


@contextmanager
def raises_code(code: ErrorCode, match: str | None = None, **fields: Any) -> Iterator[None]:
    """Expect an InputError or a RunError with a code and fields.

    Args:
        code: code of the error.
        match: pattern that its text contains, for names and numbers.
        fields: expected `file`, `line` and `field`, as far as they matter.
    """
    with pytest.raises((InputError, RunError), match=match) as caught:
        yield
    assert caught.value.code is code
    assert {name: getattr(caught.value, name) for name in fields} == fields
