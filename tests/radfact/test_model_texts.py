"""Data written for models and read from what they write."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radfact.llm.response_text import bodies, read_data, read_list, strip_reasoning


@pytest.mark.parametrize(
    ("body", "data"),
    [
        ("a: No\nb: 1.0", {"a": "No", "b": "1.0"}),
        ('{"a": ["x",],}', {"a": ["x"]}),
        ('{"a": true}', {"a": True}),
        ("a: b: c", None),
        ("a: !!python/object:os.system x", {"a": "x"}),
    ],
    ids=["words", "comma", "json", "no yaml", "tag"],
)
def test_words_are_not_converted_to_other_types(body: str, data: Any) -> None:
    assert read_data(body) == data


@settings(deadline=None)
@given(st.text(max_size=300))
def test_any_text_can_be_parsed_as_data(body: str) -> None:
    read_data(body)


@pytest.mark.parametrize(
    ("text", "response"),
    [
        ("Yes", "Yes"),
        ("<think>Hm, </think>Yes", "Yes"),
        ("Hm,\nno.\n</think>\n\nYes", "Yes"),
        ("Hm, no.</think>\nYes", "Yes"),
        ("Hm, no.\n</think> Yes", "Yes"),
        ("Hm, no.</think>Yes", "Yes"),
        ("[THINK]Hm, no[/THINK]Yes", "Yes"),
        ("<|channel|>analysis<|message|>Hm, no<|end|><|start|>assistant<|channel|>final<|message|>Yes", "Yes"),
        ("<|channel|>analysis<|message|>Hm<|end|><|channel|>final <|constrain|>json<|message|>{}", "{}"),
        ("analysisHm, no.assistantfinalYes", "Yes"),
        ("<think>\nIs </think> a mark?\n</think>\nYes", "Yes"),
        ("<think>Hm, no", ""),
        ("[THINK]Hm, no", ""),
        ("<|channel|>analysis<|message|>Hm, no", ""),
        ("analysisHm, no", ""),
        ("Analysis of the radiograph: no", "Analysis of the radiograph: no"),
        ("Hm, no\n</think>\n", ""),
        ("Hm, no.</think>\r\nYes", "Yes"),
    ],
)
def test_reasoning_text_is_removed(text: str, response: str) -> None:
    assert strip_reasoning(text).strip() == response


def test_a_fence_within_a_line_is_part_of_it() -> None:
    assert list(bodies("- Clear ``` lungs.")) == ["- Clear ``` lungs."]
    assert list(bodies("Here:\n```yaml\n- Clear lungs.\n```")) == ["- Clear lungs.", "Here:\nyaml\n- Clear lungs."]
    assert next(bodies("Here:\r\n```yaml\r\n- Clear lungs.\r\n```\r\n")) == "- Clear lungs."


@pytest.mark.parametrize(
    "lines",
    [
        ["", "- Heart: big.", "- No effusion."],
        ["", "  * Heart: big.", "  * No", "    effusion."],
        ["[", '  "Heart: big.",', '  "No effusion."', "]"],
        ['["Heart: big.", "No effusion."]'],
        ["", "1. Heart: big.", "2. No effusion."],
    ],
    ids=["dash", "folded", "brackets", "flow", "numbers"],
)
def test_a_list_in_many_forms(lines: list[str]) -> None:
    assert read_list(lines) == ["Heart: big.", "No effusion."]


@pytest.mark.parametrize("lines", [[""], ["[]"], ["null"], ["", "- "], ["", "- ''"], []])
def test_an_empty_list_in_many_forms(lines: list[str]) -> None:
    assert read_list(lines) == []
