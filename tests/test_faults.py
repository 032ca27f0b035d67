"""How commands end on bad input and on signals, a part of the matrix of `tests/benchmarks/faults.py`.

No error quotes a report: a marked text is put in the place of every value of every input file.
"""

import csv
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from chat_server import ChatServer
from error_checks import reports_of_coco
from fault_inputs import SENTENCES, write_inputs, write_reports
from faults import ALLOWED, PRELOAD, Run, plan_runs, run_all
from waiting import PATIENCE, wait_until

from maira.data.annotation.results import read_label_studio
from maira.data.manifest import read_manifest
from maira.data.phantoms import write_phantoms
from maira.data.sources.table import read_table
from maira.data.study import Study
from maira.grounding.phrases import read_phrases
from radfact.errors import InputError
from radfact.io.pairs import read_candidates_and_references, read_pairs
from radfact.judges.check import load_labeled_queries
from radfact.meta.datasets.layouts import read_ratings
from radfact.meta.datasets.preferences import read_preferences
from radfact.meta.datasets.reports import read_reports
from radfact.meta.injection.records import read_injected

ROOT = Path(__file__).parents[1]
QUICK = yaml.safe_load(Path(__file__).with_name("quick_faults.yaml").read_text("utf-8"))
STRIDE = 89
"""Every STRIDE-th run of the whole matrix is a slow test."""


def _faults(runs: Sequence[Run], inputs: Path, preload: Sequence[str]) -> list[str]:
    return [str(outcome) for outcome in run_all(runs, inputs, preload=preload) if outcome.kind not in ALLOWED]


def test_bad_input_is_one_clear_line(tmp_path: Path) -> None:
    write_reports(tmp_path)
    runs = {f"{run.command}: {run.case}": run for run in plan_runs(tmp_path)}
    assert _faults([runs[name] for name in QUICK], tmp_path, PRELOAD[:2]) == []


@pytest.mark.slow
def test_a_sample_of_the_matrix_ends_clearly(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    assert _faults([*plan_runs(tmp_path)][::STRIDE], tmp_path, PRELOAD) == []


def _start(*words: object) -> subprocess.Popen[str]:
    """Start a command in a new process group, which SIGINT ends even if a shell runs these tests in the background."""
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    command = [sys.executable, "-m", *map(str, words)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=listen)


def _alive(group: int) -> list[str]:
    """Return the processes of a group that are no zombies."""
    alive = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, number = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(number) == group and state != "Z":
            alive.append(path.parent.name)
    return alive


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_command(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = _start("maira", "prepare", "phantom", "--count", 9999, "--size", 64, "--workers", 2, "--out", out)
    wait_until(lambda: any((out / "frontal").glob("*.png")))
    # A terminal sends Ctrl-C to all processes of the group, and a scheduler SIGTERM.
    (os.kill if number == signal.SIGKILL else os.killpg)(process.pid, number)
    _, error = process.communicate(timeout=PATIENCE)
    wait_until(lambda: not _alive(process.pid))
    if number != signal.SIGKILL:
        assert process.returncode == 1
        assert error.endswith("[interrupted]\n")
        assert "Traceback" not in error


GENERATE = f"generate --checkpoint {ROOT / 'checkpoints/phantom'} --manifest phantoms/manifest.jsonl"


def _contents(folder: Path) -> dict[str, object]:
    """Return the files of a folder, without the seconds in drafts."""
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: re.sub(rb'"seconds": ?[^,}]*', b"", content) for name, content in files.items()}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["prepare table --root studies.csv --size 256 --workers 3", GENERATE])
def test_a_command_that_is_killed_resumes_with_equal_files(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    list(write_phantoms(tmp_path / "phantoms", 50, seed=3, size=512))
    lines = [f"{study.sample_id},{study.frontal},Clear." for study in read_manifest("phantoms/manifest.jsonl")]
    Path("studies.csv").write_text("\n".join(["sample_id,frontal,findings", *lines, "gone,gone.png,Clear."]))
    words = command.split()
    whole, out = (Path(name) / ("" if words[0] == "prepare" else "drafts.jsonl") for name in ("whole", "out"))
    begun = time.monotonic()
    undisturbed = _start("maira", *words, "--out", whole)
    undisturbed.communicate(timeout=PATIENCE)
    seconds = time.monotonic() - begun
    # Half of the time is that of starting. The last run is not killed.
    for patience in (*(random.uniform(seconds / 2, seconds) for _ in range(3)), PATIENCE):
        process = _start("maira", *words, "--out", out)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=patience)
        process.kill()
        _, error = process.communicate()
    assert process.returncode == undisturbed.returncode, error
    assert _contents(Path("out")) == _contents(Path("whole"))


