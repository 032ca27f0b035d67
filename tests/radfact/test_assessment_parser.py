"""Properties of the parser of GREEN's and VERT's notation; `responses.yaml` has forms of responses."""

from __future__ import annotations

from contextlib import suppress

import pytest
from green_responses import Counts, Explanations, GreenResponse, edited, published_counts, responses
from hypothesis import given, settings
from hypothesis import strategies as st

from radfact.error_categories import ERROR_CATEGORIES
from radfact.metrics.llm.responses.accuracy_score import parse_accuracy_score
from radfact.metrics.llm.responses.assessment import Assessment, parse_assessment

EDITS = {
    "none": [],
    "no full stops": [[r"(\n|: )(\d)\.(?=\s)", r"\1\2"]],
    "bold headers": [[r"\[(.*?)\]:", r"**\1:**"]],
    "lower-case headers": [["Clinically Significant Errors", "clinically significant errors"]],
    "blank lines": [["\n", "\n\n"]],
    "stars": [[r"\n\(", "\n* ("]],
}


def counts(assessment: Assessment) -> Counts:
    significant, insignificant = (
        tuple(category.count for category in errors.values())
        for errors in (assessment.significant, assessment.insignificant)
    )
    return significant, insignificant, assessment.matched.count


@settings(deadline=None, max_examples=150)
@given(responses)
def test_well_formed_responses_have_the_published_counts(response: GreenResponse) -> None:
    assessment = parse_assessment(response.text())
    assert counts(assessment) == published_counts(response.text()) == response.counts
    assert assessment.matched.findings == response.findings
    assert tuple(category.errors for category in assessment.significant.values()) == response.significant


def fields(response: GreenResponse, count: str = "Count") -> str:
    """A response whose categories and findings are lists of fields, with the items one level deeper."""

    def format_fields(items: tuple[str, ...], key: str) -> str:
        if not items:
            return f"\n  - {count}: 0\n  - {key}: None"
        return f"\n  - {count}: {len(items)}\n  - {key}:" + "".join(f"\n    - {item}" for item in items)

    def section(errors: Explanations) -> str:
        categories = zip(ERROR_CATEGORIES.items(), errors, strict=True)
        return "\n".join(
            f"- **({letter}) {name}:**{format_fields(items, 'Errors')}" for (letter, name), items in categories
        )

    return (
        f"## Clinically Significant Errors\n{section(response.significant)}\n\n"
        f"## Clinically Insignificant Errors\n{section(response.insignificant)}\n\n"
        f"## Matched Findings{format_fields(response.findings, 'Findings')}\n"
    )


@settings(deadline=None, max_examples=150)
@given(responses, st.sampled_from(["Count", "Number of errors", "Total", "count", "Error count", *EDITS]))
def test_any_response_is_parsed_in_these_forms(response: GreenResponse, form: str) -> None:
    text = edited(response.text(), EDITS[form]) if form in EDITS else fields(response, form)
    assert counts(parse_assessment(text)) == response.counts


@settings(deadline=None, max_examples=80)
@given(st.lists(st.sampled_from(["Heart", "Lungs are clear", "No effusion"]), min_size=1), st.integers(4, 7))
def test_only_the_first_level_of_a_list_counts(items: list[str], depth: int) -> None:
    deeper = "\n" + " " * depth + "- "
    listed = "".join(f"\n  - {item}{deeper}reference: one{deeper}candidate: other" for item in items)
    text = GreenResponse(((),) * 6, ((),) * 6, ()).text().replace("Findings]:\n0.", f"Findings]:\n{listed}")
    assert parse_assessment(text).matched.count == len(items)


@settings(deadline=None, max_examples=120)
@given(responses, st.data())
def test_a_response_that_is_cut_off_is_parsed_right_or_not_at_all(response: GreenResponse, data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([response.text(), fields(response)]))
    with suppress(ValueError):
        assert counts(parse_assessment(text[: data.draw(st.integers(0, len(text)))])) == response.counts


@settings(deadline=None, max_examples=120)
@given(
    st.text(max_size=200) | responses.flatmap(lambda response: st.permutations(response.text().split()).map(" ".join))
)
def test_any_text_has_counts_in_range_or_is_refused(text: str) -> None:
    with suppress(ValueError):
        significant, insignificant, matched = counts(parse_assessment(text))
        assert all(0 <= count <= 99 for count in (*significant, *insignificant, matched))


@settings(deadline=None, max_examples=80)
@given(
    st.integers(0, 9),
    st.sampled_from([" error", " errors", " significant error, so 0.85", " finding. 0.85", ". Missing"]),
)
def test_a_count_is_not_a_score(number: int, what: str) -> None:
    with pytest.raises(ValueError, match="has no number from"):
        parse_accuracy_score(f"{number}{what}")
