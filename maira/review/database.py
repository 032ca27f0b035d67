"""The SQLite file of a review: its tables, the drafts in it, and files of an older layout."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from maira.review.changes import State, initial_state
from radfact.errors import ErrorCode, InputError, RunError, list_some
from radfact.io.jsonl import create_parent, dumps, naming_file
from radfact.records import Sentence, parse_sentences

# "maRv" distinguishes a review from other SQLite files.
_APPLICATION = 0x6D615276
LAYOUT = 2
"""Version of the tables."""

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
    """Return the statements that create a table whose rows stay."""
    guard = f"ON {table} BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
    return [
        f"CREATE TABLE IF NOT EXISTS {table} (number INTEGER PRIMARY KEY AUTOINCREMENT, {columns}) STRICT",
        f"CREATE TRIGGER IF NOT EXISTS {table}_stay BEFORE UPDATE {guard}",
        f"CREATE TRIGGER IF NOT EXISTS {table}_remain BEFORE DELETE {guard}",
    ]


# Of the coordinator of a campaign.
_ACTIONS = _append_only("actions", "made TEXT NOT NULL, action TEXT NOT NULL")
EVENTS = _append_only(
    "reading_events",
    "session TEXT NOT NULL, sequence INTEGER NOT NULL, reader TEXT NOT NULL, study INTEGER NOT NULL, kind TEXT NOT"
    " NULL, clock REAL NOT NULL, sent REAL NOT NULL, received TEXT NOT NULL, UNIQUE (session, sequence)",
)
"""Table of the events of pages. A session is one opening of the page; its clock counts milliseconds, never back."""

_TABLES = [
    f"CREATE TABLE drafts {_DRAFT_COLUMNS}",
    "CREATE TABLE readers (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, made TEXT NOT NULL) STRICT",
    "CREATE TABLE error_types (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, made TEXT NOT NULL) STRICT",
    *_append_only(
        "changes",
        "id TEXT NOT NULL UNIQUE, reader TEXT NOT NULL REFERENCES readers (name), study INTEGER NOT NULL REFERENCES"
        " drafts (number), sample_id TEXT NOT NULL, version INTEGER NOT NULL, made TEXT NOT NULL, change TEXT NOT NULL,"
        " UNIQUE (reader, study, version)",
    ),
    *_ACTIONS,
]

# Layout 1 has one arm, no training cases, and other names for readers.
_UPGRADE = [
    f"CREATE TABLE new_drafts {_DRAFT_COLUMNS}",
    "INSERT INTO new_drafts SELECT number, sample_id, '', 0, digest, draft FROM drafts",
    "DROP TABLE drafts",
    "ALTER TABLE new_drafts RENAME TO drafts",
    "ALTER TABLE reviewers RENAME TO readers",
    "ALTER TABLE changes RENAME COLUMN reviewer TO reader",
    *_ACTIONS,
    "PRAGMA user_version = 2",
]


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft to review.

    Attributes:
        sentences: sentences of the report; those of a narrative have no boxes.
        record: further fields for corrected drafts: `model`.
        is_training: whether the draft is a training case, which is not part of statistics.
    """

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

    def state(self) -> State:
        """Return the initial state of its review."""
        return initial_state([(each.text, [box.as_tuple() for box in each.boxes or ()]) for each in self.sentences])

    def as_json(self) -> str:
        """Return the draft as stored in the database."""
        report = [sentence.model_dump(mode="json", exclude_none=True) for sentence in self.sentences]
        return dumps({"report": report, "is_narrative": self.is_narrative, "record": self.record})

    @property
    def digest(self) -> str:
        """Hash of the sample id and the report."""
        report = [sentence.model_dump(mode="json", exclude_none=True) for sentence in self.sentences]
        return hashlib.sha256(dumps([self.sample_id, self.is_narrative, report]).encode()).hexdigest()


