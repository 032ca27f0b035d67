"""FineRadScore: the published lines, prompt and severities, and the parser of corrections."""

import json
import math
import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radfact.llm import ChatClient, MockChatModel, mock_client
from radfact.metrics.llm.fineradscore import FineRadScore, split_lines
from radfact.metrics.llm.llm_metric import load_prompt
from radfact.metrics.llm.responses.corrections import Correction, parse_corrections
from radfact.records import TextPair

LINES = ("Three left lung nodules.", "Multiple lung nodules.", "Pulmonary edema.")
PAIR = TextPair("one", " ".join(LINES), "Two left lung nodules. Left basilar opacity.")


def entry(correction: str, severity: str | float, categories: Any = (), comment: str = "why") -> dict[str, Any]:
    return {
        "corrections": correction,
        "clinical severity": severity,
        "comments": comment,
        "error category": list(categories),
    }


REWRITE = entry("Two left lung nodules.", "Actionable nonurgent error", ["Incorrect severity of finding"])
DELETE = entry("[delete]", "Urgent error", ["False prediction of finding"])
INSERT = entry("Left basilar opacity.", "Not actionable", ["Omission of finding"])
RESPONSE = {"0": REWRITE, "2": DELETE, "None": INSERT}


def test_a_line_ends_with_a_sentence_or_a_line_of_the_report_and_not_after_a_digit() -> None:
    report = (
        "Tube 2.2 cm above the carina. Mild edema.No effusion. Compared with 2019. Heart normal.\nLungs are clear..\n"
    )
    assert split_lines(report) == (
        *("Tube 2.2 cm above the carina.", "Mild edema.No effusion.", "Compared with 2019. Heart normal."),
        "Lungs are clear.",
    )


@given(st.text("ab1. ", max_size=40))
def test_lines_are_those_of_the_published_expression(report: str) -> None:
    # The expression and the cleaning of the authors' code; a line of full stops alone is no line here.
    pieces = [f"{piece.strip()}.".replace("..", ".") for piece in re.split(r"(?<!\d)\.(?!\d|$) ", report.strip())]
    expected = [piece.rstrip(" .") for piece in pieces if piece.strip(" .")]
    assert [line.rstrip(" .") for line in split_lines(report)] == expected


def test_the_published_examples_can_be_read() -> None:
    examples = re.findall(
        r"Generated Text: (.*?)\n\nGround Truth Text: .*?\n\nCorrections:\n(.*?)\n(?=\nExample|\Z)",
        load_prompt("fineradscore_few_shot"),
        re.DOTALL,
    )
    parsed = [parse_corrections(response, re.sub(r"\[\d\] ", "", lines).split("\n")) for lines, response in examples]
    assert [corrections.severities for corrections in parsed] == [[2, 2, 1], [2, 3, 1], [1, 1, 3], [2, 2], []]
    # Example 2 is printed with correction and severity swapped.
    assert parsed[1].items[2] == Correction(1, None, 1, "Repetitive", ())
    ending = "Moderate cardiomegaly. The presence of a minimal left pleural effusion cannot be excluded."
    assert parsed[2].corrected_report().endswith(ending)


LAST_TURN = (
    "Generated Text: [0] Three left lung nodules. [1] Multiple lung nodules. [2] Pulmonary edema. \n \n "
    "Ground Truth Text: Two left lung nodules. Left basilar opacity."
)


def test_examples_are_turns_of_the_conversation() -> None:
    model = MockChatModel(json.dumps(RESPONSE))
    result = FineRadScore(ChatClient(model, {})).score([PAIR])
    (system, *turns, last) = model.calls[0]
    assert (system, last) == (("system", load_prompt("fineradscore")), ("user", LAST_TURN))
    assert [role for role, _ in turns] == ["user", "assistant"] * 5
    assert turns[2][1] == (
        "Generated Text: [0] Three left lung nodules concerning for metastatic disease. [1] Multiple lung nodules. "
        "\n \n Ground Truth Text: Two left lung nodules concerning for metastatic disease. Left basilar opacity could "
        "represent atelectasis or consolidation."
    )
    assert turns[3][1].startswith('{"0": {"corrections": "Two left lung nodules concerning for metastatic disease.", ')
    assert turns[-1] == ("assistant", "{}")
    assert result.values == {"fineradscore": [6.0], "fineradscore_max": [3.0], "fineradscore_lines": [3.0]}
    assert result.details[0]["corrected"] == "Two left lung nodules. Multiple lung nodules. Left basilar opacity."
    assert result.details[0]["corrections"][1]["was"] == "Pulmonary edema."
    json.dumps(result.details, allow_nan=False)


