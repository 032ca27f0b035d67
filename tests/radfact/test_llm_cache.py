"""The cache of responses: what reuses it, what its key covers, and concurrent use."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from chat_server import last
from error_checks import raises, raises_code
from hypothesis import given
from hypothesis import strategies as st
from llm_client import http_client, numeric

from radfact.errors import ErrorCode, RunError
from radfact.llm import CachedResponse, ChatRequest, PromptPrefix, ResponseCache, cache, load_chat_client
from radfact.llm.cache import GroupCommit, response_key


def test_a_second_run_sends_no_requests(serve: Any, tmp_path: Path) -> None:
    server = serve(lambda body, _: (200, {}, last(body)))
    with http_client(server.base_url, cache=ResponseCache(tmp_path)) as first:
        first.complete_all([numeric("1"), numeric("2")])
    again = http_client(server.base_url, cache=ResponseCache(tmp_path))
    assert again.complete_all([numeric("1"), numeric("2"), numeric("3")]) == [1, 2, 3]
    assert (len(server.requests), again.usage_counter.cached, again.usage_counter.calls) == (3, 2, 1)


def test_repairs_are_replayed_from_the_cache(serve: Any, tmp_path: Path) -> None:
    server = serve(lambda _, n: (200, {}, "seven" if n == 1 else "7"))
    for _ in range(2):
        with http_client(server.base_url, cache=ResponseCache(tmp_path)) as chat:
            assert chat.complete_all([numeric("x")]) == [7]
    assert (len(server.requests), chat.usage_counter.cached, chat.usage_counter.repairs) == (2, 2, 1)


@pytest.mark.parametrize(
    "other",
    [
        {"name": "openai:other"},
        {"parameters": {"temperature": 1}},
        {"parameters": {"temperature": 0, "reasoning_effort": "high"}},
        {"request": ChatRequest((("system", "Count well."), ("user", "1")), int)},
        {"request": ChatRequest((("system", "Count."), ("user", "1")), int, schema={"type": "integer"})},
    ],
    ids=["model", "parameter", "one more parameter", "prompt", "schema"],
)
def test_the_cache_key_covers_all_that_changes_a_response(serve: Any, tmp_path: Path, other: dict[str, Any]) -> None:
    server = serve(lambda _, n: (200, {}, str(n)))

    def answer(**changed: Any) -> Any:
        options = {"name": "openai:m", "parameters": {"temperature": 0}, "request": numeric("1"), **changed}
        with load_chat_client(
            options["name"], base_url=server.base_url, parameters=options["parameters"], cache=tmp_path
        ) as chat:
            return chat.complete_all([options["request"]])[0]

    assert [answer(), answer(**other), answer()] == [1, 2, 1]


def test_address_and_time_limit_are_not_part_of_the_cache_key(serve: Any, tmp_path: Path) -> None:
    servers = [serve(lambda body, _: (200, {}, last(body))) for _ in range(2)]
    for server, timeout in zip(servers, (5, 50), strict=True):
        parameters = {"timeout": timeout}
        with load_chat_client("openai:m", base_url=server.base_url, parameters=parameters, cache=tmp_path) as chat:
            assert chat.complete_all([numeric("1")]) == [1]
    assert [len(server.requests) for server in servers] == [1, 0]


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


@pytest.fixture
def another(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A process that is just making the file, at the point where SQLite lets nobody wait for it."""
    with closing(sqlite3.connect(tmp_path / "answers.sqlite", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


def test_a_cache_file_under_creation_is_waited_for(
    another: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: another.rollback())
    with closing(ResponseCache(tmp_path)) as made:
        made.put([("k", CachedResponse("7", 1, 2))])
        assert made.get("k") == CachedResponse("7", 1, 2)


@pytest.mark.usefixtures("another")
def test_errors_do_not_suggest_removing_a_cache_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_LOCK_SECONDS", 0.0)
    with raises_code(ErrorCode.FILE_UNREADABLE, match=r"\(database is locked\); try again"):
        ResponseCache(tmp_path)


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
    first, second = ResponseCache(tmp_path), ResponseCache(tmp_path)
    first.put([("a", CachedResponse("1", 0, 0))])
    second.put([("b", CachedResponse("2", 0, 0))])
    assert (first.get("b"), second.get("a")) == (CachedResponse("2", 0, 0), CachedResponse("1", 0, 0))


class _SlowDisk:
    """A cache whose first commit takes until it is let go."""

    def __init__(self) -> None:
        self.commits: list[list[str]] = []
        self.started, self.go = threading.Event(), threading.Event()

    def put(self, answers: Iterable[tuple[str, CachedResponse]]) -> None:
        self.commits.append([key for key, _ in answers])
        self.started.set()
        self.go.wait()

    def close(self) -> None:
        pass


def test_responses_during_a_commit_share_the_next_commit() -> None:
    disk = _SlowDisk()

    async def arrive() -> None:
        group = GroupCommit(cast("ResponseCache", disk))
        puts = [asyncio.create_task(group.put("first", CachedResponse("", 0, 0)))]
        await asyncio.to_thread(disk.started.wait)
        puts += [asyncio.create_task(group.put(key, CachedResponse("", 0, 0))) for key in "abc"]
        await asyncio.sleep(0)
        assert not any(put.done() for put in puts)
        disk.go.set()
        await asyncio.gather(*puts)
        await group.close()

    asyncio.run(arrive())
    assert disk.commits == [["first"], ["a", "b", "c"]]


def test_a_response_to_a_cancelled_request_is_cached(tmp_path: Path) -> None:
    async def arrive() -> None:
        group = GroupCommit(ResponseCache(tmp_path))
        put = asyncio.create_task(group.put("k", CachedResponse("7", 1, 2)))
        await asyncio.sleep(0)
        put.cancel()
        await group.close()

    asyncio.run(arrive())
    assert ResponseCache(tmp_path).get("k") == CachedResponse("7", 1, 2)