def is_locked_error(error: BaseException | None) -> bool:
    """Return whether another program holds the lock of the database."""
    # Extended codes repeat the primary code in their lowest byte.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing database."""
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
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def create(path: Path, drafts: Sequence[Draft]) -> None:
    """Create a database of drafts atomically, readable by its owner only."""
    create_parent(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with naming_file(path, temporary):
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        connection = connect(temporary)
        try:
            with transaction(connection):
                for statement in _TABLES:
                    connection.execute(statement)
                insert_drafts(connection, drafts)
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                connection.execute(f"PRAGMA user_version = {LAYOUT}")
        finally:
            connection.close()
        temporary.replace(path)
    except sqlite3.Error as error:
        raise RunError(f"{path}: cannot be written: {error}", code=ErrorCode.WRITE_FAILED) from None
    finally:
        with suppress(OSError):  # the original error matters more
            temporary.unlink()


def insert_drafts(connection: sqlite3.Connection, drafts: Sequence[Draft]) -> None:
    """Add drafts to a database."""
    connection.executemany(
        "INSERT INTO drafts (sample_id, arm, is_training, digest, draft) VALUES (?,?,?,?,?)",
        [(draft.sample_id, draft.arm, int(draft.is_training), draft.digest, draft.as_json()) for draft in drafts],
    )


def prepare_writing(path: Path) -> None:
    """Check that a review can be written, and upgrade it to the current layout."""
    # The journal of a change is written to the same folder.
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        message = "the file or its folder cannot be written"
        raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=path)
    with sqlite_errors(path), closing(connect(path)) as connection:
        # With a write-ahead log, recent changes are in a second file, which outlives a removed database.
        connection.execute("PRAGMA journal_mode = DELETE")
        _upgrade(connection)


def upgraded_copy(path: Path) -> sqlite3.Connection:
    """Return a copy in memory of a file of an older layout, in the current one."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        with closing(connect(path)) as original:
            original.backup(connection)
        _upgrade(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _upgrade(connection: sqlite3.Connection) -> None:
    """Change a database of layout 1 to the current one; nothing changes if that fails."""
    # Foreign keys would forbid dropping the table; this setting has no effect within a transaction.
    connection.execute("PRAGMA foreign_keys = OFF")
    with transaction(connection):
        if connection.execute("PRAGMA user_version").fetchone()[0] == 1:
            for statement in _UPGRADE:
                connection.execute(statement)
    connection.execute("PRAGMA foreign_keys = ON")


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Raise the errors of SQLite as input errors of a file."""
    try:
        yield
    except sqlite3.Error as error:
        raise InputError(f"cannot be used: {error}", code=ErrorCode.FILE_UNREADABLE, file=path) from None


def read_drafts(path: Path, hint: str) -> tuple[int, list[Draft]]:
    """Read the layout and the drafts of a review without changing the file."""
    if path.is_dir():
        message = "expected the database of a review, found a folder"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path)
    try:
        with closing(connect(path)) as connection:
            application, layout = (
                connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
            )
            if application != _APPLICATION:
                message = f"expected the database of a review, found another database{hint}"
                raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path)
            if layout not in (1, LAYOUT):
                message = f"expected layout {LAYOUT} or 1, found {layout}{hint}"
                raise InputError(message, code=ErrorCode.UNSUPPORTED_VERSION, file=path)
            arm = "arm, is_training" if layout == LAYOUT else "'', 0"
            rows = connection.execute(f"SELECT sample_id, {arm}, draft FROM drafts ORDER BY number").fetchall()
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            message = f"expected the database of a review, found another file{hint}"
            raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path) from None
        reason = error if os.access(path, os.R_OK) else "permission denied"
        raise InputError(f"cannot be opened: {reason}", code=ErrorCode.FILE_UNREADABLE, file=path) from None
    drafts = []
    for sample_id, arm, is_training, text in rows:
        stored = json.loads(text)
        sentences = tuple(parse_sentences(stored["report"], file=path))
        drafts.append(Draft(sample_id, sentences, stored["is_narrative"], stored["record"], arm, bool(is_training)))
    return layout, drafts


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
    """Return the current time as stored in the database."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
