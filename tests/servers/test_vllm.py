"""The judge `vllm:PATH` in process, compared with the same model behind vLLM's server."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from real_servers import (
    FEW_SHOTS,
    MODEL_FOLDER,
    PAIRS,
    SPLITTER_FEW_SHOTS,
    VLLM_ENGINE,
    Server,
    judge_arguments,
    run_radfact,
    run_vllm_radfact,
)

from radfact.errors import ExitCode, InputError
from radfact.llm import load_chat_client
from radfact.llm.vllm import fingerprint

OPTIONS = ["--judge-arg", "max_tokens=200", "--few-shots", FEW_SHOTS, "--format", "schema"]


def _sentences(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "sentences.jsonl").read_text().splitlines()]


def test_verdicts_in_process_equal_those_of_the_server(vllm_server: Server, tmp_path: Path) -> None:
    in_process, served = tmp_path / "in_process", tmp_path / "served"
    judge = ["score", PAIRS, "--judge", f"vllm:{MODEL_FOLDER}", *judge_arguments(VLLM_ENGINE), *OPTIONS, "--out"]
    process = run_vllm_radfact(*judge, in_process)
    assert process.returncode == ExitCode.SUCCESS, process.stderr
    server = ["--judge", vllm_server.judge, "--base-url", vllm_server.base_url]
    assert run_radfact("score", PAIRS, *server, *OPTIONS, "--out", served).returncode == ExitCode.SUCCESS
    assert _sentences(in_process) == _sentences(served)
    runs = [json.loads((out / "run.json").read_text()) for out in (in_process, served)]
    assert [run["tokens_in"] for run in runs] == [runs[1]["tokens_in"]] * 2
    assert [run["tokens_out"] for run in runs] == [runs[1]["tokens_out"]] * 2


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_a_missing_vllm_is_reported_with_its_install_command() -> None:
    with pytest.raises(InputError, match=r'pip install "maira-radfact\[vllm\]"'):
        load_chat_client("vllm:somewhere/model")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vllm:/nowhere/model"], "no such model folder"),
        ([f"vllm:{MODEL_FOLDER}", "--judge-arg", "nonsense=1"], "--judge-arg nonsense: "),
        ([f"vllm:{MODEL_FOLDER}", "--judge-arg", "temperature=-1"], "temperature must be non-negative"),
        ([f"vllm:{MODEL_FOLDER}", "--judge-arg", "max_model_len=1000000"], "max_model_len (1000000) is greater"),
    ],
)
@pytest.mark.usefixtures("vllm_python")
def test_options_that_vllm_refuses_are_input_errors(tmp_path: Path, arguments: list[str], message: str) -> None:
    process = run_vllm_radfact("score", PAIRS, "--out", tmp_path, "--judge", *arguments)
    assert process.returncode == ExitCode.INVALID_INPUT, process.stderr
    assert message in process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.usefixtures("vllm_python")
def test_judge_and_splitter_share_an_engine_and_a_second_run_starts_none(tmp_path: Path) -> None:
    pairs, out = tmp_path / "pairs.csv", tmp_path / "results"
    narrative = "Heart size is normal and the lungs are clear."
    pairs.write_text(f"example_id,prediction,target\none,{narrative},{narrative}\n")
    arguments = ["score", pairs, "--judge", f"vllm:{MODEL_FOLDER}", *judge_arguments(VLLM_ENGINE), *OPTIONS]
    arguments += ["--splitter-few-shots", SPLITTER_FEW_SHOTS, "--out", out]
    process = run_vllm_radfact(*arguments, VLLM_LOGGING_LEVEL="INFO")
    assert process.returncode == ExitCode.SUCCESS, process.stderr
    assert process.stderr.count("Initializing a V1 LLM engine") == 1
    sentences = _sentences(out)
    # With this cache size, an engine cannot start.
    second = run_vllm_radfact(*arguments, VLLM_CPU_KVCACHE_SPACE="100000")
    assert second.returncode == ExitCode.SUCCESS, second.stderr
    assert _sentences(out) == sentences


def test_the_fingerprint_depends_on_the_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(2_000_000))
    before = fingerprint(str(tmp_path))
    weights.write_bytes(bytes(1_999_999) + b"\x01")
    assert fingerprint(str(tmp_path)) != before