def test_examples_are_one_prompt_with_the_instructions_or_left_out() -> None:
    instructions = load_prompt("fineradscore")
    prompt = (
        "Generated Text: [0] Three left lung nodules.\n[1] Multiple lung nodules.\n[2] Pulmonary edema.\n\n"
        "Ground Truth Text: Two left lung nodules. Left basilar opacity.\n\nCorrections:"
    )
    model = MockChatModel([json.dumps(RESPONSE), "Corrections: {}"])
    result = FineRadScore(ChatClient(model, {}), examples="prompt").score([PAIR])
    assert model.calls == [(("system", instructions + load_prompt("fineradscore_few_shot")), ("user", prompt))]
    assert result.values["fineradscore"] == [6.0]
    result = FineRadScore(ChatClient(model, {}), examples="none").score([PAIR])
    assert model.calls[1:] == [(("user", instructions + load_prompt("fineradscore_zero_shot") + LAST_TURN),)]
    # No correction scores 0.
    assert list(result.values.values()) == [[0], [0], [0]]


def test_a_malformed_response_is_repaired_up_to_five_times() -> None:
    invalid = "There are three errors."
    result = FineRadScore(mock_client([invalid] * 5 + [json.dumps(RESPONSE)])).score([PAIR])
    assert result.values["fineradscore"] == [6]
    result = FineRadScore(mock_client(invalid)).score([PAIR])
    assert math.isnan(result.values["fineradscore"][0])
    assert list(result.failures) == [0]
    assert result.usage["calls"] == 6


entries = st.builds(
    entry,
    st.sampled_from(["[delete]", "Another line.", "Multiple lung nodules.", ""]),
    st.sampled_from(["Urgent error", "No error", "Not actionable", "x"]),
)


@settings(deadline=None)
@given(st.text(max_size=80) | st.dictionaries(st.sampled_from(["0", "1", "2", "None", "9"]), entries).map(json.dumps))
def test_any_text_has_valid_corrections_or_is_refused(text: str) -> None:
    with suppress(ValueError):
        corrections = parse_corrections(text, LINES)
        assert all(1 <= severity <= 4 for severity in corrections.severities)
        assert len(corrections.by_line()) + len(corrections.insertions) == len(corrections.items)


keyed = st.dictionaries(st.sampled_from(["0", "1", "2", "None"]), st.just(INSERT), min_size=1)


@settings(deadline=None)
@given(keyed, st.sampled_from(["I give {} if it fits. ", "", "Corrections:\n"]), st.booleans())
def test_all_objects_of_a_response_count(data: dict[str, Any], before: str, apart: bool) -> None:
    text = "\n".join(json.dumps({key: value}) for key, value in data.items()) if apart else json.dumps(data)
    assert len(parse_corrections(before + text, LINES).items) == len(data)
    with pytest.raises(ValueError, match="cut off"):
        parse_corrections((before + text)[:-1], LINES)


def test_corrections_of_other_candidates() -> None:
    # A dash between digits is a change.
    response = json.dumps({"0": entry("A 1-2 mm nodule.", "Urgent error")})
    expected = (Correction(0, "A 1-2 mm nodule.", 3, "why", ()),)
    assert parse_corrections(response, ("A 12 mm nodule.",)).items == expected
    # An empty candidate has insertions alone.
    corrections = parse_corrections(json.dumps({"None": INSERT}), split_lines(""))
    assert corrections.corrected_report() == "Left basilar opacity."
    with pytest.raises(ValueError, match="is no line"):
        parse_corrections(json.dumps({"0": REWRITE}), split_lines(""))
