"""Judging, splitting and resuming with the servers of llama.cpp and vLLM.

The model is no better than chance as a judge, so verdicts are not compared with labels.
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
from real_servers import FEW_SHOTS, PAIRS, RADFACT, SPLITTER_FEW_SHOTS, Server, run_radfact

from radfact.errors import ExitCode, Failure, RunError
from radfact.findings import LLMFindingExtractor
from radfact.judges import EntailmentQuery, load_judge, load_splitter
from radfact.judges.prompt import query_message, verdict_schema
from radfact.llm import CachedResponse, ChatBackend, ChatRequest, PromptPrefix, load_chat_client
from radfact.llm.http import HttpBackend
from radfact.llm.langchain import LangChainBackend, load_chat_model
from radfact.records import NO_CONTEXT

SHORT = {"max_tokens": "48"}  # Most responses of the model reach the token limit.
QUERIES = [
    EntailmentQuery(premises, hypothesis)
    for premises, hypotheses in (
        (("Heart size is normal.", "No effusion."), ("The heart is enlarged.", "No pleural effusion.")),
        (("Left basal atelectasis.",), ("Atelectasis at the left base.", "Clear lungs.", "No pneumothorax.")),
    )
    for hypothesis in hypotheses
]


@pytest.fixture(params=["llama_cpp", "vllm_server"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each of the two servers."""
    return request.getfixturevalue(request.param)


def _complete_in_sequence(backend: ChatBackend) -> list[CachedResponse]:
    """Return the responses to four requests, sent one after the other."""

    async def complete() -> list[CachedResponse]:
        system = PromptPrefix([("system", "You name organs.")])
        try:
            return [
                await backend.complete(system, [("user", f"Name {number} organs of the chest.")], None)
                for number in range(1, 5)
            ]
        finally:
            await backend.close()

    return asyncio.run(complete())


def test_every_query_has_a_verdict_or_a_reason(server: Server) -> None:
    judge = load_judge(server.judge, base_url=server.base_url, judge_args=SHORT, few_shots=FEW_SHOTS, concurrency=4)
    verdicts = judge.judge(QUERIES)
    usage = judge.usage()
    reasons = [verdict.reason for verdict in verdicts if isinstance(verdict, Failure)]
    assert all("no valid answer after 2 repairs" in reason for reason in reasons)
    assert usage["failures"] == len(reasons)
    assert usage["done"] == usage["planned"] == len(QUERIES)
    assert usage["tokens_in"] > usage["calls"] > 0 < usage["tokens_out"] <= 48 * usage["calls"]


