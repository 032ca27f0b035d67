"""The client against a real HTTP server that misbehaves as real ones do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from chat_server import Reply, last

from radfact.errors import Failure, InputError, RunFailed
from radfact.llm import AnswerCache, Ask, ChatClient, connect, split_model_args
from radfact.llm.http import HttpBackend


class Waits(list[float]):
    """Stands in for sleeping and notes how long it would have been."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


def client(base_url: str, **options: Any) -> ChatClient:
    options.setdefault("sleep", Waits())
    backend = HttpBackend("m", base_url, {"temperature": 0, "max_tokens": 1024}, timeout=5)
    return ChatClient(backend, {"model": "openai:m", "base_url": base_url}, **options)


def ask(text: str) -> Ask[int]:
    """A question whose answer must be a whole number."""
    return Ask((("system", "Count."), ("user", text)), int)


def test_answers_come_in_the_order_of_the_questions(serve: Any) -> None:
    server = serve(lambda body, _: (200, {}, last(body)))
    assert client(server.base_url).ask_all([ask(str(i)) for i in range(40)]) == list(range(40))


def test_no_more_calls_in_flight_than_allowed(serve: Any) -> None:
    def reply(body: dict[str, Any], _: int) -> Reply:
        time.sleep(0.005)  # lets calls overlap; the assertion is on a bound, not on time
        return 200, {}, last(body)

    server = serve(reply)
    client(server.base_url, concurrency=3).ask_all([ask(str(i)) for i in range(20)])
    assert server.most_in_flight <= 3


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(serve: Any, status: int) -> None:
    server = serve(lambda _, n: (200, {}, "7") if n > 2 else (status, {}, "busy"))
    chat = client(server.base_url)
    assert chat.ask_all([ask("x")]) == [7]
    assert (chat.ledger.calls, chat.ledger.retries) == (1, 2)


def test_the_server_says_how_long_to_wait(serve: Any) -> None:
    server = serve(lambda _, n: (200, {}, "7") if n > 1 else (429, {"Retry-After": "17"}, "busy"))
    waits = Waits()
    client(server.base_url, sleep=waits).ask_all([ask("x")])
    assert waits == [17.0]


def test_waits_grow_while_a_server_stays_busy(serve: Any) -> None:
    server = serve(lambda *_: (500, {}, "down"))
    waits = Waits()
    client(server.base_url, attempts={"broken": 6}, sleep=waits).ask_all([ask("x")])
    assert len(waits) == 5
    assert waits[-1] > waits[0]


def test_a_server_that_stays_down_gives_a_failure_for_the_question_only(serve: Any) -> None:
    server = serve(lambda body, _: (500, {}, "down") if last(body) == "1" else (200, {}, last(body)))
    answers = client(server.base_url, attempts={"broken": 2}).ask_all([ask("0"), ask("1"), ask("2")])
    assert (answers[0], answers[2]) == (0, 2)
    assert isinstance(answers[1], Failure)
    assert "HTTP 500" in answers[1].reason


def test_a_refused_question_is_not_asked_again(serve: Any) -> None:
    server = serve(lambda *_: (400, {}, "too long"))
    assert isinstance(client(server.base_url).ask_all([ask("x")])[0], Failure)
    assert len(server.requests) == 1


