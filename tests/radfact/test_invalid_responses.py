"""A model that does not follow the format of responses: it is noticed after the first ones, and no report is shown."""

import asyncio
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from error_checks import raises_code
from hypothesis import given
from hypothesis import strategies as st
from llm_client import numeric
from rich.console import Console

from radfact import progress
from radfact.api import RadFact, evaluate
from radfact.errors import ErrorCode, Failure, RunError
from radfact.judges import EntailmentQuery
from radfact.judges.llm_judge import LLMJudge, judge_prompt
from radfact.judges.llm_splitter import LLMSplitter
from radfact.llm import CachedResponse, ChatClient, MockChatModel, ResponseCache
from radfact.llm.call_errors import excerpt
from radfact.metrics.registry import entries
from radfact.progress import ProgressDisplay, ServerActivity
from radfact.records import Pair

SORRY = "I'm sorry, but I cannot assess medical images."
LLM_METRICS = [
    name for name, entry in entries().items() if entry.is_builtin and entry.declared.requirements.judge == "model"
]
WORDS = ("Zebra", "quagga", "okapi", "Émile", "A7731")
"""Words that no prompt has."""
PAIRS = [Pair(str(i), f"{' '.join(WORDS)} {i}.", f"No {' '.join(WORDS)} {i}.") for i in range(12)]


def client(model: MockChatModel, **options: Any) -> ChatClient:
    return ChatClient(model, {"model": "mock:m"}, **{"concurrency": 1, **options})


def requests(count: int) -> list[Any]:
    return [numeric(str(i)) for i in range(count)]


@pytest.mark.parametrize(
    ("options", "count"), [({}, 10), ({"concurrency": 64}, 10), ({"max_invalid": 2}, 2)], ids=["one", "all", "limit"]
)
def test_a_run_stops_after_the_first_invalid_responses(options: dict[str, int], count: int) -> None:
    model = MockChatModel(SORRY)
    with pytest.raises(RunError) as caught:
        client(model, **options).complete_all(requests(500))
    assert len(model.calls) == count * 3
    assert str(caught.value) == (
        f"mock:m: the first {count} responses are all invalid (first: invalid literal for int() with base 10: '...'; "
        f"the response: {SORRY}); --max-invalid 0 disables this check (in Python max_invalid=0)"
    )


def test_one_valid_response_continues_the_run() -> None:
    results = client(MockChatModel(lambda message: "7" if message == "9" else SORRY)).complete_all(requests(30))
    assert [isinstance(result, Failure) for result in results] == [number != 9 for number in range(30)]


def test_a_valid_response_of_a_parallel_call_continues_the_run() -> None:
    class OneLate(MockChatModel):
        """Answers the tenth call after ten others."""

        async def complete(self, *conversation: Any) -> CachedResponse:
            response = await super().complete(*conversation)
            while response.text == "7" and chat._invalid < 10:
                await asyncio.sleep(0.01)
            return response

    chat = client(OneLate(lambda message: "7" if message == "9" else SORRY), concurrency=16)
    unrepaired = [replace(request, repairs=0) for request in requests(32)]
    assert chat.complete_all(unrepaired)[9] == 7


def test_all_calls_start_after_a_valid_response() -> None:
    class Together(MockChatModel):
        """Answers no call after the tenth before 16 are in flight."""

        async def complete(self, *conversation: Any) -> CachedResponse:
            response = await super().complete(*conversation)
            if len(self.calls) > 10:
                await asyncio.wait_for(barrier.wait(), 30)
            return response

    barrier = asyncio.Barrier(16)
    assert client(Together("7"), concurrency=16).complete_all(requests(10 + 32)) == [7] * 42


def test_cached_invalid_responses_stop_a_resumed_run(tmp_path: Path) -> None:
    with client(MockChatModel(SORRY), max_invalid=0, cache=ResponseCache(tmp_path)) as first:
        assert all(isinstance(result, Failure) for result in first.complete_all(requests(30)))
    model = MockChatModel("7")
    with client(model, cache=ResponseCache(tmp_path)) as second, raises_code(ErrorCode.JUDGE_FAILED, match="first 10"):
        second.complete_all(requests(30))
    assert model.calls == []


def test_a_report_with_some_verdicts_is_no_invalid_response() -> None:
    half = "- number: 1\n  evidence: []\n  status: not_entailment"
    judge = LLMJudge("m", client(MockChatModel(half)), judge_prompt(batch="report"))
    queries = [EntailmentQuery((f"premise {i}",), text) for i in range(15) for text in ("Opacity.", "Edema.")]
    assert not any(isinstance(verdict, Failure) for verdict in judge.judge(queries))


