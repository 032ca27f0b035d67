"""The database of a review: drafts, reviewers and every change they made, in order and for good."""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from maira.review.changes import Change, Corners, History, Name, Snapshot, State, change_adapter, drafted
from maira.review.protocol import ERROR_TYPES
from radfact.errors import InputError, RunFailed
from radfact.jsonl import dumps
from radfact.report import Sentence, as_input_error, parse_sentences

# "maRv", so that another program's database is not taken for a review.
_APPLICATION = 0x6D615276
_LAYOUT = 1
_SHOWN_IDS = 5

_TABLES = """
CREATE TABLE drafts (
    number INTEGER PRIMARY KEY, sample_id TEXT NOT NULL UNIQUE, digest TEXT NOT NULL, draft TEXT NOT NULL
) STRICT;
CREATE TABLE reviewers (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, made TEXT NOT NULL) STRICT;
CREATE TABLE error_types (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, made TEXT NOT NULL) STRICT;
CREATE TABLE changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    reviewer TEXT NOT NULL REFERENCES reviewers (name),
    study INTEGER NOT NULL REFERENCES drafts (number),
    sample_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    made TEXT NOT NULL,
    change TEXT NOT NULL,
    UNIQUE (reviewer, study, version)
) STRICT;
CREATE TRIGGER changes_stay BEFORE UPDATE ON changes BEGIN SELECT RAISE(ABORT, 'changes are for good'); END;
CREATE TRIGGER changes_remain BEFORE DELETE ON changes BEGIN SELECT RAISE(ABORT, 'changes are for good'); END;
"""

