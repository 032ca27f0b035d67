"""GREEN: its prompt to the letter, all its figures from one answer, and NaN where no answer can be used."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from chat_server import ChatServer, Reply, completion, last
from green_responses import GreenResponse, responses
from hypothesis import given
from hypothesis import strategies as st

from radfact.llm import load_chat_client
from radfact.metrics.green import Green, green_score
from radfact.metrics.llm_metric import fill_prompt, load_prompt
from radfact.metrics.protocol import Metric, score_pairs
from radfact.metrics.responses.assessment import parse_assessment
from radfact.records import Pair, Sentence

ANSWER = GreenResponse(
    (("An effusion",), ("Cardiomegaly", "A nodule"), (), (), (), ()),
    ((), (), ("The tube is higher",), (), (), ()),
    ("No pneumothorax", "Clear lungs", "Intact bones"),
)
PAIRS = [Pair("one", "Small effusion.", "Cardiomegaly. Nodule."), Pair("two", "Clear lungs.", "Clear lungs.")]


def green(server: ChatServer, **options: Any) -> Green:
    return Green(load_chat_client("openai:m", base_url=server.base_url, parameters=Green.parameters, **options))


def test_the_prompt_is_the_one_that_the_published_models_know() -> None:
    prompt = load_prompt("green")
    assert len(prompt) == 1866
    digest = "62ff3675597dd0994584f5b08cd33076bc5d74c72de27cf0124b0a9dac8aad0f"
    assert hashlib.sha256(prompt.encode()).hexdigest() == digest


def test_what_is_sent(serve: Callable[..., ChatServer]) -> None:
    server = serve(lambda *_: (200, {}, ANSWER.text()))
    long = " ".join(f"Finding {number}." for number in range(1000))
    grounded = [Sentence(text="Small effusion."), Sentence(text="No {reference}.")]
    score_pairs(green(server), [Pair("one", grounded, long)])
    body = server.requests[0]
    assert (body["temperature"], body["max_tokens"]) == (0, 2048)
    assert [message["role"] for message in body["messages"]] == ["user"]
    before, after = load_prompt("green").split("{reference}")
    middle, after = after.split("{candidate}")
    assert last(body) == f"{before}{long}{middle}Small effusion. No {{reference}}.{after}"


def test_all_figures_come_from_one_answer(serve: Callable[..., ChatServer]) -> None:
    server = serve(lambda *_: (200, {}, ANSWER.text()))
    metric = green(server)
    assert isinstance(metric, Metric)
    scored = metric.score(PAIRS)
    assert list(scored.values) == list(metric.scores)
    # M = 3, S = 3, I = 1. Source: GREEN, equation 1; VERT, equations 3 to 5.
    expected = {
        "green": 3 / 6,
        "green_f1": 6 / 9,
        "green_weighted": 3 / (3 + 6 + 0.5),
        "green_ec": 4,
        "green_significant": 3,
        "green_insignificant": 1,
        "green_matched": 3,
        "green_significant_a": 1,
        "green_significant_b": 2,
        "green_significant_f": 0,
        "green_insignificant_c": 1,
    }
    assert {name: scored.values[name] for name in expected} == {name: [value] * 2 for name, value in expected.items()}
    assert scored.usage["calls"] == len(server.requests) == 2
    assert not scored.failures
    assert scored.details[0]["significant"]["b"] == {"count": 2, "errors": ["Cardiomegaly", "A nodule"]}
    json.dumps(scored.details, allow_nan=False)


def test_an_unreadable_answer_is_asked_again(serve: Callable[..., ChatServer]) -> None:
    server = serve(lambda _, n: (200, {}, "I cannot." if n == 1 else ANSWER.text()))
    scored = green(server).score(PAIRS[:1])
    assert scored.values["green"] == [0.5]
    assert scored.usage["repairs"] == 1
    assert "Matched Findings" in last(server.requests[1])


def test_an_answer_that_was_cut_off_counts_as_none(serve: Callable[..., ChatServer]) -> None:
    server = serve(lambda _, n: completion(ANSWER.text(), "length") if n == 1 else (200, {}, ANSWER.text()))
    assert green(server).score(PAIRS[:1]).usage["repairs"] == 1


def test_what_stays_unreadable_is_no_number_and_is_counted(serve: Callable[..., ChatServer]) -> None:
    def refuse_the_second(body: dict[str, Any], _: int) -> Reply:
        asked = body["messages"][0]["content"]
        return 200, {}, ANSWER.text() if "Nodule" in asked else "I'm sorry, I cannot assess reports."

    server = serve(refuse_the_second)
    scored = green(server).score(PAIRS)
    assert all(math.isnan(values[1]) and not math.isnan(values[0]) for values in scored.values.values())
    assert list(scored.failures) == [1]
    assert scored.failures[1].startswith("no valid answer after 2 repairs")
    assert scored.usage["failures"] == 1
    assert scored.details[1] == {}


def test_the_account_is_of_these_pairs_alone(serve: Callable[..., ChatServer]) -> None:
    metric = green(serve(lambda *_: (200, {}, ANSWER.text())))
    metric.score(PAIRS[:1])
    assert metric.score(PAIRS[1:]).usage["calls"] == 1


def test_a_run_taken_up_again_asks_nothing(serve: Callable[..., ChatServer], tmp_path: Any) -> None:
    server = serve(lambda *_: (200, {}, ANSWER.text()))
    first = green(server, cache=tmp_path).score(PAIRS)
    assert green(server, cache=tmp_path).score(PAIRS).values == first.values
    assert len(server.requests) == 2


@pytest.mark.parametrize(("matched", "significant", "score"), [(0, 0, 0.0), (0, 3, 0.0), (4, 0, 1.0), (1, 1, 0.5)])
def test_the_score_is_0_where_nothing_matches(matched: int, significant: int, score: float) -> None:
    assert green_score(matched, significant) == score


@given(responses)
def test_scores_are_shares_and_f1_is_never_below_green(answer: GreenResponse) -> None:
    read = Green.compute_scores(Green.__new__(Green), parse_assessment(answer.text()))
    assert 0 <= read["green_weighted"] <= read["green"] <= read["green_f1"] <= 1
    letters = [value for name, value in read.items() if name[-2:-1] == "_"]
    assert sum(letters) == read["green_ec"] == read["green_significant"] + read["green_insignificant"]


@given(st.text(), st.text())
def test_braces_in_reports_stay_as_they_are(first: str, second: str) -> None:
    assert fill_prompt("<{a}|{b}|{c}|{}>", a=first, b=second) == f"<{first}|{second}|{{c}}|{{}}>"
