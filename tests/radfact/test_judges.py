"""Custom judges, named as Python objects, the mock judge, and judges checked against labeled judgments."""

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import yaml
from chat_server import Reply, last
from error_checks import raises, raises_code
from hypothesis import given, settings
from hypothesis import strategies as st

from radfact.errors import ErrorCode
from radfact.judges import CallableJudge, EntailmentQuery, Failure, Judge, MockJudge, Verdict, load_judge
from radfact.judges.check import Agreement, check_judge, confusion_accuracy, load_labeled_queries
from radfact.judges.prompt import Example

PREMISES = ("The heart is enlarged.", "No pneumothorax.")
QUERY = EntailmentQuery(PREMISES, "Enlarged heart.")
CHECK: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("judge_check.yaml").read_text("utf-8"))
ODD_VALUES = (None, 1, np.int64(1), np.float64(0.9), "yes", (True,), (True, 0), (np.True_, np.array([0.0])))
ODD_PARTS: Sequence[Any] = tuple(map(tuple, CHECK["odd parts"]))
ODD_RELATIONS = (Verdict("entailment", (0,), relation="neutral"), Verdict("not_entailment", relation="entailment"))
SENTENCES = ("First.", "Second.", "Third.")
SET = [
    Example(SENTENCES, hypothesis, tuple(SENTENCES[index] for index in evidence), label, topic)
    for hypothesis, (label, evidence, topic, _) in CHECK["queries"].items()
]


@pytest.mark.parametrize(
    ("opinion", "verdict"),
    [
        (True, Verdict("entailment", (0, 1))),
        (False, Verdict("not_entailment")),
        ((True, [1]), Verdict("entailment", (1,))),
        (("entailment", (0,)), Verdict("entailment", (0,))),
        (("not_entailment", [0]), Verdict("not_entailment", (0,))),
        (Verdict("entailment", (0,), "because"), Verdict("entailment", (0,), "because")),
        ((True, [np.int64(1)]), Verdict("entailment", (1,))),
        (Verdict("entailment", cast("Any", (np.int64(1),))), Verdict("entailment", (1,))),
        (Verdict("entailment", cast("Any", np.array([1]))), Verdict("entailment", (1,))),
        (np.True_, Verdict("entailment", (0, 1))),
        (np.array(True), Verdict("entailment", (0, 1))),
        ((np.True_, np.array([0])), Verdict("entailment", (0,))),
    ],
)
def test_return_values_become_verdicts(opinion: Any, verdict: Verdict) -> None:
    assert CallableJudge(lambda *_: opinion).judge([QUERY]) == [verdict]


@pytest.mark.parametrize(
    "opinion",
    [*ODD_VALUES, *ODD_PARTS, *(Verdict(*parts) for parts in ODD_PARTS), *ODD_RELATIONS],
)
def test_an_invalid_return_value_stops_the_run(opinion: Any) -> None:
    async def judge(*_: Any) -> bool:
        return True

    functions: tuple[Any, ...] = (lambda *_: opinion, judge)
    for function in functions:
        with raises_code(ErrorCode.INVALID_PLUGIN):
            CallableJudge(function).judge([QUERY])


@pytest.mark.parametrize(("parameters", "arguments"), CHECK["parameters"].items())
def test_a_judge_is_called_by_the_names_of_its_parameters_or_refused(parameters: str, arguments: str | None) -> None:
    seen: list[Any] = []
    function = eval(f"lambda {parameters}: seen.append(({arguments})) or True", {"seen": seen})
    if arguments is None:
        names = ", ".join(inspect.signature(function).parameters)
        with raises_code(ErrorCode.INVALID_PLUGIN, match=rf"and hypothesis, found \({names}\)$", field="judge"):
            CallableJudge(function)
    else:
        assert CallableJudge(function).judge([QUERY]) == [Verdict("entailment", (0, 1))]
        assert seen == [(PREMISES, QUERY.hypothesis)]


@settings(deadline=None)
@given(st.lists(st.sampled_from([True, False, ValueError("odd"), OSError("gone")]), max_size=6))
def test_verdicts_keep_their_order_and_an_exception_fails_its_query_only(opinions: list[bool | Exception]) -> None:
    # A programming error in the first query would stop the run.
    opinions = [*opinions, True, TypeError("one of them has no text"), False]

    def judge(_: Sequence[str], hypothesis: str) -> bool:
        opinion = opinions[int(hypothesis)]
        if isinstance(opinion, Exception):
            raise opinion
        return opinion

    answers = CallableJudge(judge).judge([EntailmentQuery(PREMISES, str(index)) for index in range(len(opinions))])
    statuses = [None if isinstance(answer, Failure) else answer.status == "entailment" for answer in answers]
    assert statuses == [None if isinstance(opinion, Exception) else opinion for opinion in opinions]


