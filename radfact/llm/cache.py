"""Answers kept on disk: committed before they count, so that a run that is taken up again asks nothing twice."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from radfact.errors import InputError, RunError
from radfact.llm.protocol import CachedResponse, Message, PromptPrefix, messages_json

LAYOUT = 1
"""Number of the layout of keys and rows; it stands in the file, so that answers of another one are never misread."""

_TABLE = (
    "CREATE TABLE answers (key TEXT PRIMARY KEY, text TEXT NOT NULL, tokens_in INTEGER NOT NULL,"
    " tokens_out INTEGER NOT NULL, cut INTEGER NOT NULL)"
)
_WAIT_FOR_OTHERS = 30.0
_PAUSE = 0.05
_ROWS = 1000  # five values each: SQLite takes 32,766 in one statement


def response_key(
    identity: bytes, prefix: PromptPrefix, messages: Sequence[Message], schema: Mapping[str, Any] | None = None
) -> str:
    """SHA-256 of everything that changes an answer: the conversation (wherever its prefix ends), schema and identity.

    Args:
        identity: the model and its parameters, as canonical JSON.
        prefix: the constant beginning of the conversation.
        messages: the rest of it.
        schema: the JSON schema that the answer must follow.
    """
    digest = prefix.begin_hash()
    digest.update(messages_json(messages))
    digest.update(b"\n" + identity)
    if schema is not None:
        digest.update(b"\n" + canonical_json(schema))
    return digest.hexdigest()


def canonical_json(value: Any) -> bytes:
    """JSON bytes that are equal for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()


class ResponseCache:
    """A table of answers in one SQLite file; a second process may use the same file."""

    def __init__(self, folder: Path | str) -> None:
        """Open or make `folder`/answers.sqlite.

        Raises:
            InputError: the folder cannot be used, or the file is no answer cache or one of another layout.
        """
        self.path = Path(folder) / "answers.sqlite"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Two connections, so that reading never waits for a disk that is busy with a commit.
            self._writer, self._reader = self._connect(), self._connect()
            layout = self._layout()
        except (OSError, sqlite3.Error) as error:
            # What others are busy with is theirs, and no reason to throw it away.
            advice = "try again, or name another folder" if _is_busy(error) else "name another folder or remove it"
            raise InputError(f"no usable answer cache ({error}); {advice}", file=self.path) from None
        if layout != LAYOUT:
            self.close()
            raise InputError(
                f"answers in layout {layout}, this version reads {LAYOUT}; name another folder or remove it",
                file=self.path,
            )

    def _connect(self) -> sqlite3.Connection:
        # Opened here, used by the event loop's thread and by the one that commits.
        # Without the module's own transactions: a statement is begun and committed in one go.
        return sqlite3.connect(self.path, check_same_thread=False, timeout=_WAIT_FOR_OTHERS, isolation_level=None)

    def _layout(self) -> int:
        """Prepare the file for durable writing; the layout that it has."""
        self._write_ahead()
        self._writer.execute("PRAGMA synchronous=FULL")
        with self._writer:
            self._writer.execute("BEGIN IMMEDIATE")
            if not self._writer.execute("SELECT 1 FROM sqlite_master").fetchone():
                self._writer.execute(_TABLE)
                self._writer.execute(f"PRAGMA user_version={LAYOUT}")
        return int(self._writer.execute("PRAGMA user_version").fetchone()[0])

    def _write_ahead(self) -> None:
        """Have the file keep a log ahead of it, which lets others read while one writes.

        Only here SQLite does not wait for others, since those who all hold the file and all want it alone would wait
        for ever: each lets go and comes back.
        """
        deadline = time.monotonic() + _WAIT_FOR_OTHERS
        while True:
            try:
                self._writer.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(random.uniform(0.0, _PAUSE))
            else:
                return

    def get(self, key: str) -> CachedResponse | None:
        """The answer under `key`, if there is one.

        Raises:
            RunError: the file cannot be read.
        """
        try:
            row = self._reader.execute(
                "SELECT text, tokens_in, tokens_out, cut FROM answers WHERE key = ?", (key,)
            ).fetchone()
        except sqlite3.Error as error:
            raise RunError(f"{self.path}: answers cannot be read ({error}); name another folder") from None
        return None if row is None else CachedResponse(row[0], row[1], row[2], bool(row[3]))

    def put(self, answers: Iterable[tuple[str, CachedResponse]]) -> None:
        """Store answers by key, up to a thousand in one commit; they are on disk when this returns.

        Raises:
            RunError: they cannot be written, for example because the disk is full.
        """
        rows = [(key, one.text, one.tokens_in, one.tokens_out, one.cut) for key, one in answers]
        try:
            for start in range(0, len(rows), _ROWS):
                some = rows[start : start + _ROWS]
                # One statement, and so one hand-over of the interpreter, which a busy event loop is slow to give back.
                places = ",".join(["(?,?,?,?,?)"] * len(some))
                self._writer.execute(f"INSERT OR IGNORE INTO answers VALUES {places}", [v for row in some for v in row])
        except sqlite3.Error as error:
            raise RunError(f"{self.path}: answers cannot be kept ({error}); those kept so far are safe") from None

    def merge(self, other: ResponseCache) -> None:
        """Take over all answers of another cache that this one does not have."""
        rows = other._reader.execute("SELECT key, text, tokens_in, tokens_out, cut FROM answers")
        self.put((row[0], CachedResponse(row[1], row[2], row[3], bool(row[4]))) for row in rows)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
        self._reader.close()


def _is_busy(error: Exception) -> bool:
    # The lower byte is the code, the others say more of it.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class GroupCommit:
    """Puts answers into a cache from an event loop: those that arrive during one commit share the next."""

    def __init__(self, cache: ResponseCache) -> None:
        self.cache = cache
        self._rows: list[tuple[str, CachedResponse]] = []
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        # A thread of its own, so that a slow disk holds up no request.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="radfact-answers")

    async def put(self, key: str, answer: CachedResponse) -> None:
        """Store an answer; it is on disk when this returns, and gets there even if the caller is cancelled.

        Raises:
            RunError: it cannot be written.
        """
        self._rows.append((key, answer))
        if self._next is None:
            self._next = asyncio.create_task(self._commit(self._running))
        await asyncio.shield(self._next)

    async def _commit(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        rows, self._rows = self._rows, []
        self._running, self._next = self._next, None
        await asyncio.get_running_loop().run_in_executor(self._thread, self.cache.put, rows)

    async def settle(self) -> None:
        """Wait until all that was put is on disk, or has failed to get there."""
        last = [task for task in (self._running, self._next) if task is not None]
        if last:
            await asyncio.wait(last)

    async def close(self) -> None:
        """Wait for the last commit and close the cache."""
        await self.settle()
        self._thread.shutdown()
        self.cache.close()
