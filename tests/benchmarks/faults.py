"""Run every command on damaged inputs and wrong options, and classify how each run ends.

    python tests/benchmarks/faults.py                              # everything; prints a table by command
    python tests/benchmarks/faults.py --command "radfact score"    # one command
    python tests/benchmarks/faults.py --case BOM                   # one case

Each run is a separate process in a fresh copy of small valid inputs, with one damaged file or one wrong option. The
exit code of the script is 1 if the class of any run is not `clear`, `accepted` or `listed`.
"""

import argparse
import hashlib
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / part) for part in ("", "benchmarks", "data", "maira", "radfact"))]

from fault_inputs import NOT_UTF8, write_inputs  # noqa: E402 - after the path

from radfact.pages.meta_page import Table  # noqa: E402

TIMEOUT = 60.0
"""Seconds after which a run counts as a hang; a valid run takes less than ten."""
PRELOAD = ["radfact.cli.main", "maira.cli.main", "transformers", "torch", "maira.generate.transformers_engine"]
"""Modules to import once in the process from which the runs are forked, so that a run takes a tenth of a second."""
ALLOWED = ("clear", "accepted", "listed")


@dataclass(frozen=True)
class Damage:
    """A change of a file by a regular expression; it applies to files with one of the suffixes that it changes."""

    pattern: str
    replacement: str = ""
    repeat: int = 1
    count: int = 1
    suffixes: Sequence[str] = ()
    is_valid: bool = False

    def change(self, content: bytes) -> bytes:
        """Return the damaged bytes."""
        if self.pattern in _CHANGES:
            return _CHANGES[self.pattern](content)
        pattern, replacement = self.pattern.encode("latin-1"), self.replacement.encode("latin-1")
        return re.sub(pattern, replacement * self.repeat, content, count=self.count)


_CHANGES: Mapping[str, Callable[[bytes], bytes]] = {
    "ALL BYTES": lambda _: bytes(range(256)) * 8,
    "HALF": lambda content: content[: len(content) // 2 - 1],
}
RUNS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("fault_runs.yaml").read_text(encoding="utf-8"))
"""Commands, damages of files, wrong values of options, and reasons why a run may succeed; see the file."""
DAMAGES = {name: Damage(**values) for name, values in RUNS["damages"].items()}
_REPORT_TEXT = ("left pleural effusion", "heart is enlarged", "no pneumothorax", "clear lungs")
"""Parts of the reports in the inputs, which no error may quote."""


@dataclass(frozen=True)
class Run:
    """One command line on one damaged copy of the inputs."""

    command: str
    case: str
    line: str
    path: str | None = None
    damage: Damage | None = None

    @property
    def is_valid(self) -> bool:
        """Whether the run may succeed."""
        name = f"{self.command}: {self.case}"
        is_valid = self.damage is not None and self.damage.is_valid
        return is_valid or any(re.fullmatch(pattern, name) for pattern in RUNS["accepted"])


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its class, exit code and standard error."""

    run: Run
    kind: str
    code: int | None
    error: str

    def __str__(self) -> str:
        last = self.error.strip().rpartition("\n")[2]
        return f"{self.kind}: {self.run.command}: {self.run.case}: exit {self.code}: {last[:200]}"


def plan_runs(inputs: Path) -> Iterator[Run]:
    """Yield every command line with every damage and wrong option that applies to it."""
    from command_tree import COMMANDS

    for case, line in RUNS["invalid"].items():
        yield Run(_command(line, COMMANDS), case, line.replace("{not_utf8}", NOT_UTF8))
    for line in RUNS["commands"]:
        command = _command(line, COMMANDS)
        for path in _input_files(line, inputs):
            for name in ("missing", "a folder", "unreadable") if (inputs / path).is_file() else ("missing",):
                yield Run(command, f"{name} {path}", line, path)
            for name, damage in DAMAGES.items():
                if not damage.suffixes or Path(path).suffix in damage.suffixes:
                    yield Run(command, f"{name} {path}", line, path, damage)
        flags = {flag for parameter in COMMANDS[command].params for flag in parameter.opts}
        for flag, values in RUNS["options"].items():
            for value in values if flag in flags else ():
                yield Run(command, f"{flag} {value}", f"{line} {flag} '{value}'")


def _command(line: str, commands: Iterable[str]) -> str:
    return max((words for words in commands if f"{words} " in f"{line} "), key=len)


def _input_files(line: str, inputs: Path) -> Iterator[str]:
    for word in shlex.split(line):
        path = word.rpartition("=")[2]
        if path in RUNS["files"]:
            yield from (f"{path}/{name}" for name in RUNS["files"][path])
        elif (inputs / path).is_file():
            yield path


def run_command(run: Run, inputs: Path) -> Outcome | None:
    """Run a command in a damaged copy of the inputs; None if the damage does not apply to the file."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "in"
        shutil.copytree(inputs, folder, symlinks=True)
        if run.path is not None and not _apply(run, folder / run.path):
            return None
        before = _digests(folder)
        process = get_context("forkserver").Process(target=_enter, args=(run.line, str(folder)))
        process.start()
        process.join(TIMEOUT)
        code = process.exitcode
        if code is None:
            process.kill()
            process.join()
        error = (Path(temporary) / "stderr").read_text(errors="replace")
        after = _digests(folder)
    changed = [path for path, digest in before.items() if after.get(path) != digest]
    return Outcome(run, _classify(run, code, error, changed), code, error)


