"""Servers of a small language model, each a process that runs for the whole session."""

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
    process_group,
    require_vllm,
    skip_missing,
    wait_until_healthy,
)


@pytest.fixture(scope="session")
def llama_cpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """llama.cpp's server with SmolLM2-135M-Instruct."""
    try:
        model = smollm2.gguf_file()
        import xllamacpp  # noqa: F401
    except (FileNotFoundError, ImportError) as error:
        skip_missing(str(error))
    log = tmp_path_factory.mktemp("llama_cpp") / "log"
    command = [sys.executable, str(HERE / "llama_cpp.py"), str(model)]
    with process_group(command, log, {}, read_stdout=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        wait_until_healthy(process, address, log)
        yield Server(f"{address}/v1", "smollm2")


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """Python interpreter of the vLLM environment; the model folder exists, too."""
    require_vllm()
    if not (MODEL_FOLDER / "installed").is_file():
        skip_missing("no model folder: make .venv/smollm2/installed")
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
