"""One run at a time in a folder, however many are started."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from radfact.errors import InputError

LOCK = ".lock"
_TRIES = 100
"""Locks that may be removed, by others that are refused, before it is given up to get one."""


class FolderLock:
    """Keeps other processes from training in a folder until it is closed or this process ends.

    Where the file system has no locks nobody is kept out.

    Args:
        out: the folder; it is made, with its lock in it.

    Raises:
        InputError: another process trains there, or the lock is another user's and cannot be asked.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        missing = [folder for folder in (out, *out.parents) if not folder.exists()]
        self._lock = _locked(out)
        # Between the two another process may have trained there.
        is_new = self._lock is not None and [path.name for path in out.iterdir()] == [LOCK]
        self._made = missing if is_new else []

    def undo(self) -> None:
        """Leave nothing of a run that is refused before its first step, unless there was a folder before."""
        if not self._made:
            return
        for name in ("tables", "tensorboard"):
            shutil.rmtree(self._out / name, ignore_errors=True)
        # Last, while it is held: from here on the folder is anybody's.
        (self._out / LOCK).unlink(missing_ok=True)
        with suppress(OSError):  # it has a list of images, say
            for folder in self._made:
                folder.rmdir()

    def close(self) -> None:
        """Let others into the folder."""
        if self._lock is not None:
            with suppress(OSError):
                self._lock.truncate(0)  # its name would be taken for that of the next holder
            self._lock.close()


def _locked(out: Path) -> IO[str] | None:
    """The lock of a folder, held; None where the file system has none, or nothing can be written there.

    Raises:
        InputError: as `FolderLock`.
    """
    path = out / LOCK
    for _ in range(_TRIES):
        try:
            out.mkdir(parents=True, exist_ok=True)
            handle = path.open("a+", encoding="utf-8")
        except (FileNotFoundError, FileExistsError):
            continue  # the folder has just been removed, after it was made or when it was found
        except OSError as error:
            if isinstance(error, PermissionError):
                _check_absent(path)
            return None  # what writes the run's files there says why
        with suppress(OSError):  # another user's, who has seen to it
            os.fchmod(handle.fileno(), out.stat().st_mode & 0o666)  # whoever may train in the folder may ask
        if not _lock(handle, path):
            handle.close()
            return None
        if _is_at(path, handle):
            with suppress(OSError):  # a full disk, say: the lock holds without a name
                handle.truncate(0)
                handle.write(f"process {os.getpid()} on {socket.gethostname()}")
                handle.flush()
            return handle
        handle.close()
    return None


def _check_absent(path: Path) -> None:
    with suppress(OSError):
        path.stat()
        raise InputError(
            "is another user's and may not be written, so that it cannot be seen whether a run is under way; have its "
            "owner make it writable for you, remove it if no run is under way, or name another folder",
            file=path,
            field="out",
        )


def _lock(handle: IO[str], path: Path) -> bool:
    """Lock an open file; False where the file system has no locks.

    Raises:
        InputError: another process has locked it.
    """
    try:
        # Of this process alone: workers that outlive one which was killed keep nobody out.
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            return False
        holder = _holder(handle)
        handle.close()
        raise InputError(
            f"{holder or 'another process'} trains in {path.parent}; wait for its end, or name another folder. If that "
            f"process is gone, remove {path}",
            field="out",
        ) from None
    return True


def _holder(handle: IO[str]) -> str:
    """Who has a lock, as it says itself a moment after it has got it."""
    for _ in range(_TRIES):
        handle.seek(0)
        if holder := handle.read():
            return holder
        time.sleep(0.01)
    return ""


def _is_at(path: Path, handle: IO[str]) -> bool:
    """Whether an open file is what others open by a path: one that was removed meanwhile keeps nobody out."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), path.stat())
    except OSError:
        return False
