"""Custom judges, named as Python objects, and the mock judge."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from error_checks import raises, raises_code
from hypothesis import given, settings
from hypothesis import strategies as st

from radfact.errors import ErrorCode
from radfact.judges import CallableJudge, EntailmentQuery, Failure, Judge, MockJudge, Verdict, load_judge

PREMISES = ("The heart is enlarged.", "No pneumothorax.")
QUERY = EntailmentQuery(PREMISES, "Enlarged heart.")


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
    ],
)
def test_return_values_become_verdicts(opinion: Any, verdict: Verdict) -> None:
    assert CallableJudge(lambda *_: opinion).judge([QUERY]) == [verdict]


ODD_PARTS: Sequence[Any] = (
    ("maybe", []),
    ("entailment", ["No pneumothorax."]),
    ("entailment", "01"),
    ("entailment", [True]),
    ("entailment", 0),
    ("not_entailment", None),
)
ODD_RELATIONS = (Verdict("entailment", (0,), relation="neutral"), Verdict("not_entailment", relation="entailment"))


@pytest.mark.parametrize(
    "opinion",
    [None, 1, "yes", (True,), (True, 0), *ODD_PARTS, *(Verdict(*parts) for parts in ODD_PARTS), *ODD_RELATIONS],
)
def test_an_invalid_return_value_stops_the_run(opinion: Any) -> None:
    with raises_code(ErrorCode.INVALID_PLUGIN):
        CallableJudge(lambda *_: opinion).judge([QUERY])


async def judge_later(*_: Any) -> bool:
    return True


@pytest.mark.parametrize("function", [judge_later, lambda: True])
def test_a_function_that_fails_on_its_first_query_stops_the_run(function: Any) -> None:
    with raises_code(ErrorCode.INVALID_PLUGIN):
        CallableJudge(function).judge([QUERY])


@settings(deadline=None)
@given(st.lists(st.sampled_from([True, False, ValueError("odd"), OSError("gone")]), max_size=6))
def test_verdicts_keep_the_order_of_the_queries_and_an_exception_fails_its_query_only(
    opinions: list[bool | Exception],
) -> None:
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


def entail_verbatim(premises: Sequence[str], hypothesis: str) -> tuple[bool, list[int]]:
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
