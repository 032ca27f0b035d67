"""The client against a real HTTP server: order, concurrency, repairs, sharing, counting and closing."""

from __future__ import annotations

import asyncio
import concurrent.futures
import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, cast

import pytest
from chat_server import Reply, last
from llm_client import http_client, numeric

from radfact.errors import Failure, RunError
from radfact.llm import CachedResponse, CallError, ChatClient, ChatRequest, Message, PromptPrefix, client


def echo(body: dict[str, Any], _: int) -> Reply:
    """Answers with the request."""
    return 200, {}, last(body)


def test_responses_have_the_order_of_the_requests(serve: Any) -> None:
    chat = http_client(serve(echo).base_url)
    assert chat.complete_all([numeric(str(i)) for i in range(40)]) == list(range(40))
    assert chat.complete_all([]) == []


def test_a_call_that_its_backend_cancels_ends_the_run() -> None:
    calls: list[object] = []

    class Canceling:
        async def complete(self, *_: object) -> NoReturn:
            calls.append(None)
            raise asyncio.CancelledError

        async def close(self) -> None:
            pass

    chat = ChatClient(cast(Any, Canceling()), identity={"model": "m"}, concurrency=2)
    with pytest.raises((asyncio.CancelledError, concurrent.futures.CancelledError)):
        chat.complete_all([numeric("1"), numeric("2")])
    assert len(calls) == 2


def test_concurrency_limits_the_calls_of_all_threads(serve: Any) -> None:
    def reply(body: dict[str, Any], number: int) -> Reply:
        time.sleep(0.005)
        return echo(body, number)

    server = serve(reply)
    chat = http_client(server.base_url, concurrency=3)
    threads = [
        threading.Thread(target=chat.complete_all, args=([numeric(str(100 * t + i)) for i in range(10)],))
        for t in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(server.requests), server.most_in_flight <= 3) == (30, True)


def test_the_pool_is_full_while_there_are_requests(serve: Any) -> None:
    together = threading.Barrier(8, timeout=20)

    def reply(body: dict[str, Any], number: int) -> Reply:
        together.wait()  # breaks unless eight requests are under way at once, three times over
        return echo(body, number)

    answers = http_client(serve(reply).base_url, concurrency=8).complete_all([numeric(str(i)) for i in range(24)])
    assert answers == list(range(24))


def test_equal_requests_in_flight_share_a_call(serve: Any) -> None:
    server = serve(echo)
    chat = http_client(server.base_url)
    assert chat.complete_all([numeric("1"), numeric("2"), numeric("1"), numeric("1")]) == [
        1,
        2,
        1,
        1,
    ]
    assert chat.complete_all([numeric("1")]) == [1]
    assert (len(server.requests), chat.usage_counter.calls, chat.usage_counter.cached) == (2, 2, 3)


class _StopsWhenJoined:
    """Never answers the first "x", and stops the run that asks it as soon as another run shares the request."""

    def __init__(self) -> None:
        self.joined = threading.Event()
        self.started = threading.Event()
        self.calls = 0

    async def complete(
        self, _: PromptPrefix, messages: Sequence[Message], __: Mapping[str, Any] | None
    ) -> CachedResponse:
        if messages[-1][1] == "stop":
            await asyncio.to_thread(self.joined.wait)
            raise CallError("stopped", "enough")
        self.calls += 1
        if self.calls == 1:
            self.started.set()
            await asyncio.Event().wait()
        return CachedResponse("1", 1, 1)

    async def close(self) -> None:
        pass


def test_a_shared_call_is_repeated_if_its_run_stops() -> None:
    backend = _StopsWhenJoined()
    chat = ChatClient(backend, {"model": "m"}, concurrency=2)
    stopped: list[BaseException] = []

    def first() -> None:
        try:
            chat.complete_all([numeric("x"), numeric("stop")])
        except RunError as error:
            stopped.append(error)

    def joins() -> None:
        while chat.usage_counter.planned < 3:
            time.sleep(0.001)
        backend.joined.set()

    threads = [threading.Thread(target=first), threading.Thread(target=joins)]
    for thread in threads:
        thread.start()
    backend.started.wait()
    assert chat.complete_all([numeric("x")]) == [1]
    for thread in threads:
        thread.join()
    assert len(stopped) == 1


def test_a_client_works_inside_a_running_event_loop(serve: Any) -> None:
    chat = http_client(serve(echo).base_url)

    async def cell() -> list[int | Failure]:
        return chat.complete_all([numeric("3")])

    assert asyncio.run(cell()) == [3]


def test_a_request_may_set_its_number_of_repairs(serve: Any) -> None:
    server = serve(lambda *_: (200, {}, "seven"))
    chat = http_client(server.base_url)
    answers = chat.complete_all([replace(numeric("x"), repairs=5), replace(numeric("y"), repairs=0)])
    assert [isinstance(answer, Failure) and answer.reason.split(":")[0] for answer in answers] == [
        "no valid answer after 5 repairs",
        "no valid answer after 0 repairs",
    ]
    assert len(server.requests) == 7
    assert sum("'seven'" in last(body) for body in server.requests) == 5


def test_the_usage_grows_during_the_run(serve: Any) -> None:
    seen: list[tuple[int, int]] = []

    def reply(body: dict[str, Any], number: int) -> Reply:
        seen.append((chat.usage_counter.planned, chat.usage_counter.done))
        return echo(body, number)

    chat = http_client(serve(reply).base_url, concurrency=1)
    chat.complete_all([numeric(str(i)) for i in range(4)])
    assert seen == [(4, 0), (4, 1), (4, 2), (4, 3)]


def test_a_lone_surrogate_can_be_sent(serve: Any) -> None:
    server = serve(lambda *_: (200, {}, "caf\ud83d"))
    answers = http_client(server.base_url).complete_all([ChatRequest((("user", "caf\ud83d"),), str)])
    assert answers == ["caf?"]


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[2])
from radfact.llm import load_chat_client
from llm_client import numeric
chat = load_chat_client("openai:m", base_url=sys.argv[1], cache=None if len(sys.argv) < 4 else sys.argv[3])
print(chat.complete_all([numeric("3")]))
"""


def test_an_unclosed_client_ends_without_a_warning(serve: Any, tmp_path: Any, request: Any) -> None:
    arguments = [serve(echo).base_url, str(request.path.parent), str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[3]", "")


def test_a_closed_client_may_be_closed_again(serve: Any) -> None:
    with http_client(serve(echo).base_url) as chat:
        chat.complete_all([numeric("3")])
    chat.close()


def test_a_forked_process_can_have_its_own_client(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Waiting for a loop that does not run in the child would outlast this test.
    monkeypatch.setattr(client, "_CLOSING_SECONDS", 60.0)
    url = serve(echo).base_url
    inherited = [http_client(url)]
    assert inherited[0].complete_all([numeric("1")]) == [1]

    def forked(said: Any) -> None:
        # As the garbage collector does, whenever it comes by.
        inherited.clear()
        said.send(http_client(url).complete_all([numeric("2")]))

    context = multiprocessing.get_context("fork")
    heard, said = context.Pipe(duplex=False)
    process = context.Process(target=forked, args=(said,))
    process.start()
    try:
        assert heard.poll(30), "it waits for a thread that it does not have"
        answers = heard.recv()
    finally:
        process.kill()
        process.join()
    assert answers == [2]
    assert inherited[0].complete_all([numeric("3")]) == [3]
    assert inherited[0].sleep == []  # no retry: the child did not unregister the connection
