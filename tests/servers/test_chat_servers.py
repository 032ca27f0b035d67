"""Judging, splitting and taking a run up again through the servers that users run: llama.cpp's and vLLM's.

The model is at chance as a judge, so nothing here asks whether a verdict is right.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest
from real_servers import FEW_SHOTS, PAIRS, RADFACT, SPLIT_SHOTS, Server, radfact

from radfact.errors import ExitCode, Failure, RunError
from radfact.findings import LLMFindingExtractor
from radfact.judges import EntailmentQuery, load_judge, load_splitter
from radfact.judges.prompt import query_message, verdict_schema
from radfact.llm import CachedResponse, ChatBackend, ChatRequest, PromptPrefix, load_chat_client
from radfact.llm.http import HttpBackend
from radfact.llm.langchain import LangChainBackend, load_chat_model
from radfact.records import NO_CONTEXT

SHORT = {"max_tokens": "48"}  # The model seldom finds an end by itself.
QUESTIONS = [
    EntailmentQuery(premises, hypothesis)
    for premises, hypotheses in (
        (("Heart size is normal.", "No effusion."), ("The heart is enlarged.", "No pleural effusion.")),
        (("Left basal atelectasis.",), ("Atelectasis at the left base.", "Clear lungs.", "No pneumothorax.")),
    )
    for hypothesis in hypotheses
]


@pytest.fixture(params=["llama_cpp", "vllm_server"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each of the two servers in turn."""
    return request.getfixturevalue(request.param)


def _ask_in_turn(backend: ChatBackend) -> list[CachedResponse]:
    """What a backend answers to four questions, one after the other."""

    async def ask() -> list[CachedResponse]:
        system = PromptPrefix([("system", "You name organs.")])
        try:
            return [
                await backend.complete(system, [("user", f"Name {number} organs of the chest.")], None)
                for number in range(1, 5)
            ]
        finally:
            await backend.close()

    return asyncio.run(ask())


def test_every_question_is_answered_or_has_a_reason(server: Server) -> None:
    judge = load_judge(server.judge, base_url=server.base_url, judge_args=SHORT, few_shots=FEW_SHOTS, concurrency=4)
    answers = judge.judge(QUESTIONS)
    usage = judge.usage()
    reasons = [answer.reason for answer in answers if isinstance(answer, Failure)]
    assert all("no valid answer after 2 repairs" in reason for reason in reasons)
    assert usage["failures"] == len(reasons)
    assert usage["done"] == usage["planned"] == len(QUESTIONS)
    assert usage["tokens_in"] > usage["calls"] > 0 < usage["tokens_out"] <= 48 * usage["calls"]


