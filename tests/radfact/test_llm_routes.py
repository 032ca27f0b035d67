"""Both routes to a model send equal requests; schemas, stop reasons and invalid options."""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

import pytest
from chat_server import completion, last
from langchain_core.language_models.fake_chat_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage
from llm_client import Waits
from pydantic import model_validator

from radfact.errors import ErrorCode, Failure, InputError, RunError
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


@pytest.fixture
def routes(serve: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server's two clients: by its address, and as the provider that the environment sends there."""

    def start(reply: Any, **parameters: Any) -> tuple[Any, ChatClient, ChatClient]:
        server = serve(reply)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-any-key-at-all")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        clients = [load_chat_client("openai:m", base_url=url, parameters=parameters) for url in (server.base_url, None)]
        for client in clients:
            client.sleep = Waits()
        return server, clients[0], clients[1]

    return start


@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["free", "schema"])
def test_both_routes_send_equal_requests(routes: Any, schema: dict[str, Any] | None) -> None:
    server, direct, chain = routes(
        lambda *_: (200, {}, '{"status": "a"}'), temperature=0, top_p=1, max_tokens=1024, seed=3
    )
    request = ChatRequest((("user", "Is it?"),), str, PREFIX, schema)
    assert direct.complete_all([request]) == chain.complete_all([request]) == ['{"status": "a"}']
    sent, by_chain = server.requests
    # The provider calls the limit by a newer name, which local servers may ignore.
    by_chain["max_tokens"] = by_chain.pop("max_completion_tokens")
    assert sent == by_chain
    assert server.headers[0]["authorization"] == server.headers[1]["authorization"]


@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["free", "schema"])
def test_both_routes_read_equal_responses(routes: Any, schema: dict[str, Any] | None) -> None:
    _, direct, chain = routes(lambda _, n: completion('{"status": "', "length") if n % 2 else (200, {}, "{}"))
    request = ChatRequest((("user", "Is it?"),), str, PREFIX, schema)
    assert direct.complete_all([request]) == chain.complete_all([request]) == ["{}"]
    assert direct.usage_counter == chain.usage_counter
    assert direct.usage_counter.repairs == 1


@pytest.mark.parametrize(
    ("status", "retries"), [(429, 23), (500, 7), (400, 0), (422, 0)], ids=["busy", "down", "refused", "invalid"]
)
def test_both_routes_report_equal_errors(routes: Any, status: int, retries: int) -> None:
    _, direct, chain = routes(lambda *_: (status, {"Retry-After": "2"}, "so it is"))
    request = ChatRequest((("user", "Is it?"),), str)
    reasons = [client.complete_all([request])[0] for client in (direct, chain)]
    assert reasons[0] == reasons[1]
    assert isinstance(reasons[0], Failure)
    assert "so it is" in reasons[0].reason
    for client in (direct, chain):
        assert len(client.sleep) == retries
        assert all(wait >= 2 for wait in client.sleep)


