"""Custom judges, named as Python objects, and the mock judge."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
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


MODULE = """
from radfact.judges import CallableJudge

def function(premises, hypothesis):
    return hypothesis in premises, [i for i, premise in enumerate(premises) if premise == hypothesis]

judge = CallableJudge(function, "ready")

def factory(name="made"):
    return CallableJudge(function, name)

class Strict(CallableJudge):
    def __init__(self, level: int = 1):
        super().__init__(function, f"strict {level}")

class House:
    judge = judge

def three(a, b, c): ...

def broken():
    raise OSError("no weights here")

def useless():
    return 5

number = 5
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the current directory."""
    name = "judges_of_my_own"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("attribute", "judge_args", "name"),
    [
        ("function", {}, "python:judges_of_my_own:function"),
        ("judge", {}, "ready"),
        ("factory", {}, "made"),
        ("Strict", {}, "strict 1"),
        ("Strict", {"level": "3"}, "strict 3"),
        ("House.judge", {}, "ready"),
    ],
)
def test_an_object_of_the_current_directory_is_a_judge(
    module: str, attribute: str, judge_args: dict[str, str], name: str
) -> None:
    judge = load_judge(f"python:{module}:{attribute}", judge_args=judge_args)
    assert judge.name == name
    assert judge.judge([EntailmentQuery(PREMISES, PREMISES[1])]) == [Verdict("entailment", (1,))]


@pytest.mark.parametrize(
    ("name", "judge_args", "error"),
    [
        ("judges_of_my_own:nothing", {}, "judge: unknown-name"),
        ("no_such_module_here:x", {}, "judge: unknown-name"),
        ("json", {}, "judge: unknown-name"),
        ("", {}, "judge: unknown-name"),
        (":x", {}, "judge: unknown-name"),
        ("judges_of_my_own:number", {}, "judge: invalid-plugin"),
        ("judges_of_my_own:useless", {}, "judge: invalid-plugin"),
        ("judges_of_my_own:three", {}, "judge: invalid-plugin"),
        ("judges_of_my_own:broken", {}, "judge: invalid-plugin"),
        ("judges_half_done:x", {}, "judge: invalid-plugin"),
        ("judges_of_my_own:function", {"level": "3"}, "judge_args.level: invalid-option"),
        ("judges_of_my_own:judge", {"level": "3"}, "judge_args.level: invalid-option"),
        ("judges_of_my_own:Strict", {"depth": "3"}, "judge_args: invalid-option"),
    ],
)
@pytest.mark.usefixtures("module")
def test_an_object_that_is_no_judge_is_refused(name: str, judge_args: dict[str, str], error: str) -> None:
    Path("judges_half_done.py").write_text("x = undefined_name\n")
    with raises(error):
        load_judge(f"python:{name}", judge_args=judge_args)


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