def test_both_routes_get_the_same_texts(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = {"temperature": 0, "top_p": 1, "max_tokens": 24}
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    model = load_chat_model(server.judge, {**parameters, "base_url": server.base_url})
    # A cached prompt can change the rounding of an answer: these calls leave the same cache to both routes.
    _ask_in_turn(HttpBackend(server.model, server.base_url, parameters))
    by_http = _ask_in_turn(HttpBackend(server.model, server.base_url, parameters))
    assert by_http == _ask_in_turn(LangChainBackend(model))
    assert all(answer.text and answer.tokens_in and answer.tokens_out for answer in by_http)


def test_answers_held_to_a_schema_are_json_of_that_shape(server: Server) -> None:
    parameters = {"temperature": 0, "max_tokens": 256}
    with load_chat_client(server.judge, base_url=server.base_url, parameters=parameters, concurrency=4) as client:
        asks = [
            ChatRequest(
                (("user", query_message(one.premises, one.hypothesis)),),
                json.loads,
                schema=verdict_schema(one.premises, one.hypothesis),
            )
            for one in QUESTIONS
        ]
        answers: list[Any] = client.complete_all(asks)
        assert client.usage_counter.repairs == 0
    for question, answer in zip(QUESTIONS, answers, strict=True):
        assert list(answer) == ["phrase", "evidence", "status"]
        assert answer["phrase"] == question.hypothesis
        assert set(answer["evidence"]) <= set(question.premises)
        assert answer["status"] in ("entailment", "not_entailment")


def test_a_report_at_a_time_takes_a_call_for_each_report(server: Server) -> None:
    judge = load_judge(
        server.judge,
        base_url=server.base_url,
        judge_args={"max_tokens": "400"},
        few_shots=FEW_SHOTS,
        answer_format="schema",
        batch="report",
        concurrency=4,
    )
    answers = judge.judge(QUESTIONS)
    usage = judge.usage()
    assert len(answers) == len(QUESTIONS)
    # Two reports, and at most two repairs of each and of what stays open alone.
    assert 2 <= usage["calls"] <= 2 + 2 * 2 + 3 * len(QUESTIONS)


def test_narratives_become_sentences_or_have_a_reason(server: Server) -> None:
    splitter = load_splitter(
        server.judge,
        base_url=server.base_url,
        splitter_args={"max_tokens": "96"},
        few_shots=SPLIT_SHOTS,
        concurrency=4,
    )
    narratives = ["Heart size is normal and the lungs are clear.", "Small left effusion. No pneumothorax."]
    split = splitter.split(narratives)
    assert len(split) == len(narratives)
    assert all(one.reason if isinstance(one, Failure) else all(map(str.strip, one)) for one in split)
    assert splitter.usage()["done"] == len(narratives)


def test_an_unknown_model_stops_the_run_with_one_line(vllm_server: Server) -> None:
    judge = load_judge("openai:another", base_url=vllm_server.base_url, few_shots=FEW_SHOTS)
    with pytest.raises(RunError, match=r"no such model or address.*HTTP 404"):
        judge.judge(QUESTIONS)


def test_a_question_beyond_the_context_fails_alone(server: Server) -> None:
    judge = load_judge(server.judge, base_url=server.base_url, judge_args=SHORT, few_shots=FEW_SHOTS, concurrency=1)
    long = EntailmentQuery(("The lungs are clear. " * 2000,), "Clear lungs.")
    answers = judge.judge([QUESTIONS[0], long])
    assert isinstance(answers[1], Failure)
    assert "HTTP 400" in answers[1].reason


def test_the_command_splits_and_judges(server: Server, tmp_path: Path) -> None:
    pairs, out = tmp_path / "pairs.csv", tmp_path / "results"
    # The worked example itself: what even a small model splits by repeating it.
    narrative = "Heart size is normal and the lungs are clear."
    pairs.write_text(f"example_id,prediction,target\none,{narrative},{narrative}\n")
    arguments = ["score", pairs, "--judge", server.judge, "--base-url", server.base_url, "--format", "schema"]
    arguments += ["--judge-arg", "max_tokens=200", "--few-shots", FEW_SHOTS, "--splitter-few-shots", SPLIT_SHOTS]
    done = radfact(*arguments, "--out", out)
    assert done.returncode == ExitCode.SUCCESS, done.stderr
    sentences = [json.loads(line) for line in (out / "sentences.jsonl").read_text().splitlines()]
    assert [one["text"] for one in sentences] == 2 * ["Heart size is normal.", "The lungs are clear."]
    run = json.loads((out / "run.json").read_text())
    assert (run["usage"]["splitter"]["calls"], run["usage"]["judge"]["calls"]) == (1, 2)


def test_the_check_of_a_judge_prints_its_figures(server: Server) -> None:
    arguments = ["judge-check", FEW_SHOTS, "--judge", server.judge, "--base-url", server.base_url]
    done = radfact(*arguments, "--judge-arg", "max_tokens=200", "--few-shots", FEW_SHOTS, "--format", "schema")
    assert done.returncode == ExitCode.SUCCESS, done.stderr
    assert "accuracy" in done.stdout
    assert "evidence" in done.stdout


def _stored(out: Path) -> dict[str, str]:
    """Return the text of each response on disk by its key."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{out}/cache/answers.sqlite?mode=ro", uri=True)) as answers:
            return dict(answers.execute("SELECT key, text FROM answers").fetchall())
    except sqlite3.OperationalError:
        return {}


def test_a_run_killed_in_its_middle_asks_nothing_twice(server: Server, tmp_path: Path) -> None:
    arguments = ["score", str(PAIRS), "--judge", server.judge, "--base-url", server.base_url, "--format", "schema"]
    arguments += ["--judge-arg", "max_tokens=200", "--few-shots", str(FEW_SHOTS), "--concurrency", "1", "--out"]
    out, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen([*RADFACT, *arguments, str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(_stored(out)) < 2 and process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    kept = _stored(out)
    assert radfact(*arguments, out).returncode == ExitCode.SUCCESS
    stored = _stored(out)
    assert kept.items() <= stored.items()
    # A server may round another run differently, so the run without a break reads these responses.
    assert radfact(*arguments, whole, "--cache", out / "cache").returncode == ExitCode.SUCCESS
    calls = [json.loads((folder / "run.json").read_text())["calls"] for folder in (out, whole)]
    assert calls == [len(stored) - len(kept), 0]
    for name in ("scores.json", "samples.jsonl", "sentences.jsonl"):
        assert (out / name).read_text() == (whole / name).read_text()


def test_findings_are_extracted_or_have_a_reason(llama_cpp: Server) -> None:
    parameters = {"temperature": 0, "max_tokens": 100}
    with load_chat_client(llama_cpp.judge, base_url=llama_cpp.base_url, parameters=parameters) as client:
        extractions = LLMFindingExtractor(client).extract(["Small left effusion.", ""], [NO_CONTEXT] * 2)
        usage = client.usage_counter
    assert (usage.planned, usage.done) == (1, 1)
    assert 0 < usage.tokens_out <= 100 * usage.calls
    assert extractions[1] == ()
    if isinstance(extractions[0], Failure):
        assert "no valid answer after 2 repairs" in extractions[0].reason
    else:
        assert all(finding.sentence == 0 and finding.concept for finding in extractions[0])
