"""Stand-ins for Slurm's commands, with which its batch scripts run on this machine."""

import os
import sys
from pathlib import Path

from long_values import DATA

DEPLOY = Path(__file__).parents[1] / "deploy"


def slurm_environment(folder: Path, tasks: int, *, nodes: int = 1, **variables: str) -> dict[str, str]:
    """Return the environment of a batch script; a requeued job's id is written to `folder`/requeued."""
    commands = folder / "bin"
    commands.mkdir(parents=True)
    for name, script in {"srun": DATA["srun"].format(python=sys.executable), "scontrol": DATA["scontrol"]}.items():
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
