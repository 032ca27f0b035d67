"""One run at a time in a folder, however many are started."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from pathlib import Path
from typing import IO

from radfact.errors import InputError

LOCK = ".lock"


def claim(out: Path) -> IO[str] | None:
    """Keep other processes from training in a folder, until what is returned is closed or this process ends.

    Returns:
        None where the file system has no locks.

    Raises:
        InputError: another process trains there.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        handle = (out / LOCK).open("a+", encoding="utf-8")
    except OSError:
        return None  # what writes the run's files there says why
    try:
        # Of this process alone: workers that outlive one which was killed keep nobody out.
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.seek(0)
        holder = handle.read()
        handle.close()
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            return None
        raise InputError(
            f"{holder or 'another process'} trains in {out}; wait for its end, or name another folder. If that process "
            f"is gone, remove {out / LOCK}",
            field="out",
        ) from None
    handle.truncate(0)
    handle.write(f"process {os.getpid()} on {socket.gethostname()}")
    handle.flush()
    return handle
