"""Backends of the client: both routes to a model, schemas, mock models, loading by name (`refused_options.yaml`)."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import AsyncMock, Mock

import pytest
import yaml
from chat_server import ROUTES, SECRET, Waits, completion, http_client, numeric
from error_checks import raises, raises_code
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage
from pydantic import BaseModel, ConfigDict, model_validator

from radfact import llm
from radfact.errors import ErrorCode, Failure
from radfact.judges import load_judge, load_splitter
from radfact.judges.check import load_labeled_queries
from radfact.judges.llm_splitter import SplitExample
from radfact.judges.prompt import load_few_shots, read_examples
from radfact.llm import ChatClient, ChatRequest, MockChatModel, PromptPrefix, load_chat_client, mock_client
from radfact.llm.langchain import PARTNERS, LangChainBackend, load_chat_model
from radfact.metrics.llm.vert import Shot
from radfact.rewards import make_reward

REFUSED: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("refused_options.yaml").read_text("utf-8"))
LOADERS: dict[str, Callable[..., object]] = {
    "judge": load_judge,
    "splitter": load_splitter,
    "chat client": load_chat_client,
    "model arguments": llm.parse_model_args,
    "reward": lambda names, **options: make_reward(*names, **options),
}
READERS: dict[str, Callable[[Path], object]] = {
    "few shots": load_few_shots,
    "labeled queries": load_labeled_queries,
    "split examples": lambda path: read_examples(path, SplitExample),
    "shots of VERT": lambda path: read_examples(path, Shot),
}


class Count(BaseModel):
    model_config = ConfigDict(extra="forbid")
    errors: int


SCHEMA = Count.model_json_schema()
PREFIX = PromptPrefix([("system", "Say."), ("user", 'L\u00f6we "x"\n- y'), ("assistant", "status: a\n")])


def provider(model: Any, **options: Any) -> ChatClient:
    return ChatClient(LangChainBackend(model), {"model": "fake"}, **options)


@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["free", "schema"])
def test_both_routes_send_and_read_the_same(serve: Any, load_route: Any, schema: dict[str, Any] | None) -> None:
    server = serve(lambda _, n: completion('{"errors": ', "length") if n % 2 else (200, {}, "{}"))
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
    reply = AIMessage("", tool_calls=[{"name": "Count", "args": {"errors": 3}, "id": "1"}])
    chat = provider(_CallsTools(messages=iter([reply])))
    assert chat.complete_all([ChatRequest((("user", "x"),), json.loads, schema=SCHEMA)]) == [{"errors": 3}]


def test_a_provider_without_schemas_is_reported_if_the_schema_is_required() -> None:
    chat = provider(GenericFakeChatModel(messages=iter(["3"])))
    with raises("format: conflicting-options"):
        chat.complete_all([ChatRequest((("user", "x"),), str, schema=SCHEMA)])
    assert chat.complete_all([structured("x")]) == [3]


@pytest.mark.parametrize(
    "ending", [{"finish_reason": "MAX_TOKENS"}, {"stop_reason": "max_tokens"}, {"done_reason": "length"}]
)
def test_stop_reasons_of_truncated_responses_are_recognized(ending: dict[str, str]) -> None:
    replies = [AIMessage("7", response_metadata=ending), AIMessage("8", response_metadata={"finish_reason": "stop"})]
    assert provider(GenericFakeChatModel(messages=iter(replies))).complete_all([numeric("x")]) == [8]


class _Throttled(Exception):
    response: ClassVar[Any] = {"ResponseMetadata": {"HTTPStatusCode": 429, "HTTPHeaders": {"retry-after": "3"}}}


@pytest.mark.parametrize("is_cause", [False, True], ids=["own", "cause"])
def test_errors_of_providers_have_a_status(is_cause: bool) -> None:
    fault: Exception = _Throttled("slow down")
    if is_cause:
        fault = ValueError("a provider's own")
        fault.__cause__ = _Throttled("slow down")
    model, waits = Mock(ainvoke=AsyncMock(side_effect=[fault, AIMessage("7")])), Waits()
    assert provider(model, sleep=waits).complete_all([numeric("x")]) == [7]
    assert [int(wait) for wait in waits] == [3]


def structured(text: str) -> ChatRequest[int]:
    """Return a request by schema, whose response may be a whole number instead."""
    return llm.structured_request((("user", text),), Count, lambda response: response.errors, int)


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ('{"errors": 3}', 3),
        ('```json\n{"errors": 3}\n```', 3),
        ('<think>4?</think>{"errors": 3}', 3),
        ("3", 3),
        *((text, None) for text in ('{"errors": "many"}', '{"errors": 3, "more": 1}', "many")),
    ],
)
def test_a_response_is_read_as_json_or_as_free_text(text: str, errors: int | None) -> None:
    [response] = mock_client(text).complete_all([structured("How many errors?")])
    assert (None if isinstance(response, Failure) else response) == errors


@pytest.mark.parametrize(
    ("refused", "results", "with_schema"),
    [
        (lambda _: False, [3, 3], [True, True]),
        (lambda body: "response_format" in body, [3, 3], [True, False, False]),
        # A request that is refused without its schema, too, fails alone.
        (lambda body: "long" in json.dumps(body["messages"]), [None, 3], [True, False, True]),
    ],
    ids=["server with schemas", "server without schemas", "refused request"],
)
def test_a_refused_request_is_sent_again_without_its_schema(
    serve: Any, refused: Any, results: list[int | None], with_schema: list[bool]
) -> None:
    server = serve(lambda body, _: (400, {}, "no") if refused(body) else (200, {}, '{"errors": 3}'))
    client = http_client(server.base_url, concurrency=1)
    responses = client.complete_all([structured("long"), structured("b")])
    assert [None if isinstance(response, Failure) else response for response in responses] == results
    assert ["response_format" in body for body in server.requests] == with_schema
    assert server.requests[0]["response_format"]["json_schema"]["schema"]["properties"].keys() == {"errors"}
    assert client.usage_counter.failures == results.count(None)


def test_a_mock_model_repeats_a_text_cycles_through_a_list_or_calls_a_function() -> None:
    def last_role(_: str, conversation: Sequence[llm.Message]) -> str:
        return f"{conversation[-1][0]} has spoken"

    requests = [ChatRequest((("user", text),), str) for text in ("a", "b", "a b")]
    assert mock_client("yes").complete_all(requests) == ["yes"] * 3
    with load_chat_client("mock:scripted", parameters={"responses": ["1", "2"]}, concurrency=1) as client:
        assert client.complete_all(requests) == ["1", "2", "1"]
    assert client.identity["model"] == "mock:scripted"
    assert mock_client(str.upper).complete_all(requests) == ["A", "B", "A B"]
    model = MockChatModel(last_role)
    client = ChatClient(model, {"model": "mock"})
    assert client.complete_all(requests[2:]) == ["user has spoken"]
    assert model.calls == [(("user", "a b"),)]
    # A word counts as a token.
    assert (client.usage_counter.tokens_in, client.usage_counter.tokens_out) == (2, 3)


@pytest.mark.parametrize(
    ("loader", "name", "options", "error"),
    [(loader, *case) for loader, cases in REFUSED["options"].items() for case in cases],
)
def test_wrong_names_and_options_are_refused(loader: str, name: Any, options: dict[str, Any], error: str) -> None:
    with raises(error) as caught:
        LOADERS[loader](name, **options)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("reader", "content", "error"), [(reader, *case) for reader, cases in REFUSED["files"].items() for case in cases]
)
def test_wrong_example_files_are_refused(tmp_path: Path, reader: str, content: Any, error: str) -> None:
    path = tmp_path / "shots.json"
    path.write_text(json.dumps(content))
    with raises(f"shots.json: {error}"):
        READERS[reader](path)


@pytest.mark.parametrize("route", ROUTES)
def test_a_key_with_a_line_break_is_refused(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f"{SECRET}\nX-Header: 1")
    with raises_code(ErrorCode.INVALID_OPTION, field="OPENAI_API_KEY"):
        load_chat_client("openai:m", base_url="http://127.0.0.1:9/v1" if route == "aiohttp" else None)


def test_a_missing_package_or_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises_code(ErrorCode.MISSING_REQUIREMENT, match=r"pip install \"maira-radfact\[cohere\]\""):
        load_chat_client("cohere:command")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with raises_code(ErrorCode.MISSING_REQUIREMENT, match="OPENAI_API_KEY"):
        load_chat_client("openai:m")


def test_model_arguments_are_converted_to_numbers() -> None:
    arguments = {"temperature": "0.5", "seed": "3", "user": "abc", "stop": "[a, b]", "stop_token_ids": "[2]"}
    values = {"temperature": 0.5, "seed": 3, "user": "abc", "stop": ["a", "b"], "stop_token_ids": [2]}
    assert llm.parse_model_args(arguments) == llm.parse_model_args(values) == values


class _Named(FakeListChatModel):
    """A provider's model without `top_p`; "reasons" ignores a temperature."""

    model: str
    temperature: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_temperature(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if (name, values["model"]) != ("temperature", "reasons")}


@pytest.mark.parametrize(("model", "ignored"), [("model", "top_p"), ("reasons", "temperature")])
def test_arguments_that_would_be_ignored_are_refused(monkeypatch: pytest.MonkeyPatch, model: str, ignored: str) -> None:
    monkeypatch.setitem(PARTNERS, "fake", (__name__, "_Named"))
    assert load_chat_model("fake:model", {"responses": ["yes"], "temperature": 0})
    with raises_code(ErrorCode.INVALID_OPTION, match=f"{ignored}=null", field=f"judge_args.{ignored}"):
        load_chat_model(f"fake:{model}", {"responses": ["yes"], ignored: 0})


def test_a_local_server_has_a_higher_concurrency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-any-key-at-all")
    clients = [load_chat_client("openai:m", base_url=url) for url in ("http://localhost:1/v1", None)]
    assert [client.concurrency for client in clients] == [64, 16]
