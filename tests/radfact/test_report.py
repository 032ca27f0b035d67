from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from radfact.errors import ErrorCode, InputError
from radfact.records import Box, Sentence, normalize_text, parse_sentences

shares = st.floats(0, 1)


@given(x0=shares, y0=shares, x1=shares, y1=shares)
def test_a_box_is_accepted_exactly_when_its_corners_are_in_order(x0: float, y0: float, x1: float, y1: float) -> None:
    corners = {"x_min": x0, "y_min": y0, "x_max": x1, "y_max": y1}
    if x0 <= x1 and y0 <= y1:
        assert Box(**corners).as_tuple() == (x0, y0, x1, y1)
    else:
        with pytest.raises(ValidationError, match="corners are swapped"):
            Box(**corners)


@pytest.mark.parametrize("wrong", [-0.01, 1.01, float("nan"), float("inf")])
def test_a_coordinate_outside_the_image_is_refused(wrong: float) -> None:
    with pytest.raises(ValidationError):
        Box(x_min=0, y_min=0, x_max=wrong, y_max=1)


def test_forms_of_no_boxes() -> None:
    assert Sentence.model_validate({"text": "Clear lungs.", "boxes": []}).boxes is None


def test_a_mask_alone_locates_a_sentence() -> None:
    sentence = Sentence.model_validate({"text": "Linear scar.", "masks": [{"size": [2, 2], "counts": [4]}]})
    assert sentence.has_region


def test_a_region_on_the_prior_image_does_not_locate_a_sentence() -> None:
    box = Box(x_min=0, y_min=0, x_max=1, y_max=1)
    assert not Sentence(text="Effusion has resolved.", prior_boxes=(box,)).has_region


@pytest.mark.parametrize(
    ("value", "field", "code"),
    [
        ([{"boxes": None}], "report[0].text", ErrorCode.MISSING_FIELD),
        ([{"text": "  "}], "report[0].text", ErrorCode.INVALID_VALUE),
        ([{"text": "Nodule.", "box": []}], "report[0].box", ErrorCode.UNKNOWN_FIELD),
        (
            [{"text": "A."}, {"text": "B.", "boxes": [{"x_min": 0, "y_min": 0, "x_max": 2, "y_max": 1}]}],
            "report[1].boxes[0].x_max",
            ErrorCode.INVALID_VALUE,
        ),
        ("Nodule.", "report", ErrorCode.INVALID_VALUE),
    ],
)
def test_an_error_names_the_path_of_its_field(value: object, field: str, code: ErrorCode) -> None:
    with pytest.raises(InputError) as caught:
        parse_sentences(value, file="drafts.jsonl", line=7)
    error = caught.value
    assert (error.file, error.line, error.field, error.code) == ("drafts.jsonl", 7, field, code)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ({"text": "a", "boxs": []}, "report[0].boxs: unknown field; did you mean 'boxes'?"),
        ({"txt": "a"}, "report[0].txt: unknown field; did you mean 'text'?"),
        ({"text": "a", "certainty": 1}, "report[0].certainty: unknown field; remove it or correct its name"),
        (
            {"text": "a", "boxes": [{"xmin": 0, "y_min": 0, "x_max": 1, "y_max": 1}]},
            "report[0].boxes[0].xmin: unknown field; did you mean 'x_min'?",
        ),
        ({"text": "a", "masks": [{"size": [1, 1], "count": [1]}]}, ".count: unknown field; did you mean 'counts'?"),
    ],
)
def test_an_unknown_field_has_a_suggestion(sentence: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_sentences([sentence])
    assert str(caught.value).endswith(message)


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
