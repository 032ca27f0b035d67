"""Outputs of commands: locks, origin, inputs, and replacement of complete files."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
from error_checks import raises_code

from radfact.cli.main import main
from radfact.errors import ErrorCode
from radfact.io.jsonl import write_json
from radfact.io.outputs import LOCK, Output, lock_output, replace_files, replace_folder

Run = Callable[..., tuple[int, str, str]]
FOLDER, FILE, NEW = Output("folder", content="tests"), Output("file"), Output("new folder")
PAIRS = json.dumps([{"example_id": "1", "prediction": [{"text": "Effusion."}], "target": [{"text": "Effusion."}]}])


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder, except those in the cache of a model."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if not name.startswith("cache/")}


@pytest.fixture
def results(run_radfact: Run) -> Path:
    Path("pairs.json").write_text(PAIRS)
    assert run_radfact("score", "pairs.json", "--judge", "offline", "--out", "results")[0] == 0
    modes = {path.is_dir(): path.stat().st_mode & 0o777 for path in (Path("results"), *Path("results").rglob("*"))}
    assert modes == {True: 0o700, False: 0o600}
    return Path("results")


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
@pytest.mark.parametrize("overwrite", [True, False])
def test_an_input_is_no_output(overwrite: bool, link: Callable[[Path, Path], None], tmp_path: Path) -> None:
    source = tmp_path / "source.json"
    source.write_text("{}")
    link(tmp_path / "other.json", source)
    for path in (source, tmp_path / "other.json", tmp_path / "." / ".." / tmp_path.name / "source.json"):
        with (
            raises_code(ErrorCode.OUTPUT_CONFLICT, file=path),
            lock_output(path, FILE, inputs=[source], overwrite=overwrite),
        ):
            pass
    for folder in (tmp_path, tmp_path.parent):
        with raises_code(ErrorCode.OUTPUT_CONFLICT), lock_output(folder, FOLDER, inputs=[source], overwrite=overwrite):
            pass
    assert contents(tmp_path) == {"source.json": b"{}", "other.json": b"{}"}


def test_a_file_of_an_output_is_not_written_over_an_input(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with lock_output(out, FOLDER), replace_files(out) as new:
        write_json(new / "rows.json", {})
    (out / "own.json").write_text("{}")
    with raises_code(ErrorCode.OUTPUT_CONFLICT), lock_output(out, FOLDER, inputs=[out / "rows.json"], overwrite=True):
        pass
    with lock_output(out, FOLDER, inputs=[out / "own.json"]):
        with raises_code(ErrorCode.OUTPUT_CONFLICT, file=out / "own.json"):
            write_json(out / "own.json", {"new": 1})
        with raises_code(ErrorCode.OUTPUT_CONFLICT, file=out / "own.json"), replace_files(out) as new:
            write_json(new / "own.json", {"new": 1})
    assert (out / "own.json").read_text() == "{}"
    assert (out / "rows.json").exists()


def test_files_of_another_origin_need_overwrite_and_survive_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / ".hidden").touch()
    with lock_output(out, FOLDER):
        pass
    (out / "notes.txt").write_text("mine")
    with raises_code(ErrorCode.OUTPUT_CONFLICT, match=r"notes\.txt", file=out), lock_output(out, FOLDER):
        pass
    assert contents(out).keys() == {".hidden", "notes.txt"}
    with lock_output(out, FOLDER, overwrite=True), replace_files(out) as new:
        write_json(new / "rows.json", {})
    with lock_output(out, FOLDER), replace_files(out) as new:  # the command's own folder now
        write_json(new / "parts" / "rows.json", {})
    assert (out / "notes.txt").read_text() == "mine"
    assert not (out / "rows.json").exists()
    other = Output("folder", content="others")
    with raises_code(ErrorCode.OUTPUT_CONFLICT, match="tests"), lock_output(out, other):
        pass
    with lock_output(out, other, overwrite=True):
        pass
    (out.parent / "file").write_text("mine")
    with raises_code(ErrorCode.OUTPUT_CONFLICT, match="--overwrite"), lock_output(tmp_path / "file", FILE):
        pass


@pytest.mark.parametrize("output", [FOLDER, FILE, NEW], ids=lambda output: output.kind)
def test_a_place_that_cannot_be_written_is_one_error(
    output: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    wrong = (
        ["/", "..", "file/below"] + (["."] if output != FOLDER else []) + (["file"] if output.kind != "file" else [])
    )
    for place in wrong:
        with raises_code(ErrorCode.OUTPUT_CONFLICT), lock_output(Path(place), output):
            pass
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    with raises_code(ErrorCode.WRITE_FAILED, file=Path()), lock_output(Path("new/out"), output):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_block_that_writes_nothing_leaves_nothing(tmp_path: Path) -> None:
    for output in (FOLDER, FILE, NEW):
        with lock_output(tmp_path / "new" / "out", output):
            assert list(tmp_path.rglob(f"*{LOCK}"))
        assert list(tmp_path.iterdir()) == []


def test_a_commit_folder_of_a_finished_move_loses_nothing(tmp_path: Path) -> None:
    with lock_output(tmp_path, FOLDER), replace_files(tmp_path) as new:
        write_json(new / "rows.json", {})
    before = contents(tmp_path)
    (tmp_path / ".commit").mkdir()
    with lock_output(tmp_path, FOLDER):
        pass
    assert contents(tmp_path) == before
    assert not (tmp_path / ".commit").exists()


def test_a_folder_in_the_place_of_a_file_is_refused_before_anything_moves(tmp_path: Path) -> None:
    (tmp_path / "b.json").mkdir()
    with lock_output(tmp_path, FOLDER, overwrite=True):
        with raises_code(ErrorCode.OUTPUT_CONFLICT, file=tmp_path / "b.json"), replace_files(tmp_path) as new:
            write_json(new / "a.json", {})
            write_json(new / "b.json", {})
        assert not (tmp_path / "a.json").exists()


def test_a_folder_is_replaced_only_when_the_new_one_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    for version in ("first", "second"):
        with replace_folder(folder) as new:
            (new / version).touch()
    with pytest.raises(OSError, match="No space") as caught, replace_folder(folder) as new:
        raise OSError(errno.ENOSPC, "No space left on device", str(new / "model"))
    assert caught.value.filename == str(folder / "model")
    assert [path.name for path in tmp_path.rglob("*")] == ["checkpoint", "second"]


def test_a_full_disk_leaves_the_results_of_the_last_run(
    results: Path, run_radfact: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run writes one more file than the last one before the disk is full."""
    before, sync = contents(results), os.fsync
    Path("pairs.json").write_text(PAIRS.replace("Effusion.", "Pneumothorax.", 1))
    codes = []
    for files in range(40):
        written = 0

        def full(handle: int, files: int = files) -> None:
            nonlocal written
            written += 1
            if written > files:
                raise OSError(errno.ENOSPC, "No space left on device")
            sync(handle)

        monkeypatch.setattr(os, "fsync", full)
        code, _, err = run_radfact("score", "pairs.json", "--judge", "offline", "--out", "results")
        codes.append(code)
        if code == 0:
            break
        assert re.fullmatch(r"radfact: results/.*: cannot be written: No space left .*\[write-failed\]\n", err), err
        assert contents(results) == before
    assert set(codes[:-1]) == {1}
    assert len(codes) > 6
    assert contents(results).keys() == before.keys()
    assert contents(results)["scores.json"] != before["scores.json"]


