"""GREEN: its prompt to the letter, all its scores from one response, and NaN without a valid response."""

import hashlib
import json
from collections.abc import Callable

import pytest
from chat_server import ChatServer, last
from green_responses import GreenResponse, responses
from hypothesis import given

from radfact.llm import load_chat_client, mock_client
from radfact.metrics.llm.green import Green, green_score
from radfact.metrics.llm.llm_metric import load_prompt
from radfact.metrics.llm.responses.assessment import parse_assessment
from radfact.metrics.protocol import score_pairs
from radfact.records import Pair, Sentence, TextPair

RESPONSE = GreenResponse(
    (("An effusion",), ("Cardiomegaly", "A nodule"), (), (), (), ()),
    ((), (), ("The tube is higher",), (), (), ()),
    ("No pneumothorax", "Clear lungs", "Intact bones"),
)
TEXT = RESPONSE.text()
PAIRS = [TextPair("one", "Small effusion.", "Cardiomegaly. Nodule."), TextPair("two", "Clear lungs.", "Clear lungs.")]


def test_the_prompt_is_the_one_that_the_published_models_know() -> None:
    prompt = load_prompt("green")
    assert len(prompt) == 1866
    digest = "62ff3675597dd0994584f5b08cd33076bc5d74c72de27cf0124b0a9dac8aad0f"
    assert hashlib.sha256(prompt.encode()).hexdigest() == digest


def test_the_prompt_is_the_only_message_and_holds_whole_reports(serve: Callable[..., ChatServer]) -> None:
    server = serve(lambda *_: (200, {}, TEXT))
    long = " ".join(f"Finding {number}." for number in range(1000))
    grounded = [Sentence(text="Small effusion."), Sentence(text="No {reference}.")]
    metric = Green(load_chat_client("openai:m", base_url=server.base_url, parameters=Green.parameters))
    score_pairs(metric, [Pair("one", grounded, long)])
    body = server.requests[0]
    assert (body["temperature"], body["max_tokens"]) == (0, 2048)
    assert [message["role"] for message in body["messages"]] == ["user"]
    before, after = load_prompt("green").split("{reference}")
    middle, after = after.split("{candidate}")
    assert last(body) == f"{before}{long}{middle}Small effusion. No {{reference}}.{after}"


def test_all_scores_come_from_one_response() -> None:
    metric = Green(mock_client(TEXT))
    result = score_pairs(metric, PAIRS)
    assert list(result.values) == list(metric.scores)
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
    assert {name: result.values[name] for name in expected} == {name: [value] * 2 for name, value in expected.items()}
    assert result.usage["calls"] == 2
    assert not result.failures
    assert result.details[0]["significant"]["b"] == {"count": 2, "errors": ["Cardiomegaly", "A nodule"]}
    json.dumps(result.details, allow_nan=False)
    assert metric.score([TextPair("three", "Edema.", "Edema.")]).usage["calls"] == 1


@pytest.mark.parametrize(("matched", "significant", "score"), [(0, 0, 0.0), (0, 3, 0.0), (4, 0, 1.0), (1, 1, 0.5)])
def test_the_score_is_0_if_nothing_matches(matched: int, significant: int, score: float) -> None:
    assert green_score(matched, significant) == score


@given(responses)
def test_scores_are_shares_and_f1_is_never_below_green(response: GreenResponse) -> None:
    scores = Green.compute_scores(Green.__new__(Green), parse_assessment(response.text()))
    assert 0 <= scores["green_weighted"] <= scores["green"] <= scores["green_f1"] <= 1
    by_category = [value for name, value in scores.items() if name[-2:-1] == "_"]
    assert sum(by_category) == scores["green_ec"] == scores["green_significant"] + scores["green_insignificant"]