_name = TypeAdapter(Name)


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft as it came.

    Attributes:
        sample_id: of the study.
        sentences: of the report; those of a narrative have no boxes.
        is_narrative: whether the report was one text.
        record: the other fields of the draft, such as `model`.
    """

    sample_id: str
    sentences: tuple[Sentence, ...]
    is_narrative: bool
    record: dict[str, Any]

    def state(self) -> State:
        """The state that its review begins with."""
        return drafted([(sentence.text, _corners(sentence)) for sentence in self.sentences])

    def as_json(self) -> str:
        """The draft as the database holds it."""
        report = [sentence.model_dump(mode="json", exclude_none=True) for sentence in self.sentences]
        return dumps({"report": report, "is_narrative": self.is_narrative, "record": self.record})

    @property
    def digest(self) -> str:
        """Changes when the sample or its report does."""
        report = [sentence.model_dump(mode="json", exclude_none=True) for sentence in self.sentences]
        return hashlib.sha256(dumps([self.sample_id, self.is_narrative, report]).encode()).hexdigest()


class ConflictError(Exception):
    """A change was made on a state that is no longer the present one."""


class Store:
    """A review's database: opened by one server, or by several; safe to use from several threads.

    A change is on disk when `add_change` returns: the journal is written ahead and flushed for each.
    """

    def __init__(self, path: Path, drafts: Sequence[Draft] | None = None) -> None:
        """Open a database, or begin one with `drafts`.

        Args:
            path: the SQLite file.
            drafts: what is reviewed, which must be what the review was begun with; None takes what is there.

        Raises:
            InputError: the file is no review, or a review of other drafts. It is left as it was.
        """
        self.path = path
        if not path.exists():
            if drafts is None:
                raise InputError("no such review; maira review DRAFTS --manifest FILE begins one", file=path)
            _begin(path, drafts)
        held = _read_held(path)
        if drafts is not None:
            _check_same(held, drafts, path)
        self.drafts = [_parse_held(one, path) for one in held] if drafts is None else list(drafts)
        self._untouched = [Snapshot(draft.state()) for draft in self.drafts]
        self._lock = threading.RLock()
        self._histories: dict[tuple[str, int], History] = {}
        self._seen = 0
        self._connection = _connect(path)
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._catch_up()
        except sqlite3.Error as error:
            self._connection.close()
            raise InputError(f"cannot be used: {error}", file=path) from None
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._connection.close()

    def reviewers(self) -> list[str]:
        """Names in the order of their coming."""
        return self._names("reviewers")

    def add_reviewer(self, name: str) -> list[str]:
        """Note a reviewer, unless they are there already, and give all.

        Raises:
            InputError: it is no name.
        """
        return self._add_name("reviewers", name)

    def error_types(self) -> list[str]:
        """Those of the paper, then the reviewers' own."""
        return [*ERROR_TYPES, *self._names("error_types")]

    def add_error_type(self, name: str) -> list[str]:
        """Note an error type, unless it is there already, and give all.

        Raises:
            InputError: it is no name.
        """
        if " ".join(name.split()) not in ERROR_TYPES:
            self._add_name("error_types", name)
        return self.error_types()

    def review(self, reviewer: str, number: int) -> Snapshot:
        """What a reviewer has made of a study.

        Args:
            reviewer: a name.
            number: of the study, from 1.

        Raises:
            InputError: there is no such reviewer or study.
        """
        with self._lock:
            self._check_who_and_what(reviewer, number)
            self._catch_up()
            return self._history(reviewer, number).now

    def reviews(self, reviewer: str) -> list[Snapshot]:
        """What a reviewer has made of each study, in their order.

        Raises:
            InputError: there is no such reviewer.
        """
        with self._lock:
            self._check_reviewer(reviewer)
            self._catch_up()
            made = {number: history.now for (name, number), history in self._histories.items() if name == reviewer}
            return [made.get(number, untouched) for number, untouched in enumerate(self._untouched, 1)]

    def add_change(self, reviewer: str, number: int, change_id: str, version: int, change: Change) -> Snapshot:
        """Apply a change and write it to the disk; one that has come before is not applied again.

        Args:
            reviewer: who made it.
            number: of the study, from 1.
            change_id: unique to the change.
            version: of the state that it was made on.
            change: what to do.

        Raises:
            InputError: there is no such reviewer or study, or the change is not possible.
            ConflictError: the state has moved on.
            RunFailed: it cannot be written, and is not applied.
        """
        with self._lock, self._writing():
            self._catch_up()
            self._check_who_and_what(reviewer, number)
            history = self._history(reviewer, number)
            known = self._connection.execute("SELECT reviewer, study FROM changes WHERE id = ?", (change_id,))
            if (made_on := known.fetchone()) is not None:
                if made_on != (reviewer, number):
                    raise InputError("another change has this id", field="id")
                return history.now
            if version != history.now.version:
                raise ConflictError
            history.check(change)
            sample_id = self.drafts[number - 1].sample_id
            fields = dumps(change.model_dump(mode="json", exclude_unset=True))
            self._connection.execute(
                "INSERT INTO changes (id, reviewer, study, sample_id, version, made, change) VALUES (?,?,?,?,?,?,?)",
                (change_id, reviewer, number, sample_id, version, _now(), fields),
            )
        return self.review(reviewer, number)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction that has the database to itself, on disk at its end."""
        try:
            with _transaction(self._connection):
                yield
        except sqlite3.Error as error:
            raise RunFailed(f"{self.path}: cannot be written: {error}") from None

    def _catch_up(self) -> None:
        """Apply the changes that were written since, by whom ever."""
        rows = self._connection.execute(
            "SELECT number, reviewer, study, change FROM changes WHERE number > ? ORDER BY number", (self._seen,)
        ).fetchall()
        for number, reviewer, study, text in rows:
            try:
                self._history(reviewer, study).add(change_adapter.validate_json(text))
            except (ValidationError, InputError):
                raise InputError(f"change {number} is damaged", file=self.path) from None
            self._seen = number

    def _history(self, reviewer: str, number: int) -> History:
        key = (reviewer, number)
        if key not in self._histories:
            self._histories[key] = History(self._untouched[number - 1].state)
        return self._histories[key]

    def _check_reviewer(self, reviewer: str) -> None:
        if reviewer not in self._names("reviewers"):
            raise InputError(f"there is no reviewer of this name: {reviewer!r:.120}", field="reviewer")

    def _check_who_and_what(self, reviewer: str, number: int) -> None:
        self._check_reviewer(reviewer)
        if not 1 <= number <= len(self.drafts):
            raise InputError(f"there is no study {number}; expected 1 to {len(self.drafts)}", field="number")

    def _names(self, table: str) -> list[str]:
        with self._lock:
            return [name for (name,) in self._connection.execute(f"SELECT name FROM {table} ORDER BY number")]

    def _add_name(self, table: str, name: str) -> list[str]:
        try:
            name = " ".join(_name.validate_python(name).split())
        except ValidationError as error:
            raise as_input_error(error, field="name") from None
        with self._lock, self._writing():
            self._connection.execute(f"INSERT OR IGNORE INTO {table} (name, made) VALUES (?,?)", (name, _now()))
        return self._names(table)


def _connect(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
    except sqlite3.Error as error:
        raise RunFailed(f"{path}: cannot be opened: {error}") from None
    return connection


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _begin(path: Path, drafts: Sequence[Draft]) -> None:
    """Make a database of drafts, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        connection = _connect(temporary)
        try:
            with _transaction(connection):
                for statement in _statements(_TABLES):
                    connection.execute(statement)
                connection.executemany(
                    "INSERT INTO drafts (number, sample_id, digest, draft) VALUES (?,?,?,?)",
                    [(number, one.sample_id, one.digest, one.as_json()) for number, one in enumerate(drafts, 1)],
                )
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                connection.execute(f"PRAGMA user_version = {_LAYOUT}")
        finally:
            connection.close()
        temporary.replace(path)
    except sqlite3.Error as error:
        raise RunFailed(f"{path}: cannot be written: {error}") from None
    finally:
        temporary.unlink(missing_ok=True)