def test_score_replaces_files_of_others_only_with_overwrite(run_radfact: Run) -> None:
    Path("pairs.json").write_text(PAIRS)
    Path("foreign").mkdir()
    (Path("foreign") / "scores.json").write_text("mine")
    score = ("score", "pairs.json", "--judge", "offline", "--out", "foreign")
    code, _, err = run_radfact(*score)
    assert (code, err.endswith("[output-conflict]\n")) == (2, True)
    assert contents(Path("foreign")) == {"scores.json": b"mine"}
    assert run_radfact(*score, "--overwrite")[0] == 0


RUNS = 4
JUDGE = f"""
import time
from pathlib import Path

def judge(premises, hypothesis):
    end = time.monotonic() + 60
    while len(list(Path().glob("ended*"))) < {RUNS - 1} and time.monotonic() < end:
        time.sleep(0.01)
    return hypothesis in premises
"""
"""A judge that answers when all runs but its own have ended."""


def _score(number: int, start: Barrier, ends: Any) -> None:
    sys.argv = ["radfact", "score", f"pairs{number}.json", "--judge", "python:slow_judge:judge", "--out", "results"]
    start.wait()
    code = 0
    with redirect_stderr(StringIO()) as errors:
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    Path(f"ended{number}").touch()
    ends.put((number, os.getpid(), code, errors.getvalue()))


@pytest.mark.usefixtures("results")  # imports everything before the processes start
def test_one_of_several_runs_wins_a_folder_and_the_others_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = multiprocessing.get_context("fork")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "slow_judge.py").write_text(JUDGE)
    import slow_judge  # noqa: F401 - before the processes start

    for turn in range(10):
        place = tmp_path / f"{turn}"
        place.mkdir()
        monkeypatch.chdir(place)
        for number in range(RUNS):
            Path(f"pairs{number}.json").write_text(PAIRS)
        start, ends = fork.Barrier(RUNS, timeout=120), fork.Queue()
        processes = [fork.Process(target=_score, args=(number, start, ends)) for number in range(RUNS)]
        for process in processes:
            process.start()
        ended = [ends.get(timeout=120) for _ in processes]
        for process in processes:
            process.join()
        ((winner, pid, _, _),) = [end for end in ended if end[2] == 0]
        for _, _, code, error in (end for end in ended if end[0] != winner):
            assert code == 2
            holder = rf"process {pid} on \S+ \(.*score, since \S+\)"
            assert re.fullmatch(rf"radfact: results: locked by {holder}; .*\[locked\]\n", error)
        assert json.loads(Path("results/run.json").read_text())["input"]["files"] == [f"pairs{winner}.json"]
        assert not list(Path("results").glob(f"{LOCK}*"))
