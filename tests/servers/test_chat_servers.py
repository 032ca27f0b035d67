"""Judging and splitting with the servers of llama.cpp and vLLM, and with vLLM in process and on a Ray cluster.

The model is no better than chance as a judge, so verdicts are not compared with labels.
"""

import asyncio
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from long_values import DATA
from real_servers import (
    FEW_SHOTS,
    MODEL_FOLDER,
    PAIRS,
    SPLITTER_FEW_SHOTS,
    VLLM_ENGINE,
    VLLM_ENVIRONMENT,
    VLLM_PYTHON,
    RunVLLM,
    Server,
    judge_arguments,
    run,
    run_radfact,
)

from maira.generate.engine import EngineOptions, start_engine
from radfact.errors import ExitCode, Failure, InputError, RunError
from radfact.judges import EntailmentQuery, load_judge
from radfact.judges.prompt import query_message, verdict_schema
from radfact.llm import CachedResponse, ChatBackend, ChatRequest, PromptPrefix, load_chat_client
from radfact.llm.http import HttpBackend
from radfact.llm.langchain import LangChainBackend, load_chat_model
from radfact.llm.vllm import fingerprint

OPTIONS = ["--judge-arg", "max_tokens=200", "--few-shots", FEW_SHOTS, "--format", "schema"]
SCORE = ["score", PAIRS, "--judge", f"vllm:{MODEL_FOLDER}", *judge_arguments(VLLM_ENGINE), *OPTIONS]
NARRATIVE = "Heart size is normal and the lungs are clear."
"""The narrative of the worked example, which a small model can split by repeating it."""
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
    """Return the responses to two requests, sent one after the other."""

    async def complete() -> list[CachedResponse]:
        system = PromptPrefix([("system", "You name organs.")])
        try:
            return [
                await backend.complete(system, [("user", f"Name {number} organs of the chest.")], None)
                for number in (2, 3)
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
    pairs.write_text(f"example_id,prediction,target\none,{NARRATIVE},{NARRATIVE}\n")
    arguments = ["score", pairs, "--judge", server.judge, "--base-url", server.base_url, "--format", "schema"]
    arguments += ["--judge-arg", "max_tokens=200", "--few-shots", FEW_SHOTS, "--splitter-few-shots", SPLITTER_FEW_SHOTS]
    process = run_radfact(*arguments, "--out", out)
    assert process.returncode == ExitCode.SUCCESS, process.stderr
    sentences = [json.loads(line) for line in (out / "sentences.jsonl").read_text().splitlines()]
    assert [sentence["text"] for sentence in sentences] == 2 * ["Heart size is normal.", "The lungs are clear."]
    usage = _run(out)["usage"]
    assert (usage["splitter"]["calls"], usage["judge"]["calls"]) == (1, 2)


def _run(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "run.json").read_text())
    return content


def _sentences(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "sentences.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def in_process(run_vllm: RunVLLM, model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a run with vLLM in its process."""
    assert model_folder.is_dir()
    out = tmp_path_factory.mktemp("vllm") / "results"
    assert run_vllm("radfact", *SCORE, "--out", out).returncode == ExitCode.SUCCESS
    return out


def test_verdicts_in_process_equal_those_of_the_server(in_process: Path, vllm_server: Server, tmp_path: Path) -> None:
    server = ["--judge", vllm_server.judge, "--base-url", vllm_server.base_url]
    assert run_radfact("score", PAIRS, *server, *OPTIONS, "--out", tmp_path).returncode == ExitCode.SUCCESS
    assert _sentences(in_process) == _sentences(tmp_path)
    tokens = [[_run(out)[name] for name in ("tokens_in", "tokens_out")] for out in (in_process, tmp_path)]
    assert tokens[0] == tokens[1]


def test_a_ray_worker_judges_as_one_process(in_process: Path, run_vllm: RunVLLM, tmp_path: Path) -> None:
    process = run_vllm("radfact", *SCORE, "--engine", "ray", "--workers", "1", "--out", tmp_path)
    assert process.returncode == ExitCode.SUCCESS, process.stderr
    assert _sentences(tmp_path) == _sentences(in_process)
    assert _run(tmp_path)["calls"] == _run(in_process)["calls"]


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
@pytest.mark.parametrize(
    "start", [load_chat_client, lambda checkpoint: start_engine(Path(checkpoint), EngineOptions(engine="vllm"))]
)
def test_a_missing_vllm_is_reported_with_its_install_command(start: Callable[[str], object]) -> None:
    with pytest.raises(InputError, match=r'pip install "maira-radfact\[vllm\]"'):
        start("vllm:somewhere/model")


@pytest.mark.parametrize(("judge", "message"), DATA["judges that vllm refuses"])
def test_options_that_vllm_refuses_are_input_errors(
    run_vllm: RunVLLM, model_folder: Path, tmp_path: Path, judge: str, message: str
) -> None:
    arguments = [word.replace("MODEL", str(model_folder)) for word in judge.split()]
    process = run_vllm("radfact", "score", PAIRS, "--out", tmp_path, "--judge", *arguments)
    assert process.returncode == ExitCode.INVALID_INPUT, process.stderr
    assert message in process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.usefixtures("model_folder")
def test_judge_and_splitter_share_an_engine_and_a_second_run_starts_none(run_vllm: RunVLLM, tmp_path: Path) -> None:
    pairs, out = tmp_path / "pairs.csv", tmp_path / "results"
    pairs.write_text(f"example_id,prediction,target\none,{NARRATIVE},{NARRATIVE}\n")
    arguments = ["score", pairs, *SCORE[2:], "--splitter-few-shots", SPLITTER_FEW_SHOTS, "--out", out]
    # In a process of its own, as of a user, vLLM is imported with radfact's settings and spawns its processes.
    process = run([VLLM_PYTHON.with_name("radfact"), *arguments], VLLM_ENVIRONMENT | {"VLLM_LOGGING_LEVEL": "INFO"})
    assert process.returncode == ExitCode.SUCCESS, process.stderr
    assert process.stderr.count("Initializing a V1 LLM engine") == 1
    sentences = _sentences(out)
    # With this cache size, an engine cannot start.
    second = run_vllm("radfact", *arguments, VLLM_CPU_KVCACHE_SPACE="100000")
    assert second.returncode == ExitCode.SUCCESS, second.stderr
    assert _sentences(out) == sentences


def test_the_fingerprint_depends_on_the_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(2_000_000))
    before = fingerprint(str(tmp_path))
    weights.write_bytes(bytes(1_999_999) + b"\x01")
    assert fingerprint(str(tmp_path)) != before
