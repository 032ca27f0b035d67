"""Errors of servers: retries, what stops a run, and messages."""

import gzip
import json
import logging
import re
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock
from urllib.parse import urlsplit

import pytest
import yaml
from chat_server import ROUTES, SECRET, Reply, Waits, completion, http_client, last, numeric
from error_checks import raises_code
from hypothesis import given
from hypothesis import strategies as st

from radfact import progress
from radfact.errors import ErrorCode, Failure, RunError
from radfact.llm import ChatClient, ChatRequest, PromptPrefix, ResponseCache, load_chat_client
from radfact.llm.call_errors import MAX_ATTEMPTS, MAX_WAIT, CallError, CallErrorKind, retry_after, safe_message
from radfact.llm.client import MAX_FAILED_REQUESTS
from radfact.progress import ServerActivity

PARAMETERS = {"temperature": 0, "top_p": 1, "max_tokens": 9}


def raw(
    body: str | bytes, status: str = "200 OK", kind: str = "application/json", length: int | None = None, more: str = ""
) -> bytes:
    """Return a reply as it is sent; the connection breaks off after it."""
    content = body.encode() if isinstance(body, str) else body
    headers = f"Connection: close\r\nContent-Type: {kind}\r\n{more}Content-Length: {length or len(content)}"
    return f"HTTP/1.1 {status}\r\n{headers}\r\n\r\n".encode() + content


def refusal(code: str, message: str) -> bytes:
    """Return a server's refusal of a request."""
    return raw(json.dumps({"error": {"message": message, "param": "x", "code": code}}), "400 Bad Request")


def usage(counts: str, text: str = "8") -> bytes:
    return raw(json.dumps(completion(text) | {"usage": "counts"}).replace('"counts"', counts))


def message(fields: dict[str, Any]) -> dict[str, Any]:
    body = completion(None)
    body["choices"][0]["message"] |= fields
    return body


BUILDERS: dict[str, Callable[..., Reply]] = {
    "usage": usage,
    "binary": lambda data, more="": raw(bytes.fromhex(data), more=more),
    "message": message,
    "nested": lambda depth: raw("[" * depth + "]" * depth),
    "status": lambda status, message: (status, {}, message),
    "raw": raw,
    "bytes": str.encode,
    "completion": completion,
    "refusal": refusal,
}
FAULTS: dict[str, dict[str, list[Any]]] = yaml.safe_load(Path(__file__).with_name("llm_faults.yaml").read_text("utf-8"))


def both_routes(kind: str | None = None) -> pytest.MarkDecorator:
    """Parametrize a test by both routes, and by the faults of a kind with their reasons."""
    if kind is None:
        return pytest.mark.parametrize("route", ROUTES)
    cases = []
    for name, (reply, *reason) in FAULTS[kind].items():
        [(builder, arguments)] = reply.items()
        cases += [pytest.param(route, BUILDERS[builder](*arguments), *reason, id=f"{name}-{route}") for route in ROUTES]
    return pytest.mark.parametrize(["route", "fault", "reason"][: len(cases[0].values)], cases)


@both_routes("retried")
def test_a_fault_of_the_server_is_retried(serve: Any, load_route: Any, route: str, fault: Reply) -> None:
    server = serve(lambda _, n: (200, {}, "7") if n > 2 else fault)
    chat = load_route(server, route)
    assert chat.complete_all([numeric("x")]) == [7]
    assert (chat.usage_counter.calls, chat.usage_counter.retries, len(server.requests)) == (1, 2, 3)


@both_routes("read")
def test_an_answer_of_another_layout_is_read(serve: Any, load_route: Any, route: str, fault: Reply) -> None:
    server = serve(lambda *_: fault)
    assert load_route(server, route).complete_all([numeric("x")]) == [7]
    assert len(server.requests) == 1


@both_routes()
def test_a_system_message_can_be_merged_into_that_of_the_user(serve: Any, load_route: Any, route: str) -> None:
    server = serve(lambda *_: (200, {}, "7"))
    client = load_route(server, route, parameters={"merge_system": True})
    shots = PromptPrefix([("system", "Count.\n"), ("user", "a"), ("assistant", "1")])
    system, query = PromptPrefix([("system", "Count.")]), (("user", "b"),)
    requests = [numeric("x"), ChatRequest(query, int, shots), ChatRequest(query, int, system)]
    assert client.complete_all(requests) == [7, 7, 7]
    sent = [[(item["role"], item["content"]) for item in body["messages"]] for body in server.requests]
    users = [("user", "Count.\n\na"), ("assistant", "1"), ("user", "b")]
    assert sent == [[("user", "Count.\n\nx")], users, [("user", "Count.\n\nb")]]
    assert "merge_system" not in server.requests[0]


