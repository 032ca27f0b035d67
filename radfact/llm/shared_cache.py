"""Response caches of many workers: each worker has its own, because SQLite files cannot be shared between machines."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from radfact.io.jsonl import create_folder
from radfact.llm.cache import ResponseCache


@contextmanager
def worker_caches(cache: Path) -> Iterator[Path]:
    """Yield a folder for the caches of one run's workers, and merge them into the main cache when the run ends.

    Caches that a killed run left behind are merged first; those of a running run stay. A run is running as long as its
    process holds a lock, which the system releases when the process dies. This is certain on one machine, and on
    several if the file system shares its locks (NFS 4, or Lustre mounted with flock). Without locks, all other runs
    count as running.

    Args:
        cache: folder of the main cache; the caches of the workers are in its folder `workers`, which all machines must
            see.

    Raises:
        InputError: a cache cannot be used.
        RunError: responses cannot be written to the main cache.
    """
    folder = cache / "workers"
    create_folder(folder)
    for previous in sorted(path for path in folder.iterdir() if path.is_dir()):
        with _try_lock(previous) as is_locked:
            if is_locked:
                _merge_caches(cache, previous)
    own = folder / uuid.uuid4().hex
    with _try_lock(own):
        # Locked first: a folder without a lock belongs to a dead run.
        create_folder(own)
        try:
            yield own
        finally:
            _merge_caches(cache, own)


@contextmanager
def _try_lock(folder: Path) -> Iterator[bool]:
    """Yield whether the lock of a run's folder could be acquired; its file is removed together with the folder."""
    path = folder.with_name(f"{folder.name}.lock")
    lock = FileLock(path, blocking=False)
    with suppress(Timeout, OSError):
        lock.acquire()
    try:
        yield lock.is_locked
    finally:
        if not folder.exists():
            path.unlink(missing_ok=True)
        lock.release()


def _merge_caches(cache: Path, folder: Path) -> None:
    for path in sorted(folder.rglob(ResponseCache.FILE)):
        with closing(ResponseCache(cache)) as main, closing(ResponseCache(path.parent)) as worker:
            main.merge(worker)
    shutil.rmtree(folder, ignore_errors=True)