def test_results_record_the_source_of_the_function() -> None:
    first = CallableJudge(lambda *_: True, "mine")
    second = CallableJudge(lambda *_: False, "mine")
    assert isinstance(first, Judge)
    json.dumps(first.describe(), allow_nan=False)
    assert first.describe()["source_sha256"] != second.describe()["source_sha256"]


def entail_verbatim(*, hypothesis: str, premises: Sequence[str]) -> tuple[bool, list[int]]:
    return hypothesis in premises, [index for index, premise in enumerate(premises) if premise == hypothesis]


ready = CallableJudge(entail_verbatim, "ready")


def make_judge(name: str = "made") -> CallableJudge:
    return CallableJudge(entail_verbatim, name)


class Strict(CallableJudge):
    judge_of_a_class = ready

    def __init__(self, level: int = 1) -> None:
        super().__init__(entail_verbatim, f"strict {level}")


def fail() -> None:
    raise OSError("no weights here")


@pytest.mark.parametrize(
    ("attribute", "judge_args", "name"),
    [
        ("entail_verbatim", {}, f"python:{__name__}:entail_verbatim"),
        ("ready", {}, "ready"),
        ("make_judge", {}, "made"),
        ("Strict", {}, "strict 1"),
        ("Strict", {"level": "3"}, "strict 3"),
        ("Strict.judge_of_a_class", {}, "ready"),
    ],
)
def test_an_object_of_a_module_is_a_judge(attribute: str, judge_args: dict[str, str], name: str) -> None:
    judge = load_judge(f"python:{__name__}:{attribute}", judge_args=judge_args)
    assert judge.name == name
    assert judge.judge([EntailmentQuery(PREMISES, PREMISES[1])]) == [Verdict("entailment", (1,))]


def test_a_module_that_cannot_be_imported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "judges_half_done.py").write_text("x = undefined_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    with raises("judge: invalid-plugin"):
        load_judge("python:judges_half_done:x")


@pytest.mark.parametrize(
    ("verdicts", "verdict"),
    [
        (None, Verdict("not_entailment")),
        (True, Verdict("entailment", (0, 1))),
        ({QUERY.hypothesis: (True, [0])}, Verdict("entailment", (0,))),
        ({}, Verdict("not_entailment")),
        (lambda premises, _: (True, [len(premises) - 1]), Verdict("entailment", (1,))),
    ],
)
def test_a_mock_judge_returns_the_given_verdicts(verdicts: Any, verdict: Verdict) -> None:
    assert MockJudge(verdicts).judge([QUERY]) == [verdict]


def test_a_mock_judge_entails_verbatim_sentences() -> None:
    judge = load_judge("mock")
    assert judge.judge([EntailmentQuery(PREMISES, "no pneumothorax")]) == [Verdict("entailment", (1,))]
    assert judge.name == judge.describe()["name"] == "mock"


def judge_as_stated(_: Sequence[str], hypothesis: str) -> Verdict:
    status, evidence, relation = CHECK["queries"][hypothesis][3]
    return Verdict(status, tuple(evidence), relation=relation)


def test_scores_and_confusion_matrices_follow_from_the_verdicts() -> None:
    checked = check_judge(CallableJudge(judge_as_stated, "mine"), SET)
    # By hand: two of three judged as entailed are entailed, two of three entailed are judged so; 4 of 7 are correct.
    # Evidence of a and b: two indices in common, three named, three labeled.
    share = pytest.approx(2 / 3)
    assert {name: getattr(checked, name) for name in CHECK["expected"]} == CHECK["expected"]
    assert checked.accuracy == pytest.approx(4 / 7)
    assert (checked.precision, checked.recall, checked.f1, checked.evidence_f1) == (share, share, share, share)
    assert confusion_accuracy(checked.confusion) == checked.accuracy
    # With the failure as the wrong verdict, four are judged as entailed: (28 - 24) / (49 - 24).
    assert checked.kappa == pytest.approx(4 / 25)
    # All queries are about one report, of which there is no interval.
    assert set(checked.intervals.values()) == {None}


def test_a_score_without_a_denominator_is_missing() -> None:
    checked = check_judge(CallableJudge(lambda *_: False), SET)
    assert (checked.precision, checked.recall, checked.f1, checked.evidence_f1) == (None, 0, None, None)
    with raises_code(ErrorCode.EMPTY_INPUT):
        check_judge(CallableJudge(lambda *_: False), [])


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