def test_a_chat_template_without_system_role_is_named_with_the_option() -> None:
    error = CallError("stopped", "the model's chat template refuses the conversation (System role not supported)")
    backend = Mock(complete=AsyncMock(side_effect=error), close=AsyncMock())
    with raises_code(ErrorCode.JUDGE_FAILED, match="merge_system=true"):
        ChatClient(backend, {"model": "vllm:gemma"}).complete_all([numeric("x")])


@both_routes("repaired")
def test_an_unusable_response_is_repaired(serve: Any, load_route: Any, route: str, fault: Reply, reason: str) -> None:
    server = serve(lambda _, n: (200, {}, "7") if n > 1 else fault)
    chat = load_route(server, route)
    assert chat.complete_all([numeric("x")]) == [7]
    assert (chat.usage_counter.repairs, chat.usage_counter.calls) == (1, 2)
    messages = server.requests[1]["messages"]
    assert [message["role"] for message in messages][-2:] == ["assistant", "user"]
    assert all(message["content"].strip() for message in messages)
    assert reason in last(server.requests[1])


@pytest.mark.parametrize("schema", [None, {"type": "object"}], ids=["free", "schema"])
@both_routes("failed")
def test_a_refused_request_fails_alone(
    serve: Any, load_route: Any, route: str, schema: dict[str, str] | None, fault: Reply, reason: str
) -> None:
    server = serve(lambda _, n: (200, {}, "7") if n > 1 else fault)
    requests = [replace(numeric("x"), schema=schema), numeric("y")]
    chat = load_route(server, route, parameters=PARAMETERS)
    assert chat.complete_all(requests) == [Failure(f"openai:m: {reason}"), 7]
    assert len(server.requests) == 2


@both_routes("stopped")
def test_a_refusal_of_all_stops_the_run(serve: Any, load_route: Any, route: str, fault: Reply, reason: str) -> None:
    server = serve(lambda *_: fault)
    with raises_code(ErrorCode.JUDGE_FAILED, match=f"^[^\n]*{re.escape(reason)}[^\n]*$"):
        load_route(server, route, parameters=PARAMETERS).complete_all([numeric(str(i)) for i in range(50)])
    assert len(server.requests) == 1


def test_a_redirect_is_not_followed(serve: Any, load_route: Any) -> None:
    elsewhere = serve(lambda *_: (200, {}, "7"))
    server = serve(lambda *_: (307, {"Location": f"{elsewhere.base_url}/chat/completions"}, "moved"))
    with raises_code(ErrorCode.JUDGE_FAILED, match="HTTP 307"):
        load_route(server, "aiohttp").complete_all([numeric("x")])
    assert elsewhere.requests == []


@both_routes()
@pytest.mark.parametrize(("status", "count"), [(429, 24), (500, 8)])
def test_retries_end_at_a_limit(serve: Any, load_route: Any, route: str, status: int, count: int) -> None:
    server = serve(lambda body, _: (200, {}, "7") if last(body) == "y" else (status, {"Retry-After": "2"}, "down"))
    chat = load_route(server, route)
    reason = f"openai:m: HTTP {status} (down), {count} times"
    assert chat.complete_all([numeric("x"), numeric("y")]) == [Failure(reason), 7]
    assert len(chat.sleep) == count - 1
    assert len(set(chat.sleep)) == len(chat.sleep)
    assert min(chat.sleep) >= 2


def test_a_parameter_is_not_refused_after_a_response(serve: Any, load_route: Any) -> None:
    fault = refusal("unsupported_value", "Unsupported value: 'temperature' does not support 0 with this model.")
    server = serve(lambda _, n: (200, {}, "7") if n == 1 else fault)
    answers = load_route(server, "aiohttp", parameters=PARAMETERS).complete_all([numeric("a"), numeric("b")])
    assert answers[0] == 7
    assert isinstance(answers[1], Failure)


def test_a_timeout_is_retried(serve: Any) -> None:
    def reply(_: dict[str, Any], number: int) -> Reply:
        while number == 1 and chat.usage_counter.retries == 0:
            time.sleep(0.001)
        return 200, {}, "7"

    chat = load_chat_client("openai:m", base_url=serve(reply).base_url, parameters={"timeout": 0.2})
    chat.sleep = Waits()
    assert chat.complete_all([numeric("x")]) == [7]


