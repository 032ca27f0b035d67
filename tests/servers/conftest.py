"""Servers of a small language model and the process with vLLM, each of which runs for the whole session."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import smollm2
from ports import free_port
from real_servers import (
    HERE,
    MODEL_FOLDER,
    START_SECONDS,
    VLLM,
    VLLM_ENGINE,
    VLLM_ENVIRONMENT,
    VLLM_PYTHON,
    RunVLLM,
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
        wait_until_healthy(address, log, lambda: process.poll() is not None)
        yield Server(f"{address}/v1", "smollm2")


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The folder of SmolLM2-135M-Instruct."""
    if not (MODEL_FOLDER / "installed").is_file():
        skip_missing("no model folder: make .venv/smollm2/installed")
    return MODEL_FOLDER


@pytest.fixture(scope="session")
def run_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunVLLM]:
    """Run `radfact` or a script with vLLM, in a fork of a process that imports vLLM once."""
    require_vllm()
    log = tmp_path_factory.mktemp("run_vllm") / "log"
    command = [str(VLLM_PYTHON), str(HERE / "vllm_process.py")]
    with process_group(command, log, VLLM_ENVIRONMENT, read_stdout=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run(
            program: object, *arguments: object, background: Path | None = None, **environment: str
        ) -> subprocess.CompletedProcess[str]:
            out = background or tmp_path_factory.mktemp("run")
            outputs = [out / "stdout", out / "stderr"]
            for output in outputs:
                output.touch()
            order = {
                "program": str(program),
                "arguments": [str(argument) for argument in arguments],
                "environment": environment,
                "out": str(out),
                "seconds": None if background else START_SECONDS,
            }
            print(json.dumps(order), file=process.stdin, flush=True)
            code = process.stdout.readline()
            assert code, log.read_text()
            return subprocess.CompletedProcess(order["arguments"], int(code), *(path.read_text() for path in outputs))

        yield run


@pytest.fixture(scope="session")
def vllm_server(model_folder: Path, run_vllm: RunVLLM, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """vLLM's OpenAI server with SmolLM2-135M-Instruct, on the CPU."""
    port = free_port()
    (program,) = VLLM.glob("lib/*/site-packages/vllm/entrypoints/openai/api_server.py")
    arguments = ["--model", model_folder, "--served-model-name", "smollm2", "--host", "127.0.0.1", "--port", port]
    arguments += ["--enforce-eager", "--dtype", VLLM_ENGINE["dtype"], "--max-model-len", VLLM_ENGINE["max_model_len"]]
    arguments += ["--max-num-seqs", VLLM_ENGINE["max_num_seqs"]]
    folder = tmp_path_factory.mktemp("vllm")
    command_line = Path(f"/proc/{run_vllm(program, *arguments, background=folder).returncode}/cmdline")
    # The command line of an ended process is empty.
    wait_until_healthy(f"http://127.0.0.1:{port}", folder / "stderr", lambda: not command_line.read_bytes())
    return Server(f"http://127.0.0.1:{port}/v1", "smollm2")
