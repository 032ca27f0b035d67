"""Correctness, speed and memory on one GPU, in stages that resume over several short calls.

    python tests/benchmarks/gpu.py --out DIR --minutes 9            # the next cases, in order of priority
    python tests/benchmarks/gpu.py --out DIR --stage train --stage generate
    python tests/benchmarks/gpu.py --out DIR --case "train method=lora budget=4096 compile"
    python tests/benchmarks/gpu.py --out DIR --again --stage kernels
    python tests/benchmarks/gpu.py --list                           # stages, cases and time limits
    python tests/benchmarks/gpu.py --out DIR --page                 # only draw the page
    python tests/benchmarks/gpu.py --out DIR --tiny                 # everything with tiny models, also without a GPU

Each measurement is a line of DIR/results.jsonl: stage, case, outcome, name, value, unit, target, passed, reason,
device, versions, seconds. The page DIR/page.html is drawn from that file; DIR/log.txt has the messages of libraries. A
finished case does not run again without --again, so the same command with the same DIR resumes. On a new machine of the
same kind, copy results.jsonl into DIR first; use another DIR for another kind of device. A stage runs in its own
process, so a crash, or a case that exceeds its time limit, ends that case only.

The model with the shape of MAIRA-2 has random weights, created on the device; no weights are needed. It needs Python
3.11 or later with torch 2.11 or later, transformers 5.17 or later, torchvision, timm, accelerate, peft, pydantic,
filelock, typer and rich, and a checkout of this repository; nothing has to be installed. Cases with optimizer states in
8 bits need torchao, those with weights in 4 bits bitsandbytes, and the stage vllm needs vLLM; without these packages
they are skipped. The first lines of a run name the missing packages. To use wheels on a machine without a package
index:

    python -m pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_28_x86_64 \\
        --platform manylinux_2_24_x86_64 --platform manylinux2014_x86_64 -d wheels \\
        pydantic pydantic-core annotated-types typing-inspection torchao bitsandbytes
    python -m pip install --no-index --no-deps --target site wheels/*.whl && export PYTHONPATH=$PWD/site   # there
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from gpu_stages.cases import (  # noqa: E402
    FAILED,
    FINISHED,
    MEASURED,
    OUT_OF_MEMORY,
    SKIPPED,
    CaseKey,
    Measurement,
    Results,
    Setup,
    SkipCase,
)

REQUIRED = {
    "torch": "torch",
    "transformers": "transformers",
    "torchvision": "torchvision",
    "timm": "timm",
    "accelerate": "accelerate",
    "peft": "peft",
    "tokenizers": "tokenizers",
    "safetensors": "safetensors",
    "numpy": "numpy",
    "PIL": "pillow",
    "yaml": "pyyaml",
    "pydantic": "pydantic",
    "filelock": "filelock",
    "typer": "typer",
    "rich": "rich",
}
"""Distributions by module; without one of them no stage runs."""
OPTIONAL = {
    "torchao": "optimizer states in 8 bits",
    "bitsandbytes": "weights in 4 bits (QLoRA)",
    "vllm": "the vLLM engine",
    "triton": "torch.compile",
}
CASE_NEEDS = {"method=8bit": "torchao", "method=qlora": "bitsandbytes", "engine=vllm": "vllm", "compile": "triton"}
"""Modules by the word of a case that needs them."""
_POLL_SECONDS = 0.1
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "0", "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Default environment of processes that run cases; transformers' Trainer would use every visible GPU."""
_OTHER_DEVICE = 3
"""Exit code of a process whose device is not that of earlier results."""


@dataclass(frozen=True)
class Stage:
    """Cases of one kind that follow each other in a process.

    Attributes:
        name: name of the stage; a later block of cases may have the same one.
        module: module whose function `measure(case, setup)` yields the measurements of a case.
        limit: seconds that a case may take.
        cases: words and `key=value` options of each case.
        tiny: the cases with --tiny.
    """

    name: str
    module: str
    limit: float
    cases: tuple[str, ...]
    tiny: tuple[str, ...]


