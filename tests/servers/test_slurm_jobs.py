"""The Slurm job that starts a server: a judge for one run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import smollm2
from ports import free_port
from real_servers import FEW_SHOTS, HERE, PAIRS, missing
from slurm import DEPLOY, slurm_environment


def _run(script: str, arguments: list[object], environment: dict[str, str], folder: Path) -> str:
    job = ["bash", str(DEPLOY / "slurm" / script), *map(str, arguments)]
    done = subprocess.run(job, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_judge_is_served_for_one_run(tmp_path: Path) -> None:
    try:
        model = smollm2.gguf_file()
        import xllamacpp  # noqa: F401
    except (FileNotFoundError, ImportError) as error:
        missing(str(error))
    # llama.cpp takes the place of vLLM: it reads the address from the same options and the key from the environment.
    server = tmp_path / "vllm"
    server.write_text(f'#!/bin/sh\nshift\nexec "{sys.executable}" "{HERE / "llama_cpp.py"}" "$@"\n')
    server.chmod(0o755)
    environment = slurm_environment(tmp_path, 1, VLLM=str(server), PORT=str(free_port()))
    arguments = ["score", PAIRS, "--few-shots", FEW_SHOTS, "--judge-arg", "max_tokens=200", "--format", "schema"]
    _run("judge.sh", [model, *arguments, "--out", tmp_path / "results"], environment, tmp_path)
    run = json.loads((tmp_path / "results" / "run.json").read_text())
    assert run["calls"] > 0 == run["usage"]["judge"]["failures"]
