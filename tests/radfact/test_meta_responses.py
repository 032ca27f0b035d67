"""Parsers of the responses in `meta_responses.yaml`: preferences, and errors and rewriting by a language model."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from radfact.meta.agreement.preferences import parse_preference
from radfact.meta.datasets.reports import SiteReport
from radfact.meta.injection.llm_editor import parse_candidate, parse_modified_report, parse_plausibility

REPORT = "The heart is normal. Lungs are clear."
SOURCE = SiteReport("s", "", REPORT)
CHANGE = {"original": "Lungs are clear.", "modified": "There is a left effusion.", "explanation": "x"}
TEXTS = {"REPORT": REPORT, "CHANGED": "The heart is normal. There is a left effusion.", "DETAIL": json.dumps(CHANGE)}
CASES: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("meta_responses.yaml").read_text("utf-8"))
PARSERS: Mapping[str, Callable[[str], Any]] = {
    "preference": parse_preference,
    "plausibility": lambda text: parse_plausibility(text).plausible,
    "candidate": lambda text: parse_candidate(text, REPORT, changed=True),
    "modified report": lambda text: parse_modified_report(text, SOURCE, "a", 1).candidate,
}


def filled(text: Any) -> Any:
    for name, value in TEXTS.items():
        text = text.replace(name, value) if isinstance(text, str) else text
    return text


@pytest.mark.parametrize(
    ("parser", "text", "expected"), [(name, *row) for name, rows in CASES["read"].items() for row in rows]
)
def test_responses_are_parsed(parser: str, text: str, expected: Any) -> None:
    assert PARSERS[parser](filled(text)) == filled(expected)


@pytest.mark.parametrize(("parser", "text"), [(name, text) for name, rows in CASES["refused"].items() for text in rows])
def test_unusable_responses_are_refused(parser: str, text: str) -> None:
    match = {"preference": "last line", "plausibility": "plausible"}.get(parser, r"\w")
    with pytest.raises(ValueError, match=match):
        PARSERS[parser](filled(text))


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.sampled_from([text for text, _ in CASES["read"]["preference"]]) | st.text("ab 12.\n", max_size=20)),
    st.sampled_from(["better", "worse"]),
)
def test_only_the_last_line_is_the_label_of_a_preference(before: list[str], how: str) -> None:
    label = f"Assistant 1 is {how} than Assistant 2"
    assert parse_preference("\n".join([*before, label])) == ("first" if how == "better" else "second")
    with pytest.raises(ValueError, match="last line"):
        parse_preference("\n".join([*before, label, "Both miss the effusion."]))


@pytest.mark.parametrize("nothing", ["", "None", "(none)", "[new sentence]", "N/A"])
def test_an_added_sentence_has_no_original_and_a_removed_one_no_text(nothing: str) -> None:
    for change in ({"original": nothing}, {"modified": nothing}):
        report = "The heart is normal." if "modified" in change else TEXTS["CHANGED"]
        text = json.dumps({"modified_report": report, "changes_detail": [CHANGE | change]})
        (made,) = parse_modified_report(text, SOURCE, "a", 1).changes
        expected = {name: None if name in change else CHANGE[name] for name in ("original", "modified")}
        assert {"original": made.original, "modified": made.modified} == expected


def test_a_paraphrase_may_equal_the_report() -> None:
    assert parse_candidate(f"[Candidate]: {REPORT}", REPORT) == REPORT
