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
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / part) for part in ("", "benchmarks", "data", "maira", "radfact"))]

from fault_inputs import NOT_UTF8, write_inputs  # noqa: E402 - after the path

TIMEOUT = 60.0
"""Seconds after which a run counts as a hang; a valid run takes less than ten."""
PRELOAD = ["radfact.cli.main", "maira.cli.main", "transformers", "torch", "maira.generate.transformers_engine"]
"""Modules to import once in the process from which the runs are forked, so that a run takes a tenth of a second."""
ALLOWED = ("clear", "accepted", "listed")


@dataclass(frozen=True)
class Damage:
    """A change of a file: damaged bytes (None if it does not apply), suffixes (empty for all), if it stays valid."""

    change: Callable[[bytes], bytes | None]
    suffixes: tuple[str, ...] = ()
    is_valid: bool = False


def _replace(pattern: bytes, replacement: bytes) -> Callable[[bytes], bytes | None]:
    """Return a function that replaces the first match, or returns None without one."""

    def change(content: bytes) -> bytes | None:
        changed, count = re.subn(pattern, lambda _: replacement, content, count=1)
        return changed if count else None

    return change


def _duplicate_key(content: bytes) -> bytes | None:
    first = re.search(rb'\{\s*"(\w+)":', content)
    return content[: first.start() + 1] + b'"%s": 0, ' % first[1] + content[first.start() + 1 :] if first else None


