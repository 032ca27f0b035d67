"""Paths, environments and processes that the tests with real servers share."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from waiting import PATIENCE, wait_until

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FEW_SHOTS = HERE / "few_shots.json"
PAIRS = HERE / "pairs.json"
SPLITTER_FEW_SHOTS = HERE / "splitter_few_shots.json"
RADFACT = Path(sys.executable).with_name("radfact")
VLLM = ROOT / ".venv" / "vllm"
VLLM_PYTHON = VLLM / "bin" / "python"
MODEL_FOLDER = ROOT / ".venv" / "smollm2"
START_SECONDS = 600

VLLM_ENVIRONMENT: dict[str, str] = yaml.safe_load((HERE / "vllm_environment.yaml").read_text())
# With float32, unlike bfloat16, a greedy response does not depend on its batch.
VLLM_ENGINE = {"dtype": "float32", "enforce_eager": "true", "max_model_len": "4096", "max_num_seqs": "16"}


RunVLLM = Callable[..., subprocess.CompletedProcess[str]]
"""A program (`radfact`, or the path of a script), its arguments, and environment variables.

With `background`, the folder for its output, it runs until the session ends, and the exit code is its process ID.
"""


@dataclass(frozen=True)
class Server:
    """An OpenAI-compatible server."""

    base_url: str
    model: str

    @property
    def judge(self) -> str:
        """Value of `--judge`."""
        return f"openai:{self.model}"

    def post(self, route: str, body: dict[str, Any]) -> Any:
        """Send a POST request, and return the decoded response."""
        request = urllib.request.Request(
            f"{self.base_url}{route}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            return json.load(reply)


def run(command: Sequence[object], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command with additional environment variables, and capture its output."""
    return subprocess.run(
        [str(part) for part in command],
        env=os.environ | dict(environment),
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )


def run_radfact(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `radfact`."""
    return run([RADFACT, *arguments], {})


def judge_arguments(values: Mapping[str, str]) -> list[str]:
    """Return values as `--judge-arg` options."""
    return [part for name, value in values.items() for part in ("--judge-arg", f"{name}={value}")]


def require_vllm() -> None:
    """Skip the test if the environment of vLLM is not installed."""
    if not (VLLM / "installed").is_file():
        skip_missing("vLLM for the CPU is not installed: make .venv/vllm/installed")


def skip_missing(reason: str) -> None:
    """Skip the test; fail in CI, where everything is installed."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextlib.contextmanager
def process_group(
    command: list[str], log: Path, environment: dict[str, str], *, read_stdout: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """Run a command in its own process group during the block; output that is not read goes to the log."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            # A full pipe blocks the process, so it must be read.
            stdout=subprocess.PIPE if read_stdout else output,
            stderr=output,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_until_healthy(address: str, log: Path, has_ended: Callable[[], bool]) -> None:
    def is_healthy() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5):
            return True
        assert not has_ended(), log.read_text()[-2000:]
        return False

    wait_until(is_healthy, log.read_text)