@pytest.mark.parametrize("raw", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"], ids=["dropped", "half"])
def test_both_routes_retry_a_broken_connection(routes: Any, raw: bytes) -> None:
    _, direct, chain = routes(lambda _, n: raw if n % 2 else (200, {}, "7"))
    request = ChatRequest((("user", "Is it?"),), int)
    assert direct.complete_all([request]) == chain.complete_all([request]) == [7]


def _raw(status: str, body: str, kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def _refusing(code: str, message: str) -> bytes:
    return _raw("400 Bad Request", json.dumps({"error": {"message": message, "param": "x", "code": code}}))


REFUSED_PARAMETERS = {
    "value": (
        _refusing("unsupported_value", "Unsupported value: 'temperature' does not support 0 with this model."),
        "omit it with --judge-arg temperature=null (",
    ),
    "limit": (
        _refusing("unsupported_parameter", "'max_tokens' is not supported. Use 'max_completion_tokens' instead."),
        "omit it with --judge-arg max_tokens=null --judge-arg max_completion_tokens=9 (",
    ),
    "either": (
        _refusing("", "`temperature` and `top_p` cannot both be specified for this model."),
        "omit it with --judge-arg temperature=null or --judge-arg top_p=null (",
    ),
}


@pytest.mark.parametrize(("reply", "advice"), REFUSED_PARAMETERS.values(), ids=REFUSED_PARAMETERS)
def test_a_refused_parameter_stops_the_run_with_a_hint(routes: Any, reply: bytes, advice: str) -> None:
    server, *clients = routes(lambda *_: reply, temperature=0, top_p=1, max_tokens=9)
    for client in clients:
        client.concurrency, before = 1, len(server.requests)
        with pytest.raises(RunError, match=re.escape(advice)):
            client.complete_all([ChatRequest((("user", str(i)),), str) for i in range(9)])
        assert len(server.requests) == before + 1


@pytest.mark.parametrize(
    "message",
    [
        "'max_tokens' is too large: 9. The model's context length is 4 and your request has 3 input tokens",
        "the request {'temperature': 0, 'messages': []} cannot be read",
        "Unknown field 'top_k'",
    ],
    ids=["one request's length", "the request repeated", "not sent"],
)
def test_a_refused_request_is_not_a_refused_parameter(routes: Any, message: str) -> None:
    _, *clients = routes(lambda *_: _refusing("", message), temperature=0, max_tokens=9)
    for client in clients:
        assert isinstance(client.complete_all([ChatRequest((("user", "x"),), str)])[0], Failure)


def test_an_accepted_parameter_is_not_named_as_refused(routes: Any) -> None:
    refusing, _ = REFUSED_PARAMETERS["value"]
    _, direct, _ = routes(lambda _, n: (200, {}, "7") if n == 1 else refusing, temperature=0)
    direct.concurrency = 1
    answers = direct.complete_all([ChatRequest((("user", one),), int) for one in "ab"])
    assert answers[0] == 7
    assert isinstance(answers[1], Failure)


WITHHELD = {
    "filter": (completion(None, "content_filter"), "the provider's filter withholds the answer (content_filter)"),
    "part": (completion("Left", "content_filter"), "the provider's filter withholds the answer (content_filter)"),
    "refusal": (completion(None), "the model refuses to answer (I cannot help.)"),
}
WITHHELD["refusal"][0]["choices"][0]["message"]["refusal"] = "I cannot help."


@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["free", "schema"])
@pytest.mark.parametrize(("reply", "reason"), WITHHELD.values(), ids=WITHHELD)
def test_a_filtered_response_is_reported_and_not_retried(
    routes: Any, reply: dict[str, Any], reason: str, schema: dict[str, Any] | None
) -> None:
    server, *clients = routes(lambda *_: reply)
    for client in clients:
        assert client.complete_all([ChatRequest((("user", "x"),), str, schema=schema)]) == [
            Failure(f"openai:m: {reason}")
        ]
    assert len(server.requests) == 2


@pytest.mark.parametrize("kind", ["text/html", "application/json"])
@pytest.mark.parametrize("page", ["<!DOCTYPE html><p>Hello</p>", "\n<!-- us --> <HTML lang='en'></HTML>"])
def test_a_web_page_as_response_stops_the_run(routes: Any, page: str, kind: str) -> None:
    server, *clients = routes(lambda *_: _raw("200 OK", page, kind))
    for client in clients:
        with pytest.raises(RunError, match=r"web page; check the base URL \(it mostly ends in /v1\)"):
            client.complete_all([ChatRequest((("user", "x"),), str)])
    assert len(server.requests) == 2


class _CallsTools(GenericFakeChatModel):
    def bind_tools(self, *_: Any, **__: Any) -> Any:
        return self


def test_a_provider_with_tools_responds_by_schema() -> None:
    reply = AIMessage("", tool_calls=[{"name": "answer", "args": {"status": "a"}, "id": "1"}])
    chat = ChatClient(LangChainBackend(_CallsTools(messages=iter([reply]))), {"model": "fake"})
    assert chat.complete_all([ChatRequest((("user", "x"),), json.loads, schema=SCHEMA)]) == [{"status": "a"}]


def test_a_provider_without_schemas_is_reported() -> None:
    chat = ChatClient(LangChainBackend(GenericFakeChatModel(messages=iter(["x"]))), {"model": "fake"})
    with pytest.raises(InputError) as caught:
        chat.complete_all([ChatRequest((("user", "x"),), str, schema=SCHEMA)])
    assert (caught.value.code, caught.value.field) == (ErrorCode.CONFLICTING_OPTIONS, "format")


@pytest.mark.parametrize(
    "ending", [{"finish_reason": "MAX_TOKENS"}, {"stop_reason": "max_tokens"}, {"done_reason": "length"}]
)
def test_stop_reasons_of_truncated_responses_are_recognized(ending: dict[str, str]) -> None:
    replies = [AIMessage("7", response_metadata=ending), AIMessage("8", response_metadata={"finish_reason": "stop"})]
    chat = ChatClient(LangChainBackend(GenericFakeChatModel(messages=iter(replies))), {"model": "fake"})
    assert chat.complete_all([ChatRequest((("user", "x"),), int)]) == [8]


def test_fields_of_the_extra_body_are_fields_of_the_request(routes: Any) -> None:
    server, direct, chain = routes(lambda body, _: (200, {}, last(body)), extra_body={"top_k": 1})
    for client in (direct, chain):
        client.complete_all([ChatRequest((("user", "x"),), str)])
    assert [body["top_k"] for body in server.requests] == [1, 1]


def test_a_parameter_without_a_value_is_omitted(routes: Any) -> None:
    server, direct, chain = routes(lambda body, _: (200, {}, last(body)), temperature=0, top_p=None)
    for client in (direct, chain):
        client.complete_all([ChatRequest((("user", "x"),), str)])
    assert ["top_p" in body for body in server.requests] == [False, False]
    assert "top_p" not in direct.identity["parameters"]


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


def test_a_missing_partner_package_is_named_with_its_command() -> None:
    with pytest.raises(InputError, match=r"pip install \"maira-radfact\[cohere\]\""):
        load_chat_client("cohere:command")


def test_a_missing_key_without_a_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InputError, match="OPENAI_API_KEY") as caught:
        load_chat_client("openai:m")
    assert caught.value.code is ErrorCode.MISSING_REQUIREMENT