def test_waits_are_random_below_a_doubling_bound_even_if_the_server_requests_none(serve: Any) -> None:
    server = serve(lambda *_: (429, {"Retry-After": "0"}, "busy"))
    waits = Waits()
    http_client(server.base_url, sleep=waits, concurrency=1).complete_all([numeric("x"), numeric("y")])
    tries = MAX_ATTEMPTS["busy"] - 1
    assert len(waits) == len(set(waits)) == 2 * tries
    assert all(wait <= min(2 ** (index % tries), 60) for index, wait in enumerate(waits))
    assert sum(waits) > 120


@given(st.one_of(st.text(max_size=40), st.floats().map(str), st.datetimes().map(format_datetime)))
def test_waits_have_an_upper_bound(value: str) -> None:
    seconds = retry_after(value)
    assert seconds is None or 0 <= seconds <= MAX_WAIT


@pytest.mark.parametrize(("seconds", "expected"), [(20, 19), (-20, 0), (10_000, MAX_WAIT)])
def test_retry_after_may_be_a_date(seconds: int, expected: float) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)
    assert retry_after(date) == pytest.approx(expected, abs=2)


def test_retries_are_counted_per_kind_of_error(serve: Any) -> None:
    server = serve(lambda _, n: (200, {}, "7") if n > 6 else (429, {}, "busy") if n % 2 else (500, {}, "down"))
    chat = http_client(server.base_url, attempts={"busy": 4, "broken": 4})
    assert chat.complete_all([numeric("x")]) == [7]


