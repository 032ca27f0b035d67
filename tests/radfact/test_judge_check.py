"""Judges checked against labeled judgments."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from chat_server import Reply, last
from hypothesis import given, settings
from hypothesis import strategies as st

from radfact.errors import ErrorCode, InputError
from radfact.judges import CallableJudge, EntailmentQuery, Verdict, load_judge
from radfact.judges.check import Agreement, Label, LabeledQuery, check_judge, confusion_accuracy, load_labeled_queries
from radfact.judges.prompt import load_few_shots

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
PUBLISHED = SHARED / "data" / "radfact" / "nli_few_shot_examples.json"
PREMISES = ("First.", "Second.", "Third.")


def labeled(hypothesis: str, label: Label, evidence: tuple[int, ...] = (), topic: str | None = None) -> LabeledQuery:
    return LabeledQuery(EntailmentQuery(PREMISES, hypothesis), label, evidence, topic)


SET = [
    labeled("a", "entailment", (0,), "lists"),
    labeled("b", "entailment", (0, 1), "lists"),
    labeled("c", "entailment", (2,)),
    labeled("d", "neutral", (), "devices"),
    labeled("e", "contradiction", (1,)),
    labeled("f", "neutral"),
]
ANSWERS: dict[str, Verdict] = {
    "a": Verdict("entailment", (0,)),
    "b": Verdict("entailment", (1, 2)),
    "c": Verdict("not_entailment"),
    "d": Verdict("entailment", (0,)),
    "e": Verdict("not_entailment", (1,)),
}


def answer(_: Sequence[str], hypothesis: str) -> Verdict:
    if hypothesis not in ANSWERS:
        raise ValueError("no idea")
    return ANSWERS[hypothesis]


CHECKED = check_judge(CallableJudge(answer, "mine"), SET)


def test_the_scores_follow_from_the_counts() -> None:
    # By hand: two of three called entailment are, two of three that are entailed are called so, 3 of 6 right.
    assert (CHECKED.n, CHECKED.failures, CHECKED.accuracy) == (6, 1, pytest.approx(3 / 6))
    assert (CHECKED.precision, CHECKED.recall, CHECKED.f1) == tuple(pytest.approx(2 / 3) for _ in range(3))
    # Evidence of a and b: two indices in common, three named, three labeled.
    assert CHECKED.evidence_f1 == pytest.approx(2 / 3)
    assert CHECKED.agreement is None


def test_confusion_is_by_label_and_by_topic() -> None:
    assert CHECKED.confusion["entailment"] == {"entailment": 2, "not_entailment": 1}
    assert CHECKED.confusion["neutral"] == {"entailment": 1, "failed": 1}
    assert CHECKED.by_topic == {"lists": {"entailment": {"entailment": 2}}, "devices": {"neutral": {"entailment": 1}}}


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["entailment", "neutral", "contradiction"]), st.booleans()), min_size=1))
def test_the_confusion_matrix_has_every_query(cases: list[tuple[Label, bool]]) -> None:
    queries = [labeled(str(i), label, (0,)) for i, (label, _) in enumerate(cases)]
    judge = CallableJudge(lambda _, hypothesis: (cases[int(hypothesis)][1], [0]))
    checked = check_judge(judge, queries)
    assert sum(sum(row.values()) for row in checked.confusion.values()) == len(cases)
    assert confusion_accuracy(checked.confusion) == pytest.approx(checked.accuracy)


def test_precision_without_entailed_verdicts_is_missing() -> None:
    checked = check_judge(CallableJudge(lambda *_: False), SET)
    assert (checked.precision, checked.recall, checked.f1, checked.evidence_f1) == (None, 0, None, None)


def test_no_labeled_judgments_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        check_judge(CallableJudge(answer), [])
    assert caught.value.code is ErrorCode.EMPTY_INPUT


def test_the_default_examples_are_many_and_cover_the_topics() -> None:
    topics = Counter(query.topic for query in load_labeled_queries())
    assert sum(topics.values()) >= 200
    assert len(topics) >= 10
    assert None not in topics


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published few-shot file is not here")
def test_the_published_examples_are_labeled_judgments() -> None:
    read = load_labeled_queries(PUBLISHED)
    assert (len(read), sum(query.is_entailed for query in read)) == (67, 19)
    assert {query.topic for query in read} == {None}


def example(evidence: list[str], **more: Any) -> list[dict[str, Any]]:
    item = {"phrase": "a", "evidence": evidence, "status": "contradiction", **more}
    return [
        {
            "input": {"phrases_A": ["a"], "phrases_B": ["Heart normal.", "Lungs clear."]},
            "output": {"phrases_A_evidenced": [item], "phrases_B_evidenced": []},
        }
    ]


def test_evidence_matches_premises_despite_spelling(tmp_path: Path) -> None:
    path = tmp_path / "labeled.json"
    path.write_text(json.dumps(example(["lungs clear"], topic="devices")))
    assert load_labeled_queries(path) == [
        LabeledQuery(EntailmentQuery(("Heart normal.", "Lungs clear."), "a"), "contradiction", (1,), "devices")
    ]


@pytest.mark.parametrize(
    ("content", "code", "field"),
    [
        (example(["Rib fracture."]), ErrorCode.MISMATCH, None),
        (example([], topic=3), ErrorCode.INVALID_VALUE, "[0].output.phrases_A_evidenced[0].topic"),
        ([{**example([])[0], "development": "no"}], ErrorCode.INVALID_VALUE, "[0].development"),
    ],
)
def test_a_wrong_label_is_refused(tmp_path: Path, content: Any, code: ErrorCode, field: str | None) -> None:
    path = tmp_path / "labeled.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError) as caught:
        load_labeled_queries(path)
    assert (caught.value.code, caught.value.file, caught.value.field) == (code, path, field)


def test_an_entailment_may_have_no_evidence_where_it_is_no_few_shot_example(tmp_path: Path) -> None:
    path = tmp_path / "labeled.json"
    path.write_text(json.dumps(example([], status="entailment")))
    queries = load_labeled_queries(path)
    assert [(query.label, query.evidence) for query in queries] == [("entailment", ())]
    assert check_judge(CallableJudge(lambda *_: (True, [0])), queries).evidence_f1 is None
    with pytest.raises(InputError) as caught:
        load_few_shots(path)
    assert caught.value.field == "[0].output.phrases_A_evidenced[0].evidence"


def test_relations_are_counted_by_label() -> None:
    relations = {"d": "neutral", "e": "contradiction"}
    queries = [*SET, labeled("g", "not_entailment")]
    judge = CallableJudge(
        lambda _, hypothesis: Verdict("not_entailment", relation=relations.get(hypothesis))  # type: ignore[arg-type]
    )
    assert check_judge(judge, queries).relations == {
        "entailment": {"not_entailment": 3},
        "neutral": {"neutral": 1, "not_entailment": 1},
        "contradiction": {"contradiction": 1},
    }


def test_sets_that_were_used_in_development_are_counted_apart(tmp_path: Path) -> None:
    path = tmp_path / "labeled.json"
    examples = [{**example([])[0], "development": used} for used in (True, False)]
    path.write_text(json.dumps([*examples, *example([])]))
    checked = check_judge(CallableJudge(lambda *_: False), load_labeled_queries(path))
    counted = {"contradiction": {"not_entailment": 1}}
    names = ("used in development", "not used in development", "use unknown")
    assert checked.by_set == dict.fromkeys(names, counted)
    assert {query.development for query in load_labeled_queries()} == {True}


def of_two_minds(body: dict[str, Any], _: int) -> Reply:
    """Entail everything in a request for a report and nothing in a request for a sentence."""
    query = yaml.safe_load(last(body))
    if "hypothesis" in query:
        return 200, {}, "evidence: []\nstatus: not_entailment"
    rows = [{"number": n, "evidence": ["First."], "status": "entailment"} for n in query["hypotheses"]]
    return 200, {}, yaml.safe_dump({"answers": rows})


def test_verdicts_by_report_are_compared_with_those_by_sentence(serve: Any) -> None:
    judge = load_judge("openai:m", base_url=serve(of_two_minds).base_url, batch="report")
    checked = check_judge(judge, SET)
    assert checked.agreement == Agreement(n=6, share=0.0, accuracy_report=0.5, accuracy_sentence=0.5)
    assert (checked.calls, checked.tokens_in, checked.tokens_out) == (1, 10, 3)
