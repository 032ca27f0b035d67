"""Judging and splitting with the servers of llama.cpp and vLLM.

The model is no better than chance as a judge, so verdicts are not compared with labels.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from real_servers import FEW_SHOTS, SPLITTER_FEW_SHOTS, Server, run_radfact

from radfact.errors import ExitCode, Failure, RunError
from radfact.judges import EntailmentQuery, load_judge
from radfact.judges.prompt import query_message, verdict_schema
from radfact.llm import CachedResponse, ChatBackend, ChatRequest, PromptPrefix, load_chat_client
from radfact.llm.http import HttpBackend
from radfact.llm.langchain import LangChainBackend, load_chat_model

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
