"""Answers of models read as verdicts: strictly on meaning, leniently on form."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from radfact.judges import Verdict
from radfact.judges.prompt import AnswerFormat, Example, few_shot_messages
from radfact.judges.response import parse_report_response, parse_response
from radfact.llm.response_text import strip_reasoning
from radfact.records import normalize_text

PREMISES = ("The heart is enlarged.", "Small left pleural effusion.", "No pneumothorax.")
HYPOTHESES = ("Enlarged heart.", "Left effusion.", "Rib fracture.")


def answer(text: str) -> Verdict:
    return parse_response(text, PREMISES)[0]


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
        '{"phrase": "x", "evidence": ["The heart is enlarged.",], "status": "entailment",}',
        '{"phrase": "x", "evidence": ["The heart is enlarged."], "status": true}',
        'phrase: Heart: big\nevidence: ["The heart is enlarged."]\nstatus: entailment',
        '{\n"phrase": "a "big" heart",\n"evidence": [\n"The heart is enlarged."\n],\n"status": "entailment"\n}',
        "**phrase:** x: y\n**evidence:**\n* The heart is enlarged.\n**status:** **entailment**",
        "<think>\nstatus: not_entailment?\n</think>\nevidence:\n- The heart is enlarged.\nstatus: entailment",
        "Heart: see below.\n\nevidence:\n- The heart\n  is enlarged.\nstatus: entailment\n\nNote: it says so.",
        "- phrase: x\n  evidence:\n  - The heart is enlarged.\n  status: entailment",
        "evidence:\n- The heart is enlarged.\nstatus: entailment\nphrase: y\nevidence: []\nstatus: not_entailment",
        "phrase: a: b\nevidence:\n- The heart is enlarged.\nstatus: entailment\n-----\nphrase: y\nevidence: []\n"
        "status: neutral",
        "```yaml\nevidence:\n- The heart is enlarged.\nstatus: entailment",
    ],
)
def test_forms_of_one_response(text: str) -> None:
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
def test_forms_of_not_entailed(text: str) -> None:
    assert replace(answer(text), relation=None) == Verdict("not_entailment")


@pytest.mark.parametrize(
    ("status", "relation"),
    [("neutral", "neutral"), ("Contradiction", "contradiction"), ("contradicted", "contradiction"), ("no", None)],
)
def test_a_status_of_three_tells_the_relation(status: str, relation: str | None) -> None:
    assert answer(f"phrase: x\nevidence: []\nstatus: {status}") == Verdict("not_entailment", relation=relation)  # type: ignore[arg-type]


def test_a_contradiction_has_its_evidence() -> None:
    assert answer("evidence:\n- No pneumothorax.\nstatus: contradiction") == Verdict(
        "not_entailment", (2,), relation="contradiction"
    )


def test_evidence_may_contain_a_colon() -> None:
    verdict, _ = parse_response(
        "phrase: Lungs clear\nevidence:\n- Lungs: clear.\nstatus: entailment", ("Heart: big.", "Lungs: clear.")
    )
    assert verdict == Verdict("entailment", (1,))


def test_evidence_outside_the_premises_is_dropped_and_counted() -> None:
    text = "evidence:\n- The heart is enlarged.\n- Fracture of the sixth rib.\nstatus: entailment"
    assert parse_response(text, PREMISES) == (Verdict("entailment", (0,)), 1)


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
def test_invalid_responses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"status|evidence"):
        answer(text)


def test_duplicate_evidence_means_its_first_occurrence() -> None:
    verdict, _ = parse_response("evidence:\n- A b.\nstatus: entailment", ("C d.", "A b.", "A b."))
    assert verdict.evidence == (1,)


@pytest.mark.parametrize(("quoted", "is_quoted"), [("Small left pleural fluid", True), ("left-sided collapse", False)])
def test_long_common_substrings_count_as_quotation(quoted: str, is_quoted: bool) -> None:
    # "small left pleural " is 19 of 24 characters; "left" 4 of 19: above and below the 60 % of the specification.
    text = f"evidence:\n- {quoted}\nstatus: contradiction"
    assert bool(answer(text).evidence) is is_quoted


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


@pytest.mark.parametrize(
    ("before", "after"),
    [("<think>", "</think>"), ("", "</think>"), ("[THINK]", "[/THINK]"), ("analysis", "assistantfinal")],
)
def test_a_verdict_within_reasoning_text_is_ignored(before: str, after: str) -> None:
    thought = f"{before}Perhaps\nevidence: []\nstatus: not_entailment"
    assert answer(f"{thought}{after}evidence:\n- The heart is enlarged.\nstatus: entailment").status == "entailment"
    if before:
        with pytest.raises(ValueError, match="status"):
            answer(thought)


@settings(deadline=None)
@given(st.text(max_size=200) | st.text(alphabet="-:[]{}\"'`,\n ex0statusevidencephrase", max_size=300))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        verdict = answer(text)
    except ValueError:
        return
    assert verdict.status == "not_entailment" or verdict.evidence


@pytest.mark.parametrize("text", ["[" * 20_000, "{" * 20_000, "- " * 20_000, "&a [" * 500, "```\n" * 5_000])
def test_a_long_invalid_response_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="status"):
        answer(text)


def test_evidence_may_look_like_a_key() -> None:
    premises = ("Status: after sternotomy.", "No effusion.")
    text = "phrase: Wires: seen\nevidence:\n- Status: after sternotomy.\nstatus: entailment"
    assert parse_response(text, premises)[0] == Verdict("entailment", (0,))


def items(*answers: tuple[int | None, str, str]) -> str:
    """An answer to a report, in YAML, from (number, phrase, status); every item quotes the first premise."""
    rows = [
        {"number": number, "phrase": phrase, "evidence": [PREMISES[0]], "status": status}
        for number, phrase, status in answers
    ]
    return yaml.safe_dump({"answers": rows}, sort_keys=False)


RIGHT = (
    (1, HYPOTHESES[0], "entailment"),
    (2, HYPOTHESES[1], "not_entailment"),
    (3, HYPOTHESES[2], "contradiction"),
)


def statuses(text: str) -> dict[int, str]:
    verdicts = parse_report_response(text, PREMISES, HYPOTHESES).verdicts
    return {index: verdict.status for index, (verdict, _) in sorted(verdicts.items())}


ALL = {0: "entailment", 1: "not_entailment", 2: "not_entailment"}


@pytest.mark.parametrize(
    "text",
    [
        items(*RIGHT),
        "```yaml\n" + items(*RIGHT) + "```",
        items(*RIGHT).replace("phrase: Left effusion.", "phrase: Left: effusion."),
        json.dumps(yaml.safe_load(items(*RIGHT))),
        json.dumps(yaml.safe_load(items(*RIGHT))["answers"]),
        json.dumps({str(row.pop("number")): row for row in yaml.safe_load(items(*RIGHT))["answers"]}),
        items(*reversed(RIGHT)),
        items(*((None, phrase, status) for _, phrase, status in RIGHT)),
        items(*((number, "said in other words", status) for number, _, status in RIGHT)),
        items(*RIGHT, RIGHT[0]),
    ],
    ids=["yaml", "fence", "colon", "json", "bare list", "by number", "backwards", "unnumbered", "reworded", "twice"],
)
def test_forms_of_a_response_for_a_report(text: str) -> None:
    assert statuses(text) == ALL


@pytest.mark.parametrize(
    ("text", "left", "fault"),
    [
        (items(*RIGHT[:2]), {0, 1}, "no answer to number 3"),
        (
            items(RIGHT[0], (2, HYPOTHESES[2], "neutral"), RIGHT[2]),
            {0, 2},
            "number 2 quotes the hypothesis of number 3",
        ),
        (items(*RIGHT, (1, HYPOTHESES[0], "neutral")), {1, 2}, "number 1 is answered twice"),
        (items(*RIGHT, (7, "Goitre.", "neutral")), {0, 1, 2}, "number 7 belongs to none of the 3 hypotheses"),
        (items((None, "Goitre.", "neutral"), *RIGHT[1:]), {1, 2}, "no answer to number 1"),
        (items(RIGHT[0], (2, HYPOTHESES[1], "perhaps"), RIGHT[2]), {0, 2}, "number 2: status must be"),
        ("I cannot say.", set(), "no answer to number 1, 2, 3"),
        ("", set(), "no answer to number 1, 2, 3"),
    ],
)
def test_invalid_parts_of_a_response_for_a_report_are_named(text: str, left: set[int], fault: str) -> None:
    read = parse_report_response(text, PREMISES, HYPOTHESES)
    assert (set(read.verdicts), fault in "; ".join(read.problems)) == (left, True)


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
@given(st.text(max_size=200) | st.text(alphabet="-:[]{}\"'\n answersnumber12phrase", max_size=300))
def test_any_response_for_a_report_is_parsed_or_refused(text: str) -> None:
    read = parse_report_response(text, PREMISES, HYPOTHESES)
    assert len(read.verdicts) == 3 or read.problems
