"""The client against a real HTTP server: order, concurrency, repairs, sharing, counting and closing; its cache."""

import asyncio
import concurrent.futures
import multiprocessing
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from chat_server import Reply, http_client, last, numeric
from error_checks import raises, raises_code
from hypothesis import given
from hypothesis import strategies as st
from waiting import PATIENCE

from radfact import llm
from radfact.errors import ErrorCode, Failure, RunError
from radfact.llm import CachedResponse, CallError, ChatClient, ChatRequest, MockChatModel, PromptPrefix, ResponseCache
from radfact.llm.cache import GroupCommit, response_key

PROGRAM = """
import sys
from radfact.llm import ChatRequest, load_chat_client
chat = load_chat_client("openai:m", base_url=sys.argv[1], cache=sys.argv[2])
print(chat.complete_all([ChatRequest((("user", "3"),), int)]))
"""
messages = st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text(max_size=8)), max_size=5)


def echo(body: dict[str, Any], _: int) -> Reply:
    return 200, {}, last(body)


def test_a_call_that_its_backend_cancels_ends_the_run() -> None:
    class Canceling(MockChatModel):
        async def complete(self, *conversation: Any) -> CachedResponse:
            await super().complete(*conversation)
            raise asyncio.CancelledError

    backend = Canceling("1")
    with pytest.raises((asyncio.CancelledError, concurrent.futures.CancelledError)):
        ChatClient(backend, {"model": "m"}, concurrency=2).complete_all([numeric("1"), numeric("2")])
    assert len(backend.calls) == 2


def test_concurrency_limits_the_calls_of_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    # No loop runs yet: threads that start together agree on one.
    monkeypatch.setattr(llm.client, "_EVENT_LOOPS", {})

    class Counting(MockChatModel):
        in_flight = most_in_flight = 0

        async def complete(self, *conversation: Any) -> CachedResponse:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            while chat.usage_counter.planned < 30:
                await asyncio.sleep(0)
            # All runs have requests: after some turns of the loop, all calls that may be in flight are.
            for _ in range(20):
                await asyncio.sleep(0)
            self.in_flight -= 1
            return await super().complete(*conversation)

    backend = Counting(lambda text: text)
    chat = ChatClient(backend, {"model": "m"}, concurrency=3, max_invalid=0)
    runs = [range(10), range(100, 110), range(200, 210)]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        results = pool.map(lambda run: chat.complete_all([numeric(str(number)) for number in run]), runs)
    assert list(results) == [list(run) for run in runs]
    assert (len(backend.calls), backend.most_in_flight) == (30, 3)


def test_the_pool_is_full_while_there_are_requests_and_keeps_their_order(serve: Any) -> None:
    together = threading.Barrier(8, timeout=PATIENCE)

    def reply(body: dict[str, Any], number: int) -> Reply:
        together.wait()  # Breaks unless eight requests are in flight at once, three times.
        return echo(body, number)

    chat = http_client(serve(reply).base_url, concurrency=8)
    assert chat.complete_all([numeric(str(i)) for i in range(24)]) == list(range(24))
    assert chat.complete_all([]) == []


def test_equal_requests_in_flight_share_a_call(serve: Any) -> None:
    server = serve(echo)
    chat = http_client(server.base_url)
    assert chat.complete_all([numeric(text) for text in ("1", "2", "1", "1")]) == [1, 2, 1, 1]
    assert chat.complete_all([numeric("1")]) == [1]
    assert (len(server.requests), chat.usage_counter.calls, chat.usage_counter.cached) == (2, 2, 3)


def test_a_shared_call_is_repeated_if_its_run_stops() -> None:
    class StopsWhenJoined(MockChatModel):
        """Never answers the first "x", and stops its run as soon as another run shares the request."""

        async def complete(self, *conversation: Any) -> CachedResponse:
            if conversation[1][-1][1] == "stop":
                while chat.usage_counter.planned < 3:
                    await asyncio.sleep(0.001)
                # The other run joins in the next turns of the loop.
                for _ in range(20):
                    await asyncio.sleep(0)
                raise CallError("stopped", "enough")
            response = await super().complete(*conversation)
            if len(self.calls) == 1:
                started.set()
                await asyncio.Event().wait()
            return response

    started = threading.Event()
    backend = StopsWhenJoined("1")
    chat = ChatClient(backend, {"model": "m"}, concurrency=2)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(chat.complete_all, [numeric("x"), numeric("stop")])
        started.wait()
        assert chat.complete_all([numeric("x")]) == [1]
        with pytest.raises(RunError, match="enough"):
            first.result()
    assert len(backend.calls) == 2


