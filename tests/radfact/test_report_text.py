"""The parser of rewritten reports removes remarks around a report, and refuses what is not a report."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radfact.metrics.llm.responses.report_text import parse_report

SOURCE = "The heart is normal. Lungs are clear. There is no pleural effusion or pneumothorax."
REPORT = "Findings: The heart is normal in size. The lungs are clear.\n\nImpression: No acute process."
BEFORE = [
    "",
    "Here is the report:\n\n",
    "Here's the polished report: ",
    "Sure! Here is the report you asked for:\n",
    "Certainly. I would be happy to help. Below is the perturbed report:\n\n",
    "Perturbed report:\n",
    "<think>Here is the report: I</think>\n",
    "```\n",
    "# Report:\n",
]
AFTER = [
    "",
    "\n\nLet me know if you need more.",
    " Please let me know if this helps!",
    "\n\n[Explanation]: I made the heart normal.",
    "\n---\nChanges made: 1. The heart",
    "\n\nNote: I changed two lines.",
    "\n\n(Note: The changes are subtle.)",
    "\nI have changed two lines.",
    "\n\nI hope this helps.",
    "\n```",
]


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(BEFORE), st.sampled_from([REPORT, SOURCE, f"**{REPORT}**"]), st.sampled_from(AFTER))
def test_remarks_around_a_report_are_removed(before: str, report: str, after: str) -> None:
    assert parse_report(before + report + after, SOURCE) == report.strip("*")


@pytest.mark.parametrize(
    "report",
    [
        "[Findings]: Heart normal. [Impression]: Lungs clear.",
        "NOTE: The lungs are clear. The heart is normal.",
        "This is a normal chest radiograph. Heart normal, lungs clear.",
        "Here the heart is normal. Lungs: clear.",
        "Lungs clear. If you have concern for pleural effusion, repeat.",
        "The heart is normal. I cannot exclude a small effusion.",
        "The report is as before: heart normal, lungs clear.",
    ],
)
def test_words_of_the_report_are_kept(report: str) -> None:
    assert parse_report(report, SOURCE) == report


@pytest.mark.parametrize(
    "response",
    [
        "",
        "<think>The heart is normal.</think>",
        "Here is the report:",
        "I'm sorry, but I can't assist with that request.",
        "I am unable to alter the report: a normal heart and clear lungs are what it says.",
        "I cannot do that.",
        "As an AI language model, I do not see the heart or the lungs.",
        "Please provide the notes on heart and lungs.",
        "Clear.",
        "Die Leber ist vergr\u00f6\u00dfert, die Milz ebenso.",
    ],
)
def test_other_responses_are_refused(response: str) -> None:
    with pytest.raises(ValueError, match="report"):
        parse_report(response, SOURCE)


def test_a_paraphrase_of_a_line_may_share_no_words() -> None:
    assert parse_report("Enlarged heart.", "Cardiomegaly.", requires_overlap=False) == "Enlarged heart."
    with pytest.raises(ValueError, match="refuses"):
        parse_report("I'm sorry, I can't help with that.", "Cardiomegaly.", requires_overlap=False)


@settings(deadline=None, max_examples=150)
@given(st.text(max_size=200), st.text(max_size=80), st.booleans())
def test_any_text_is_a_report_or_refused(response: str, source: str, requires_overlap: bool) -> None:
    with suppress(ValueError):
        assert parse_report(response, source, requires_overlap=requires_overlap).strip()
