"""The database of a review: drafts, reviewers and every change they made, in order and for good."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from maira.review.changes import (
    Assess,
    Change,
    Corners,
    History,
    Name,
    Snapshot,
    State,
    change_adapter,
    drafted,
    plain_name,
)
from maira.review.protocol import ERROR_TYPES
from radfact.errors import InputError, RunError, list_some
from radfact.io.jsonl import dumps, naming_file
from radfact.records import Sentence, as_input_error, parse_sentences

# "maRv", so that another program's database is not taken for a review.
_APPLICATION = 0x6D615276
_LAYOUT = 1

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
        record: what else of the draft holds for its correction: `model`.
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

    A change is on disk, in the one file, when `add_change` returns: so a copy of that file is a copy of the review.
    """

    def __init__(self, path: Path, drafts: Sequence[Draft] | None = None) -> None:
        """Open a database, or begin one with `drafts`.

        Args:
            path: the SQLite file.
            drafts: what is reviewed, which must be what the review was begun with; None takes what is there, which
                need not be writable then.

        Raises:
            InputError: the file is no review, or a review of other drafts, or one to go on with that cannot be
                written. It is left as it was.
        """
        self.path = path
        if not path.exists():
            if drafts is None:
                raise InputError("no such review; maira review DRAFTS --manifest FILE begins one", file=path)
            _begin(path, drafts)
        held = _read_held(path, "" if drafts is None else "; give another --db")
        if drafts is not None:
            _check_same(held, drafts, path)
            _prepare_writing(path)
        self.drafts = [_parse_held(one, path) for one in held] if drafts is None else list(drafts)
        self._untouched = [Snapshot(draft.state()) for draft in self.drafts]
        self._lock = threading.RLock()
        self._histories: dict[tuple[str, int], History] = {}
        self._seen = 0
        try:
            self._connection = _connect(path)
        except sqlite3.Error as error:
            raise InputError(f"cannot be used: {error}", file=path) from None
        try:
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
        """Note a reviewer, unless they are there already, in capitals or not, and give all.

        Raises:
            InputError: it is no name.
        """
        name = self._parse_name(name)
        with self._lock:
            if self._known(name) is None:
                with self._writing():
                    self._add_name("reviewers", name)
            return self.reviewers()

    def noted_name(self, reviewer: str) -> str:
        """A reviewer's name as it was first given; it may be asked for in other capitals.

        Raises:
            InputError: there is no such reviewer.
        """
        known = self._known(reviewer)
        if known is None:
            raise InputError(f"there is no reviewer of this name: {reviewer!r:.120}", field="reviewer")
        return known

    def error_types(self) -> list[str]:
        """Those of the paper, then those that reviewers have named beside them."""
        return [*ERROR_TYPES, *self._names("error_types")]

    def review(self, reviewer: str, number: int) -> Snapshot:
        """What a reviewer has made of a study.

        Args:
            reviewer: a name.
            number: of the study, from 1.

        Raises:
            InputError: there is no such reviewer or study.
        """
        with self._lock:
            reviewer = self._check_who_and_what(reviewer, number)
            self._catch_up()
            return self._history(reviewer, number).now

    def reviews(self, reviewer: str) -> list[Snapshot]:
        """What a reviewer has made of each study, in their order.

        Raises:
            InputError: there is no such reviewer.
        """
        with self._lock:
            reviewer = self.noted_name(reviewer)
            self._catch_up()
            made = {number: history.now for (name, number), history in self._histories.items() if name == reviewer}
            return [made.get(number, untouched) for number, untouched in enumerate(self._untouched, 1)]

    def add_change(self, reviewer: str, number: int, change_id: str, version: int, change: Change) -> Snapshot:
        """Apply a change and write it to the disk; one that has come before is not applied again.

        A type of error that it names is from then on one of `error_types`.

        Args:
            reviewer: who made it.
            number: of the study, from 1.
            change_id: unique to the change.
            version: of the state that it was made on.
            change: what to do.

        Raises:
            InputError: there is no such reviewer or study, or the change is not possible.
            ConflictError: the state has moved on.
            RunError: it cannot be written, and is not applied.
        """
        with self._lock, self._writing():
            self._catch_up()
            reviewer = self._check_who_and_what(reviewer, number)
            history = self._history(reviewer, number)
            known = self._connection.execute(
                "SELECT reviewer, study FROM changes WHERE id = ?", (change_id,)
            ).fetchall()
            if known:
                if known != [(reviewer, number)]:
                    raise InputError("another change has this id", field="id")
                return history.now
            if version != history.now.version:
                raise ConflictError
            history.check(change)
            named = change.error_type if isinstance(change, Assess) else None
            if named is not None and named not in ERROR_TYPES:
                self._add_name("error_types", named)
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
            is_gone = error.sqlite_errorcode == sqlite3.SQLITE_READONLY_DBMOVED
            why = "it has been removed or replaced since it was opened" if is_gone else error
            raise RunError(f"{self.path}: cannot be written: {why}") from None

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

    def _known(self, reviewer: str) -> str | None:
        """The name under which a reviewer is noted."""
        wanted = plain_name(reviewer).casefold()
        return next((name for name in self.reviewers() if plain_name(name).casefold() == wanted), None)

    def _check_who_and_what(self, reviewer: str, number: int) -> str:
        known = self.noted_name(reviewer)
        if not 1 <= number <= len(self.drafts):
            raise InputError(f"there is no study {number}; expected 1 to {len(self.drafts)}", field="number")
        return known

    def _names(self, table: str) -> list[str]:
        with self._lock:
            return [name for (name,) in self._connection.execute(f"SELECT name FROM {table} ORDER BY number")]

    @staticmethod
    def _parse_name(name: str) -> str:
        try:
            return _name.validate_python(name)
        except ValidationError as error:
            raise as_input_error(error, field="name") from None

    def _add_name(self, table: str, name: str) -> None:
        self._connection.execute(f"INSERT OR IGNORE INTO {table} (name, made) VALUES (?,?)", (name, _now()))


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=10, isolation_level=None, check_same_thread=False
    )
    try:
        # The end of the journal is what makes a change final, so that has to be on disk as well.
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
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
    """Make a database of drafts, whole or not at all, that nobody else on the machine can read."""
    with naming_file(path, *path.parents):
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with naming_file(path, temporary):
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
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
        raise RunError(f"{path}: cannot be written: {error}") from None
    finally:
        with suppress(OSError):  # why it was not made matters more than what is left of it
            temporary.unlink()


