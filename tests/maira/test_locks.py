"""One run at a time in a folder."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
from contextlib import closing, suppress
from multiprocessing.synchronize import Barrier
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tiny_runs import held_by_another

from maira.runtime.locks import LOCK, FolderLock
from radfact.errors import ErrorCode, InputError

NOBODY = 65534


def test_without_file_system_locks_a_run_proceeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with closing(FolderLock(tmp_path / "run")), closing(FolderLock(tmp_path / "run")) as lock:
        # Another run may be at work in it.
        (tmp_path / "run" / "tables").mkdir()
        lock.remove_new_folder()
    assert (tmp_path / "run" / "tables").exists()


def test_the_holder_of_a_folder_is_named_until_it_ends(tmp_path: Path) -> None:
    with (
        held_by_another(tmp_path) as pid,
        pytest.raises(InputError, match=rf"process {pid} on ") as raised,
    ):
        FolderLock(tmp_path)
    assert (raised.value.code, raised.value.field) == (ErrorCode.LOCKED, "out")
    with closing(FolderLock(tmp_path)):
        assert (tmp_path / LOCK).read_text(encoding="utf-8").startswith(f"process {os.getpid()} on ")
    assert not (tmp_path / LOCK).read_text(encoding="utf-8")


def test_a_refused_run_removes_only_folders_it_created(tmp_path: Path) -> None:
    fresh = tmp_path / "runs" / "fresh"
    with closing(FolderLock(fresh)) as lock:
        (fresh / "tables").mkdir()
        lock.remove_new_folder()
    assert not (tmp_path / "runs").exists()
    (tmp_path / "empty").mkdir()
    with closing(FolderLock(tmp_path / "empty")) as lock:
        lock.remove_new_folder()
    assert (tmp_path / "empty").exists()


def test_files_of_another_run_remain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, flock = tmp_path / "out", fcntl.flock

    def after_another(file: int, how: int) -> None:
        (out / "tables").mkdir(exist_ok=True)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", after_another)
    with closing(FolderLock(out)) as lock:
        lock.remove_new_folder()
    assert (out / "tables").exists()


def _take_turns(out: Path, start: Barrier) -> None:
    start.wait()
    for _ in range(300):
        try:
            lock = FolderLock(out)
        except InputError:
            continue
        # Fails where another process has it too.
        (out.parent / "held").mkdir()
        (out.parent / "held").rmdir()
        # As one that is refused, and that has made the folder, leaves it.
        (out / LOCK).unlink()
        with suppress(OSError):
            out.rmdir()
        lock.close()


def test_one_of_several_processes_locks_a_folder_that_each_removes(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    start = fork.Barrier(4, timeout=240)
    several = [fork.Process(target=_take_turns, args=(tmp_path / "out", start)) for _ in range(4)]
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
        FolderLock(tmp_path).close()
    finally:
        os.umask(before)
    assert (tmp_path / LOCK).stat().st_mode & 0o777 == lock


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
            with pytest.raises(InputError) as raised:
                FolderLock(out)
            assert (raised.value.code, raised.value.file) == (ErrorCode.LOCKED, out / LOCK)
        finally:
            os.seteuid(me)
