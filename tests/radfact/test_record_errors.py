"""Errors of Pydantic as errors of one line with a code."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from radfact.errors import ErrorCode, InputError
from radfact.records import Record, validate_model


class _Values(Record):
    name: str = "a"
    size: Annotated[int, Field(gt=0, lt=100)] = 1
    share: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.5
    is_final: bool = True
    side: Literal["left", "right"] = "left"
    items: Annotated[list[str], Field(min_length=1)] = ["a"]  # noqa: RUF012


class _Required(Record):
    name: str


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("name", 1, "expected a string, found 1"),
        ("size", 0, "expected a number greater than 0, found 0"),
        ("size", 100, "expected a number less than 100, found 100"),
        ("size", "many", "expected a whole number, found 'many'"),
        ("size", 1.5, "expected a whole number, found 1.5"),
        ("size", [], "expected a whole number, found a list of 0 items"),
        ("share", -0.1, "expected a number of at least 0, found -0.1"),
        ("share", 1.4, "expected a number of at most 1, found 1.4"),
        ("share", float("nan"), "expected a finite number, found nan"),
        ("share", "half", "expected a number, found 'half'"),
        ("share", [], "expected a number, found a list of 0 items"),
        ("is_final", "perhaps", "expected true or false, found 'perhaps'"),
        ("is_final", [], "expected true or false, found a list of 0 items"),
        ("side", "top", "expected 'left' or 'right', found 'top'"),
        ("items", [], "expected at least one item, found a list of 0 items"),
        ("items", "a", "expected a list, found a text of 1 characters"),
    ],
)
def test_an_invalid_value_is_described_by_what_is_expected(field: str, value: Any, expected: str) -> None:
    with pytest.raises(InputError) as error:
        validate_model(_Values, {field: value}, file="a.json", line=3)
    assert (error.value.code, error.value.field, error.value.line) == (ErrorCode.INVALID_VALUE, field, 3)
    assert error.value.message == expected


@pytest.mark.parametrize(
    ("values", "code", "field"),
    [
        ({}, ErrorCode.MISSING_FIELD, "name"),
        ({"name": "a", "other": 1}, ErrorCode.UNKNOWN_FIELD, "other"),
        ({"nam": "a"}, ErrorCode.UNKNOWN_FIELD, "nam"),
    ],
)
def test_missing_and_unknown_fields_have_codes_of_their_own(values: Any, code: ErrorCode, field: str) -> None:
    with pytest.raises(InputError) as error:
        validate_model(_Required, values)
    assert (error.value.code, error.value.field) == (code, field)