class _Held(NamedTuple):
    """A draft as the database holds it."""

    sample_id: str
    digest: str
    draft: str


def _prepare_writing(path: Path) -> None:
    # The journal of a change lies beside the file.
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        raise InputError("cannot be written, or its folder cannot; a review needs both", file=path)
    try:
        with closing(_connect(path)) as connection:
            # A journal written ahead would hold the changes in another file for long, and go on when the file is gone.
            connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise InputError(f"cannot be used: {error}", file=path) from None


def _read_held(path: Path, otherwise: str) -> list[_Held]:
    """The drafts of a review; the file is only read, so that one that is none stays as it is.

    Args:
        path: the file.
        otherwise: what to do with a file that is none, as the end of a sentence.

    Raises:
        InputError: the file is no review, or is of another layout, or cannot be opened.
    """
    if path.is_dir():
        raise InputError("is a folder; expected the database of a review", file=path)
    try:
        with closing(_connect(path)) as connection:
            application, layout = (
                connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
            )
            if application != _APPLICATION:
                raise InputError(f"is a database of something else than a review{otherwise}", file=path)
            if layout != _LAYOUT:
                raise InputError(f"has layout {layout}, and {_LAYOUT} can be read{otherwise}", file=path)
            rows = connection.execute("SELECT sample_id, digest, draft FROM drafts ORDER BY number").fetchall()
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            raise InputError(f"is no database of a review{otherwise}", file=path) from None
        why = error if os.access(path, os.R_OK) else "no permission to read it"
        raise InputError(f"cannot be opened: {why}", file=path) from None
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
    said = [f"{len(keys)} {what} ({list_some(keys)})" for what, keys in differences.items() if keys]
    # Changes are kept by the number of the study.
    if not said and list(before) != list(now):
        said = ["in another order"]
    if said:
        raise InputError(
            f"is a review of other drafts: {', '.join(said)}; give the drafts it was begun with, or another --db",
            file=path,
        )


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