def test_a_server_without_key_or_usage_is_enough(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server = serve(lambda *_: raw('{"error": null, "choices": [{"message": {"content": "7"}}]}'))
    assert http_client(server.base_url).complete_all([numeric("x")]) == [7]
    assert "authorization" not in server.headers[0]


@pytest.mark.parametrize(
    ("status", "kind", "count"),
    # A failure after retries was waited for longer than a refusal.
    [(400, "refused", 256), (429, "busy", 16), (500, "broken", 16)],
)
def test_failure_of_every_request_stops_the_run(serve: Any, status: int, kind: CallErrorKind, count: int) -> None:
    server = serve(lambda *_: (status, {}, "no"))
    chat = http_client(server.base_url, concurrency=1, attempts={"busy": 2, "broken": 2})
    times = "" if kind == "refused" else ", 2 times"
    with pytest.raises(RunError, match=rf"HTTP {status} \(no\){times}; {count} requests"):
        chat.complete_all([numeric(str(i)) for i in range(500)])
    assert len(server.requests) == (count if kind == "refused" else 2 * count)


@pytest.fixture
def few_refusals(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let 16 refused requests stop a run; return their number."""
    monkeypatch.setitem(MAX_FAILED_REQUESTS, "refused", 16)
    return 16


def test_calls_in_flight_are_awaited_before_the_run_stops(serve: Any, tmp_path: Path, few_refusals: int) -> None:
    many = few_refusals + 50

    def reply(body: dict[str, Any], _: int) -> Reply:
        if 0 < int(last(body)) < many:
            return 400, {}, "too long"
        while len(server.requests) <= few_refusals:
            time.sleep(0.001)
        return 200, {}, last(body)

    server = serve(reply)
    chat = http_client(server.base_url, concurrency=2, cache=ResponseCache(tmp_path))
    answers = chat.complete_all([numeric(str(i)) for i in range(many + 1)])
    assert (answers[0], answers[many], chat.usage_counter.failures) == (0, many, many - 1)


def test_cached_responses_count_against_stopping(serve: Any, tmp_path: Path, few_refusals: int) -> None:
    server = serve(lambda body, _: (200, {}, "0") if last(body) == "0" else (400, {}, "filtered"))
    requests = [numeric(str(i)) for i in range(few_refusals + 50)]
    for _ in range(2):
        with http_client(server.base_url, cache=ResponseCache(tmp_path)) as chat:
            assert chat.complete_all(requests)[0] == 0


def test_a_client_can_be_used_after_a_stopped_run(serve: Any) -> None:
    up = False
    server = serve(lambda body, _: (200, {}, last(body)) if up else (500, {}, "down"))
    chat = http_client(server.base_url, attempts={})
    requests = [numeric(str(i)) for i in range(40)]
    with pytest.raises(RunError):
        chat.complete_all(requests)
    up = True
    assert chat.complete_all(requests) == list(range(40))


def test_an_unreachable_address_stops_the_run_within_seconds(serve: Any) -> None:
    server = serve(lambda *_: (200, {}, "1"))
    server.close()
    waits = Waits()
    with raises_code(ErrorCode.SERVER_UNAVAILABLE, match=server.base_url):
        http_client(server.base_url, sleep=waits).complete_all([numeric("x")])
    assert sum(waits[:-1]) < 5


@pytest.mark.parametrize("returns", [True, False])
def test_a_server_that_was_reached_is_waited_for(serve: Any, returns: bool) -> None:
    def start(port: int = 0) -> Any:
        return serve(lambda body, _: (200, {"Connection": "close"}, last(body)), port=port)

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        if returns and len(waits) == 20:
            start(urlsplit(server.base_url).port or 0)

    server, waits = start(), list[float]()
    chat = http_client(server.base_url, sleep=wait)
    chat.complete_all([numeric("1")])
    server.close()
    if returns:
        assert chat.complete_all([numeric("2")]) == [2]
        assert sum(waits) > 10
    else:
        with raises_code(ErrorCode.SERVER_UNAVAILABLE):
            chat.complete_all([numeric("2")])
        assert len(waits) == MAX_ATTEMPTS["unreachable"] - 1


@given(st.lists(st.sampled_from(["heart", "lung", "clear", "left", "no"]), min_size=3, max_size=30), st.data())
def test_three_consecutive_words_of_a_report_are_never_shown(words: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(words) - 3))
    assert safe_message(f"bad: {words[start : start + 3]}", [" ".join(words)]) == ""


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 422, 429, 500])
@both_routes()
def test_the_key_is_sent_and_never_shown(
    serve: Any,
    load_route: Any,
    route: str,
    status: int,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    server = serve(lambda *_: (status, {"Retry-After": "0"}, f"Incorrect API key provided: {SECRET}"))
    with load_route(server, route, cache=tmp_path / "cache") as chat:
        try:
            message = str(chat.complete_all([numeric("x")]))
        except RunError as error:
            message = str(error)
        message += str(chat.identity)
    assert server.headers[0]["authorization"] == f"Bearer {SECRET}"
    out, err = capfd.readouterr()
    # The model's own words are stored as they are; a server that answers with the key has it anyway.
    files = [] if status == 200 else [path for path in tmp_path.rglob("*") if path.is_file()]
    stored = "".join(path.read_bytes().decode(errors="replace") for path in files)
    assert SECRET not in message + out + err + caplog.text + stored


def test_a_compressed_response_is_not_inflated_without_bounds(serve: Any) -> None:
    bomb = gzip.compress(bytes(1 << 26), 1)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n".encode()
    server = serve(lambda *_: head + bomb)
    tracemalloc.start()
    with raises_code(ErrorCode.JUDGE_FAILED, match="more than 16 MB"):
        http_client(server.base_url).complete_all([numeric("x")])
    assert tracemalloc.get_traced_memory()[1] < 40 << 20
    tracemalloc.stop()
    assert server.headers[0]["accept-encoding"] == "identity"


def test_neither_errors_nor_responses_that_repeat_the_report_are_quoted(serve: Any) -> None:
    def parse(text: str) -> int:
        raise ValueError(f"'{text}' isn't 'a number'")

    report = "Small left pleural effusion"
    server = serve(lambda _, n: (422, {}, f"bad input: {report}") if n == 1 else (200, {}, report))
    requests = [ChatRequest((("user", f"{report}{mark}"),), parse, repairs=1) for mark in ".!"]
    assert http_client(server.base_url, concurrency=1).complete_all(requests) == [
        Failure("openai:m: HTTP 422"),
        Failure("no valid answer after 1 repairs: '...'; the response: [...]"),
    ]


def test_a_long_wait_is_shown(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SILENT_SECONDS", 0.0)
    server = serve(lambda _, n: (200, {}, "7") if n > 1 else (429, {"Retry-After": "300"}, "busy"))
    host, statuses = server.base_url.removeprefix("http://").removesuffix("/v1"), list[str]()

    async def wait(_: float) -> None:
        statuses.extend(status for status in ServerActivity.statuses() if status.startswith(host))

    chat = http_client(server.base_url, sleep=wait)
    assert chat.complete_all([numeric("x")]) == [7]
    assert re.fullmatch(rf"{host}: rate limited, next try in 30\d s", statuses[-1])


def test_an_unknown_host_is_an_unreachable_server() -> None:
    with raises_code(ErrorCode.SERVER_UNAVAILABLE):
        http_client("http://judge.invalid/v1", sleep=Waits()).complete_all([numeric("x")])