STAGES = (
    Stage("machine", "gpu_stages.machine", 90, ("versions", "rates"), ("versions", "rates")),
    Stage(
        "correctness",
        "gpu_stages.correctness",
        120,
        ("logits", "packed", "attention", "drafts", "caches"),
        ("logits", "packed", "attention", "drafts", "caches"),
    ),
    Stage(
        "train",
        "gpu_stages.training",
        240,
        (
            "method=8bit baseline",
            "method=8bit budget=8192 checkpointing=selective compile",
            "method=8bit budget=8192 checkpointing=full",
        ),
        ("method=full baseline", "method=full budget=512 checkpointing=selective", "method=8bit budget=512"),
    ),
    Stage(
        "generate",
        "gpu_stages.generation",
        240,
        (
            "engine=plain",
            "engine=transformers cache=dynamic batch=24",
            "engine=transformers cache=static batch=24",
        ),
        ("engine=plain", "engine=transformers cache=dynamic batch=4", "engine=transformers cache=static batch=4"),
    ),
    Stage("phantom", "gpu_stages.phantom", 150, ("train", "grpo"), ("train", "grpo")),
    Stage("kernels", "gpu_stages.kernels", 90, ("training", "generation"), ("training", "generation")),
    Stage(
        "train",
        "gpu_stages.training",
        240,
        (
            "method=8bit budget=8192 checkpointing=selective",
            "method=8bit budget=16384 checkpointing=full compile",
            "method=8bit budget=16384 checkpointing=full",
            "method=lora budget=8192 checkpointing=selective compile",
            "method=lora budget=8192 checkpointing=full",
            "method=qlora budget=8192 checkpointing=selective compile",
            "method=qlora budget=8192 checkpointing=full",
        ),
        ("method=lora budget=512 checkpointing=full", "method=qlora budget=512"),
    ),
    Stage("encode", "gpu_stages.generation", 60, ("engine=encoder batch=16",), ("engine=encoder batch=4",)),
    Stage("state", "gpu_stages.state", 300, ("method=lora",), ("method=lora", "method=8bit")),
    Stage("memory", "gpu_stages.out_of_memory", 120, ("generation", "training"), ("generation", "training")),
    Stage("vllm", "gpu_stages.generation", 420, ("engine=vllm batch=24",), ("engine=vllm batch=4",)),
    Stage(
        "generate",
        "gpu_stages.generation",
        240,
        (
            "engine=transformers cache=dynamic batch=64",
            "engine=transformers cache=dynamic batch=8",
            "engine=transformers cache=dynamic batch=1",
            "engine=transformers cache=static batch=64",
            "engine=transformers cache=static batch=8",
            "engine=transformers cache=static batch=1",
        ),
        (),
    ),
    Stage(
        "train",
        "gpu_stages.training",
        240,
        (
            "method=lora baseline",
            "method=lora budget=16384 checkpointing=full compile",
            "method=lora budget=16384 checkpointing=full",
            "method=qlora baseline",
            "method=qlora budget=16384 checkpointing=full compile",
            "method=qlora budget=16384 checkpointing=full",
            "method=8bit budget=16384 checkpointing=selective compile",
            "method=full layers=8 budget=8192 checkpointing=selective compile",
        ),
        (),
    ),
    Stage("state", "gpu_stages.state", 300, ("method=8bit",), ()),
)


