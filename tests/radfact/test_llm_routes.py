"""Both routes to a model send equal requests; schemas, stop reasons and invalid options."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
from chat_server import completion
from error_checks import raises, raises_code
from langchain_core.language_models.fake_chat_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage
from llm_client import ROUTES, Waits
from pydantic import model_validator

from radfact.errors import ErrorCode
from radfact.llm import ChatClient, ChatRequest, PromptPrefix, load_chat_client, parse_model_args
from radfact.llm.langchain import PARTNERS, LangChainBackend, load_chat_model
from radfact.llm.loading import CONCURRENCY_OWN_SERVER, CONCURRENCY_PROVIDER

SCHEMA = {
    "type": "object",
    "properties": {"status": {"type": "string", "enum": ["a", "b"]}},
    "required": ["status"],
    "additionalProperties": False,
}
PREFIX = PromptPrefix([("system", "Say."), ("user", 'L\u00f6we "x"\n- y'), ("assistant", "status: a\n")])


@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["free", "schema"])
def test_both_routes_send_and_read_the_same(serve: Any, load_route: Any, schema: dict[str, Any] | None) -> None:
    server = serve(lambda _, n: completion('{"status": "', "length") if n % 2 else (200, {}, "{}"))
    parameters = {"temperature": 0, "top_p": None, "max_tokens": 1024, "seed": 3, "extra_body": {"top_k": 1}}
    clients = [load_route(server, route, parameters=parameters) for route in ROUTES]
    request = ChatRequest((("user", "Is it?"),), str, PREFIX, schema)
    assert [client.complete_all([request]) for client in clients] == [["{}"], ["{}"]]
    assert clients[0].usage_counter == clients[1].usage_counter
    sent, _, by_chain, _ = server.requests
    # The provider calls the limit by a newer name, which local servers may ignore.
    by_chain["max_tokens"] = by_chain.pop("max_completion_tokens")
    assert sent == by_chain
    assert (sent["top_k"], "top_p" in sent, "top_p" in clients[0].identity["parameters"]) == (1, False, False)


class _CallsTools(GenericFakeChatModel):
    def bind_tools(self, *_: Any, **__: Any) -> Any:
        return self


def test_a_provider_with_tools_responds_by_schema() -> None:
    reply = AIMessage("", tool_calls=[{"name": "answer", "args": {"status": "a"}, "id": "1"}])
    chat = ChatClient(LangChainBackend(_CallsTools(messages=iter([reply]))), {"model": "fake"})
    assert chat.complete_all([ChatRequest((("user", "x"),), json.loads, schema=SCHEMA)]) == [{"status": "a"}]


def test_a_provider_without_schemas_is_reported() -> None:
    chat = ChatClient(LangChainBackend(GenericFakeChatModel(messages=iter(["x"]))), {"model": "fake"})
    with raises("format: conflicting-options"):
        chat.complete_all([ChatRequest((("user", "x"),), str, schema=SCHEMA)])


@pytest.mark.parametrize(
    "ending", [{"finish_reason": "MAX_TOKENS"}, {"stop_reason": "max_tokens"}, {"done_reason": "length"}]
)
def test_stop_reasons_of_truncated_responses_are_recognized(ending: dict[str, str]) -> None:
    replies = [AIMessage("7", response_metadata=ending), AIMessage("8", response_metadata={"finish_reason": "stop"})]
    chat = ChatClient(LangChainBackend(GenericFakeChatModel(messages=iter(replies))), {"model": "fake"})
    assert chat.complete_all([ChatRequest((("user", "x"),), int)]) == [8]


class _Throttled(Exception):
    response: ClassVar[Any] = {"ResponseMetadata": {"HTTPStatusCode": 429, "HTTPHeaders": {"retry-after": "3"}}}


class _FailsFirst(GenericFakeChatModel):
    fault: Exception

    def _generate(self, *arguments: Any, **options: Any) -> Any:
        if self.fault.args:
            self.fault.args = ()
            raise self.fault
        return super()._generate(*arguments, **options)


def _caused(cause: Exception) -> Exception:
    fault = ValueError("a provider's own")
    fault.__cause__ = cause
    return fault


@pytest.mark.parametrize("fault", [_Throttled("slow down"), _caused(_Throttled("slow down"))], ids=["own", "cause"])
def test_errors_of_providers_have_a_status(fault: Exception) -> None:
    waits = Waits()
    model = _FailsFirst(messages=iter(["7"]), fault=fault)
    chat = ChatClient(LangChainBackend(model), {"model": "fake"}, sleep=waits)
    assert chat.complete_all([ChatRequest((("user", "x"),), int)]) == [7]
    assert [int(wait) for wait in waits] == [3]


def test_a_local_server_has_a_higher_concurrency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-any-key-at-all")
    assert load_chat_client("openai:m", base_url="http://localhost:1/v1").concurrency == CONCURRENCY_OWN_SERVER == 64
    assert load_chat_client("openai:m").concurrency == CONCURRENCY_PROVIDER == 16


def test_a_missing_package_or_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises_code(ErrorCode.MISSING_REQUIREMENT, match=r"pip install \"maira-radfact\[cohere\]\""):
        load_chat_client("cohere:command")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with raises_code(ErrorCode.MISSING_REQUIREMENT, match="OPENAI_API_KEY"):
        load_chat_client("openai:m")


URL = "http://localhost:1/v1"


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        *((name, {}, "judge: unknown-name") for name in ("nobody:model", "gpt-4o", "openai:", ":m", "")),
        *(
            ("openai:m", {"base_url": url}, "base_url: invalid-option")
            for url in (
                *("http://me:secret@host/v1", "http://host/v1?key=secret", "localhost:8000/v1", "http://"),
                *("http://host:port/v1", "ftp://host/v1"),
            )
        ),
        ("anthropic:m", {"base_url": URL}, "base_url: conflicting-options"),
        ("openai:m", {"base_url": URL, "concurrency": 0}, "concurrency: invalid-option"),
        *(
            ("openai:m", {"base_url": URL, "parameters": {field: value}}, f"judge_args.{field}: invalid-option")
            for field, value in [
                *(("timeout", 0), ("timeout", "soon"), ("stream", True), ("n", 2)),
                *(("seed", float("nan")), ("stop", {1, 2})),
            ]
        ),
    ],
)
def test_a_wrong_name_address_or_parameter_is_refused(name: str, options: dict[str, Any], expected: str) -> None:
    with raises(expected) as caught:
        load_chat_client(name, **options)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["api_key", "api-key", "apikey", "default_headers"])
def test_keys_come_only_from_the_environment(name: str) -> None:
    with raises(f"judge_args.{name}: invalid-option"):
        parse_model_args({name: "{Authorization: Bearer x}"})


def test_model_arguments_are_converted_to_numbers() -> None:
    arguments = {"temperature": "0.5", "seed": "3", "user": "abc", "stop": "[a, b]", "stop_token_ids": "[2]"}
    values = {"temperature": 0.5, "seed": 3, "user": "abc", "stop": ["a", "b"], "stop_token_ids": [2]}
    assert parse_model_args(arguments) == parse_model_args(values) == values


class _Named(FakeListChatModel):
    model: str
    temperature: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_temperature(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if (name, values["model"]) != ("temperature", "reasons")}


def test_arguments_that_would_be_ignored_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARTNERS, "fake", (__name__, "_Named"))
    with raises_code(ErrorCode.INVALID_OPTION, match="top_p=null", field="judge_args.top_p"):
        load_chat_model("fake:model", {"responses": ["yes"], "top_p": 1})
    arguments = {"responses": ["yes"], "temperature": 0}
    assert load_chat_model("fake:model", arguments)
    with raises_code(ErrorCode.INVALID_OPTION, match="temperature=null", field="judge_args.temperature"):
        load_chat_model("fake:reasons", arguments)
