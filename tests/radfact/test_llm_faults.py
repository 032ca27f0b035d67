"""Errors of servers: retries, what stops a run, and messages."""

from __future__ import annotations

import gzip
import logging
import re
import socket
import time
import tracemalloc
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from chat_server import Reply, last
from error_checks import raises_code
from hypothesis import given
from hypothesis import strategies as st
from llm_client import Waits, http_client, numeric

from radfact import progress
from radfact.errors import ErrorCode, Failure, RunError
from radfact.llm import ChatRequest, ResponseCache, load_chat_client
from radfact.llm.call_errors import MAX_ATTEMPTS, MAX_WAIT, retry_after, safe_message
from radfact.llm.client import MAX_FAILED_REQUESTS
from radfact.progress import ServerActivity

SECRET = "sk-do-not-show-this-one"
LEAKY = f"Incorrect API key provided: {SECRET}"


def failure(base_url: str, request: ChatRequest[Any] | None = None, **options: Any) -> str:
    """Return the reason of the failure of one request."""
    answer = http_client(base_url, **options).complete_all([request or numeric("x")])[0]
    assert isinstance(answer, Failure)
    return answer.reason


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_a_busy_server_is_retried(serve: Any, status: int) -> None:
    server = serve(lambda _, n: (200, {}, "7") if n > 2 else (status, {}, "busy"))
    chat = http_client(server.base_url)
    assert chat.complete_all([numeric("x")]) == [7]
    assert (chat.usage_counter.calls, chat.usage_counter.retries) == (1, 2)


BROKEN: dict[str, bytes] = {
    "dropped": b"",
    "no body": b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n",
    "half a body": b'HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{"choices": [{"mess',
    "half a document": b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"choices": ',
    "no protocol": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "no choices": b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"choices": []}',
    "no HTTP": b"I am a teapot, short and stout.\r\n\r\n",
    "an error as 200": b'HTTP/1.1 200 OK\r\nContent-Length: 41\r\n\r\n{"error": {"code": 502, "message": "up"}}',
}


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN)
def test_a_broken_reply_is_retried(serve: Any, raw: bytes) -> None:
    server = serve(lambda _, n: (200, {}, "7") if n > 1 else raw)
    chat = http_client(server.base_url)
    assert chat.complete_all([numeric("x")]) == [7]
    assert len(server.requests) == 2


def test_a_timeout_is_retried(serve: Any) -> None:
    def reply(_: dict[str, Any], number: int) -> Reply:
        while number == 1 and chat.usage_counter.retries == 0:
            time.sleep(0.001)
        return 200, {}, "7"

    chat = load_chat_client("openai:m", base_url=serve(reply).base_url, parameters={"timeout": 0.2})
    chat.sleep = Waits()
    assert chat.complete_all([numeric("x")]) == [7]


def test_retry_after_zero_still_waits(serve: Any) -> None:
    server = serve(lambda *_: (429, {"Retry-After": "0"}, "busy"))
    waits = Waits()
    http_client(server.base_url, sleep=waits).complete_all([numeric("x")])
    assert len(waits) == MAX_ATTEMPTS["busy"] - 1
    assert len({round(wait, 6) for wait in waits}) == len(waits)
    assert sum(waits) > 60


def test_waits_by_retry_after_are_spread(serve: Any) -> None:
    server = serve(lambda body, n: (200, {}, last(body)) if n > 8 else (503, {"Retry-After": "30"}, "busy"))
    waits = Waits()
    http_client(server.base_url, sleep=waits, concurrency=8).complete_all([numeric(str(i)) for i in range(8)])
    assert len({round(wait, 6) for wait in waits}) == len(waits) == 8
    assert min(waits) >= 30


@given(st.one_of(st.text(max_size=40), st.floats().map(str), st.datetimes().map(format_datetime)))
def test_waits_have_an_upper_bound(value: str) -> None:
    seconds = retry_after(value)
    assert seconds is None or 0 <= seconds <= MAX_WAIT