def test_a_client_works_inside_a_running_event_loop(serve: Any) -> None:
    chat = http_client(serve(echo).base_url)

    async def cell() -> list[int | Failure]:
        return chat.complete_all([numeric("3")])

    assert asyncio.run(cell()) == [3]


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


def test_an_unclosed_client_ends_without_a_warning(serve: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", PROGRAM, serve(echo).base_url, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[3]", "")


def test_a_forked_process_can_have_its_own_client(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Waiting for a loop that does not run in the child would outlast this test.
    monkeypatch.setattr(llm.client, "_CLOSING_SECONDS", 60.0)
    url = serve(echo).base_url
    inherited = [http_client(url)]
    assert inherited[0].complete_all([numeric("1")]) == [1]

    def run_child(sender: Any) -> None:
        # As the garbage collector does at any time.
        inherited.clear()
        sender.send(http_client(url).complete_all([numeric("2")]))

    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=run_child, args=(sender,))
    process.start()
    try:
        assert receiver.poll(30), "the child waits for a thread that it does not have"
        assert receiver.recv() == [2]
    finally:
        process.kill()
        process.join()
    assert inherited[0].complete_all([numeric("3")]) == [3]
    assert inherited[0].sleep == []  # no retry: the child did not unregister the connection


def test_a_second_run_takes_responses_and_repairs_from_the_cache(serve: Any, tmp_path: Path) -> None:
    server = serve(lambda body, n: (200, {}, "seven" if n == 1 else body["messages"][1]["content"]))
    with http_client(server.base_url, cache=ResponseCache(tmp_path), concurrency=1) as first:
        assert first.complete_all([numeric("1"), numeric("2")]) == [1, 2]
    again = http_client(server.base_url, cache=ResponseCache(tmp_path))
    assert again.complete_all([numeric("1"), numeric("2"), numeric("3")]) == [1, 2, 3]
    usage = again.usage_counter
    assert (len(server.requests), usage.cached, usage.repairs, usage.calls) == (4, 3, 1, 1)


def test_the_cache_key_covers_all_that_changes_a_response(serve: Any, tmp_path: Path) -> None:
    def respond(request: ChatRequest[int], name: str = "openai:m", **parameters: object) -> int | Failure:
        """Return the response of a server of its own: the address is not part of the key."""
        parameters = {"temperature": 0, **parameters}
        server = serve(lambda *_: (200, {}, str(next(numbers))))
        with llm.load_chat_client(name, base_url=server.base_url, parameters=parameters, cache=tmp_path) as chat:
            return chat.complete_all([request])[0]

    numbers = count()
    request = numeric("1")
    assert respond(request) == 0
    assert respond(request, name="openai:other") == 1
    assert respond(request, temperature=1) == 2
    assert respond(request, reasoning_effort="high") == 3
    assert respond(ChatRequest((("system", "Count well."), ("user", "1")), int)) == 4
    assert respond(replace(request, schema={"type": "integer"})) == 5
    assert respond(request, timeout=50) == 0


@given(st.lists(messages, max_size=4, unique_by=tuple))
def test_different_conversations_have_different_keys(conversations: list[list[tuple[str, str]]]) -> None:
    keys = {response_key(b"{}", PromptPrefix(), tuple(conversation)) for conversation in conversations}
    assert len(keys) == len(conversations)


@given(messages, st.data())
def test_the_key_ignores_the_end_of_the_prefix(conversation: list[tuple[str, str]], data: st.DataObject) -> None:
    # A last message follows every prefix: the request.
    whole = (*conversation, ("user", "q"))
    cut = data.draw(st.integers(0, len(conversation)))
    assert response_key(b"{}", PromptPrefix(whole[:cut]), whole[cut:]) == response_key(b"{}", PromptPrefix(), whole)


