"""One process at a time writes to an output."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
from multiprocessing.synchronize import Barrier
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from error_checks import raises_code

from radfact.errors import ErrorCode, InputError
from radfact.io.outputs import LOCK, Output, lock_output

NOBODY = 65534
FOLDER, FILE = Output("folder", content="tests"), Output("file")


def test_without_file_system_locks_a_run_proceeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with lock_output(tmp_path / "run", FOLDER) as is_locked:
        assert not is_locked
        (tmp_path / "run" / "rows").touch()


@pytest.mark.parametrize("output", [FOLDER, FILE], ids=lambda output: output.kind)
def test_the_holder_is_named_until_it_ends(output: Output, tmp_path: Path) -> None:
    def hold(start: Barrier, end: Barrier) -> None:
        with lock_output(tmp_path / "out", output, command="radfact test"):
            start.wait()
            end.wait()

    fork = multiprocessing.get_context("fork")
    start, end = fork.Barrier(2, timeout=60), fork.Barrier(2, timeout=60)
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
    assert list(tmp_path.iterdir()) == []


def test_a_killed_holder_locks_nothing(tmp_path: Path) -> None:
    def hold() -> None:
        with lock_output(tmp_path, FOLDER):
            os._exit(1)

    holder = multiprocessing.get_context("fork").Process(target=hold)
    holder.start()
    holder.join()
    assert (tmp_path / LOCK).exists()
    with lock_output(tmp_path, FOLDER) as is_locked:
        assert is_locked


def _take_turns(out: Path, start: Barrier, output: Output) -> None:
    start.wait()
    for _ in range(200):
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
    start = fork.Barrier(4, timeout=240)
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
