"""The cluster jobs of training and drafting, with two processes on this machine: signals, and resuming."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ports import free_port
from slurm import DEPLOY, slurm_environment
from tiny_runs import values
from waiting import PATIENCE, wait_until

from maira.data.manifest import read_manifest
from radfact.io.pairs import read_drafts

pytestmark = pytest.mark.slow


def _terminate_when_training(
    command: list[str], environment: dict[str, str], out: Path, number: int
) -> tuple[int, str]:
    """Start a job in its folder, send it a signal once it trains; return its exit code and output."""
    log = out.parent / "log"
    with log.open("w") as handle:
        process = subprocess.Popen(command, env=environment, cwd=out.parent, stdout=handle, stderr=handle)

    def is_training() -> bool:
        assert process.poll() is None, log.read_text()
        return (out / "metrics.jsonl").exists()

    try:
        wait_until(is_training, log.read_text)
        process.send_signal(number)
        return process.wait(PATIENCE), log.read_text()
    finally:
        process.kill()


def _write_config(manifest: Path, out: Path, **changes: Any) -> Path:
    config = out.parent / "config.yaml"
    config.write_text(yaml.safe_dump(values(manifest, out, save_every=10_000, **changes)))
    return config


def _saved_step(out: Path) -> int:
    (state,) = (out / "states").iterdir()
    return int(state.name.removeprefix("step-"))


def test_a_slurm_job_is_requeued_at_its_time_limit_and_resumes(phantoms: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    config = _write_config(phantoms, out, passes=40_000)
    environment = slurm_environment(tmp_path, 2, MASTER_PORT=str(free_port()))
    job = ["bash", str(DEPLOY / "slurm" / "train.sh"), str(config)]
    code, log = _terminate_when_training(job, environment, out, signal.SIGUSR1)
    assert code == 1, log
    step = _saved_step(out)
    assert f"the state of step {step} is saved" in log
    assert (tmp_path / "requeued").read_text() == "17\n"
    (tmp_path / "requeued").unlink()

    # A requeued job is the same command; one process suffices to resume.
    _write_config(phantoms, out, passes=4 * (step + 1))
    alone = environment | {"SLURM_NTASKS": "1"}
    resumed = subprocess.run(job, env=alone, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert f"Resuming {out} at step {step} of" in " ".join(resumed.stdout.split())
    assert not (tmp_path / "requeued").exists()


def test_a_slurm_job_drafts_on_two_nodes(checkpoint: Path, phantoms: Path, tmp_path: Path) -> None:
    environment = slurm_environment(tmp_path, 2, nodes=2, MASTER_PORT=str(free_port()))
    options = ["--checkpoint", checkpoint, "--manifest", phantoms, "--out", tmp_path / "drafts.jsonl"]
    job = ["bash", DEPLOY / "slurm" / "generate.sh", *options, "--max-new-tokens", "12"]
    done = subprocess.run(job, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_drafts(tmp_path / "drafts.jsonl").keys() == {study.sample_id for study in read_manifest(phantoms)}


def test_a_kubernetes_pod_saves_the_state_when_it_is_deleted(phantoms: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    config = _write_config(phantoms, out, passes=40_000)
    objects = yaml.safe_load_all((DEPLOY / "kubernetes" / "train.yaml").read_text())
    pods = [item["spec"]["template"]["spec"] for item in objects if "template" in item["spec"]]
    ((container,),) = (pod["containers"] for pod in pods)
    # On this machine the pod's name and port are another's.
    command = [
        part.replace("maira-train-0.maira-train", "127.0.0.1").replace("29500", str(free_port()))
        for part in container["command"]
    ]
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    environment = os.environ | environment | {"NODES": "1", "GPUS": "1", "CONFIG": str(config)}
    environment |= {"JOB_COMPLETION_INDEX": "0", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    code, log = _terminate_when_training(command, environment, out, signal.SIGTERM)
    assert code == 1, log
    assert f"the state of step {_saved_step(out)} is saved" in log