class _Held(NamedTuple):
    """A draft as the database holds it."""

    sample_id: str
    digest: str
    draft: str


def _read_held(path: Path) -> list[_Held]:
    """The drafts of a review; it is opened for reading alone, so that a file that is none stays as it is.

    Raises:
        InputError: the file is no review, or is of another layout.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            application, layout = (
                connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
            )
            if application != _APPLICATION:
                raise InputError("is a database of something else than a review; give another --db", file=path)
            if layout != _LAYOUT:
                raise InputError(f"has layout {layout}, and {_LAYOUT} can be read; give another --db", file=path)
            rows = connection.execute("SELECT sample_id, digest, draft FROM drafts ORDER BY number").fetchall()
    except sqlite3.Error as error:
        raise InputError(f"is no database of a review ({error}); give another --db", file=path) from None
    return [_Held(*row) for row in rows]


def _parse_held(held: _Held, path: Path) -> Draft:
    draft = json.loads(held.draft)
    sentences = tuple(parse_sentences(draft["report"], file=path))
    return Draft(held.sample_id, sentences, draft["is_narrative"], draft["record"])


def _check_same(held: Sequence[_Held], given: Sequence[Draft], path: Path) -> None:
    before = {one.sample_id: one.digest for one in held}
    now = {draft.sample_id: draft.digest for draft in given}
    differences = {
        "changed": [key for key in before if key in now and now[key] != before[key]],
        "missing": [key for key in before if key not in now],
        "added": [key for key in now if key not in before],
    }
    said = [f"{len(keys)} {what} ({_shown(keys)})" for what, keys in differences.items() if keys]
    # Changes are kept by the number of the study.
    if not said and list(before) != list(now):
        said = ["in another order"]
    if said:
        raise InputError(
            f"is a review of other drafts: {', '.join(said)}; give the drafts it was begun with, or another --db",
            file=path,
        )


def _shown(keys: Sequence[str]) -> str:
    return ", ".join(keys[:_SHOWN_IDS]) + (", ..." if len(keys) > _SHOWN_IDS else "")


def _corners(sentence: Sentence) -> list[Corners]:
    return [box.as_tuple() for box in sentence.boxes or ()]


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, which sqlite3 would run outside the transaction if given it whole."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