def test_a_path_that_is_no_cache_is_refused(tmp_path: Path) -> None:
    file = tmp_path / ResponseCache.FILE
    file.write_text("this is no database, however long it may be" * 50)
    for folder in (tmp_path, file / "cache"):
        with raises("answers.sqlite: file-unreadable"):
            ResponseCache(folder)
    file.unlink()
    with closing(sqlite3.connect(file)) as other:
        other.execute("CREATE TABLE answers (key TEXT PRIMARY KEY, text TEXT)")
    with raises("answers.sqlite: unsupported-version"):
        ResponseCache(tmp_path)


def test_a_cache_file_under_creation_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another process is creating the file, at the point where SQLite lets nobody wait for it.
    with closing(sqlite3.connect(tmp_path / "answers.sqlite", isolation_level=None)) as another:
        another.execute("BEGIN IMMEDIATE")
        with monkeypatch.context() as patch:
            patch.setattr(llm.cache, "_LOCK_SECONDS", 0.0)
            # The error does not suggest to remove a cache in use.
            with raises_code(ErrorCode.FILE_UNREADABLE, match=r"\(database is locked\); try again"):
                ResponseCache(tmp_path)
        monkeypatch.setattr(time, "sleep", lambda _: another.rollback())
        with closing(ResponseCache(tmp_path)) as made:
            made.put([("k", CachedResponse("7", 1, 2))])
            assert made.get("k") == CachedResponse("7", 1, 2)


def test_a_failed_write_to_the_cache_stops_the_run(serve: Any, tmp_path: Path) -> None:
    cache = ResponseCache(tmp_path)
    cache._writer.execute("PRAGMA max_page_count = 2")  # what a full disk looks like to SQLite
    with raises_code(ErrorCode.WRITE_FAILED, match="database or disk is full"):
        http_client(serve(echo).base_url, cache=cache).complete_all([ChatRequest((("user", "1" * 9000),), str)])


def test_a_failed_read_from_the_cache_stops_the_run(serve: Any, tmp_path: Path) -> None:
    with http_client(serve(lambda *_: (200, {}, "7")).base_url, cache=ResponseCache(tmp_path)) as chat:
        with sqlite3.connect(tmp_path / "answers.sqlite") as other:
            other.execute("DROP TABLE answers")
        with pytest.raises(RunError, match=r"answers\.sqlite: cannot read"):
            chat.complete_all([numeric("x")])


def test_two_processes_write_to_one_cache(tmp_path: Path) -> None:
    responses = {"a": CachedResponse("1", 0, 0), "b": CachedResponse("2", 0, 0)}
    caches = [ResponseCache(tmp_path) for _ in responses]
    for shared, item in zip(caches, responses.items(), strict=True):
        shared.put([item])
    assert [{key: shared.get(key) for key in responses} for shared in caches] == [responses, responses]


def test_responses_during_a_commit_share_the_next_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, commits, started, go = ResponseCache(tmp_path), list[list[str]](), threading.Event(), threading.Event()

    def slow_put(responses: Iterable[tuple[str, CachedResponse]]) -> None:
        commits.append([key for key, _ in responses])
        started.set()
        go.wait()

    async def arrive() -> None:
        group = GroupCommit(disk)
        puts = [asyncio.create_task(group.put("first", CachedResponse("", 0, 0)))]
        await asyncio.to_thread(started.wait)
        puts += [asyncio.create_task(group.put(key, CachedResponse("", 0, 0))) for key in "abc"]
        await asyncio.sleep(0)
        assert not any(put.done() for put in puts)
        go.set()
        await asyncio.gather(*puts)
        await group.close()

    monkeypatch.setattr(disk, "put", slow_put)
    asyncio.run(arrive())
    assert commits == [["first"], ["a", "b", "c"]]


def test_a_response_to_a_cancelled_request_is_cached(tmp_path: Path) -> None:
    async def arrive() -> None:
        group = GroupCommit(ResponseCache(tmp_path))
        put = asyncio.create_task(group.put("k", CachedResponse("7", 1, 2)))
        await asyncio.sleep(0)
        put.cancel()
        await group.close()

    asyncio.run(arrive())
    assert ResponseCache(tmp_path).get("k") == CachedResponse("7", 1, 2)
