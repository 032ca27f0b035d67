"""The mock chat model, and structured responses with free text as the fallback."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from error_checks import raises
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from llm_client import http_client
from pydantic import BaseModel, ConfigDict

from radfact.errors import Failure
from radfact.llm import (
    ChatClient,
    ChatRequest,
    Message,
    MockChatModel,
    load_chat_client,
    mock_client,
    structured_request,
)
from radfact.llm.langchain import LangChainBackend


class Count(BaseModel):
    model_config = ConfigDict(extra="forbid")
    errors: int


def request(text: str = "How many errors?") -> ChatRequest[int]:
    return structured_request((("user", text),), Count, lambda response: response.errors, int)


def text_request(text: str) -> ChatRequest[str]:
    return ChatRequest((("user", text),), str)


def test_a_mock_model_repeats_a_text_or_cycles_through_a_list() -> None:
    requests = [text_request(letter) for letter in "abc"]
    assert mock_client("yes").complete_all(requests) == ["yes"] * 3
    with load_chat_client("mock:scripted", parameters={"responses": ["1", "2"]}, concurrency=1) as client:
        assert client.complete_all(requests) == ["1", "2", "1"]
    assert client.identity["model"] == "mock:scripted"


def test_a_mock_model_calls_a_function_of_the_message_or_of_the_conversation() -> None:
    def last_role(_: str, conversation: Sequence[Message]) -> str:
        return f"{conversation[-1][0]} has spoken"

    assert mock_client(str.upper).complete_all([text_request("a")]) == ["A"]
    model = MockChatModel(last_role)
    client = ChatClient(model, {"model": "mock"})
    assert client.complete_all([text_request("a b")]) == ["user has spoken"]
    assert model.calls == [(("user", "a b"),)]
    # A word counts as a token.
    assert (client.usage_counter.tokens_in, client.usage_counter.tokens_out) == (2, 3)


@pytest.mark.parametrize(
    ("parameters", "code"),
    [({}, "missing-option"), ({"responses": []}, "invalid-option"), ({"responses": 3}, "invalid-option")],
)
def test_a_mock_model_without_responses_is_refused(parameters: Mapping[str, Any], code: str) -> None:
    with raises(f"judge_args.responses: {code}"):
        load_chat_client("mock:model", parameters=parameters)


@pytest.mark.parametrize(
    "text", ['{"errors": 3}', '```json\n{"errors": 3}\n```', '<think>4?</think>{"errors": 3}', "3"]
)
def test_a_response_is_read_as_json_or_as_free_text(text: str) -> None:
    assert mock_client(text).complete_all([request()]) == [3]


@pytest.mark.parametrize("text", ['{"errors": "many"}', '{"errors": 3, "more": 1}', "many"])
def test_a_response_that_is_neither_is_a_failure(text: str) -> None:
    assert isinstance(mock_client(text).complete_all([request()])[0], Failure)


def test_a_server_with_schemas_receives_the_schema(serve: Any) -> None:
    server = serve(lambda *_: (200, {}, '{"errors": 3}'))
    assert http_client(server.base_url).complete_all([request()]) == [3]
    assert server.requests[0]["response_format"]["json_schema"]["schema"]["properties"].keys() == {"errors"}


def test_a_server_without_schemas_receives_the_request_again_without_one(serve: Any) -> None:
    server = serve(lambda body, _: (400, {}, "no") if "response_format" in body else (200, {}, "3"))
    client = http_client(server.base_url, concurrency=1)
    assert client.complete_all([request("a"), request("b")]) == [3, 3]
    assert ["response_format" in body for body in server.requests] == [True, False, False]
    assert client.usage_counter.failures == 0


def test_a_request_that_is_refused_without_a_schema_too_fails_alone(serve: Any) -> None:
    server = serve(lambda body, _: (400, {}, "too long") if "long" in json.dumps(body["messages"]) else (200, {}, "3"))
    client = http_client(server.base_url, concurrency=1)
    results = client.complete_all([request("long"), request("b")])
    assert isinstance(results[0], Failure)
    assert results[1] == 3
    assert ["response_format" in body for body in server.requests] == [True, False, True]


def test_a_provider_without_schemas_is_called_without_one() -> None:
    client = ChatClient(LangChainBackend(GenericFakeChatModel(messages=iter([AIMessage("3")]))), {"model": "fake"})
    assert client.complete_all([request()]) == [3]
