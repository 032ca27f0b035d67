"""Properties of the parser of rewritten reports; `responses.yaml` has responses that are kept or refused."""

from __future__ import annotations

from contextlib import suppress

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


@settings(deadline=None, max_examples=150)
@given(st.text(max_size=200), st.text(max_size=80), st.booleans())
def test_any_text_is_a_report_or_refused(response: str, source: str, requires_overlap: bool) -> None:
    with suppress(ValueError):
        assert parse_report(response, source, requires_overlap=requires_overlap).strip()
