"""Outputs of commands: locks, origin, inputs, and replacement of complete files."""

import errno
import fcntl
import json
import multiprocessing
import os
import re
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from error_checks import raises_code
from waiting import PATIENCE

from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import write_json
from radfact.io.outputs import LOCK, Output, lock_output, replace_files, replace_folder

NOBODY = 65534
Run = Callable[..., tuple[int, str, str]]
FOLDER, FILE, NEW = Output("folder", content="tests"), Output("file"), Output("new folder")
PAIRS = json.dumps([{"example_id": "1", "prediction": [{"text": "Effusion."}], "target": [{"text": "Effusion."}]}])


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder, except those in the cache of a model."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if not name.startswith("cache/")}


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


@pytest.mark.parametrize("inputs", [[], [Path(os.fsdecode(b"in\xff.csv"))]])
def test_names_that_results_cannot_hold_are_refused(inputs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / ("out" if inputs else os.fsdecode(b"out\xff"))
    with raises_code(ErrorCode.INVALID_VALUE, match="UTF-8"), lock_output(out, FOLDER, inputs=inputs):
        pass
    assert list(tmp_path.iterdir()) == []


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
def test_an_unwritable_place_is_one_error(output: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    wrong = ["/", "..", "file/below", *["."] * (output != FOLDER), *["file"] * (output.kind != "file")]
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


def test_a_full_disk_leaves_the_results_of_the_last_run(run_radfact: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run writes one more file than the last one before the disk is full."""
    results, sync = Path("results"), os.fsync
    Path("pairs.json").write_text(PAIRS)
    assert run_radfact("score", "pairs.json", "--judge", "offline", "--out", "results")[0] == 0
    modes = {path.is_dir(): path.stat().st_mode & 0o777 for path in (results, *results.rglob("*"))}
    assert modes == {True: 0o700, False: 0o600}
    before = contents(results)
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


def test_without_file_system_locks_a_run_proceeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with lock_output(tmp_path / "run", FOLDER) as is_locked:
        assert not is_locked
        (tmp_path / "run" / "rows").touch()


@pytest.mark.parametrize("output", [FOLDER, FILE], ids=lambda output: output.kind)
def test_the_holder_is_named_until_it_is_killed(output: Output, tmp_path: Path) -> None:
    def hold(start: Barrier, end: Barrier) -> None:
        with lock_output(tmp_path / "out", output, command="radfact test"):
            start.wait()
            end.wait()
            os._exit(1)  # as if it were killed

    fork = multiprocessing.get_context("fork")
    start, end = fork.Barrier(2, timeout=PATIENCE), fork.Barrier(2, timeout=PATIENCE)
    holder = fork.Process(target=hold, args=(start, end))
    holder.start()
    start.wait()
    match = rf"process {holder.pid} on \S+ \(radfact test, since \S+\)"
    with raises_code(ErrorCode.LOCKED, match=match, file=tmp_path / "out"), lock_output(tmp_path / "out", output):
        pass
    end.wait()
    holder.join()
    with lock_output(tmp_path / "out", output) as is_locked:
        assert is_locked
    assert not list(tmp_path.rglob(f"*{LOCK}"))


def _take_turns(out: Path, start: Barrier, output: Output) -> None:
    start.wait()
    for _ in range(30):
        try:
            with lock_output(out, output):
                # Fails where another process has it too.
                (out.parent / "held").mkdir()
                (out.parent / "held").rmdir()
        except InputError as error:
            if error.code is not ErrorCode.LOCKED:
                raise


@pytest.mark.parametrize("output", [FOLDER, FILE], ids=lambda output: output.kind)
def test_one_of_several_processes_holds_an_output_that_each_removes(output: Output, tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    start = fork.Barrier(4, timeout=PATIENCE)
    several = [fork.Process(target=_take_turns, args=(tmp_path / "out", start, output)) for _ in range(4)]
    for process in several:
        process.start()
    for process in several:
        process.join()
    assert [process.exitcode for process in several] == [0, 0, 0, 0]


@pytest.mark.parametrize(("folder", "lock"), [(0o775, 0o664), (0o700, 0o600)])
def test_anyone_who_may_write_in_a_folder_may_lock_it(folder: int, lock: int, tmp_path: Path) -> None:
    tmp_path.chmod(folder)
    before = os.umask(0o022)
    try:
        with lock_output(tmp_path, FOLDER):
            assert (tmp_path / LOCK).stat().st_mode & 0o777 == lock
    finally:
        os.umask(before)


def test_an_unwritable_lock_is_an_error_that_names_it() -> None:
    # Other users may not enter the temporary folder of the tests.
    with TemporaryDirectory(dir="/tmp") as shared:
        out, me = Path(shared), os.geteuid()
        (out / LOCK).touch(0o444)
        out.chmod(0o777)
        if me == 0:
            try:
                os.seteuid(NOBODY)
            except PermissionError:
                pytest.skip("this root may not become another user")
        try:
            with raises_code(ErrorCode.LOCKED, file=out / LOCK), lock_output(out, FOLDER):
                pass
        finally:
            os.seteuid(me)
