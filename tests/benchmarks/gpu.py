"""Correctness, speed and memory on one GPU, in cases that resume over several short calls.

    python tests/benchmarks/gpu.py --out DIR --minutes 9            # the next cases, in order of priority
    python tests/benchmarks/gpu.py --out DIR --case "train method=8bit baseline" --case kernels
    python tests/benchmarks/gpu.py --list                           # cases and time limits
    python tests/benchmarks/gpu.py --out DIR --tiny                 # everything with tiny models, also without a GPU

Each measurement is a line of DIR/results.jsonl, written at once. A finished case does not run again without --again, so
the same command with the same DIR resumes. docs/development.md (GPU benchmark) describes the rest.
"""

import argparse
import faulthandler
import gc
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from gpu_stages.results import FAILED, FINISHED, MEASURED, OUT_OF_MEMORY, OUTCOME, SKIPPED, Measurement, Results, Setup

ROOT = Path(__file__).resolve().parents[2]
VERSIONED = ("torch", "torchvision", "transformers", "timm", "accelerate", "peft")
REQUIRED = (*VERSIONED, "pydantic", "filelock", "typer", "rich")
"""Packages without which no case runs."""
CASE_NEEDS = {"method=8bit": "torchao", "engine=vllm": "vllm", "compile": "triton"}
"""Packages by the word of a case that needs them."""
MODULES = {"machine": "models", "correctness": "correctness", "train": "training"}
MODULES |= {"generate": "generation", "kernels": "kernels"}
"""Modules of `gpu_stages` whose function `measure(case, setup)` yields the measurements of a case, by stage."""
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "0", "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Default environment of processes that run cases; transformers' Trainer would use every visible GPU."""
_WORKER = (sys.executable, str(Path(__file__).resolve()), "--worker")
_NO_CASE = 3
"""Exit code of a process that can run no case: packages are broken, or earlier results are of another device."""


@dataclass(frozen=True)
class Case:
    """A case, the seconds that it may take, and its tiny form ("" for none)."""

    stage: str
    options: str
    limit: float
    tiny: str = ""


CASES = [Case(**values) for values in yaml.safe_load(Path(__file__).with_name("gpu_cases.yaml").read_text("utf-8"))]
"""All cases in the order in which they run."""


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that may affect results."""
    installed = {"python": platform.python_version()}
    for name in (*VERSIONED, *CASE_NEEDS.values()):
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def missing_for(case: str) -> str | None:
    """Return why a case cannot run here; None if its packages are installed."""
    missing = [CASE_NEEDS[word] for word in case.split() if find_spec(CASE_NEEDS.get(word, "sys")) is None]
    return f"{', '.join(missing)} not installed" if missing else None


def run_cases(
    results: Results, cases: Sequence[Case], deadline: float, *, is_tiny: bool = False, command: Sequence[str] = _WORKER
) -> list[Case]:
    """Run cases in other processes until the deadline, a time of `time.time`, and return the cases that are left."""
    pending = []
    for case in cases:
        if reason := missing_for(case.options):
            _end(results, case, SKIPPED, reason)
        else:
            pending.append(case)
    while pending and time.time() < deadline:
        order = json.dumps({"cases": [vars(case) for case in pending], "deadline": deadline, "tiny": is_tiny})
        known, log = len(results.rows), results.folder / "log.txt"
        log_size = log.stat().st_size if log.exists() else 0
        code = _run_process([*command, str(results.folder), order], log)
        results.rows = Results(results.folder).rows
        ended = sum(row["name"] == OUTCOME for row in results.rows[known:])
        pending = pending[ended:]
        if code == _NO_CASE:
            break
        if code and pending and time.time() < deadline:
            reason = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
            if "Timeout (" in log.read_text(encoding="utf-8", errors="replace")[log_size:]:
                reason = f"time limit of {pending[0].limit:g} s"
            _end(results, pending.pop(0), FAILED, f"{reason}; see log.txt")
    return pending


def _run_process(command: Sequence[str], log: Path) -> int:
    """Run a process and return its exit code; the pipe to its input closes when this process ends, however it ends."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = _ENVIRONMENT | os.environ | {"PYTHONPATH": path}
    pipes: Any = {"stdin": subprocess.PIPE, "stderr": log.open("a", encoding="utf-8")}
    with pipes["stderr"], subprocess.Popen(command, **pipes, env=environment, start_new_session=True) as process:
        try:
            return process.wait()
        finally:
            # This also ends processes that it has started, such as those that compile.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _end(results: Results, case: Case, outcome: str, reason: str | None, **details: Any) -> None:
    measurement = Measurement(OUTCOME, outcome, reason=reason)
    print(f"{case.stage} {case.options}: {measurement}", flush=True)
    results.add((case.stage, case.options), measurement, **details)


