"""The Slurm job that serves a judge for one run, and its counterpart in Kubernetes."""

import json
import subprocess
import sys
from pathlib import Path

import smollm2
import yaml
from long_values import DATA
from ports import free_port
from real_servers import FEW_SHOTS, HERE, PAIRS, RunVLLM, skip_missing
from slurm import DEPLOY, slurm_environment
from waiting import PATIENCE


def _run(script: str, arguments: list[object], environment: dict[str, str], folder: Path) -> str:
    job = ["bash", str(DEPLOY / "slurm" / script), *map(str, arguments)]
    process = subprocess.run(job, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_a_judge_is_served_for_one_run(tmp_path: Path) -> None:
    try:
        model = smollm2.gguf_file()
        import xllamacpp  # noqa: F401
    except (FileNotFoundError, ImportError) as error:
        skip_missing(str(error))
    # llama.cpp replaces vLLM: it reads its port from the same option, and the key from the environment.
    server = tmp_path / "vllm"
    server.write_text(f'#!/bin/sh\nshift\nexec "{sys.executable}" "{HERE / "llama_cpp.py"}" "$@"\n')
    server.chmod(0o755)
    environment = slurm_environment(tmp_path, 1, VLLM=str(server), PORT=str(free_port()))
    arguments = ["score", PAIRS, "--few-shots", FEW_SHOTS, "--judge-arg", "max_tokens=200", "--format", "schema"]
    _run("judge.sh", [model, *arguments, "--out", tmp_path / "results"], environment, tmp_path)
    run = json.loads((tmp_path / "results" / "run.json").read_text())
    assert run["calls"] > 0 == run["usage"]["judge"]["failures"]


def test_vllm_accepts_the_options_of_the_70b_judge(run_vllm: RunVLLM, tmp_path: Path) -> None:
    server = tmp_path / "vllm"
    server.write_text('#!/bin/sh\nshift\necho "$@" >>options\nexit 1\n')
    server.chmod(0o755)
    environment = slurm_environment(tmp_path, 1, VLLM=str(server), PORT="8000", SLURM_GPUS_ON_NODE="4")
    job = ["bash", DEPLOY / "slurm" / "judge.sh", "/data/Meta-Llama-3-70B-Instruct", "score", PAIRS]
    # The job ends with its server.
    assert subprocess.run(job, env=environment, cwd=tmp_path, check=False, timeout=PATIENCE).returncode == 1
    (container,) = [
        container
        for item in yaml.safe_load_all((DEPLOY / "kubernetes" / "judge.yaml").read_text())
        for container in item["spec"].get("template", {}).get("spec", {}).get("containers", [])
    ]
    pod = [*container["command"], *container["args"]][2:]
    (tmp_path / "parse.py").write_text(DATA["options of vllm"])
    process = run_vllm(tmp_path / "parse.py", (tmp_path / "options").read_text(), " ".join(pod))
    assert process.returncode == 0, process.stderr
    parsed = [json.loads(line) for line in process.stdout.splitlines()]
    assert parsed == [["/data/Meta-Llama-3-70B-Instruct", ["judge"], 4, 8000]] * 2
