"""A model in this process: the command inside vLLM's environment, against the same model behind vLLM's server."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from real_servers import (
    FEW_SHOTS,
    MODEL_FOLDER,
    PAIRS,
    SPLIT_SHOTS,
    VLLM_ENGINE,
    VLLM_ENVIRONMENT,
    Server,
    radfact,
)

from radfact.errors import ExitCode, InputError
from radfact.llm import load_chat_client
from radfact.llm.vllm import fingerprint

OPTIONS = ["--judge-arg", "max_tokens=200", "--few-shots", FEW_SHOTS, "--format", "schema"]


@pytest.fixture(scope="module")
def in_vllm(vllm_python: Path) -> tuple[str, ...]:
    """The command as it stands in vLLM's environment."""
    return (str(vllm_python.with_name("radfact")),)


def _engine_arguments() -> list[str]:
    return [word for name, value in VLLM_ENGINE.items() for word in ("--judge-arg", f"{name}={value}")]


def _sentences(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "sentences.jsonl").read_text().splitlines()]


def test_the_model_in_process_judges_as_behind_its_server(
    in_vllm: tuple[str, ...], vllm_server: Server, tmp_path: Path
) -> None:
    inside, behind = tmp_path / "inside", tmp_path / "behind"
    judge = ["score", PAIRS, "--judge", f"vllm:{MODEL_FOLDER}", *_engine_arguments(), *OPTIONS, "--out"]
    done = radfact(*judge, inside, command=in_vllm, environment=VLLM_ENVIRONMENT)
    assert done.returncode == ExitCode.SUCCESS, done.stderr
    server = ["--judge", vllm_server.judge, "--base-url", vllm_server.base_url]
    assert radfact("score", PAIRS, *server, *OPTIONS, "--out", behind).returncode == ExitCode.SUCCESS
    assert _sentences(inside) == _sentences(behind)
    runs = [json.loads((out / "run.json").read_text()) for out in (inside, behind)]
    assert [run["tokens_in"] for run in runs] == [runs[1]["tokens_in"]] * 2
    assert [run["tokens_out"] for run in runs] == [runs[1]["tokens_out"]] * 2


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_vllm_that_is_missing_is_named_with_its_install_command() -> None:
    with pytest.raises(InputError, match=r'pip install "maira-radfact\[vllm\]"'):
        load_chat_client("vllm:somewhere/model")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["vllm:/nowhere/model"], "no such model folder"),
        ([f"vllm:{MODEL_FOLDER}", "--judge-arg", "nonsense=1"], "--judge-arg nonsense: "),
        ([f"vllm:{MODEL_FOLDER}", "--judge-arg", "temperature=-1"], "temperature must be non-negative"),
        ([f"vllm:{MODEL_FOLDER}", "--judge-arg", "max_model_len=1000000"], "max_model_len (1000000) is greater"),
    ],
)
def test_options_that_vllm_cannot_take_are_one_line(
    in_vllm: tuple[str, ...], tmp_path: Path, arguments: list[str], said: str
) -> None:
    done = radfact(
        "score", PAIRS, "--out", tmp_path, "--judge", *arguments, command=in_vllm, environment=VLLM_ENVIRONMENT
    )
    assert done.returncode == ExitCode.INVALID_INPUT, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_judge_and_splitter_share_an_engine_and_a_second_run_loads_none(
    in_vllm: tuple[str, ...], tmp_path: Path
) -> None:
    pairs, out = tmp_path / "pairs.csv", tmp_path / "results"
    narrative = "Heart size is normal and the lungs are clear."
    pairs.write_text(f"example_id,prediction,target\none,{narrative},{narrative}\n")
    arguments = ["score", pairs, "--judge", f"vllm:{MODEL_FOLDER}", *_engine_arguments(), *OPTIONS]
    arguments += ["--splitter-few-shots", SPLIT_SHOTS, "--out", out]
    done = radfact(*arguments, command=in_vllm, environment=VLLM_ENVIRONMENT | {"VLLM_LOGGING_LEVEL": "INFO"})
    assert done.returncode == ExitCode.SUCCESS, done.stderr
    assert done.stderr.count("Initializing a V1 LLM engine") == 1
    first = _sentences(out)
    # An engine that had to start here would find no room for its cache.
    again = radfact(*arguments, command=in_vllm, environment=VLLM_ENVIRONMENT | {"VLLM_CPU_KVCACHE_SPACE": "100000"})
    assert again.returncode == ExitCode.SUCCESS, again.stderr
    assert json.loads((out / "run.json").read_text())["metrics"]["radfact"]["reused"]
    assert _sentences(out) == first


def test_another_checkpoint_in_the_same_folder_is_another_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(2_000_000))
    before = fingerprint(str(tmp_path))
    weights.write_bytes(bytes(1_999_999) + b"\x01")
    assert fingerprint(str(tmp_path)) != before
