"""Properties of the parser of rewritten reports; `responses.yaml` has responses that are kept or refused."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from radfact.metrics.llm.responses.report_text import parse_report

SOURCE = "The heart is normal. Lungs are clear. There is no pleural effusion or pneumothorax."
REPORT = "Findings: The heart is normal in size. The lungs are clear.\n\nImpression: No acute process."
REMARKS = yaml.safe_load(Path(__file__).with_name("report_remarks.yaml").read_text("utf-8"))
WRITTEN = [REPORT, SOURCE, f"**{REPORT}**"]


@settings(deadline=None, max_examples=150)
@given(*map(st.sampled_from, (REMARKS["before"], WRITTEN, REMARKS["after"])))
def test_remarks_around_a_report_are_removed(before: str, report: str, after: str) -> None:
    assert parse_report(before + report + after, SOURCE) == report.strip("*")


@settings(deadline=None, max_examples=150)
@given(st.text(max_size=200), st.text(max_size=80), st.booleans())
def test_any_text_is_a_report_or_refused(response: str, source: str, requires_overlap: bool) -> None:
    with suppress(ValueError):
        assert parse_report(response, source, requires_overlap=requires_overlap).strip()
