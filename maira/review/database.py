"""The SQLite file of a review: its tables, the drafts in it, and files of an older layout."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from maira.review.changes import Review, initial_state
from radfact.errors import ErrorCode, InputError, RunError, list_some
from radfact.io.jsonl import create_folder, dumps, naming_file
from radfact.records import Sentence, parse_sentences

# "maRv" distinguishes a review from other SQLite files.
_APPLICATION = 0x6D615276
LAYOUT = 2

_DRAFT_COLUMNS = """(
    number INTEGER PRIMARY KEY,
    sample_id TEXT NOT NULL,
    arm TEXT NOT NULL,
    is_training INTEGER NOT NULL,
    digest TEXT NOT NULL,
    draft TEXT NOT NULL,
    UNIQUE (sample_id, arm)
) STRICT"""


def _append_only(table: str, columns: str) -> list[str]:
    guard = f"ON {table} BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
    return [
        f"CREATE TABLE IF NOT EXISTS {table} (number INTEGER PRIMARY KEY AUTOINCREMENT, {columns}) STRICT",
        f"CREATE TRIGGER IF NOT EXISTS {table}_stay BEFORE UPDATE {guard}",
        f"CREATE TRIGGER IF NOT EXISTS {table}_remain BEFORE DELETE {guard}",
    ]


def _names(table: str) -> str:
    columns = "number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, made TEXT NOT NULL"
    return f"CREATE TABLE IF NOT EXISTS {table} ({columns}) STRICT"


# Early files of this layout lack some of these.
_LATER = [
    "CREATE TABLE IF NOT EXISTS access (token TEXT NOT NULL) STRICT",
    # A session is one opening of the page; its clock counts milliseconds, never back.
    *_append_only(
        "reading_events",
        "session TEXT NOT NULL, sequence INTEGER NOT NULL, reader TEXT NOT NULL, study INTEGER NOT NULL, kind TEXT NOT"
        " NULL, clock REAL NOT NULL, sent REAL NOT NULL, received TEXT NOT NULL, UNIQUE (session, sequence)",
    ),
]
_TABLES = [
    f"CREATE TABLE IF NOT EXISTS drafts {_DRAFT_COLUMNS}",
    _names("readers"),
    _names("error_types"),
    *_append_only(
        "changes",
        "id TEXT NOT NULL UNIQUE, reader TEXT NOT NULL REFERENCES readers (name), study INTEGER NOT NULL REFERENCES"
        " drafts (number), sample_id TEXT NOT NULL, version INTEGER NOT NULL, made TEXT NOT NULL, change TEXT NOT NULL,"
        " UNIQUE (reader, study, version)",
    ),
    # Of the coordinator of a campaign.
    *_append_only("actions", "made TEXT NOT NULL, action TEXT NOT NULL"),
    *_LATER,
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {LAYOUT}",
]

# Layout 1 has one arm, no training cases, and other names for readers.
_UPGRADE = [
    f"CREATE TABLE new_drafts {_DRAFT_COLUMNS}",
    "INSERT INTO new_drafts SELECT number, sample_id, '', 0, digest, draft FROM drafts",
    "DROP TABLE drafts",
    "ALTER TABLE new_drafts RENAME TO drafts",
    "ALTER TABLE reviewers RENAME TO readers",
    "ALTER TABLE changes RENAME COLUMN reviewer TO reader",
]


@dataclass(frozen=True)
class Draft:
    """A draft to review."""

    sample_id: str
    sentences: tuple[Sentence, ...]
    is_narrative: bool
    record: dict[str, Any]
    arm: str = ""
    is_training: bool = False

    @property
    def name(self) -> str:
        """The sample id, followed by the arm if the review has several."""
        return f"{self.sample_id} of arm {self.arm}" if self.arm else self.sample_id

    @property
    def candidates(self) -> list[tuple[Sentence, ...]]:
        """Its reports: two if readers compare them."""
        split = self.record.get("split", len(self.sentences))
        return [part for part in (self.sentences[:split], self.sentences[split:]) if part or "split" in self.record]

    @cached_property
    def review(self) -> Review:
        """Its review before any change."""
        return Review(
            (initial_state([(each.text, [box.as_tuple() for box in each.boxes or ()]) for each in self.sentences]),)
        )

    def as_json(self) -> str:
        return dumps({"report": self._report, "is_narrative": self.is_narrative, "record": self.record})

    @property
    def digest(self) -> str:
        """Hash of the sample id and the report."""
        return hashlib.sha256(dumps([self.sample_id, self.is_narrative, self._report]).encode()).hexdigest()

    @property
    def _report(self) -> list[dict[str, Any]]:
        return [sentence.model_dump(mode="json", exclude_none=True) for sentence in self.sentences]


def is_locked_error(error: BaseException | None) -> bool:
    # Extended codes repeat the primary code in their lowest byte.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=10, isolation_level=None, check_same_thread=False
    )
    try:
        # Removing the journal commits a transaction, so the removal must be on disk as well.
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run a transaction that locks the database; it is rolled back on any error."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        yield


def create(path: Path, drafts: Sequence[Draft]) -> None:
    """Create a database of drafts atomically, readable by its owner only."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with naming_file(path, temporary):
            create_folder(path.parent)
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with closing(_connect(temporary)) as connection:
            _prepare(connection, drafts)
        temporary.replace(path)
    except sqlite3.Error as error:
        raise RunError(f"{path}: cannot be written: {error}", code=ErrorCode.WRITE_FAILED) from None
    finally:
        with suppress(OSError):  # the original error matters more
            temporary.unlink()


