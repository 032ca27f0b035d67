"""Judges checked against labeled judgments."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from chat_server import Reply, last
from error_checks import raises_code

from radfact.errors import ErrorCode
from radfact.judges import CallableJudge, Verdict, load_judge
from radfact.judges.check import Agreement, check_judge, confusion_accuracy, load_labeled_queries
from radfact.judges.prompt import Example, Label

PREMISES = ("First.", "Second.", "Third.")


def labeled(hypothesis: str, label: Label, evidence: tuple[int, ...] = (), topic: str | None = None) -> Example:
    return Example(PREMISES, hypothesis, tuple(PREMISES[index] for index in evidence), label, topic)


SET = [
    labeled("a", "entailment", (0,), "lists"),
    labeled("b", "entailment", (0, 1), "lists"),
    labeled("c", "entailment", (2,)),
    labeled("d", "neutral", (), "devices"),
    labeled("e", "contradiction", (1,)),
    labeled("f", "neutral"),
    labeled("g", "not_entailment"),
]
VERDICTS: dict[str, Verdict] = {
    "a": Verdict("entailment", (0,)),
    "b": Verdict("entailment", (1, 2)),
    "c": Verdict("not_entailment"),
    "d": Verdict("entailment", (0,)),
    "e": Verdict("not_entailment", (1,), relation="contradiction"),
    "g": Verdict("not_entailment"),
}


def test_scores_and_confusion_matrices_follow_from_the_verdicts() -> None:
    # The judge fails where it has no verdict.
    checked = check_judge(CallableJudge(lambda _, hypothesis: VERDICTS[hypothesis], "mine"), SET)
    # By hand: two of three judged as entailed are entailed, two of three entailed are judged so; 4 of 7 are correct.
    # Evidence of a and b: two indices in common, three named, three labeled.
    share = pytest.approx(2 / 3)
    assert (checked.n, checked.failures, checked.accuracy) == (7, 1, pytest.approx(4 / 7))
    assert (checked.precision, checked.recall, checked.f1, checked.evidence_f1) == (share, share, share, share)
    assert checked.agreement is None
    assert checked.confusion == {
        "entailment": {"entailment": 2, "not_entailment": 1},
        "neutral": {"entailment": 1, "failed": 1},
        "contradiction": {"not_entailment": 1},
        "not_entailment": {"not_entailment": 1},
    }
    assert confusion_accuracy(checked.confusion) == checked.accuracy
    assert checked.relations == {
        "entailment": {"entailment": 2, "not_entailment": 1},
        "neutral": {"entailment": 1, "failed": 1},
        "contradiction": {"contradiction": 1},
    }
    assert checked.by_topic == {"lists": {"entailment": {"entailment": 2}}, "devices": {"neutral": {"entailment": 1}}}


def test_a_score_without_a_denominator_is_missing() -> None:
    checked = check_judge(CallableJudge(lambda *_: False), SET)
    assert (checked.precision, checked.recall, checked.f1, checked.evidence_f1) == (None, 0, None, None)
    with raises_code(ErrorCode.EMPTY_INPUT):
        check_judge(CallableJudge(lambda *_: False), [])


def test_the_default_examples_are_many_and_cover_the_topics() -> None:
    queries = load_labeled_queries()
    topics = Counter(query.topic for query in queries)
    assert sum(topics.values()) >= 200
    assert len(topics) >= 10
    assert None not in topics
    assert {query.development for query in queries} == {True}


def example(evidence: list[str], status: str = "contradiction") -> dict[str, Any]:
    item = {"phrase": "a", "evidence": evidence, "status": status}
    return {
        "input": {"phrases_A": ["a"], "phrases_B": ["Heart normal.", "Lungs clear."]},
        "output": {"phrases_A_evidenced": [item], "phrases_B_evidenced": []},
    }


def test_an_entailment_may_have_no_evidence_where_it_is_no_few_shot_example(tmp_path: Path) -> None:
    path = tmp_path / "labeled.json"
    path.write_text(json.dumps([example([], "entailment")]))
    assert check_judge(CallableJudge(lambda *_: (True, [0])), load_labeled_queries(path)).evidence_f1 is None


def test_sets_that_were_used_in_development_are_counted_apart(tmp_path: Path) -> None:
    path = tmp_path / "labeled.json"
    examples = [{**example(["lungs clear"]), "development": used} for used in (True, False)]
    path.write_text(json.dumps([*examples, example([])]))
    checked = check_judge(CallableJudge(lambda *_: False), load_labeled_queries(path))
    counted = {"contradiction": {"not_entailment": 1}}
    names = ("used in development", "not used in development", "use unknown")
    assert checked.by_set == dict.fromkeys(names, counted)


def of_two_minds(body: dict[str, Any], _: int) -> Reply:
    """Entail everything in a request for a report and nothing in a request for a sentence."""
    query = yaml.safe_load(last(body))
    if "hypothesis" in query:
        return 200, {}, "evidence: []\nstatus: not_entailment"
    rows = [{"number": n, "evidence": ["First."], "status": "entailment"} for n in query["hypotheses"]]
    return 200, {}, yaml.safe_dump({"answers": rows})


def test_verdicts_by_report_are_compared_with_those_by_sentence(serve: Any) -> None:
    judge = load_judge("openai:m", base_url=serve(of_two_minds).base_url, batch="report")
    checked = check_judge(judge, SET[:6])
    assert checked.agreement == Agreement(n=6, share=0.0, accuracy_report=0.5, accuracy_sentence=0.5)
    assert (checked.calls, checked.tokens_in, checked.tokens_out) == (1, 10, 3)