@pytest.mark.parametrize(
    ("seconds", "expected"), [(20, 19), (-20, 0), (10_000, MAX_WAIT)], ids=["future", "past", "far future"]
)
def test_retry_after_may_be_a_date(seconds: int, expected: float) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)
    assert retry_after(date) == pytest.approx(expected, abs=2)


def test_waits_are_random_below_a_doubling_bound(serve: Any) -> None:
    server = serve(lambda *_: (500, {}, "down"))
    waits = Waits()
    for number in range(6):
        http_client(server.base_url, sleep=waits).complete_all([numeric(str(number))])
    tries = MAX_ATTEMPTS["broken"] - 1
    assert len(waits) == 6 * tries
    assert all(wait <= min(2 ** (index % tries), 60) for index, wait in enumerate(waits))
    assert len(set(waits)) == len(waits)


def test_exhausted_retries_fail_the_request_only(serve: Any) -> None:
    server = serve(lambda body, _: (500, {}, "down") if last(body) == "1" else (200, {}, last(body)))
    answers = http_client(server.base_url).complete_all([numeric("0"), numeric("1"), numeric("2")])
    assert (answers[0], answers[2]) == (0, 2)
    assert answers[1] == Failure("openai:m: HTTP 500 (down), 8 times")


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refused_request_is_not_retried(serve: Any, status: int) -> None:
    server = serve(lambda *_: (status, {}, "the context is too long"))
    assert failure(server.base_url) == f"openai:m: HTTP {status} (the context is too long)"
    assert len(server.requests) == 1


def test_retries_are_counted_per_kind_of_error(serve: Any) -> None:
    server = serve(lambda _, n: (200, {}, "7") if n > 6 else (429, {}, "busy") if n % 2 else (500, {}, "down"))
    chat = http_client(server.base_url, attempts={"busy": 4, "broken": 4})
    assert chat.complete_all([numeric("x")]) == [7]


def test_a_response_without_an_error_is_accepted(serve: Any) -> None:
    body = b'{"error": null, "choices": [{"message": {"content": "7"}}]}'
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    assert http_client(serve(lambda *_: head + body).base_url).complete_all([numeric("x")]) == [7]


def test_a_server_that_refuses_every_request_stops_the_run(serve: Any) -> None:
    server = serve(lambda *_: (400, {}, "unknown field top_p"))
    with pytest.raises(RunError, match=r"HTTP 400 \(unknown field top_p\)") as caught:
        http_client(server.base_url).complete_all([numeric(str(i)) for i in range(500)])
    assert f"; {len(server.requests)} requests" in str(caught.value)
    assert MAX_FAILED_REQUESTS["refused"] <= len(server.requests) < MAX_FAILED_REQUESTS["refused"] + 16


def test_a_server_that_is_down_for_every_request_stops_the_run_sooner(serve: Any) -> None:
    server = serve(lambda *_: (500, {}, "down"))
    with pytest.raises(RunError, match=r"HTTP 500 \(down\), 2 times; 1[678] requests"):
        http_client(server.base_url, concurrency=3, attempts={"broken": 2}).complete_all(
            [numeric(str(i)) for i in range(99)]
        )


def test_refusals_of_one_report_do_not_stop_the_run(serve: Any) -> None:
    def reply(body: dict[str, Any], _: int) -> Reply:
        if int(last(body)) < 100:
            return 400, {}, "too long"
        # The first answer takes longer than all refusals.
        while len(server.requests) < 100:
            time.sleep(0.001)
        return 200, {}, last(body)

    server = serve(reply)
    answers = http_client(server.base_url, concurrency=4).complete_all([numeric(str(i)) for i in range(120)])
    assert all(isinstance(answer, Failure) for answer in answers[:100])
    assert answers[100:] == list(range(100, 120))


