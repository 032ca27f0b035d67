"""Cache of responses on disk: a resumed run repeats no call."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sqlite3
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.jsonl import create_folder, open_private
from radfact.llm.protocol import CachedResponse, Message, PromptPrefix, messages_json

LAYOUT = 1
"""Version of keys and rows, stored in the file."""

_TABLE = (
    "CREATE TABLE answers (key TEXT PRIMARY KEY, text TEXT NOT NULL, tokens_in INTEGER NOT NULL,"
    " tokens_out INTEGER NOT NULL, cut INTEGER NOT NULL)"
)
_LOCK_SECONDS = 30.0
_MAX_PAUSE = 0.05


def response_key(
    identity: bytes,
    prefix: PromptPrefix,
    messages: Sequence[Message],
    schema: Mapping[str, Any] | None = None,
    repeat: int = 0,
) -> str:
    """Return the SHA-256 of everything that changes a response; `identity` is the model as canonical JSON."""
    digest = prefix.hash.copy()
    digest.update(messages_json(messages))
    digest.update(b"\n" + identity)
    if schema is not None:
        digest.update(b"\n" + canonical_json(schema))
    if repeat:
        digest.update(b"\nrepeat %d" % repeat)
    return digest.hexdigest()


def canonical_json(value: Any) -> bytes:
    """Serialize a value to JSON; equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()


class ResponseCache:
    """Responses by key in one SQLite file, which several processes may share."""

    FILE = "answers.sqlite"

    def __init__(self, folder: Path | str) -> None:
        """Open or create `folder`/answers.sqlite."""
        self.path = Path(folder) / self.FILE
        # The threads of an actor share the connection, which has one transaction at a time.
        self._write_lock = threading.Lock()
        try:
            create_folder(self.path.parent)
            # SQLite gives its other files the permissions of this one.
            os.close(open_private(self.path, os.O_RDWR | os.O_CREAT))
            # Two connections, so that reads never wait for a commit.
            self._writer, self._reader = self._connect(), self._connect()
            layout = self._initialize()
        except (OSError, sqlite3.Error) as error:
            # A busy file is valid and must not be removed.
            hint = "try again or use another folder" if _is_busy(error) else "use another folder or remove it"
            message = f"expected a response cache ({error}); {hint}"
            raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=self.path) from None
        if layout != LAYOUT:
            self.close()
            message = f"expected responses in layout {LAYOUT}, found {layout}; use another folder or remove it"
            raise InputError(message, code=ErrorCode.UNSUPPORTED_VERSION, file=self.path)

    def _connect(self) -> sqlite3.Connection:
        # Used by the threads of the event loop and of the commits. Without implicit transactions, each statement
        # commits itself.
        return sqlite3.connect(self.path, check_same_thread=False, timeout=_LOCK_SECONDS, isolation_level=None)

    def _initialize(self) -> int:
        """Prepare the file for durable writing, with reads that do not wait for writes, and return its layout."""
        deadline = time.monotonic() + _LOCK_SECONDS
        # SQLite itself does not wait here, since several connections would wait for each other forever; each retries.
        while True:
            try:
                self._writer.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(random.uniform(0.0, _MAX_PAUSE))
        self._writer.execute("PRAGMA synchronous=FULL")
        with self._writer:
            self._writer.execute("BEGIN IMMEDIATE")
            if not self._writer.execute("SELECT 1 FROM sqlite_master").fetchone():
                self._writer.execute(_TABLE)
                self._writer.execute(f"PRAGMA user_version={LAYOUT}")
        return int(self._writer.execute("PRAGMA user_version").fetchone()[0])

    def get(self, key: str) -> CachedResponse | None:
        """Return the response under `key`, if any."""
        try:
            row = self._reader.execute(
                "SELECT text, tokens_in, tokens_out, cut FROM answers WHERE key = ?", (key,)
            ).fetchone()
        except sqlite3.Error as error:
            raise RunError(f"{self.path}: cannot read responses ({error}); use another folder") from None
        return None if row is None else CachedResponse(row[0], row[1], row[2], bool(row[3]))

    def put(self, responses: Iterable[tuple[str, CachedResponse]]) -> None:
        """Store responses by key in one commit; they are on disk when this returns."""
        rows = [(key, item.text, item.tokens_in, item.tokens_out, item.cut) for key, item in responses]
        try:
            with self._write_lock, self._writer:
                self._writer.execute("BEGIN IMMEDIATE")
                self._writer.executemany("INSERT OR IGNORE INTO answers VALUES (?,?,?,?,?)", rows)
        except sqlite3.Error as error:
            message = f"{self.path}: cannot write responses ({error}); earlier responses are safe"
            raise RunError(message, code=ErrorCode.WRITE_FAILED) from None

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
        self._reader.close()


def _is_busy(error: Exception) -> bool:
    # The lower byte is the primary code.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class GroupCommit:
    """Writes responses to a cache from an event loop: all that arrive during one commit share the next."""

    def __init__(self, cache: ResponseCache) -> None:
        self.cache = cache
        self._rows: list[tuple[str, CachedResponse]] = []
        self._next: asyncio.Task[None] | None = None
        self._commits = asyncio.Lock()
        # A separate thread, so that a slow disk delays no call.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="radfact-answers")

    async def put(self, key: str, response: CachedResponse) -> None:
        """Store a response; it is on disk when this returns, even if the caller is canceled."""
        self._rows.append((key, response))
        self._next = self._next or asyncio.create_task(self._commit())
        await asyncio.shield(self._next)

    async def _commit(self) -> None:
        async with self._commits:
            rows, self._rows, self._next = self._rows, [], None
            await asyncio.get_running_loop().run_in_executor(self._thread, self.cache.put, rows)

    async def settle(self) -> None:
        """Wait until all writes have finished or failed."""
        if self._next is not None:
            await asyncio.wait([self._next])
        async with self._commits:
            pass

    async def close(self) -> None:
        await self.settle()
        self._thread.shutdown()
        self.cache.close()
