from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import pytest
from error_checks import raises
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from radfact.errors import ErrorCode, InputError
from radfact.records import Box, Record, Sentence, normalize_text, parse_sentences, validate_model

shares = st.floats(0, 1)


@given(x0=shares, y0=shares, x1=shares, y1=shares)
def test_a_box_is_accepted_exactly_when_its_corners_are_in_order(x0: float, y0: float, x1: float, y1: float) -> None:
    corners = {"x_min": x0, "y_min": y0, "x_max": x1, "y_max": y1}
    if x0 <= x1 and y0 <= y1:
        assert Box(**corners).as_tuple() == (x0, y0, x1, y1)
    else:
        with pytest.raises(ValidationError, match="corners are swapped"):
            Box(**corners)


def test_only_a_region_on_the_current_image_locates_a_sentence() -> None:
    box = {"x_min": 0, "y_min": 0, "x_max": 1, "y_max": 1}
    mask = {"size": [2, 2], "counts": [4]}
    assert Sentence.model_validate({"text": "Clear lungs.", "boxes": []}).boxes is None
    assert Sentence.model_validate({"text": "Linear scar.", "masks": [mask]}).has_region
    assert not Sentence.model_validate({"text": "Effusion has resolved.", "prior_boxes": [box]}).has_region


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("Nodule.", "report: expected a list, found a text of 7 characters"),
        ([{"boxes": None}], "report[0].text: expected a value, found none"),
        ([{"text": "  "}], "report[0].text: expected a string that is not empty, found a text of 2 characters"),
        (
            [{"text": "A."}, {"text": "B.", "boxes": [{"x_min": 0, "y_min": 0, "x_max": 2, "y_max": 1}]}],
            "report[1].boxes[0].x_max: expected a number of at most 1, found 2",
        ),
        ([{"text": "a", "boxs": []}], "report[0].boxs: unknown field; did you mean 'boxes'?"),
        ([{"text": "a", "certainty": 1}], "report[0].certainty: unknown field; remove it or correct its name"),
        (
            [{"text": "a", "masks": [{"size": [1, 1], "count": [1]}]}],
            "report[0].masks[0].count: unknown field; did you mean 'counts'?",
        ),
    ],
)
def test_an_error_names_the_path_of_its_field_and_what_is_right(value: object, error: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_sentences(value, file="drafts.jsonl", line=7)
    assert str(caught.value) == f"drafts.jsonl:7: {error}"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Nodule.", "nodule"),
        ("Nodule  in\tthe lung ", "nodule in the lung"),
        ("Well-inflated lungs.", "Wellinflated lungs!"),
        ("Devices:", "devices"),
        ("No effusion .", "No effusion"),
        ("Well \u2010 inflated lungs", "Well inflated lungs"),
        ("A 1-2 mm nodule", "A 1 \u2013 2 mm nodule"),
        ("T1\u20112", "T1\u22122"),
    ],
)
def test_normalization_ignores_case_spaces_dashes_and_a_final_mark(first: str, second: str) -> None:
    assert normalize_text(first) == normalize_text(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Nodule?!", "Nodule"),
        ("No nodule", "Nodule"),
        ("A, b", "A b"),
        ("A 1-2 mm nodule.", "A 12 mm nodule."),
        ("Opacity at T1\u20132.", "Opacity at T12."),
    ],
)
def test_normalization_keeps_words_numeric_dashes_and_other_marks(first: str, second: str) -> None:
    assert normalize_text(first) != normalize_text(second)


@given(text=st.text() | st.text(alphabet="-\u2013\u2212 1a."))
def test_normalized_text_has_no_capitals_and_only_numeric_dashes(text: str) -> None:
    text_without_ranges = re.sub(r"(?<=\d)-(?=\d)", "", normalize_text(text))
    assert not set(text_without_ranges) & set("-\u2010\u2013\u2014\u2212\n\tABC")


class _Values(Record):
    name: str = "a"
    size: Annotated[int, Field(gt=0, lt=100)] = 1
    share: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.5
    is_final: bool = True
    side: Literal["left", "right"] = "left"
    items: Annotated[list[str], Field(min_length=1)] = ["a"]  # noqa: RUF012


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
    ("values", "place"),
    [
        ({}, "text: missing-field"),
        ({"text": "a", "other": 1}, "other: unknown-field"),
        ({"txt": "a"}, "txt: unknown-field"),
    ],
)
def test_missing_and_unknown_fields_have_codes_of_their_own(values: Any, place: str) -> None:
    with raises(place):
        validate_model(Sentence, values)