def run_worker(folder: Path, order: dict[str, Any]) -> int:
    """Run cases in this process and record their measurements; return the exit code, 0 if another process may go on."""
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
    faulthandler.dump_traceback_later(max(0.1, order["deadline"] - time.time()), exit=True)
    cases = [Case(**case) for case in order["cases"]]
    try:
        import torch

        from maira.runtime.processes import use_gpu

        modules = {case.stage: importlib.import_module(f"gpu_stages.{MODULES[case.stage]}") for case in cases}
    except ImportError as error:
        print(f"no case can run: {error}; see log.txt")
        sys.excepthook(type(error), error, error.__traceback__)
        return _NO_CASE
    device, name = torch.device("cpu"), f"CPU, {torch.get_num_threads()} threads"
    if torch.cuda.is_available():
        device, name = torch.device("cuda", 0), torch.cuda.get_device_name()
        use_gpu(device)
    results = Results(folder)
    known = {row["device"] for row in results.rows if row.get("device")}
    if known - {name}:
        print(f"{results.path} has results of {', '.join(sorted(known))}, and this is {name}: use another --out")
        return _NO_CASE
    for case in cases:
        faulthandler.dump_traceback_later(min(case.limit, max(0.1, order["deadline"] - time.time())), exit=True)
        print(f"{case.stage} {case.options}", flush=True)
        details = {"device": name, "started": datetime.now(UTC).isoformat(timespec="seconds")}
        started, outcome, reason = time.perf_counter(), MEASURED, None
        gc.collect()
        torch.cuda.empty_cache()
        with tempfile.TemporaryDirectory() as temporary:
            setup = Setup(device, results, order["tiny"], Path(temporary))
            try:
                for measurement in modules[case.stage].measure(case.options, setup):
                    print(f"  {measurement}", flush=True)
                    results.add((case.stage, case.options), measurement, **details)
            except Exception as error:
                outcome = OUT_OF_MEMORY if isinstance(error, torch.OutOfMemoryError) else FAILED
                reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
                sys.excepthook(type(error), error, error.__traceback__)
        details |= {"seconds": round(time.perf_counter() - started, 2), "versions": versions()}
        _end(results, case, outcome, reason, **details)
        if outcome == FAILED:
            # The device may be unusable after an error of a kernel.
            return 0
    return 0


def list_cases(*, is_tiny: bool) -> list[Case]:
    """Return all cases, or the tiny ones."""
    return [replace(case, options=case.tiny) for case in CASES if case.tiny] if is_tiny else CASES


def select_pending(cases: Sequence[Case], results: Results) -> list[Case]:
    """Return the cases that are not finished; those that were skipped or failed come last."""
    outcomes = {case: results.outcome((case.stage, case.options)) for case in cases}
    return sorted((case for case in cases if outcomes[case] not in FINISHED), key=lambda case: bool(outcomes[case]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--minutes", type=float, default=60.0, help="time limit of this call (default: 60)")
    parser.add_argument("--case", action="append", help="only this stage, or case with its options; may be repeated")
    parser.add_argument("--again", action="store_true", help="also run cases that are finished")
    parser.add_argument("--tiny", action="store_true", help="tiny models, to test the script itself")
    parser.add_argument("--list", action="store_true", help="list all cases and exit")
    parser.add_argument("--worker", nargs=2, metavar=("DIR", "ORDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for stage in (name.partition(" ")[0] for name in arguments.case or []):
        if stage not in MODULES:
            parser.error(f"unknown stage '{stage}'; choose from {', '.join(MODULES)}")
    if arguments.out is None and not arguments.list and arguments.worker is None:
        parser.error("--out DIR is required")
    return arguments


def select(arguments: argparse.Namespace, results: Results) -> list[Case]:
    """Return the cases that the command line asks for and that are not finished."""
    cases = list_cases(is_tiny=arguments.tiny)
    if arguments.case:
        chosen: list[Case] = []
        for stage, _, options in (name.partition(" ") for name in arguments.case):
            own = [case for case in cases if case.stage == stage]
            # Unlisted options get the time limit of the stage's last case.
            chosen += [c for c in own if options in ("", c.options)] or [replace(own[-1], options=options)]
        cases = chosen
    return cases if arguments.again else select_pending(cases, results)


def main() -> int:
    """Run the cases that are not finished."""
    arguments = _options()
    if arguments.worker:
        return run_worker(Path(arguments.worker[0]), json.loads(arguments.worker[1]))
    if arguments.list:
        print("\n".join(f"{case.stage:12} {case.options:58} at most {case.limit:g} s" for case in CASES))
        return 0
    print(", ".join(f"{name} {version}" for name, version in versions().items()))
    if missing := [name for name in REQUIRED if find_spec(name) is None]:
        print(f"missing: {', '.join(missing)}; docs/development.md says how to copy wheels here")
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    results, deadline = Results(arguments.out), time.time() + 60 * arguments.minutes
    if left := run_cases(results, select(arguments, results), deadline, is_tiny=arguments.tiny):
        print(f"{len(left)} cases are left for the next call, beginning with '{left[0].stage} {left[0].options}'")
    (arguments.out / "table.md").write_text(results.table(), encoding="utf-8")
    passed = [row["passed"] for rows in results.last_runs().values() for row in rows if row["passed"] is not None]
    print(f"{arguments.out / 'table.md'}: {sum(passed)} of {len(passed)} targets reached")
    return 0


if __name__ == "__main__":
    sys.exit(main())