@pytest.mark.parametrize("options", [{}, {"batch": "report"}, {"splitter": "offline"}])
def test_judge_and_splitter_stop(options: dict[str, Any], tmp_path: Path) -> None:
    limits = {"concurrency": 1, "cache": tmp_path, "max_invalid": 3, "bootstrap": 0}
    metric = RadFact("mock:m", judge_args={"responses": SORRY}, **limits, **options)
    with raises_code(ErrorCode.JUDGE_FAILED, match="the first 3 responses"):
        metric.score(PAIRS)


def test_the_command_names_the_option_that_continues(run_radfact: Any, serve: Any) -> None:
    server = serve(lambda *_: (200, {}, SORRY))
    rows = [f"{i},Effusion {i}.,No effusion {i}." for i in range(12)]
    Path("pairs.csv").write_text("\n".join(["example_id,prediction,target", *rows]))
    command = ["score", "pairs.csv", "--judge", "openai:m", "--base-url", server.base_url, "--splitter", "offline"]
    command += ["--concurrency", "1"]
    code, _, error = run_radfact(*command)
    assert (code, len(error.splitlines())) == (1, 1)
    assert re.search(r"the first 10 responses are all invalid.*--max-invalid 0.*\[judge-failed\]$", error)
    assert run_radfact(*command) == (code, "records read: 12, skipped: 0, pairs: 12\n", error)
    assert len(server.requests) == 30
    code, _, error = run_radfact(*command, "--max-invalid", "0")
    assert (code, error.split()[-1]) == (1, "[nothing-scored]")
    assert len(server.requests) == 24 * 3


def test_the_display_shows_the_first_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "POLL_INTERVAL", 0.001)
    ServerActivity("earlier").fail("of another run")
    written, activity = io.StringIO(), ServerActivity("judge:8000")
    with ProgressDisplay(Console(file=written, width=200), {"judging": lambda: {"planned": 9}}) as display:
        for number in range(progress.MAX_FAILURES + 2):
            activity.fail(f"problem {number}")
        while len(written.getvalue().splitlines()) < progress.MAX_FAILURES:
            display._stopped.wait(0.001)
    lines = written.getvalue().splitlines()
    assert lines[: progress.MAX_FAILURES] == [f"judge:8000: problem {i}" for i in range(progress.MAX_FAILURES)]
    assert "problem 3" not in written.getvalue()


ECHOES: dict[str, Callable[[str], str]] = {
    "the prompt": lambda message: message,
    "in upper case": lambda message: message.upper(),
    "a word per line": lambda message: "\n".join(message.split()),
    "one word": lambda _: WORDS[0],
    "JSON": lambda _: json.dumps({"finding": f"{WORDS[0]} of the {WORDS[1]}", "id": [WORDS[2]]}),
    "joined": lambda _: "_".join(WORDS),
    "cut off": lambda message: message[: len(message) // 2],
}


@pytest.mark.parametrize(("name", "echo"), [*product([*LLM_METRICS, "judge", "splitter"], ECHOES)])
def test_no_word_of_a_report_is_shown(name: str, echo: str) -> None:
    chat = client(MockChatModel(ECHOES[echo]), max_invalid=1)
    query = EntailmentQuery((PAIRS[0].reference,), PAIRS[0].candidate)
    runs: dict[str, Callable[[], object]] = {
        "judge": lambda: LLMJudge("m", chat, judge_prompt()).judge([query]),
        "splitter": lambda: LLMSplitter("m", chat, []).split([PAIRS[0].reference]),
    }
    with pytest.raises(RunError) as caught:
        runs.get(name, lambda: evaluate(PAIRS[:1], [name], model=chat, bootstrap=0))()
    assert [word for word in WORDS if word.casefold() in str(caught.value).casefold()] == []


@given(st.lists(st.text(max_size=12), max_size=8), st.text(max_size=80))
def test_an_excerpt_has_no_word_of_private_texts(private: list[str], between: str) -> None:
    words = {word.casefold() for text in private for word in re.findall(r"[^\W_]+", text)}
    shown = excerpt(f" {between} ".join(private), private)
    assert words.isdisjoint(word.casefold() for word in re.findall(r"[^\W_]+", shown))


def test_an_excerpt_keeps_what_tells_the_problem() -> None:
    report = "There is a small left pleural effusion."
    assert excerpt(SORRY, [report]) == SORRY
    assert excerpt('{"status": "maybe", "evidence": ["small left effusion"]}', [report]) == (
        '{"status": "maybe", "evidence": ["[...]"]}'
    )
    assert len(excerpt("word " * 500, [report])) < 210