def test_a_refused_key_stops_the_run_with_one_line(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-do-not-show")
    server = serve(lambda *_: (401, {}, "Incorrect API key provided: sk-do-not-show"))
    with pytest.raises(RunFailed) as caught:
        client(server.base_url, concurrency=2).ask_all([ask(str(i)) for i in range(50)])
    assert "HTTP 401" in str(caught.value)
    assert "sk-do-not-show" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(server.requests) <= 2


def test_an_address_where_nobody_listens_stops_the_run(serve: Any) -> None:
    server = serve(lambda *_: (200, {}, "1"))
    server.close()
    with pytest.raises(RunFailed, match="cannot be reached"):
        client(server.base_url).ask_all([ask("x")])


def test_a_wrong_answer_is_repaired_with_what_is_wrong(serve: Any) -> None:
    server = serve(lambda _, n: (200, {}, "seven" if n == 1 else "7"))
    chat = client(server.base_url)
    assert chat.ask_all([ask("x")]) == [7]
    assert chat.ledger.repairs == 1
    roles = [message["role"] for message in server.requests[1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert "'seven'" in last(server.requests[1])


def test_at_most_two_repairs(serve: Any) -> None:
    server = serve(lambda *_: (200, {}, "seven"))
    chat = client(server.base_url)
    answer = chat.ask_all([ask("x")])[0]
    assert isinstance(answer, Failure)
    assert len(server.requests) == 3
    assert chat.ledger.failures == 1


def test_tokens_are_counted(serve: Any) -> None:
    server = serve(lambda *_: (200, {}, "7"))
    chat = client(server.base_url)
    chat.ask_all([ask("x"), ask("y")])
    assert (chat.ledger.tokens_in, chat.ledger.tokens_out) == (20, 6)


def test_parameters_reach_the_server(serve: Any) -> None:
    server = serve(lambda *_: (200, {}, "7"))
    client(server.base_url).ask_all([ask("x")])
    assert server.requests[0]["temperature"] == 0
    assert server.requests[0]["max_tokens"] == 1024


def test_a_second_run_asks_nothing_twice(serve: Any, tmp_path: Path) -> None:
    server = serve(lambda body, _: (200, {}, last(body)))
    client(server.base_url, cache=AnswerCache(tmp_path)).ask_all([ask("1"), ask("2")])
    again = client(server.base_url, cache=AnswerCache(tmp_path))
    assert again.ask_all([ask("1"), ask("2"), ask("3")]) == [1, 2, 3]
    assert (len(server.requests), again.ledger.cached, again.ledger.calls) == (3, 2, 1)


def test_answers_before_a_stop_are_kept(serve: Any, tmp_path: Path) -> None:
    server = serve(lambda body, n: (200, {}, last(body)) if n <= 3 else (401, {}, "expired"))
    with pytest.raises(RunFailed):
        client(server.base_url, concurrency=1, cache=AnswerCache(tmp_path)).ask_all([ask(str(i)) for i in range(6)])
    kept = client(server.base_url, cache=AnswerCache(tmp_path))
    assert kept.ask_all([ask("0"), ask("1"), ask("2")]) == [0, 1, 2]
    assert kept.ledger.cached == 3


def test_another_model_has_other_answers(serve: Any, tmp_path: Path) -> None:
    server = serve(lambda _, n: (200, {}, str(n)))
    connect("openai:m", base_url=server.base_url, cache=tmp_path).ask_all([ask("x")])
    assert connect("openai:other", base_url=server.base_url, cache=tmp_path).ask_all([ask("x")]) == [2]


def test_a_file_that_is_no_cache_is_named(tmp_path: Path) -> None:
    (tmp_path / "answers.sqlite").write_text("this is no database, however long it may be" * 50)
    with pytest.raises(InputError, match=r"answers\.sqlite"):
        AnswerCache(tmp_path)


def test_a_missing_partner_package_is_named_with_its_command() -> None:
    with pytest.raises(InputError, match="pip install langchain-cohere"):
        connect("cohere:command")


def test_an_unknown_provider_lists_the_known() -> None:
    with pytest.raises(InputError, match="unknown provider 'nobody'; known are anthropic"):
        connect("nobody:model")


def test_keys_come_only_from_the_environment() -> None:
    with pytest.raises(InputError, match="environment"):
        split_model_args({"api_key": "sk-1"})


def test_model_arguments_are_numbers_where_they_look_like_it() -> None:
    assert split_model_args({"temperature": "0.5", "seed": "3", "user": "abc"}) == {
        "temperature": 0.5,
        "seed": 3,
        "user": "abc",
    }


def test_no_key_and_no_server_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InputError, match="set OPENAI_API_KEY"):
        connect("openai:m")


def test_a_password_in_the_address_is_refused() -> None:
    with pytest.raises(InputError, match="no user name or password"):
        connect("openai:m", base_url="http://me:secret@host/v1")
