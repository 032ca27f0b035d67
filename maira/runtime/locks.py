"""A lock of a run's folder, so that only one run at a time writes to it."""

from __future__ import annotations

import os
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from radfact.errors import ErrorCode, InputError

LOCK = ".lock"
_ATTEMPTS = 100
"""Attempts to lock a folder that refused runs remove at the same time."""


class FolderLock:
    """Keep other processes from training in a folder until the lock is closed or this process ends.

    On file systems without locks it has no effect.

    Args:
        folder: created if necessary, with the file `.lock` in it.

    Raises:
        InputError: another process trains there, or the lock file belongs to another user and is not writable.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        self._lock = self._acquire()
        # Another process may have trained there in the meantime.
        is_new = self._lock is not None and [path.name for path in folder.iterdir()] == [LOCK]
        self._created = missing if is_new else []

    def remove_new_folder(self) -> None:
        """Remove what this run has created, if it fails before its first step; a folder that existed before stays."""
        if not self._created:
            return
        for name in ("tables", "tensorboard"):
            shutil.rmtree(self._folder / name, ignore_errors=True)
        # Last, while the lock is held: from here on other processes may use the folder.
        (self._folder / LOCK).unlink(missing_ok=True)
        with suppress(OSError):  # not empty, for example with a list of unreadable images
            for path in self._created:
                path.rmdir()

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            with suppress(OSError):
                os.truncate(self._folder / LOCK, 0)  # the name of this process
            self._lock.release()

    def _acquire(self) -> FileLock | None:
        """Lock the folder; None on file systems without locks, or where nothing can be written."""
        path = self._folder / LOCK
        for _ in range(_ATTEMPTS):
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                # Every user who can write to the folder can lock it.
                lock = FileLock(path, mode=self._folder.stat().st_mode & 0o666, is_singleton=False)
                lock.acquire(blocking=False)
            except Timeout:
                raise InputError(
                    f"{_holder(path) or 'another process'} trains in {self._folder}; wait for its end, or name another "
                    f"folder. If that process is gone, remove {path}",
                    code=ErrorCode.LOCKED,
                    field="out",
                ) from None
            except (FileNotFoundError, FileExistsError):
                continue  # a refused run has just removed the folder
            except PermissionError:
                if not path.exists():
                    return None  # whatever writes the run's files reports the reason
                raise InputError(
                    "the lock file belongs to another user and is not writable; ask its owner to make it writable, "
                    "remove it if no run is active, or name another folder",
                    code=ErrorCode.LOCKED,
                    file=path,
                    field="out",
                ) from None
            except (OSError, NotImplementedError):
                return None
            with suppress(OSError):  # a full disk, for example: the lock holds without a name
                path.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
            return lock
        return None


def _holder(path: Path) -> str:
    """Return the name of the process that holds a lock, which it writes just after it has acquired it."""
    for _ in range(_ATTEMPTS):
        with suppress(OSError):
            if holder := path.read_text(encoding="utf-8"):
                return holder
        time.sleep(0.01)
    return ""