def test_calls_in_flight_are_awaited_before_the_run_stops(serve: Any, tmp_path: Path) -> None:
    many = MAX_FAILED_REQUESTS["refused"] + 50

    def reply(body: dict[str, Any], _: int) -> Reply:
        if 0 < int(last(body)) < many:
            return 400, {}, "too long"
        while len(server.requests) <= MAX_FAILED_REQUESTS["refused"]:
            time.sleep(0.001)
        return 200, {}, last(body)

    server = serve(reply)
    chat = http_client(server.base_url, concurrency=2, cache=ResponseCache(tmp_path))
    answers = chat.complete_all([numeric(str(i)) for i in range(many + 1)])
    assert (answers[0], answers[many], chat.usage_counter.failures) == (0, many, many - 1)


def test_cached_responses_count_against_stopping(serve: Any, tmp_path: Path) -> None:
    server = serve(lambda body, _: (200, {}, "0") if last(body) == "0" else (400, {}, "filtered"))
    requests = [numeric(str(i)) for i in range(MAX_FAILED_REQUESTS["refused"] + 50)]
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


@pytest.mark.parametrize("status", [401, 402, 403, 404, 405, 307])
def test_errors_of_every_request_stop_the_run(serve: Any, status: int) -> None:
    server = serve(lambda *_: (status, {"Location": "http://127.0.0.1:9/"}, "no"))
    with pytest.raises(RunError, match=f"HTTP {status}") as caught:
        http_client(server.base_url, concurrency=2).complete_all([numeric(str(i)) for i in range(50)])
    assert "\n" not in str(caught.value)
    assert len(server.requests) <= 2


def test_an_exhausted_quota_is_not_retried(serve: Any) -> None:
    server = serve(lambda *_: (429, {}, "insufficient_quota"))
    with pytest.raises(RunError, match="quota"):
        http_client(server.base_url).complete_all([numeric("x")])


def test_an_unreachable_address_stops_the_run_within_seconds(serve: Any) -> None:
    server = serve(lambda *_: (200, {}, "1"))
    server.close()
    waits = Waits()
    with pytest.raises(RunError, match=server.base_url) as caught:
        http_client(server.base_url, sleep=waits).complete_all([numeric("x")])
    assert caught.value.code is ErrorCode.SERVER_UNAVAILABLE
    assert sum(waits[:-1]) < 5


def test_a_restarted_server_is_waited_for(serve: Any) -> None:
    server = serve(lambda body, _: (200, {"Connection": "close"}, last(body)))
    chat = http_client(server.base_url)
    chat.complete_all([numeric("1")])
    server.close()
    waits = Waits()

    async def later(seconds: float) -> None:
        await waits(seconds)
        if len(waits) == 20:
            serve(lambda body, _: (200, {}, last(body)), port=int(server.base_url.rpartition(":")[2].split("/")[0]))

    chat.sleep = later
    assert chat.complete_all([numeric("2")]) == [2]
    assert sum(waits) > 10


def test_a_server_that_stays_down_stops_the_run(serve: Any) -> None:
    server = serve(lambda body, _: (200, {"Connection": "close"}, last(body)))
    waits = Waits()
    chat = http_client(server.base_url, sleep=waits)
    chat.complete_all([numeric("1")])
    server.close()
    with pytest.raises(RunError) as caught:
        chat.complete_all([numeric("2")])
    assert caught.value.code is ErrorCode.SERVER_UNAVAILABLE
    assert len(waits) == MAX_ATTEMPTS["unreachable"] - 1


def test_an_unknown_host_is_an_unreachable_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(RunError) as caught:
        http_client("http://judge.invalid/v1").complete_all([numeric("x")])
    assert caught.value.code is ErrorCode.SERVER_UNAVAILABLE


