"""CheXprompt: numbers of errors and percentages of reports without errors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from chat_server import ChatServer, Reply

from radfact.llm import load_chat_client, mock_client
from radfact.metrics.chexprompt import CheXprompt, parse_error_counts
from radfact.records import TextPair

NONE = dict.fromkeys("abcdef", 0)
RESPONSES: dict[str, Any] = {
    "Wrong.": {"significant errors": NONE | {"a": 2, "c": 1}, "insignificant errors": NONE | {"f": 1}},
    "Nearly right.": {"significant errors": NONE, "insignificant errors": NONE | {"d": 1}},
    "Right.": {"significant errors": NONE, "insignificant errors": NONE},
}


def test_scores_are_counts_and_percentages_of_reports_without_errors() -> None:
    def respond(text: str) -> str:
        candidate = text.rpartition("\n")[2]
        return json.dumps(RESPONSES[candidate]) if candidate in RESPONSES else "I cannot."

    pairs = [TextPair(text, text, "The reference.") for text in (*RESPONSES, "Unclear.")]
    result = CheXprompt(mock_client(respond)).score(pairs)
    assert {name: values[:3] for name, values in result.values.items()} == {
        "chexprompt_errors": [4, 1, 0],
        "chexprompt_significant": [3, 0, 0],
        "chexprompt_error_free": [0, 0, 100],
        "chexprompt_significant_error_free": [0, 100, 100],
    }
    assert all(math.isnan(values[3]) for values in result.values.values())
    assert list(result.failures) == [3]
    assert result.details[0]["significant"]["a"] == 2


def test_servers_that_refuse_schemas_are_sent_the_request_without_one(serve: Callable[..., ChatServer]) -> None:
    def reply(body: dict[str, Any], _: int) -> Reply:
        return (400, {}, "no schemas") if "response_format" in body else (200, {}, json.dumps(RESPONSES["Wrong."]))

    server = serve(reply)
    metric = CheXprompt(load_chat_client("openai:m", base_url=server.base_url))
    assert metric.score([TextPair("1", "Wrong.", "The reference.")]).values["chexprompt_errors"] == [4]
    schema = server.requests[0]["response_format"]["json_schema"]["schema"]
    assert schema["required"] == ["significant errors", "insignificant errors"]


def test_responses_in_text_are_accepted() -> None:
    counts = parse_error_counts(
        "**Significant errors:**\n- (a) False report of a finding in the candidate: 1\n\nInsignificant errors: none"
    )
    assert counts.model_dump() == {"significant": NONE | {"a": 1}, "insignificant": NONE}


@pytest.mark.parametrize(
    "response",
    [
        "3 errors",
        "Significant errors: none\nInsignificant errors:\n(a) False report of a finding: 1.\n(b) Missing",
        '{"significant errors": 3, "insignificant errors": 0}',
        '{"significant errors": {"a": 1}}',
        "{}",
        json.dumps({"significant errors": {"a": 1}, "insignificant errors": NONE}),
        json.dumps({"significant errors": {}, "insignificant errors": NONE}),
        json.dumps({"significant errors": NONE, "insignificant errors": []}),
    ],
)
def test_missing_counts_are_refused(response: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_error_counts(response)