def test_a_signal_ends_a_run_that_waits_for_a_server(serve: Callable[..., ChatServer], tmp_path: Path) -> None:
    """SIGINT does too, which `test_a_run_that_is_killed_and_interrupted_resumes_with_equal_results` sends."""
    write_reports(tmp_path)

    def reply(*_: Any) -> bytes:
        wait_until(lambda: process.poll() is not None)
        return b""

    server = serve(reply)
    judge = ("--judge", "openai:m", "--base-url", server.base_url)
    process = _start("radfact", "score", tmp_path / "pairs.json", *judge, "--out", tmp_path / "out")
    wait_until(lambda: server.requests)
    process.terminate()
    _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert error.splitlines()[-1].endswith("[interrupted]")
    assert "Traceback" not in error


SECRET = "Marked words about the patient."
FILES = yaml.safe_load(Path(__file__).with_name("report_files.yaml").read_text("utf-8"))


def _drafts(path: Path) -> object:
    references = path.parent / "references.jsonl"
    references.write_text(json.dumps(FILES["manifest.jsonl"]))
    return read_candidates_and_references(path, references)


def _annotations(path: Path) -> object:
    study = Study.model_validate(FILES["manifest.jsonl"] | {"phrases": FILES["drafts.jsonl"]["report"]})
    return read_label_studio(path, [study])


READERS: dict[str, Callable[[Path], object]] = {
    "pairs.json": read_pairs,
    "pairs.csv": read_pairs,
    "drafts.jsonl": _drafts,
    "manifest.jsonl": read_manifest,
    "studies.jsonl": read_table,
    "studies.csv": read_table,
    "phrases.jsonl": lambda path: read_phrases(path, {"a"}),
    "coco.json": reports_of_coco,
    "export.json": _annotations,
    "labeled.json": load_labeled_queries,
    "ratings.csv": lambda path: read_ratings(path, better="lower"),
    "preferences.csv": read_preferences,
    "reports.csv": read_reports,
    "injected.jsonl": read_injected,
}
"""Reader of every file that has reports."""


def _with_secret(value: Any) -> Iterator[Any]:
    """Yield a JSON value with the marked text in the place of each of its parts, of each name, and as a list."""
    yield from (SECRET, [SECRET], {SECRET: SECRET})
    keys = range(len(value)) if isinstance(value, list) else list(value) if isinstance(value, dict) else ()
    # Errors name the id of a sample.
    for key in (key for key in keys if not str(key).endswith("id")):
        for part in _with_secret(value[key]):
            changed = value.copy()
            changed[key] = part
            yield changed


def _damaged(name: str, content: Any) -> Iterator[str]:
    if name.endswith(".csv"):
        rows = list(csv.reader(content.format(SECRET, SECRET.upper()).splitlines()))
        tables = [rows[1:]]
        for place, row in enumerate(rows):
            changed = ([*row[:cell], SECRET, *row[cell + 1 :]] for cell in range(len(row)))
            tables += [[*rows[:place], other, *rows[place + 1 :]] for other in changed]
        for table in tables:
            written = io.StringIO()
            csv.writer(written).writerows(table)
            yield written.getvalue()
        yield written.getvalue() + f'"{SECRET}'
        return
    for value in _with_secret(content):
        yield json.dumps(value)
    yield f'{json.dumps(content)[:-3]} {SECRET}"'


@pytest.mark.parametrize("name", READERS)
def test_an_error_never_quotes_a_text(name: str, tmp_path: Path) -> None:
    content, read, path = FILES[name], READERS[name], tmp_path / name
    path.write_text(content.format(*SENTENCES) if isinstance(content, str) else json.dumps(content))
    read(path)
    errors = []
    for damaged in _damaged(name, content):
        path.write_text(damaged)
        try:
            read(path)
        except InputError as error:
            errors.append(str(error).removeprefix(str(path)))
    assert errors
    words = SECRET.lower().removesuffix(".")
    assert [error for error in errors if words in error.lower()] == []