def _apply(run: Run, path: Path) -> bool:
    """Damage a file of a copy; return whether the damage applies."""
    content = path.read_bytes()
    damaged = None if run.damage is None else run.damage.change(content)
    is_unreadable = run.case.startswith("unreadable")
    if damaged == content or (is_unreadable and os.geteuid() == 0):
        return False
    path.unlink()  # files of the checkpoint are links
    if run.case.startswith("a folder"):
        path.mkdir()
    elif is_unreadable:
        path.touch(mode=0)
    elif damaged is not None:
        path.write_bytes(damaged)
    return True


def _enter(line: str, folder: str) -> None:
    """Run a command line in a forked process, as the program does."""
    os.chdir(folder)
    os.environ |= {"COLUMNS": "200", "OPENAI_API_KEY": "sk-none", "NO_COLOR": "1"}
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(f"../{name}", os.O_CREAT | os.O_WRONLY | os.O_APPEND), descriptor)
    words = shlex.split(line)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        os.environ[name] = value
    sys.argv = words
    import_module(f"{words[0]}.cli.main").main()


def _digests(folder: Path) -> dict[str, str]:
    """Return the hash of every file that is not an output, as the page of a results folder is."""
    digests = {}
    for path in folder.rglob("*"):
        name, is_output = str(path.relative_to(folder)), path.name in ("report.html", ".output.json")
        if path.is_file() and os.access(path, os.R_OK) and not (is_output or name.startswith("out")):
            digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def _classify(run: Run, code: int | None, error: str, changed: Sequence[str]) -> str:
    """Return the class of an outcome."""
    if changed:
        return "input changed"
    if "Traceback (most recent call last)" in error:
        return "traceback"
    if code is None:
        # A server that accepts its inputs runs until it is stopped.
        return "accepted" if run.is_valid and "--port" in run.line else "hang"
    if code in (0, 3):
        return "listed" if code == 3 else "accepted" if run.is_valid else "silent"
    if code not in (1, 2):
        return "wrong exit code"
    if any(text in error.lower() for text in _REPORT_TEXT):
        return "quotes a report"
    errors = [line for line in error.splitlines() if re.match(r"(radfact|maira): .*\[[a-z-]+\]$", line)]
    is_usage = code == 2 and "Usage: " in error
    return "clear" if len(errors) == 1 or is_usage else "unclear"


def run_all(
    runs: Sequence[Run], inputs: Path, processes: int = 2, *, preload: Sequence[str] = PRELOAD
) -> Iterator[Outcome]:
    """Yield the outcomes of runs in their order; the modules of `preload` are imported once."""
    context = get_context("forkserver")
    context.set_forkserver_preload([*preload])
    with ThreadPoolExecutor(processes) as pool:
        outcomes = pool.map(lambda run: run_command(run, inputs), runs)
        yield from (outcome for outcome in outcomes if outcome is not None)


def main() -> int:
    """Run the matrix, and print the table and every defect."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default="", help="beginning of the commands to run")
    parser.add_argument("--case", default="", help="part of the names of the cases to run")
    parser.add_argument("--every", type=int, default=1, help="run only every N-th case")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as temporary:
        write_inputs(inputs := Path(temporary))
        runs = [r for r in plan_runs(inputs) if r.command.startswith(options.command) and options.case in r.case]
        started, outcomes = time.monotonic(), []
        for outcome in run_all(runs[:: options.every], inputs, options.processes):
            outcomes.append(outcome)
            if outcome.kind not in ALLOWED:
                print(outcome, flush=True)
    kinds = [*ALLOWED, *sorted({outcome.kind for outcome in outcomes} - {*ALLOWED})]
    counts = {f"`{o.run.command}`": Counter[str]() for o in outcomes} | {"all": Counter(o.kind for o in outcomes)}
    for outcome in outcomes:
        counts[f"`{outcome.run.command}`"][outcome.kind] += 1
    rows = [[name, *(count[kind] for kind in kinds)] for name, count in counts.items()]
    print(Table(["command", *kinds], rows).as_markdown(), end="")
    print(f"{len(outcomes)} runs in {time.monotonic() - started:.0f} s")
    return int(any(outcome.kind not in ALLOWED for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
