"""Answers of many workers: each keeps them in a store of its own, because SQLite files are not for many machines."""

from __future__ import annotations

import fcntl
import shutil
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from radfact.llm.cache import ResponseCache


@contextmanager
def worker_caches(cache: Path) -> Iterator[Path]:
    """A folder for the stores of one run's workers, which are merged into the main one when it ends, however it ends.

    What a killed run left is merged first; what belongs to a run that still works stays as it is. A run works as long
    as its process holds a lock, which the system takes from the dead. On one machine that is certain, on several it
    is where the file system's locks are those of all of them (NFS 4, or Lustre mounted with flock). Where there are
    no locks, every other run counts as working.

    Args:
        cache: folder of the main store; the stores lie in its folder `workers`, which all machines must see.

    Raises:
        InputError: one of the stores cannot be used.
        RunError: answers cannot be written to the main one.
    """
    folder = cache / "workers"
    folder.mkdir(parents=True, exist_ok=True)
    for other in sorted(path for path in folder.iterdir() if path.is_dir()):
        with _lock_of(other) as held:
            if held:
                _take_over(cache, other)
    own = folder / uuid.uuid4().hex
    with _lock_of(own):
        # Locked first: a folder without a lock is taken for a dead run's.
        own.mkdir()
        try:
            yield own
        finally:
            _take_over(cache, own)


@contextmanager
def _lock_of(folder: Path) -> Iterator[bool]:
    """Whether the lock beside a run's folder is held from here on; it goes with the folder."""
    path = folder.with_name(f"{folder.name}.lock")
    with path.open("ab") as file:
        try:
            # Of the open file, not of the process, which may have several runs.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            held = False
        else:
            held = True
        try:
            yield held
        finally:
            if not folder.exists():
                path.unlink(missing_ok=True)


def _take_over(cache: Path, folder: Path) -> None:
    for path in sorted(folder.rglob("answers.sqlite")):
        with closing(ResponseCache(cache)) as main, closing(ResponseCache(path.parent)) as store:
            main.merge(store)
    shutil.rmtree(folder, ignore_errors=True)
