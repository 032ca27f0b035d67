"""Properties of the parser of verdicts; `responses.yaml` has forms of responses."""

from __future__ import annotations

from contextlib import suppress
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radfact.judges import Verdict
from radfact.judges.prompt import AnswerFormat, Example, few_shot_messages
from radfact.judges.response import parse_report_response, parse_response
from radfact.llm.response_text import strip_reasoning
from radfact.records import normalize_text

PREMISES = ("The heart is enlarged.", "Small left pleural effusion.", "No pneumothorax.")
HYPOTHESES = ("Enlarged heart.", "Left effusion.", "Rib fracture.")


sentences = (
    st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=30)
    .map(
        # Words such as "none" mean that there is no evidence, so a sentence needs other words, too.
        lambda text: f"Finding {text} seen"
    )
    .filter(lambda text: strip_reasoning(text) == text)
)


@settings(deadline=None)
@given(premises=st.lists(sentences, min_size=1, max_size=4, unique=True), data=st.data())
def test_formatted_responses_are_parsed(premises: list[str], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(premises) - 1))
    example = Example(tuple(premises), "x", (premises[index],), "entailment")
    _, _, (_, written) = few_shot_messages([example], "", "yaml", "sentence")
    assert parse_response(written, premises) == (Verdict("entailment", (index,)), 0)


@pytest.mark.parametrize("mark", ["<think>", "```"])
def test_quotation_marks_of_a_candidate_are_part_of_it(mark: str) -> None:
    premises = (f"Clear {mark} lungs.", "No effusion.")
    example = Example(premises, "x", premises[:1], "entailment")
    _, _, (_, written) = few_shot_messages([example], "", "yaml", "sentence")
    assert parse_response(written, premises) == (Verdict("entailment", (0,)), 0)


@settings(deadline=None)
@given(premises=st.lists(sentences, min_size=1, max_size=4, unique=True), data=st.data())
def test_formatted_responses_for_a_report_are_parsed(premises: list[str], data: st.DataObject) -> None:
    phrases = data.draw(st.lists(sentences, min_size=1, max_size=5, unique_by=normalize_text))
    named = [data.draw(st.sets(st.sampled_from(premises))) for _ in phrases]
    examples = [
        Example(tuple(premises), phrase, tuple(sorted(texts)), "entailment" if texts else "neutral")
        for phrase, texts in zip(phrases, named, strict=True)
    ]
    answer_format: AnswerFormat = data.draw(st.sampled_from(get_args(AnswerFormat)))
    _, _, (_, written) = few_shot_messages(examples, "", answer_format, "report")
    read = parse_report_response(written, premises, phrases)
    assert read.problems == []
    assert [{premises[i] for i in read.verdicts[n][0].evidence} for n in range(len(phrases))] == named


@settings(deadline=None)
@given(st.text(max_size=200) | st.text(alphabet="-:[]{}\"'`,\n answersnumber12evidencestatusphrase", max_size=300))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with suppress(ValueError):
        verdict, _ = parse_response(text, PREMISES)
        assert verdict.status == "not_entailment" or verdict.evidence
    read = parse_report_response(text, PREMISES, HYPOTHESES)
    assert len(read.verdicts) == 3 or read.problems
