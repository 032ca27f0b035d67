from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maira.data.sources.sections import split_sections

# Written for these tests in the layout of MIMIC-CXR's report files: one space before each line, " " for a blank one.
REPORT = """\
                                 FINAL REPORT
 EXAMINATION:  CHEST (PA AND LAT)

 INDICATION:  ___ year old man with cough // rule out
 pneumonia

 TECHNIQUE:  Chest PA and lateral

 COMPARISON:  ___.

 FINDINGS:

 The lungs are clear.  No pleural
 effusion since ___.

 Heart size is normal.

 IMPRESSION:

 No acute process.
""".replace("\n\n", "\n \n")


def test_sections_of_a_report_are_prose_on_one_line() -> None:
    sections = split_sections(REPORT)
    sections.pop("text")
    assert sections == {
        "examination": "CHEST (PA AND LAT)",
        "indication": "___ year old man with cough // rule out pneumonia",
        "technique": "Chest PA and lateral",
        "comparison": "___.",
        "findings": "The lungs are clear. No pleural effusion since ___. Heart size is normal.",
        "impression": "No acute process.",
    }


@pytest.mark.parametrize(
    ("heading", "section"),
    [
        ("FINDINGS", "findings"),
        ("FINDNGS", "findings"),
        ("Findings", "findings"),
        ("CHEST, TWO VIEWS", "findings"),
        ("PA & LATERAL VIEWS OF THE CHEST", "findings"),
        ("SUPINE CHEST RADIOGRAPH, ___ AT 17:25", "findings"),
        ("IMPRESSION", "impression"),
        ("CONCLUSION", "impression"),
        ("FINDINGS AND IMPRESSION", "impression"),
        ("INDICATION", "indication"),
        ("CLINICAL INDICATION", "indication"),
        ("REASON FOR EXAM", "indication"),
        ("HISTORY", "history"),
        ("CLINICAL HISTORY", "history"),
        ("TECHNIQUE", "technique"),
        ("COMPARISON", "comparison"),
        ("COMPARISION", "comparison"),
        ("REFERENCE EXAM", "comparison"),
        ("EXAMINATION", "examination"),
        ("ADDENDUM", "addendum"),
        ("RECOMMENDATION(S)", "recommendation"),
        ("PROVISIONAL FINDINGS IMPRESSION (PFI)", "wet_read"),
        ("ORDERING PHYSICIAN", "other"),
    ],
)
def test_headings_are_recognized_in_many_spellings(heading: str, section: str) -> None:
    sections = split_sections(f" {heading}:  One sentence of it.\n")
    sections.pop("text", None)
    assert sections == {section: "One sentence of it."}


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (
            "  FINAL REPORT\n CHEST RADIOGRAPH.\n \n The lungs are clear.\n \n Normal heart.\n",
            {"preamble": "CHEST RADIOGRAPH.", "last_paragraph": "The lungs are clear. Normal heart."},
        ),
        (
            " INDICATION:  Fever.\n \n COMPARISON:\n None.\n \n The lungs are clear.\n",
            {"indication": "Fever.", "comparison": "None.", "last_paragraph": "The lungs are clear."},
        ),
        (
            " CHEST, PA LATERAL:\n \n INDICATION:  Fever.\n \n FINDINGS:  Clear lungs.\n",
            {"examination": "CHEST, PA LATERAL:", "indication": "Fever.", "findings": "Clear lungs."},
        ),
        (
            " FINDINGS:\n LUNGS AND PLEURA: Clear.\n HEART: Normal.\n IMPRESSION:  Normal.\n",
            {"findings": "LUNGS AND PLEURA: Clear. HEART: Normal.", "impression": "Normal."},
        ),
        (
            " INDICATION:  Fever.\n LUNGS: Clear.\n HEART: Normal.\n",
            {"indication": "Fever.", "findings": "LUNGS: Clear. HEART: Normal."},
        ),
        (" FINDINGS:  Seen at\n OR 17:25 and later.\n", {"findings": "Seen at OR 17:25 and later."}),
        (
            " TECHNIQUE:  One view.\n \n Clear lungs.\n FINDINGS:\n",
            {
                "technique": "One view.",
                "last_paragraph": "Clear lungs.",
                "text": "TECHNIQUE: One view. Clear lungs. FINDINGS:",
            },
        ),
    ],
    ids=["no headings", "no findings", "title", "sub-headings", "sub-headings alone", "time", "empty heading"],
)
def test_text_without_its_own_heading_is_in_a_section(report: str, expected: dict[str, str]) -> None:
    sections = split_sections(report)
    assert sections == {"text": sections["text"]} | expected


@pytest.mark.parametrize("title", ["WET READ: ___ ___ ___ 10:20 PM", "WET READ VERSION #1 ___ ___ 10:20 PM"])
def test_a_preliminary_reading_is_separate(title: str) -> None:
    report = f" {title}\n  Large effusion.\n {'_' * 78}\n{REPORT}"
    sections, expected = split_sections(report), split_sections(REPORT)
    assert sections.pop("wet_read").endswith("10:20 PM Large effusion.")
    assert sections == expected


def test_an_addendum_above_the_report_is_separated() -> None:
    report = f"    FINAL ADDENDUM\n Called to the ward at 5:20.\n {'_' * 78}\n{REPORT}"
    sections, expected = split_sections(report), split_sections(REPORT)
    assert sections["addendum"] == "Called to the ward at 5:20."
    assert sections["findings"] == expected["findings"]


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