def test_http_and_langchain_return_the_same_responses(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = {"temperature": 0, "top_p": 1, "max_tokens": 24}
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    model = load_chat_model(server.judge, {**parameters, "base_url": server.base_url})
    # A cached prompt can change the rounding of a response, so both backends start with the same cache.
    _complete_in_sequence(HttpBackend(server.model, server.base_url, parameters))
    by_http = _complete_in_sequence(HttpBackend(server.model, server.base_url, parameters))
    assert by_http == _complete_in_sequence(LangChainBackend(model))
    assert all(response.text and response.tokens_in and response.tokens_out for response in by_http)


def test_responses_follow_a_json_schema(server: Server) -> None:
    parameters = {"temperature": 0, "max_tokens": 256}
    with load_chat_client(server.judge, base_url=server.base_url, parameters=parameters, concurrency=4) as client:
        requests = [
            ChatRequest(
                (("user", query_message(query.premises, query.hypothesis)),),
                json.loads,
                schema=verdict_schema(query.premises, query.hypothesis),
            )
            for query in QUERIES
        ]
        responses: list[Any] = client.complete_all(requests)
        assert client.usage_counter.repairs == 0
    for query, response in zip(QUERIES, responses, strict=True):
        assert list(response) == ["phrase", "evidence", "status"]
        assert response["phrase"] == query.hypothesis
        assert set(response["evidence"]) <= set(query.premises)
        assert response["status"] in ("entailment", "not_entailment")


def test_batching_by_report_makes_one_call_per_report(server: Server) -> None:
    judge = load_judge(
        server.judge,
        base_url=server.base_url,
        judge_args={"max_tokens": "400"},
        few_shots=FEW_SHOTS,
        answer_format="schema",
        batch="report",
        concurrency=4,
    )
    verdicts = judge.judge(QUERIES)
    usage = judge.usage()
    assert len(verdicts) == len(QUERIES)
    # Two reports with at most two repairs each, then one call with at most two repairs for each remaining query.
    assert 2 <= usage["calls"] <= 2 + 2 * 2 + 3 * len(QUERIES)


def test_every_narrative_is_split_or_has_a_reason(server: Server) -> None:
    splitter = load_splitter(
        server.judge,
        base_url=server.base_url,
        splitter_args={"max_tokens": "96"},
        few_shots=SPLITTER_FEW_SHOTS,
        concurrency=4,
    )
    narratives = ["Heart size is normal and the lungs are clear.", "Small left effusion. No pneumothorax."]
    results = splitter.split(narratives)
    assert len(results) == len(narratives)
    assert all(result.reason if isinstance(result, Failure) else all(map(str.strip, result)) for result in results)
    assert splitter.usage()["done"] == len(narratives)


def test_an_unknown_model_stops_the_run(vllm_server: Server) -> None:
    judge = load_judge("openai:another", base_url=vllm_server.base_url, few_shots=FEW_SHOTS)
    with pytest.raises(RunError, match=r"no such model or address.*HTTP 404"):
        judge.judge(QUERIES)


def test_a_query_beyond_the_context_window_fails_alone(server: Server) -> None:
    judge = load_judge(server.judge, base_url=server.base_url, judge_args=SHORT, few_shots=FEW_SHOTS, concurrency=1)
    long = EntailmentQuery(("The lungs are clear. " * 2000,), "Clear lungs.")
    failure = judge.judge([QUERIES[0], long])[1]
    assert isinstance(failure, Failure)
    assert "HTTP 400" in failure.reason


def test_the_command_splits_and_judges(server: Server, tmp_path: Path) -> None:
    pairs, out = tmp_path / "pairs.csv", tmp_path / "results"
    # The narrative of the worked example, which a small model can split by repeating it.
    narrative = "Heart size is normal and the lungs are clear."
    pairs.write_text(f"example_id,prediction,target\none,{narrative},{narrative}\n")
    arguments = ["score", pairs, "--judge", server.judge, "--base-url", server.base_url, "--format", "schema"]
    arguments += ["--judge-arg", "max_tokens=200", "--few-shots", FEW_SHOTS, "--splitter-few-shots", SPLITTER_FEW_SHOTS]
    process = run_radfact(*arguments, "--out", out)
    assert process.returncode == ExitCode.SUCCESS, process.stderr
    sentences = [json.loads(line) for line in (out / "sentences.jsonl").read_text().splitlines()]
    assert [sentence["text"] for sentence in sentences] == 2 * ["Heart size is normal.", "The lungs are clear."]
    run = json.loads((out / "run.json").read_text())
    assert (run["usage"]["splitter"]["calls"], run["usage"]["judge"]["calls"]) == (1, 2)


def _cached_responses(out: Path) -> dict[str, str]:
    """Return the text of each cached response by its key."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{out}/cache/answers.sqlite?mode=ro", uri=True)) as database:
            return dict(database.execute("SELECT key, text FROM answers").fetchall())
    except sqlite3.OperationalError:
        return {}


def test_a_killed_run_resumes_without_repeated_calls(server: Server, tmp_path: Path) -> None:
    arguments = ["score", str(PAIRS), "--judge", server.judge, "--base-url", server.base_url, "--format", "schema"]
    arguments += ["--judge-arg", "max_tokens=200", "--few-shots", str(FEW_SHOTS), "--concurrency", "1", "--out"]
    out, complete = tmp_path / "killed", tmp_path / "complete"
    process = subprocess.Popen([RADFACT, *arguments, str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(_cached_responses(out)) < 2 and process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    before = _cached_responses(out)
    assert run_radfact(*arguments, out).returncode == ExitCode.SUCCESS
    after = _cached_responses(out)
    assert before.items() <= after.items()
    # A server may round another run differently, so the uninterrupted run reads the cached responses.
    assert run_radfact(*arguments, complete, "--cache", out / "cache").returncode == ExitCode.SUCCESS
    calls = [json.loads((folder / "run.json").read_text())["calls"] for folder in (out, complete)]
    assert calls == [len(after) - len(before), 0]
    for name in ("scores.json", "samples.jsonl", "sentences.jsonl"):
        assert (out / name).read_text() == (complete / name).read_text()


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
