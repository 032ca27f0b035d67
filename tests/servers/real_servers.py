"""What the tests with real servers share: where the parts are, and how processes are started, awaited and ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FEW_SHOTS = HERE / "few_shots.json"
PAIRS = HERE / "pairs.json"
SPLIT_SHOTS = HERE / "split_shots.json"
RADFACT = (str(Path(sys.executable).with_name("radfact")),)
VLLM_PYTHON = ROOT / ".venv" / "vllm" / "bin" / "python"
MODEL_FOLDER = ROOT / ".venv" / "smollm2"
START_SECONDS = 300

VLLM_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # One thread: two on busy cores can be many times slower.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
# float32: greedy answers are the same alone and in a batch, which bfloat16 does not give.
VLLM_ENGINE = {"dtype": "float32", "enforce_eager": "true", "max_model_len": "4096", "max_num_seqs": "16"}


@dataclass(frozen=True)
class Server:
    """A server that speaks the OpenAI protocol."""

    base_url: str
    model: str

    @property
    def judge(self) -> str:
        """The name by which `--judge` asks it."""
        return f"openai:{self.model}"

    def post(self, route: str, body: dict[str, Any]) -> Any:
        """The decoded reply to `body`."""
        request = urllib.request.Request(
            f"{self.base_url}{route}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)


def radfact(
    *arguments: object, command: Sequence[str] = RADFACT, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What became of the command with these arguments."""
    return subprocess.run(
        [*command, *map(str, arguments)],
        env=os.environ | dict(environment or {}),
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )


def missing(reason: str) -> None:
    """Skip; in CI everything is there, so that a missing part is a fault."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextlib.contextmanager
def process_group(
    command: list[str], log: Path, environment: dict[str, str], *, says: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """A process with children of its own, all of them ended with the block; `says`: its standard output is read."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            # A pipe that nobody reads stops its writer when it is full.
            stdout=subprocess.PIPE if says else output,
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


def wait_until_healthy(process: subprocess.Popen[str], address: str, log: Path) -> None:
    for _ in range(START_SECONDS * 2):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5):
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
            break
    pytest.fail(f"the server did not come up: {log.read_text()[-2000:]}")
