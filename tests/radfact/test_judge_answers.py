"""Answers of models read as verdicts: strictly on meaning, leniently on form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radfact.entailment import Verdict
from radfact.entailment.answer import parse_answer
from radfact.entailment.prompt import Example, few_shot_messages

PREMISES = ("The heart is enlarged.", "Small left pleural effusion.", "No pneumothorax.")
HYPOTHESES = ("Enlarged heart.", "Left effusion.", "Rib fracture.")


def answer(text: str) -> Verdict:
    return parse_answer(text, PREMISES)[0]


@pytest.mark.parametrize(
    "text",
    [
        "phrase: x\nevidence:\n- The heart is enlarged.\nstatus: entailment",
        "```yaml\nphrase: x\nevidence:\n- The heart is enlarged.\nstatus: entailment\n```",
        "Here it is:\n```\nevidence:\n- The heart is enlarged.\nstatus: entailment\n```\nHope that helps.",
        '{"phrase": "x", "evidence": ["The heart is enlarged."], "status": "entailment"}',
        "phrase: Heart: enlarged: yes\nevidence:\n- The heart is enlarged.\nstatus: entailment",
        "phrase: x\nevidence: The heart is enlarged.\nstatus: entailment",
        'phrase: x\nevidence:\n  - "the heart is  enlarged"\nstatus: Entailment',
        "phrase: x\nevidence:\n- THE HEART IS ENLARGED!\nstatus: entailment",
        "phrase: x\nevidence:\n- heart is enlarged\nstatus: entailment",
        "phrase: Yes\nevidence:\n- The heart is enlarged.\nstatus: Yes",
        "phrase: x\nevidence:\n- The heart is enlarged.\nstatus: True",
    ],
    ids=["yaml", "fence", "talk", "json", "colon", "scalar", "quoted", "case", "part", "yes", "true"],
)
def test_one_meaning_in_many_forms(text: str) -> None:
    assert answer(text) == Verdict("entailment", (0,))


@pytest.mark.parametrize(
    "text",
    [
        "phrase: x\nevidence: []\nstatus: not_entailment",
        "phrase: x\nevidence: null\nstatus: not_entailment",
        "phrase: x\nevidence:\nstatus: not entailment",
        "phrase: No\nevidence: none\nstatus: No",
        "phrase: x: y: z\nevidence: []\nstatus: neutral",
        "not_entailment",
        "No",
    ],
)
def test_not_entailed_in_many_forms(text: str) -> None:
    assert answer(text) == Verdict("not_entailment")


def test_a_contradiction_keeps_its_evidence() -> None:
    assert answer("evidence:\n- No pneumothorax.\nstatus: contradiction") == Verdict("not_entailment", (2,))


def test_a_colon_inside_evidence_does_not_break_the_answer() -> None:
    verdict, _ = parse_answer(
        "phrase: Lungs clear\nevidence:\n- Lungs: clear.\nstatus: entailment", ("Heart: big.", "Lungs: clear.")
    )
    assert verdict == Verdict("entailment", (1,))


def test_evidence_that_is_no_premise_is_dropped_and_counted() -> None:
    text = "evidence:\n- The heart is enlarged.\n- Fracture of the sixth rib.\nstatus: entailment"
    assert parse_answer(text, PREMISES) == (Verdict("entailment", (0,)), 1)


@pytest.mark.parametrize(
    "text",
    [
        "evidence:\n- Fracture of the sixth rib.\nstatus: entailment",
        "evidence: []\nstatus: entailment",
        "Yes",
        "evidence:\n- The heart is enlarged.\nstatus: maybe",
        "evidence:\n- The heart is enlarged.",
        "",
    ],
)
def test_meaningless_answers_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"status|evidence"):
        answer(text)


def test_evidence_that_stands_twice_is_its_first_occurrence() -> None:
    verdict, _ = parse_answer("evidence:\n- A b.\nstatus: entailment", ("C d.", "A b.", "A b."))
    assert verdict.evidence == (1,)


@pytest.mark.parametrize(("quoted", "found"), [("Small left pleural fluid", True), ("left-sided collapse", False)])
def test_long_common_substrings_count_as_quotation(quoted: str, found: bool) -> None:
    # "small left pleural " is 19 of 24 characters; "left" 4 of 19: above and below the 60 % of the specification.
    text = f"evidence:\n- {quoted}\nstatus: contradiction"
    assert bool(answer(text).evidence) is found


sentences = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=30).map(
    # Words such as "none" mean that there is no evidence, so a sentence needs something of its own.
    lambda text: f"Finding {text} seen"
)


@given(premises=st.lists(sentences, min_size=1, max_size=4, unique=True), data=st.data())
def test_what_the_protocol_writes_it_reads(premises: list[str], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(premises) - 1))
    example = Example(tuple(premises), "x", (premises[index],), "entailment")
    _, _, (_, written) = few_shot_messages([example], "", "yaml", "sentence")
    assert parse_answer(written, premises) == (Verdict("entailment", (index,)), 0)


@given(st.text(max_size=200))
def test_any_text_is_an_answer_or_a_value_error(text: str) -> None:
    try:
        verdict = answer(text)
    except ValueError:
        return
    assert verdict.status == "not_entailment" or verdict.evidence