def insert_drafts(connection: sqlite3.Connection, drafts: Sequence[Draft]) -> None:
    connection.executemany(
        "INSERT INTO drafts (sample_id, arm, is_training, digest, draft) VALUES (?,?,?,?,?)",
        [(draft.sample_id, draft.arm, int(draft.is_training), draft.digest, draft.as_json()) for draft in drafts],
    )


def open_database(path: Path, hint: str) -> sqlite3.Connection:
    """Open a database without changing the file: one of layout 1 as a copy in memory."""
    if path.is_dir():
        message = "expected the database of a review, found a folder"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path)
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(closing(_connect(path)))
            application, layout = (
                connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
            )
            if application != _APPLICATION:
                message = f"expected the database of a review, found another database{hint}"
                raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path)
            if layout not in (1, LAYOUT):
                message = f"expected layout {LAYOUT} or 1, found {layout}{hint}"
                raise InputError(message, code=ErrorCode.UNSUPPORTED_VERSION, file=path)
            if layout == 1:
                copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
                connection.backup(copy)
                _prepare(copy)
                return copy
        except sqlite3.Error as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
                message = f"expected the database of a review, found another file{hint}"
                raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path) from None
            reason = error if os.access(path, os.R_OK) else "permission denied"
            raise InputError(f"cannot be opened: {reason}", code=ErrorCode.FILE_UNREADABLE, file=path) from None
        stack.pop_all()
    return connection


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Open a database that can be written, and upgrade it to the current layout."""
    # The journal of a change is written to the same folder.
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        message = "the file or its folder cannot be written"
        raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=path)
    with sqlite_errors(path):
        connection = _connect(path)
        # With a write-ahead log, recent changes are in a second file, which outlives a removed database.
        connection.execute("PRAGMA journal_mode = DELETE")
        _prepare(connection)
    return connection


def _prepare(connection: sqlite3.Connection, drafts: Sequence[Draft] = ()) -> None:
    """Create the tables that are missing, and upgrade those of layout 1; nothing changes if that fails."""
    # Foreign keys would forbid dropping the table; this setting has no effect within a transaction.
    connection.execute("PRAGMA foreign_keys = OFF")
    with transaction(connection):
        layout = connection.execute("PRAGMA user_version").fetchone()[0]
        for statement in {LAYOUT: _LATER, 1: [*_UPGRADE, *_TABLES]}.get(layout, _TABLES):
            connection.execute(statement)
        insert_drafts(connection, drafts)
    connection.execute("PRAGMA foreign_keys = ON")


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Raise the errors of SQLite as input errors of a file."""
    try:
        yield
    except sqlite3.Error as error:
        raise InputError(f"cannot be used: {error}", code=ErrorCode.FILE_UNREADABLE, file=path) from None


def read_drafts(connection: sqlite3.Connection, path: Path) -> list[Draft]:
    drafts = []
    with sqlite_errors(path):
        rows = connection.execute("SELECT sample_id, arm, is_training, draft FROM drafts ORDER BY number").fetchall()
    for sample_id, arm, is_training, text in rows:
        stored = json.loads(text)
        sentences = tuple(parse_sentences(stored["report"], file=path))
        drafts.append(Draft(sample_id, sentences, stored["is_narrative"], stored["record"], arm, bool(is_training)))
    return drafts


def check_same_drafts(expected: Sequence[Draft], drafts: Sequence[Draft], path: Path) -> None:
    """Check that drafts are those of a review, in the same order."""
    before, now = ({draft.name: draft.digest for draft in each} for each in (expected, drafts))
    differences = {
        "changed": [key for key in before if key in now and now[key] != before[key]],
        "missing": [key for key in before if key not in now],
        "added": [key for key in now if key not in before],
    }
    parts = [f"{len(keys)} {name} ({list_some(keys)})" for name, keys in differences.items() if keys]
    # Changes refer to the number of the study.
    if not parts and list(before) != list(now):
        parts = ["another order"]
    if parts:
        message = f"a review of other drafts: {', '.join(parts)}; give the original drafts, or another --db"
        raise InputError(message, code=ErrorCode.MISMATCH, file=path)


def timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
