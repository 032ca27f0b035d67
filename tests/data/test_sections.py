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
    assert sections.get("examination") == "CHEST (PA AND LAT)"
    assert sections.get("indication") == "___ year old man with cough // rule out pneumonia"
    assert sections.get("technique") == "Chest PA and lateral"
    assert sections.get("comparison") == "___."
    assert sections.get("findings") == "The lungs are clear. No pleural effusion since ___. Heart size is normal."
    assert sections.get("impression") == "No acute process."
    assert sections.get("preamble") is None
    assert sections.get("last_paragraph") is None


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
    sections = dict(split_sections(f" {heading}:  One sentence of it.\n"))
    sections.pop("text", None)
    assert sections == {section: "One sentence of it."}


def test_a_report_without_headings_is_its_paragraphs_after_the_title() -> None:
    sections = split_sections("  FINAL REPORT\n CHEST RADIOGRAPH.\n \n The lungs are clear.\n \n Normal heart.\n")
    assert (sections.get("preamble"), sections.get("last_paragraph")) == (
        "CHEST RADIOGRAPH.",
        "The lungs are clear. Normal heart.",
    )
    assert sections.get("findings") is None


def test_findings_without_a_heading_leave_the_previous_section() -> None:
    sections = split_sections(" INDICATION:  Fever.\n \n COMPARISON:\n None.\n \n The lungs are clear.\n")
    assert (sections.get("comparison"), sections.get("last_paragraph")) == ("None.", "The lungs are clear.")
    assert sections.get("text") == "INDICATION: Fever. COMPARISON: None. The lungs are clear."


def test_a_title_without_text_is_no_findings() -> None:
    sections = split_sections(" CHEST, PA LATERAL:\n \n INDICATION:  Fever.\n \n FINDINGS:  Clear lungs.\n")
    assert (sections.get("findings"), sections.get("examination")) == ("Clear lungs.", "CHEST, PA LATERAL:")


def test_subheadings_stay_within_the_findings() -> None:
    report = " FINDINGS:\n LUNGS AND PLEURA: Clear.\n HEART: Normal.\n IMPRESSION:  Normal.\n"
    assert split_sections(report).get("findings") == "LUNGS AND PLEURA: Clear. HEART: Normal."


def test_subheadings_begin_findings_that_have_no_heading() -> None:
    sections = split_sections(" INDICATION:  Fever.\n LUNGS: Clear.\n HEART: Normal.\n")
    assert (sections.get("indication"), sections.get("findings")) == ("Fever.", "LUNGS: Clear. HEART: Normal.")


def test_a_time_of_day_after_capitals_is_no_heading() -> None:
    assert (
        split_sections(" FINDINGS:  Seen at\n OR 17:25 and later.\n").get("findings") == "Seen at OR 17:25 and later."
    )


@pytest.mark.parametrize("title", ["WET READ: ___ ___ ___ 10:20 PM", "WET READ VERSION #1 ___ ___ 10:20 PM"])
def test_a_preliminary_reading_is_separate(title: str) -> None:
    report = f" {title}\n  Large effusion.\n {'_' * 78}\n{REPORT}"
    sections = split_sections(report)
    assert sections.get("wet_read") is not None
    assert sections.get("wet_read").endswith("10:20 PM Large effusion.")
    assert (sections.get("findings"), sections.get("text")) == (
        split_sections(REPORT).get("findings"),
        split_sections(REPORT).get("text"),
    )


def test_an_addendum_above_the_report_is_separated() -> None:
    report = f"    FINAL ADDENDUM\n Called to the ward at 5:20.\n {'_' * 78}\n{REPORT}"
    sections = split_sections(report)
    assert sections.get("addendum") == "Called to the ward at 5:20."
    assert sections.get("findings") == split_sections(REPORT).get("findings")


@pytest.mark.parametrize("text", ["", " \n \n", "FINDINGS:", "FINDINGS: \n IMPRESSION: .\n"])
def test_empty_sections_are_none(text: str) -> None:
    sections = dict(split_sections(text))
    assert set(sections) <= {"text"}


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
    sections = dict(split_sections(text))
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


def test_a_last_paragraph_above_an_empty_heading_keeps_its_place() -> None:
    sections = split_sections(" TECHNIQUE:  One view.\n \n Clear lungs.\n FINDINGS:\n")
    assert (sections.get("technique"), sections.get("last_paragraph")) == ("One view.", "Clear lungs.")
    assert sections.get("text") == "TECHNIQUE: One view. Clear lungs. FINDINGS:"
