"""Stand-ins for Slurm's commands, with which its batch scripts run on this machine."""

import os
import sys
from pathlib import Path

DEPLOY = Path(__file__).parents[1] / "deploy"

_SRUN = '''#!{python}
"""Run the tasks of a step on this machine, pass SIGTERM on to them, and return the highest exit code."""
import itertools, os, signal, subprocess, sys
options = list(itertools.takewhile(lambda argument: argument.startswith("--"), sys.argv[1:]))
command = sys.argv[1 + len(options):]
values = dict(option[2:].split("=") for option in options if "=" in option)
tasks = int(values.get("ntasks", os.environ["SLURM_NTASKS"]))
per_node = tasks // int(values.get("nodes", os.environ["SLURM_NNODES"]))
processes = [
    subprocess.Popen(command, env=os.environ | {{"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % per_node)}})
    for rank in range(tasks)
]
signal.signal(signal.SIGTERM, lambda *_: [process.terminate() for process in processes])
sys.exit(max(abs(process.wait()) for process in processes))
'''
_SCONTROL = """#!/bin/sh
case "$1" in
    show) for _ in $(seq "$SLURM_NNODES"); do echo 127.0.0.1; done ;;
    requeue) echo "$2" >"$REQUEUED" ;;
esac
"""


def slurm_environment(folder: Path, tasks: int, *, nodes: int = 1, **variables: str) -> dict[str, str]:
    """Return the environment of a batch script; a requeued job's id is written to `folder`/requeued.

    Args:
        folder: receives the commands `srun` and `scontrol`.
        tasks: number of tasks of the job, over all nodes.
        nodes: number of nodes, all of which are this machine.
        **variables: further environment variables.
    """
    commands = folder / "bin"
    commands.mkdir(parents=True)
    for name, script in {"srun": _SRUN.format(python=sys.executable), "scontrol": _SCONTROL}.items():
        (commands / name).write_text(script)
        (commands / name).chmod(0o755)
    paths = [str(commands), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {
        **os.environ,
        "PATH": os.pathsep.join(paths),
        "REQUEUED": str(folder / "requeued"),
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NODELIST": "nodes",
        "SLURM_NNODES": str(nodes),
        "SLURM_NTASKS": str(tasks),
        "SLURM_CPUS_PER_TASK": "1",
        **variables,
    }
