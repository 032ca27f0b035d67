"""Custom judges, named as Python objects, and the mock judge."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from error_checks import raises_code
from hypothesis import given, settings
from hypothesis import strategies as st

from radfact.errors import ErrorCode
from radfact.judges import CallableJudge, EntailmentQuery, Failure, Judge, MockJudge, Verdict, load_judge

PREMISES = ("The heart is enlarged.", "No pneumothorax.")
QUERY = EntailmentQuery(PREMISES, "Enlarged heart.")


def judge_with(opinion: Any) -> Verdict | Failure:
    return CallableJudge(lambda *_: opinion).judge([QUERY])[0]


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
    assert judge_with(opinion) == verdict


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
        judge_with(opinion)


def test_an_async_function_is_refused() -> None:
    async def judge(*_: Any) -> bool:
        return True

    with raises_code(ErrorCode.INVALID_PLUGIN, match="not async"):
        CallableJudge(judge).judge([QUERY])  # type: ignore[arg-type]


def fails_at(place: int, error: Exception) -> Any:
    calls = iter(range(100))

    def judge(premises: Sequence[str], hypothesis: str) -> bool:
        if next(calls) == place:
            raise error
        return bool(premises and hypothesis)

    return judge


def queries(count: int) -> list[EntailmentQuery]:
    return [EntailmentQuery(PREMISES, f"Finding {i}.") for i in range(count)]


@pytest.mark.parametrize(
    ("place", "error"),
    [
        (0, ValueError("odd")),
        (1, RuntimeError("busy")),
        (0, OSError("gone")),
        (1, TypeError("one of them has no text")),
    ],
)
def test_an_exception_fails_its_query_only(place: int, error: Exception) -> None:
    answers = CallableJudge(fails_at(place, error)).judge(queries(3))
    assert [index for index, answer in enumerate(answers) if isinstance(answer, Failure)] == [place]


@settings(deadline=None)
@given(st.lists(st.sampled_from("abc"), max_size=6))
def test_verdicts_keep_the_order_of_the_queries(letters: list[str]) -> None:
    judge = CallableJudge(lambda _, hypothesis: (hypothesis == "a", [0]))
    answers = judge.judge([EntailmentQuery(PREMISES, letter) for letter in letters])
    assert [isinstance(verdict, Verdict) and verdict.status == "entailment" for verdict in answers] == [
        x == "a" for x in letters
    ]


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

def always(premises, hypothesis):
    return True

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
    ("attribute", "name"),
    [
        ("function", "python:judges_of_my_own:function"),
        ("judge", "ready"),
        ("factory", "made"),
        ("Strict", "strict 1"),
        ("House.judge", "ready"),
    ],
)
def test_an_object_of_the_current_directory_is_a_judge(module: str, attribute: str, name: str) -> None:
    judge = load_judge(f"python:{module}:{attribute}")
    assert judge.name == name
    assert judge.judge([EntailmentQuery(PREMISES, PREMISES[1])]) == [Verdict("entailment", (1,))]


def test_arguments_go_to_the_factory(module: str) -> None:
    assert load_judge(f"python:{module}:Strict", judge_args={"level": "3"}).name == "strict 3"


@pytest.mark.parametrize(
    ("name", "judge_args", "code", "field"),
    [
        ("judges_of_my_own:nothing", {}, ErrorCode.UNKNOWN_NAME, "judge"),
        ("no_such_module_here:x", {}, ErrorCode.UNKNOWN_NAME, "judge"),
        ("json", {}, ErrorCode.UNKNOWN_NAME, "judge"),
        ("", {}, ErrorCode.UNKNOWN_NAME, "judge"),
        (":x", {}, ErrorCode.UNKNOWN_NAME, "judge"),
        ("judges_of_my_own:number", {}, ErrorCode.INVALID_PLUGIN, "judge"),
        ("judges_of_my_own:useless", {}, ErrorCode.INVALID_PLUGIN, "judge"),
        ("judges_of_my_own:three", {}, ErrorCode.INVALID_PLUGIN, "judge"),
        ("judges_of_my_own:broken", {}, ErrorCode.INVALID_PLUGIN, "judge"),
        ("judges_half_done:x", {}, ErrorCode.INVALID_PLUGIN, "judge"),
        ("judges_of_my_own:function", {"level": "3"}, ErrorCode.INVALID_OPTION, "judge_args.level"),
        ("judges_of_my_own:judge", {"level": "3"}, ErrorCode.INVALID_OPTION, "judge_args.level"),
        ("judges_of_my_own:Strict", {"depth": "3"}, ErrorCode.INVALID_OPTION, "judge_args"),
    ],
)
@pytest.mark.usefixtures("module")
def test_an_object_that_is_no_judge_is_refused(
    name: str, judge_args: dict[str, str], code: ErrorCode, field: str
) -> None:
    Path("judges_half_done.py").write_text("x = undefined_name\n")
    with raises_code(code, match=r"^[^\n]*$", field=field):
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
    with raises_code(ErrorCode.CONFLICTING_OPTIONS, field="concurrency"):
        load_judge("mock", concurrency=2)
