"""The cache of responses: what reuses it, what its key covers, and concurrent use."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from chat_server import last
from error_checks import raises, raises_code
from hypothesis import given
from hypothesis import strategies as st
from llm_client import http_client, numeric

from radfact.errors import ErrorCode, Failure, RunError
from radfact.llm import CachedResponse, ChatRequest, PromptPrefix, ResponseCache, cache, load_chat_client
from radfact.llm.cache import GroupCommit, response_key


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
        with load_chat_client(name, base_url=server.base_url, parameters=parameters, cache=tmp_path) as chat:
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


messages = st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text(max_size=8)), max_size=5)


@given(st.lists(messages, max_size=4, unique_by=tuple))
def test_different_conversations_have_different_keys(conversations: list[list[tuple[str, str]]]) -> None:
    keys = {response_key(b"{}", PromptPrefix(), tuple(conversation)) for conversation in conversations}
    assert len(keys) == len(conversations)


@given(messages, st.data())
def test_the_key_does_not_depend_on_the_end_of_the_prefix(
    conversation: list[tuple[str, str]], data: st.DataObject
) -> None:
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
            patch.setattr(cache, "_LOCK_SECONDS", 0.0)
            # The error does not suggest to remove a cache in use.
            with raises_code(ErrorCode.FILE_UNREADABLE, match=r"\(database is locked\); try again"):
                ResponseCache(tmp_path)
        monkeypatch.setattr(time, "sleep", lambda _: another.rollback())
        with closing(ResponseCache(tmp_path)) as made:
            made.put([("k", CachedResponse("7", 1, 2))])
            assert made.get("k") == CachedResponse("7", 1, 2)


def test_a_failed_write_to_the_cache_stops_the_run(serve: Any, tmp_path: Path) -> None:
    server = serve(lambda body, _: (200, {}, last(body)))
    cache = ResponseCache(tmp_path)
    cache._writer.execute("PRAGMA max_page_count = 2")  # what a full disk looks like to SQLite
    with raises_code(ErrorCode.WRITE_FAILED, match="database or disk is full"):
        http_client(server.base_url, cache=cache).complete_all([ChatRequest((("user", "1" * 9000),), str)])


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
