"""Sentences, boxes and normalized texts, and the languages that metrics read."""

import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from error_checks import raises, raises_code
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from radfact import RadFact, load_judge
from radfact.errors import ErrorCode, Failure, InputError
from radfact.judges.offline_splitter import OfflineSplitter
from radfact.languages import Language
from radfact.metrics.protocol import score_pairs
from radfact.metrics.registry import entries
from radfact.records import Box, Pair, Record, Sentence, normalize_text, parse_sentences, validate_model

CASES = yaml.safe_load(Path(__file__).with_name("records.yaml").read_text("utf-8"))
shares = st.floats(0, 1)
RUSSIAN = "Пневмоторакса нет."
CHINESE = "未见气胸。"


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
def test_normalization_ignores_case_spaces_dashes_and_a_final_mark(first: str, second: str, are_equal: bool) -> None:
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


@pytest.mark.parametrize(("values", "place"), CASES["fields"])
def test_missing_and_unknown_fields_have_codes_of_their_own(values: Any, place: str) -> None:
    with raises(place):
        validate_model(Sentence, values)


@pytest.mark.parametrize(("text", "english", "spaced"), CASES["languages"])
def test_the_script_decides_what_is_read(text: str, english: bool, spaced: bool) -> None:
    matches = [language.matches(text) for language in (Language.ENGLISH, Language.SPACED, Language.ANY)]
    assert matches == [english, spaced, True]


@pytest.mark.parametrize("name", ["rouge_l", "bleu", "lateral_mentions"])
def test_a_report_that_cannot_be_read_is_not_scored(name: str) -> None:
    english = Pair("a", "Small left effusion. Lateral view.", "Small left effusion. Lateral view.")
    pairs = [english, Pair("b", CHINESE, CHINESE), Pair("c", "Clear lungs.", "Normal heart size.")]
    metric = entries()[name].load()()
    result, readable = score_pairs(metric, pairs), score_pairs(metric, [english, pairs[2]])
    assert result.failures == {1: metric.language.skip_reason}
    for score, values in result.values.items():
        assert math.isnan(values[1])
        assert [values[0], values[2]] == list(readable.values[score])
    assert metric.aggregate(result, list(metric.scores), replicates=0, seed=0) == metric.aggregate(
        readable, list(metric.scores), replicates=0, seed=0
    )


def test_nothing_readable_is_an_error_which_depends_on_the_metric() -> None:
    with raises_code(ErrorCode.NOTHING_SCORED):
        score_pairs(entries()["rouge_l"].load()(), [Pair("a", RUSSIAN, RUSSIAN)])
    assert score_pairs(entries()["bleu"].load()(), [Pair("a", RUSSIAN, RUSSIAN)]).failures == {}


def test_the_offline_judge_does_not_judge_other_scripts() -> None:
    reports = {"a": [Sentence(text=RUSSIAN)], "b": [Sentence(text="Clear lungs.")]}
    result = RadFact(load_judge("offline")).score([Pair(name, report, report) for name, report in reports.items()])
    assert [sample.failure for sample in result.samples] == [Language.ENGLISH.skip_reason, None]
    assert result.summaries["logical_f1"].n == 1
    split, failure = OfflineSplitter().split(["Clear lungs. No effusion.", RUSSIAN])
    assert not isinstance(split, Failure)
    assert len(split) == 2
    assert isinstance(failure, Failure)


def test_reports_that_cannot_be_read_are_counted_in_one_line(run_radfact: Any) -> None:
    reports = {str(number): RUSSIAN for number in range(12)} | {"english": "Clear lungs."}
    rows = ["example_id,prediction,target", *(f"{name},{text},{text}" for name, text in reports.items())]
    Path("pairs.csv").write_text("\n".join(rows), encoding="utf-8")
    code, out, error = run_radfact("evaluate", "pairs.csv", "--metrics", "rouge_l", "--out", "out")
    assert code == 3
    assert [line for line in (out + error).splitlines() if "another script" in line] == [
        f"rouge_l: 12 samples not scored: {Language.ENGLISH.skip_reason}"
    ]


def test_only_metrics_with_a_model_read_any_language() -> None:
    declared = [entry.declared for entry in entries().values() if entry.is_builtin]
    readers = [metric.name for metric in declared if metric.language is Language.ANY]
    # It needs sentences, which are not found in languages without spaces.
    known = {"consistency_llm"}
    assert readers == [m.name for m in declared if m.requirements.judge is not None and m.name not in known]
