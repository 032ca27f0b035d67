import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from error_checks import raises
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from radfact.errors import ErrorCode, InputError
from radfact.records import Box, Record, Sentence, normalize_text, parse_sentences, validate_model

CASES = yaml.safe_load(Path(__file__).with_name("records.yaml").read_text("utf-8"))
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


@pytest.mark.parametrize(("value", "error"), CASES["reports"])
def test_an_error_names_the_path_of_its_field_and_what_is_right(value: object, error: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_sentences(value, file="drafts.jsonl", line=7)
    assert str(caught.value) == f"drafts.jsonl:7: {error}"


@pytest.mark.parametrize(
    ("first", "second", "are_equal"),
    [*((*pair, True) for pair in CASES["same"]), *((*pair, False) for pair in CASES["different"])],
)
def test_normalization_ignores_case_spaces_dashes_and_a_final_mark_alone(
    first: str, second: str, are_equal: bool
) -> None:
    assert (normalize_text(first) == normalize_text(second)) is are_equal


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


@pytest.mark.parametrize(("field", "value", "expected"), CASES["values"])
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