_TEXT = (".json", ".jsonl", ".csv", ".yaml", ".xml")
_NUMBER = rb"(?<=[:,\[] )\d+(?:\.\d+)?(?=[,}\]])"
DAMAGES: Mapping[str, Damage] = {
    "empty": Damage(lambda _: b""),
    "binary": Damage(lambda _: bytes(range(256)) * 8),
    "truncated": Damage(lambda content: content[: len(content) // 2 - 1], (".json", ".safetensors", ".dcm", ".sqlite")),
    "half a line": Damage(lambda content: content[:-20], (".jsonl",)),
    "not UTF-8": Damage(lambda content: content[:30] + b"\xff\xfe" + content[30:], _TEXT),
    "BOM": Damage(lambda content: b"\xef\xbb\xbf" + content, _TEXT, is_valid=True),
    "CR LF": Damage(lambda content: re.sub(rb"\r?\n", b"\r\n", content), (".jsonl", ".csv", ".yaml"), is_valid=True),
    "a list": Damage(lambda _: b'["a", 1]\n', (".json", ".jsonl", ".yaml")),
    "a number": Damage(lambda _: b"7\n", (".json", ".jsonl", ".yaml")),
    "null": Damage(lambda _: b"null\n", (".json", ".jsonl", ".yaml")),
    "no fields": Damage(lambda _: b"{}\n", (".json", ".jsonl")),
    "deep nesting": Damage(lambda _: b"[" * 100_000, (".json", ".jsonl", ".yaml")),
    "duplicate key": Damage(_duplicate_key, (".json", ".jsonl")),
    "NaN": Damage(_replace(_NUMBER, b"NaN"), (".json", ".jsonl")),
    "1e999": Damage(_replace(_NUMBER, b"1e999"), (".json", ".jsonl")),
    "5000 digits": Damage(_replace(_NUMBER, b"9" * 5000), (".json", ".jsonl")),
    "a text for a number": Damage(_replace(_NUMBER, b'"many"'), (".json", ".jsonl")),
    "boolean corner": Damage(_replace(rb'(?<="x_max": )[\d.]+', b"true"), (".json", ".jsonl")),
    "duplicate row": Damage(lambda content: content + content.splitlines(True)[-1], (".jsonl", ".csv")),
    "duplicate column": Damage(lambda content: b"%s,x,x\n" % content.splitlines()[0], (".csv",)),
    "extra cell": Damage(lambda content: content.rstrip() + b",1,2\r\n", (".csv",)),
    "open quote": Damage(lambda content: content + b'"a', (".csv",)),
    "semicolons": Damage(lambda content: content.replace(b",", b";"), (".csv",)),
    "no header": Damage(lambda content: b"".join(content.splitlines(True)[1:]), (".csv",)),
    "NUL": Damage(lambda content: content[:30] + b"\0" + content[30:], (".json", ".jsonl", ".yaml", ".csv")),
    "unknown field": Damage(_replace(rb"\{", b'{"unknwon": 1, '), (".jsonl", ".yaml")),
    "invalid YAML": Damage(lambda content: content + b"\n\t- :", (".yaml",)),
}
RUNS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("fault_runs.yaml").read_text(encoding="utf-8"))
"""Commands, files to damage, wrong values of options, and reasons why a run may succeed; see the file."""
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
        return (self.damage is not None and self.damage.is_valid) or any(
            re.fullmatch(p, name) for p in RUNS["accepted"]
        )


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its class, exit code and standard error."""

    run: Run
    kind: str
    code: int | None
    error: str

    def __str__(self) -> str:
        last = (self.error.strip().splitlines() or [""])[-1]
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


def run_command(run: Run, inputs: Path, timeout: float = TIMEOUT) -> Outcome | None:
    """Run a command in a damaged copy of the inputs; None if the damage does not apply to the file."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "in"
        shutil.copytree(inputs, folder, symlinks=True)
        if run.path is not None and not _apply(run, folder / run.path):
            return None
        before = _digests(folder)
        process = get_context("forkserver").Process(target=_enter, args=(run.line, str(folder)))
        process.start()
        process.join(timeout)
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
    if run.damage is None and run.case.startswith("unreadable"):
        if os.geteuid() == 0:
            return False
        path.chmod(0)
        return True
    damaged = b"" if run.damage is None else run.damage.change(content)
    if damaged is None or (run.damage is not None and damaged == content):
        return False
    path.unlink()
    if run.case.startswith("a folder"):
        path.mkdir()
    elif run.damage is not None:
        path.write_bytes(damaged)
    return True


def _enter(line: str, folder: str) -> None:
    """Run a command line in a forked process, as the program does."""
    os.chdir(folder)
    os.environ |= {"COLUMNS": "200", "OPENAI_API_KEY": "sk-none", "NO_COLOR": "1"}
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        file = os.open(f"../{name}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(file, descriptor)
    words = shlex.split(line)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        os.environ[name] = value
    program, *arguments = words
    sys.argv = [program, *arguments]
    from maira.cli.main import main as maira
    from radfact.cli.main import main as radfact

    {"radfact": radfact, "maira": maira}[program]()


def _digests(folder: Path) -> dict[str, str]:
    """Return the hash of every file that is not an output, as the page of a results folder is."""
    paths = (
        path
        for path in folder.rglob("*")
        if path.is_file()
        and path.name not in ("report.html", ".output.json")
        and not path.relative_to(folder).parts[0].startswith("out")
    )
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


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


def summarize(outcomes: Sequence[Outcome]) -> str:
    """Return the counts of each class for each command as a Markdown table."""
    kinds = [*ALLOWED, *sorted({outcome.kind for outcome in outcomes} - {*ALLOWED})]
    counts = {
        command: Counter(o.kind for o in outcomes if o.run.command == command)
        for command in dict.fromkeys(o.run.command for o in outcomes)
    }
    rows = [["command", *kinds], ["---", *("---:" for _ in kinds)]]
    rows += [[f"`{command}`", *(str(count[kind]) for kind in kinds)] for command, count in counts.items()]
    rows.append(["all", *(str(sum(count[kind] for count in counts.values())) for kind in kinds)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> int:
    """Run the matrix, and print the table and every defect."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default="", help="beginning of the commands to run")
    parser.add_argument("--case", default="", help="part of the names of the cases to run")
    parser.add_argument("--every", type=int, default=1, help="run only every N-th case")
    parser.add_argument("--inputs", type=Path, help="folder of inputs to keep")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as temporary:
        inputs = options.inputs or Path(temporary)
        if not (inputs / "review.sqlite").exists():
            inputs.mkdir(exist_ok=True)
            write_inputs(inputs)
        runs = [r for r in plan_runs(inputs) if r.command.startswith(options.command) and options.case in r.case]
        runs = runs[:: options.every]
        started = time.monotonic()
        outcomes = []
        for outcome in run_all(runs, inputs, options.processes):
            outcomes.append(outcome)
            if outcome.kind not in ALLOWED:
                print(outcome, flush=True)
    print(summarize(outcomes))
    print(f"{len(outcomes)} runs in {time.monotonic() - started:.0f} s")
    return int(any(outcome.kind not in ALLOWED for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
