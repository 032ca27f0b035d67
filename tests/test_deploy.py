"""The files for clusters: shell scripts without findings of shellcheck, and valid Kubernetes objects."""

import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from slurm import DEPLOY, slurm_environment

SHELLCHECK = str(Path(sys.executable).with_name("shellcheck"))


@pytest.mark.parametrize("script", sorted(DEPLOY.rglob("*.sh")), ids=lambda path: path.name)
def test_shell_scripts_pass_shellcheck(script: Path) -> None:
    done = subprocess.run([SHELLCHECK, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert script.stat().st_mode & 0o111


def _shell_commands(path: Path) -> list[str]:
    containers = [
        container
        for item in yaml.safe_load_all(path.read_text())
        for container in item["spec"].get("template", {}).get("spec", {}).get("containers", [])
    ]
    return [container["command"][2] for container in containers if container["command"][:2] == ["bash", "-c"]]


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("kubernetes/*.yaml")), ids=lambda path: path.name)
def test_kubernetes_objects_are_valid(path: Path) -> None:
    for item in yaml.safe_load_all(path.read_text()):
        kubernetes_validate.validate(item, kubernetes_validate.latest_version(), strict=True)
    for command in _shell_commands(path):
        done = subprocess.run(
            [SHELLCHECK, "--shell", "bash", "-"], input=command, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", ["generate.sh", "train.sh"])
def test_a_slurm_job_names_the_first_of_many_nodes(script: str, tmp_path: Path) -> None:
    environment = slurm_environment(tmp_path, 1, nodes=50_000)
    (tmp_path / "bin" / "srun").write_text('#!/bin/sh\necho "$MASTER_ADDR"\n')
    job = ["bash", DEPLOY / "slurm" / script, "--out", "drafts.jsonl"]
    done = subprocess.run(job, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "127.0.0.1\n"