def test_error_messages_that_repeat_the_report_are_not_shown(serve: Any) -> None:
    report = "Small left pleural effusion with collapse of the lower lobe."
    server = serve(lambda body, _: (422, {}, f"bad input: {last(body)[:30]}"))
    assert failure(server.base_url, ChatRequest((("user", report),), str)) == "openai:m: HTTP 422"


@given(st.lists(st.sampled_from(["heart", "lung", "clear", "left", "no"]), min_size=3, max_size=30), st.data())
def test_three_consecutive_words_of_a_report_are_never_shown(words: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(words) - 3))
    assert safe_message(f"bad: {words[start : start + 3]}", [" ".join(words)]) == ""


def _texts(folder: Path) -> str:
    return "".join(path.read_bytes().decode(errors="replace") for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 422, 429, 500])
@pytest.mark.parametrize("route", ["aiohttp", "LangChain"])
def test_the_key_is_sent_and_never_shown(
    serve: Any,
    route: str,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    server = serve(lambda *_: (status, {"Retry-After": "0"}, LEAKY))
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    base_url = server.base_url if route == "aiohttp" else None
    message = ""
    with load_chat_client("openai:m", base_url=base_url, cache=tmp_path / "cache") as chat:
        chat.sleep = Waits()
        try:
            message = str(chat.complete_all([numeric("x")]))
        except RunError as error:
            message = str(error)
        message += str(chat.identity)
    assert server.headers[0]["authorization"] == f"Bearer {SECRET}"
    out, err = capfd.readouterr()
    # The model's own words are stored as they are; a server that answers with the key has it anyway.
    stored = "" if status == 200 else _texts(tmp_path)
    assert SECRET not in message + out + err + caplog.text + stored


def test_no_key_in_the_environment_sends_none(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server = serve(lambda *_: (200, {}, "1"))
    http_client(server.base_url).complete_all([numeric("x")])
    assert "authorization" not in server.headers[0]


@pytest.mark.parametrize("route", ["aiohttp", "LangChain"])
def test_a_key_with_a_line_break_is_refused(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f"{SECRET}\nX-Header: 1")
    base_url = "http://127.0.0.1:9/v1" if route == "aiohttp" else None
    with raises_code(ErrorCode.INVALID_OPTION, field="OPENAI_API_KEY"):
        load_chat_client("openai:m", base_url=base_url)


def test_a_compressed_response_is_not_inflated_without_bounds(serve: Any) -> None:
    bomb = gzip.compress(bytes(1 << 30), 1)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n".encode()
    server = serve(lambda *_: head + bomb)
    tracemalloc.start()
    with raises_code(ErrorCode.JUDGE_FAILED, match="more than 16 MB"):
        http_client(server.base_url).complete_all([numeric("x")])
    assert tracemalloc.get_traced_memory()[1] < 200 << 20
    tracemalloc.stop()
    assert server.headers[0]["accept-encoding"] == "identity"


def test_a_response_that_cannot_be_parsed_is_not_quoted(serve: Any) -> None:
    report = "Small left pleural effusion"

    def parse(text: str) -> int:
        raise ValueError(f"'{text}' isn't 'a number'")

    reason = failure(serve(lambda *_: (200, {}, report)).base_url, ChatRequest((("user", report),), parse, repairs=1))
    assert reason == "no valid answer after 1 repairs: '...'; the response: [...]"


def test_a_long_wait_is_shown(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SILENT_SECONDS", 0.0)
    server = serve(lambda _, n: (200, {}, "7") if n > 1 else (429, {"Retry-After": "300"}, "busy"))
    host, statuses = server.base_url.removeprefix("http://").removesuffix("/v1"), list[str]()

    async def wait(_: float) -> None:
        statuses.extend(status for status in ServerActivity.statuses() if status.startswith(host))

    chat = http_client(server.base_url, sleep=wait)
    assert chat.complete_all([numeric("x")]) == [7]
    assert re.fullmatch(rf"{host}: rate limited, next try in 30\d s", statuses[-1])
