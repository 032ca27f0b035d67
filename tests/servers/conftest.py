"""Real servers with a real, small language model: started once, each in a process of its own, ended by its id."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import smollm2
from ports import free_port
from real_servers import (
    HERE,
    MODEL_FOLDER,
    VLLM_ENGINE,
    VLLM_ENVIRONMENT,
    VLLM_PYTHON,
    Server,
    missing,
    process_group,
    wait_until_healthy,
)


@pytest.fixture(scope="session")
def llama_cpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """llama.cpp's server with SmolLM2-135M-Instruct."""
    try:
        model = smollm2.gguf_file()
        import xllamacpp  # noqa: F401
    except (FileNotFoundError, ImportError) as error:
        missing(str(error))
    log = tmp_path_factory.mktemp("llama_cpp") / "log"
    command = [sys.executable, str(HERE / "llama_cpp.py"), str(model)]
    with process_group(command, log, {}, says=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        wait_until_healthy(process, address, log)
        yield Server(f"{address}/v1", "smollm2")


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The interpreter of the environment that vLLM lives in, with the model's folder beside it."""
    if not VLLM_PYTHON.is_file() or not (VLLM_PYTHON.parents[1] / "installed").is_file():
        missing("vLLM's build for the CPU is not installed: make .venv/vllm/installed")
    if not (MODEL_FOLDER / "installed").is_file():
        missing("the model's folder is not there: make .venv/smollm2/installed")
    return VLLM_PYTHON


@pytest.fixture(scope="session")
def vllm_server(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """vLLM's OpenAI server with SmolLM2-135M-Instruct, on the CPU."""
    port = free_port()
    log = tmp_path_factory.mktemp("vllm") / "log"
    command = [str(vllm_python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL_FOLDER)]
    command += ["--served-model-name", "smollm2", "--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    command += ["--dtype", VLLM_ENGINE["dtype"], "--max-model-len", VLLM_ENGINE["max_model_len"]]
    command += ["--max-num-seqs", VLLM_ENGINE["max_num_seqs"]]
    with process_group(command, log, VLLM_ENVIRONMENT) as process:
        address = f"http://127.0.0.1:{port}"
        wait_until_healthy(process, address, log)
        yield Server(f"{address}/v1", "smollm2")