URL = "http://localhost:1/v1"


@pytest.mark.parametrize(
    ("name", "options", "code", "field"),
    [
        *((name, {}, ErrorCode.UNKNOWN_NAME, "judge") for name in ("nobody:model", "gpt-4o", "openai:", ":m", "")),
        *(
            ("openai:m", {"base_url": url}, ErrorCode.INVALID_OPTION, "base_url")
            for url in ("http://me:secret@host/v1", "http://host/v1?key=secret", "localhost:8000/v1", "http://")
        ),
        ("openai:m", {"base_url": "http://host:port/v1"}, ErrorCode.INVALID_OPTION, "base_url"),
        ("openai:m", {"base_url": "ftp://host/v1"}, ErrorCode.INVALID_OPTION, "base_url"),
        ("anthropic:m", {"base_url": URL}, ErrorCode.CONFLICTING_OPTIONS, "base_url"),
        ("openai:m", {"base_url": URL, "concurrency": 0}, ErrorCode.INVALID_OPTION, "concurrency"),
        *(
            (
                "openai:m",
                {"base_url": URL, "parameters": {field: value}},
                ErrorCode.INVALID_OPTION,
                f"judge_args.{field}",
            )
            for field, value in [
                *(("timeout", 0), ("timeout", "soon"), ("stream", True), ("n", 2)),
                *(("seed", float("nan")), ("stop", {1, 2})),
            ]
        ),
    ],
)
def test_a_wrong_name_address_or_parameter_is_refused(
    name: str, options: dict[str, Any], code: ErrorCode, field: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_chat_client(name, **options)
    assert (caught.value.code, caught.value.field) == (code, field)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [{"api_key": "sk-1"}, {"api-key": "sk-1"}, {"apikey": "sk-1"}, {"default_headers": "{Authorization: Bearer x}"}],
)
def test_keys_come_only_from_the_environment(arguments: dict[str, str]) -> None:
    with pytest.raises(InputError) as caught:
        parse_model_args(arguments)
    assert (caught.value.code, caught.value.field) == (ErrorCode.INVALID_OPTION, f"judge_args.{next(iter(arguments))}")


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


def test_arguments_ignored_by_the_class_of_a_provider_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARTNERS, "fake", (__name__, "_Named"))
    with pytest.raises(InputError, match="top_p=null") as caught:
        load_chat_model("fake:model", {"responses": ["yes"], "top_p": 1})
    assert caught.value.field == "judge_args.top_p"


def test_arguments_omitted_for_a_model_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(PARTNERS, "fake", (__name__, "_Named"))
    arguments = {"responses": ["yes"], "temperature": 0}
    assert load_chat_model("fake:model", arguments)
    with pytest.raises(InputError, match="temperature=null") as caught:
        load_chat_model("fake:reasons", arguments)
    assert caught.value.field == "judge_args.temperature"
