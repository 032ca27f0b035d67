"""Training runs of a tiny model: in this process, or as the command in other processes, which may be killed."""

import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from copy import deepcopy
from io import StringIO
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import yaml
from long_values import DATA
from ports import free_port
from rich.console import Console
from waiting import PATIENCE, wait_until

from maira.data.manifest import read_manifest, write_manifest
from maira.train.config.run_config import TrainConfig
from maira.train.report_training import train

VISION: dict[str, Any] = DATA["tiny vision"]
TEXT: dict[str, Any] = DATA["tiny text"]
CASES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("run_configs.yaml").read_text("utf-8"))
TIMES = {"seconds", "samples_per_second", "tokens_per_second", "tflops_per_device", "data_wait", "memory_gb"}
servers = multiprocessing.get_context("forkserver")
# Imported once for all of them.
servers.set_forkserver_preload(["maira.train.report_training", "maira.cli"])


def values(manifest: Path, out: Path, **changes: Any) -> dict[str, Any]:
    """A config as YAML has it: 8 steps of 4 samples."""
    model = {"vision_config": VISION, "text_config": TEXT, "projector_n_layers": 2, "vocab_size": 300}
    return deepcopy(CASES["tiny run"]) | {"model": model, "train": str(manifest), "out": str(out)} | changes


def train_config(manifest: Path, out: Path, **changes: Any) -> TrainConfig:
    return TrainConfig.model_validate(values(manifest, out, **changes))


def post_values(checkpoint: Path, manifest: Path, out: Path, **changes: Any) -> dict[str, Any]:
    """The config of a run that starts from a checkpoint."""
    return values(manifest, out, **(deepcopy(CASES["tiny post-training"]) | {"model": str(checkpoint)} | changes))


def minimal_config(**changes: Any) -> TrainConfig:
    """A config with what each config needs; its files are never read."""
    values: dict[str, Any] = {"model": Path("none"), "train": "none.jsonl", "out": Path("none"), "passes": 128}
    return TrainConfig.model_validate(values | changes)


def write_damaged(manifest: Path, out: Path, *numbers: int, size: int | None = 1000, count: int | None = None) -> Path:
    """Write a manifest of the first `count` studies; the frontals of those with a number are N.png, cut to a size."""
    studies = read_manifest(manifest)[:count]
    for number in numbers:
        frontal = out / f"{number}.png"
        frontal.write_bytes(studies[number].frontal.read_bytes()[:size])
        studies[number] = studies[number].model_copy(update={"frontal": frontal})
    write_manifest(out / "manifest.jsonl", studies)
    return out / "manifest.jsonl"


def quiet() -> Console:
    """Return a console that records its output."""
    return Console(file=StringIO(), width=200)


def said(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def start(values: dict[str, Any]) -> str:
    """Train in this process; returns what the console shows."""
    console = quiet()
    train(TrainConfig.model_validate(values), console)
    return said(console)


def metrics(out: Path) -> list[dict[str, Any]]:
    """The lines of a run's log without what depends on the clock."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


class Command:
    """`maira train` in one process or several that share the run, as a launcher would start them."""

    def __init__(
        self,
        folder: Path,
        world_size: int = 1,
        others: dict[str, Any] | None = None,
        command: str = "train",
        **train_config: Any,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(world_size):
            values = train_config | ((others or {}) if rank else {})
            (folder / f"config-{rank}.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
        self._logs = [folder / f"said-{rank}" for rank in range(world_size)]
        arguments = [[command, str(folder / f"config-{rank}.yaml")] for rank in range(world_size)]
        self.processes = start_processes(arguments, self._logs)

    def when(self, is_time: Callable[[], bool], act: Callable[[BaseProcess], None]) -> None:
        """Wait for something and then do something to the first process."""

        def is_time_in_run() -> bool:
            assert self.processes[0].is_alive(), self.said
            return is_time()

        wait_until(is_time_in_run, lambda: self.said)
        act(self.processes[0])

    def end(self) -> list[int | None]:
        """Wait for the end; the exit codes."""
        return join_processes(self.processes)

    @property
    def said(self) -> str:
        """Output of all processes."""
        return "".join(log.read_text(encoding="utf-8") for log in self._logs if log.exists())


def join_processes(processes: list[BaseProcess]) -> list[int | None]:
    """Wait for the end of processes, and return their exit codes."""
    for process in processes:
        process.join(PATIENCE)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes


def start_processes(arguments: list[list[str]], logs: list[Path], folder: Path | None = None) -> list[BaseProcess]:
    """Start `maira` in one process or several that share a run, as a launcher would."""
    port, started = free_port(), list[BaseProcess]()
    for rank, (own, log) in enumerate(zip(arguments, logs, strict=True)):
        several = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": len(arguments), "MASTER_PORT": port}
        environment = {"MASTER_ADDR": "127.0.0.1"} | {name: str(value) for name, value in several.items()}
        options = (own, environment if len(arguments) > 1 else {}, log, folder)
        process = servers.Process(target=_run, args=options)
        process.start()
        started.append(process)
    return started


def run_together(arguments: list[str], folder: Path) -> tuple[list[int | None], list[str]]:
    """Run a command of `maira` in a folder in two processes of one run; return their exit codes and outputs."""
    logs = [folder / f"said-{rank}" for rank in range(2)]
    codes = join_processes(start_processes([arguments] * 2, logs, folder))
    outputs = [log.read_text("utf-8") for log in logs]
    for log in logs:
        log.unlink()
    return codes, outputs


def _run(arguments: list[str], environment: dict[str, str], log: Path, folder: Path | None) -> None:
    import torch

    from maira.cli.main import main

    os.environ.update(environment)
    if folder is not None:
        os.chdir(folder)
    # Like a command that was started directly.
    multiprocessing.set_start_method("fork", force=True)
    # Sums of floating point numbers depend on how many threads share them.
    torch.set_num_threads(1)
    with log.open("w") as handle:
        os.dup2(handle.fileno(), 1)
        os.dup2(handle.fileno(), 2)
    sys.argv = ["maira", *arguments]
    main()