def missing_modules() -> tuple[list[str], list[str]]:
    """Return the missing required distributions, and the missing optional modules."""
    required = [name for module, name in REQUIRED.items() if find_spec(module) is None]
    return required, [module for module in OPTIONAL if find_spec(module) is None]


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that may affect results."""
    installed = {"python": platform.python_version()}
    for name in ("torch", "transformers", "timm", "accelerate", "peft", "torchao", "bitsandbytes", "vllm", "triton"):
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def missing_for(case: str) -> str | None:
    """Return why a case cannot run here; None if its packages are installed."""
    modules = [CASE_NEEDS[word] for word in case.split() if word in CASE_NEEDS]
    missing = [module for module in modules if find_spec(module) is None]
    return f"{', '.join(missing)} not installed" if missing else None


@dataclass
class CaseRunner:
    """Runs cases in separate processes, and records those that end early.

    Attributes:
        results: results to add to.
        stages: stages by name.
        is_tiny: whether to use tiny models.
        deadline: time of `time.monotonic` at which the run stops.
        command: command of a process that runs `run_worker`, to which its arguments are added.
    """

    results: Results
    stages: dict[str, Stage]
    is_tiny: bool
    deadline: float
    command: Sequence[str] = (sys.executable, str(Path(__file__).resolve()), "--worker")

    def run(self, tasks: Sequence[CaseKey]) -> list[CaseKey]:
        """Run cases until the deadline and return the others."""
        pending = []
        for task in tasks:
            if reason := missing_for(task[1]):
                self._record(task, SKIPPED, reason, 0.0)
            else:
                pending.append(task)
        while pending and time.monotonic() < self.deadline:
            count = self._run_process(self._batch(pending))
            if count is None:
                break
            pending = pending[count:]
        return pending

    def _batch(self, tasks: Sequence[CaseKey]) -> list[CaseKey]:
        """Return the cases of the next process: those of a stage, or all tiny ones, which are faster than imports."""
        return list(takewhile(lambda task: self.is_tiny or task[0] == tasks[0][0], tasks))

    def _run_process(self, tasks: Sequence[CaseKey]) -> int | None:
        """Return the number of finished cases; None at the deadline, or if there are results of another device."""
        progress = self.results.folder / ".progress"
        progress.unlink(missing_ok=True)
        modules = {task[0]: self.stages[task[0]].module for task in tasks}
        order = json.dumps({"tasks": tasks, "modules": modules, "tiny": self.is_tiny})
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        started, current, known = time.monotonic(), 0, len(self.results.rows)
        with (self.results.folder / "log.txt").open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                [*self.command, str(self.results.folder), order],
                stderr=log,
                env=_ENVIRONMENT | os.environ | {"PYTHONPATH": path},
                start_new_session=True,
            )
            reason, is_late = None, False
            try:
                while process.poll() is None and reason is None and not is_late:
                    time.sleep(_POLL_SECONDS)
                    now = time.monotonic()
                    if (completed := _read_number(progress)) > current:
                        current, started = completed, now
                    limit = self.stages[tasks[min(current, len(tasks) - 1)][0]].limit
                    if now - started > limit:
                        reason = f"time limit of {limit:g} s"
                    is_late = now >= self.deadline
            finally:
                # This also ends processes that it has started, such as those that compile.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                current = max(current, _read_number(progress))
                progress.unlink(missing_ok=True)
        self.results.rows = Results(self.results.folder).rows
        if current < len(tasks) and (is_late or process.returncode == _OTHER_DEVICE):
            return None
        if current < len(tasks):
            # The process may have recorded the failure itself.
            is_recorded = any((row["stage"], row["case"]) == tasks[current] for row in self.results.rows[known:])
            if not is_recorded:
                reason = reason or f"the process ended with {_describe_code(process.returncode)}; see log.txt"
                self._record(tasks[current], FAILED, reason, time.monotonic() - started)
            current += 1
        return current

    def _record(self, task: CaseKey, outcome: str, reason: str, seconds: float) -> None:
        print(f"{' '.join(task)}: {outcome}: {reason}", flush=True)
        self.results.add(task, outcome, [Measurement("outcome", None, reason=reason)], **_details(None, seconds))


def _describe_code(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _read_number(path: Path) -> int:
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0


def _details(device: str | None, seconds: float) -> dict[str, Any]:
    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {"seconds": round(seconds, 2), "device": device, "versions": versions(), "started": started}


def run_worker(folder: Path, order: dict[str, Any]) -> int:
    """Run cases in this process and record their measurements; return the exit code.

    Args:
        folder: folder of the results.
        order: `tasks`, `modules` by stage, and `tiny`.
    """
    import tempfile

    import torch

    results, progress = Results(folder), folder / ".progress"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    known = {row["device"] for row in results.rows if row.get("device")}
    if known - {name}:
        print(f"{results.path} has results of {', '.join(sorted(known))}, and this is {name}: use another --out")
        return _OTHER_DEVICE
    for number, (stage, case) in enumerate(order["tasks"]):
        started = time.perf_counter()
        outcome = MEASURED
        print(f"{stage} {case}", flush=True)
        with tempfile.TemporaryDirectory() as temporary:
            setup = Setup(device, results, order["tiny"], Path(temporary))
            measurements: list[Measurement] = []
            try:
                module = importlib.import_module(order["modules"][stage])
                for measurement in module.measure(case, setup):
                    measurements.append(measurement)
                    print(f"  {describe(measurement)}", flush=True)
            except Exception as error:
                outcome = _outcome(error)
                measurements.append(Measurement("outcome", None, reason=_one_line(error)))
                print(f"  {outcome}: {measurements[-1].reason}", flush=True)
                if outcome == FAILED:
                    sys.excepthook(type(error), error, error.__traceback__)
        results.add((stage, case), outcome, measurements, **_details(name, time.perf_counter() - started))
        if outcome == FAILED:
            # The device may be unusable after an error of a kernel.
            return 1
        progress.write_text(str(number + 1), encoding="utf-8")
    return 0


def _outcome(error: Exception) -> str:
    if isinstance(error, SkipCase):
        return SKIPPED
    return OUT_OF_MEMORY if type(error).__name__ == "OutOfMemoryError" else FAILED


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, SkipCase) else f"{type(error).__name__}: {text}"[:300]


def describe(measurement: Measurement) -> str:
    """Return a measurement as a line of text."""
    value = measurement.value
    if value is None:
        return f"{measurement.name}: {measurement.reason}"
    text = f"{value:,.4g}" if isinstance(value, float) else f"{value}"
    line = f"{measurement.name}: {text} {measurement.unit}".rstrip()
    if measurement.passed is not None:
        line += f" (target {measurement.target}: {'reached' if measurement.passed else 'MISSED'})"
    return line


def all_tasks(stages: Iterable[Stage], *, is_tiny: bool) -> list[CaseKey]:
    """Return the cases of stages in their order."""
    return [(stage.name, case) for stage in stages for case in (stage.tiny if is_tiny else stage.cases)]


def select_pending(tasks: Sequence[CaseKey], results: Results) -> list[CaseKey]:
    """Return the cases that are not finished; those that were skipped or failed come last."""
    runs = results.last_runs()
    new = [task for task in tasks if task not in runs]
    return new + [task for task in tasks if task in runs and runs[task][0]["outcome"] not in FINISHED]


def print_requirements() -> bool:
    """Print what is installed and what is missing; return whether the required packages are installed."""
    required, optional = missing_modules()
    print(", ".join(f"{name} {version}" for name, version in versions().items()))
    for name in required:
        print(f"missing: {name} (required)")
    for module in optional:
        print(f"missing: {module} ({OPTIONAL[module]}; its cases are skipped)")
    if required:
        print(f"Copy wheels of {', '.join(required)} and of their dependencies here, see --help.")
    return not required


def list_cases(stages: Iterable[Stage]) -> Iterator[str]:
    """Yield a line for each case in the order in which they run."""
    for stage in stages:
        for case in stage.cases:
            yield f"{stage.name:12} {case:58} at most {stage.limit:g} s"


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--minutes", type=float, default=60.0, help="time limit of this call (default: 60)")
    parser.add_argument("--stage", action="append", help="only this stage; may be repeated")
    parser.add_argument("--case", action="append", help="only this case, a stage and its options; may be repeated")
    parser.add_argument("--again", action="store_true", help="also run cases that are finished")
    parser.add_argument("--tiny", action="store_true", help="tiny models, to test the script itself")
    parser.add_argument("--list", action="store_true", help="list all cases and exit")
    parser.add_argument("--page", action="store_true", help="only draw the page")
    parser.add_argument("--worker", nargs=2, metavar=("DIR", "ORDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = {stage.name for stage in STAGES}
    requested = [*(arguments.stage or []), *(case.partition(" ")[0] for case in arguments.case or [])]
    if unknown := [name for name in requested if name not in names]:
        parser.error(f"unknown stage '{unknown[0]}'; choose from {', '.join(sorted(names))}")
    if arguments.out is None and not arguments.list and arguments.worker is None:
        parser.error("--out DIR is required")
    return arguments


def select(arguments: argparse.Namespace, results: Results) -> list[CaseKey]:
    """Return the cases that the command line asks for and that are not finished."""
    if arguments.case:
        tasks: list[CaseKey] = [(stage, case) for stage, _, case in (name.partition(" ") for name in arguments.case)]
    else:
        tasks = all_tasks(STAGES, is_tiny=arguments.tiny)
        tasks = [task for task in tasks if not arguments.stage or task[0] in arguments.stage]
    return tasks if arguments.again else select_pending(tasks, results)


def draw_page(results: Results) -> None:
    """Draw the page of a results file, and print its path and how many targets are reached."""
    from gpu_stages.page import write_gpu_page

    write_gpu_page(results, results.folder / "page.html")
    last = [row for rows in results.last_runs().values() for row in rows]
    reached = [row["passed"] for row in last if row["passed"] is not None]
    failed = sum(row["outcome"] == FAILED for row in last if row["name"] == "outcome")
    print(f"{results.folder / 'page.html'}: {sum(reached)} of {len(reached)} targets reached, {failed} cases failed")


def main() -> int:
    """Run the cases that are not finished, and draw the page."""
    arguments = options()
    if arguments.worker:
        return run_worker(Path(arguments.worker[0]), json.loads(arguments.worker[1]))
    if arguments.list:
        print("\n".join(list_cases(STAGES)))
        return 0
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = Results(arguments.out)
    if not print_requirements():
        return 2
    if not arguments.page:
        stages = {stage.name: stage for stage in STAGES}
        runner = CaseRunner(results, stages, arguments.tiny, time.monotonic() + 60 * arguments.minutes)
        if pending := runner.run(select(arguments, results)):
            print(f"{len(pending)} cases are left for the next call, beginning with '{' '.join(pending[0])}'")
    draw_page(Results(arguments.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
