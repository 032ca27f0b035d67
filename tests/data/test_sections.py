import re
import string
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from maira.data.sources.sections import split_sections

CASES = yaml.safe_load(Path(__file__).with_name("sections.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("heading", "section"), CASES["headings"].items())
def test_headings_are_recognized_in_many_spellings(heading: str, section: str) -> None:
    sections = split_sections(f" {heading}:  One sentence of it.\n")
    sections.pop("text", None)
    assert sections == {section: "One sentence of it."}


@pytest.mark.parametrize("case", CASES["reports"].values(), ids=CASES["reports"])
def test_sections_of_a_report_are_prose_on_one_line(case: dict[str, Any]) -> None:
    above = f"{case['above']} {'_' * 78}\n" if "above" in case else ""
    sections = split_sections(above + case["report"])
    assert sections == {"text": sections["text"]} | case["sections"]


@pytest.mark.parametrize("text", ["", " \n \n", "FINDINGS:", "FINDINGS: \n IMPRESSION: .\n"])
def test_empty_sections_are_none(text: str) -> None:
    assert set(split_sections(text)) <= {"text"}


SENTENCE = st.lists(st.text(string.ascii_lowercase, min_size=1, max_size=8), min_size=1, max_size=12).map(
    lambda words: " ".join(words).capitalize() + "."
)
HEADINGS = {
    "INDICATION": "indication",
    "HISTORY": "history",
    "TECHNIQUE": "technique",
    "COMPARISON": "comparison",
    "FINDINGS": "findings",
    "CHEST, TWO VIEWS": "findings",
    "IMPRESSION": "impression",
    "ADDENDUM": "addendum",
    "SIGNED BY": "other",
}


@given(
    st.lists(st.tuples(st.sampled_from(list(HEADINGS)), st.lists(SENTENCE, min_size=1, max_size=4)), max_size=8),
    st.sampled_from([" ", "\n ", "\n \n "]),
)
def test_each_sentence_is_in_its_section(report: list[tuple[str, list[str]]], gap: str) -> None:
    text = "\n".join(f" {heading}: {gap.join(sentences)}\n " for heading, sentences in report)
    sections = split_sections(text)
    for heading, sentences in report:
        joined = f"{sections.get(HEADINGS[heading], '')} {sections.get('last_paragraph', '')}"
        assert all(sentence in joined for sentence in sentences)


PIECES = st.sampled_from(
    ["FINDINGS:", "HEART:", "CHEST, PA:", "Impression:", "___", "FINAL", "A:B", ":", "\n", "\n ", "\n \n", " ", "x"]
)


@given(st.text() | st.lists(PIECES).map("".join))
def test_any_text_is_parsed_without_losing_words(text: str) -> None:
    lines = [line for line in text.splitlines() if not re.fullmatch(r"\s*_{10,}\s*", line)]  # A rule says nothing.
    assert "".join(split_sections(text).get("text", "").split()) == "".join("".join(lines).split())
