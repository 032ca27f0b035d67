"""The database of a review: drafts, readers and an append-only list of their changes."""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from datetime import datetime
from pathlib import Path
from random import Random

from pydantic import TypeAdapter

from maira.review import database
from maira.review.campaign import Action, Campaign, CampaignConfig, Configure, UseForm, action_adapter, name_key
from maira.review.changes import Answer, Change, Name, Review, change_adapter, validate
from maira.review.database import Draft
from maira.review.form import Form
from maira.review.times import EventBatch, StoredEvent
from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.jsonl import dumps

_name = TypeAdapter(Name)


class ConflictError(Exception):
    """A change refers to an outdated state."""


class SavingBlockedError(Exception):
    """The coordinator paused or excluded the reader."""


def stored_form(path: Path) -> Form | None:
    """Return the form of a review that was started before."""
    if not path.exists():
        return None
    with closing(Store(path)) as store:
        return store.form


class Store:
    """Database of a review in one file, thread-safe and shareable by several servers."""

    def __init__(
        self,
        path: Path,
        drafts: Sequence[Draft] | None = None,
        *,
        settings: CampaignConfig | None = None,
        form: Form | None = None,
    ) -> None:
        """Open a database, or create one; without drafts the file stays as it is, without a form its own is used."""
        self.path = path
        if not path.exists():
            if drafts is None:
                message = "no such review; start one with maira review DRAFTS --manifest FILE"
                raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=path)
            database.create(path, drafts)
        self.campaign = Campaign()
        self._lock = threading.RLock()
        self._reviews: dict[tuple[str, int], Review] = {}
        self._last = {"actions": 0, "changes": 0}
        self._connection = database.open_database(path, "" if drafts is None else "; choose another --db")
        try:
            self.drafts = database.read_drafts(self._connection, path)
            if drafts is not None:
                self.check_drafts(drafts, allows_more=settings is not None)
                self._connection.close()
                self._connection = database.open_for_writing(path)
            with database.sqlite_errors(path):
                self._load_changes()
                if drafts is not None and settings is not None:
                    self.set_up(settings, drafts)
                if form is not None:
                    self._use_form(form)
            if drafts is not None and settings is None and self.campaign.settings is not None:
                message = "expected the campaign file of this review, found drafts"
                raise InputError(message, code=ErrorCode.MISMATCH, file=path)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @property
    def form(self) -> Form:
        return self.campaign.form

    def _use_form(self, form: Form) -> None:
        """Store the form of a review before its first reader; the form of an earlier review without one is MAIRA-2."""
        if self._names("readers") or form == self.form or self._last["actions"]:
            self.form.check_same(form, self.path)
        else:
            self.apply_action(UseForm(kind="form", form=form))
        self.campaign.form = form

    def is_swapped(self, reader: str, number: int) -> bool:
        """Return whether a reader sees the second candidate as A: in one of two successive studies, at random."""
        owner = self._owner(self.reader_key(reader), number)
        return (Random(f"{owner} {(number - 1) // 2}").random() < 0.5) == (number % 2 == 0)

    def token(self) -> str:
        """Return the access token of the review, created by the first call, so that links survive a restart."""
        with self._lock, self._exclusive_transaction():
            if not (row := self._connection.execute("SELECT token FROM access").fetchone()):
                row = (secrets.token_urlsafe(),)
                self._connection.execute("INSERT INTO access (token) VALUES (?)", row)
        return str(row[0])

    def readers(self) -> list[str]:
        return [self.campaign.name(key) for key in self.reader_keys()]

    def counted_readers(self) -> list[str]:
        """Return the names of the readers who are part of statistics."""
        return [self.campaign.name(key) for key in self.reader_keys() if key not in self.campaign.excluded]

    def reader_keys(self) -> list[str]:
        """Return the names under which readers registered, without those merged into others."""
        with self._lock:
            self._load_actions()
            return [key for key in self._names("readers") if key not in self.campaign.merged]

    def add_reader(self, name: str) -> None:
        """Register a reader unless the name exists (ignoring case)."""
        name = validate(_name, name, field="name")
        with self._lock:
            if self._find_reader(name) is None:
                with self._exclusive_transaction():
                    self._add_name("readers", name)
                    self._assign()
            self._load_actions()

    def registered_name(self, reader: str) -> str:
        """Return a reader's current name, from this or an earlier one and ignoring case."""
        return self.campaign.name(self.reader_key(reader))

    def reader_key(self, reader: str) -> str:
        """Return the name under which a reader registered, which stays when the reader is renamed."""
        key = self._find_reader(reader)
        if key is None or key in self.campaign.merged:
            message = f"unknown reader {reader!r:.120}"
            raise InputError(message, code=ErrorCode.UNKNOWN_NAME, field="reader")
        return key

    def study_list(self, reader: str) -> list[int]:
        with self._lock:
            key = self.reader_key(reader)
            every = range(1, len(self.drafts) + 1)
            return [*(self.campaign.lists.get(key, ()) if self.campaign.settings else every)]

    def check_drafts(self, drafts: Sequence[Draft], *, allows_more: bool = True) -> None:
        with self._lock:
            # Of the file: another server may have added some.
            known = database.read_drafts(self._connection, self.path)
        database.check_same_drafts(known, drafts[: len(known)] if allows_more else drafts, self.path)

    def set_up(self, settings: CampaignConfig, drafts: Sequence[Draft]) -> None:
        with self._lock:
            self.check_drafts(drafts)
            if self.campaign.settings is not None:
                self.campaign.settings.check_same(settings, self.path)
            elif self._names("readers"):
                message = "expected a campaign, found a review without one; choose another --db"
                raise InputError(message, code=ErrorCode.MISMATCH, file=self.path)
            known, before = len(self.drafts), (deepcopy(self.campaign), self._last["actions"])
            try:
                with self._exclusive_transaction():
                    if self.campaign.settings != settings:
                        self._insert_action(Configure(kind="configure", settings=settings))
                        self._load_actions()
                    for name in settings.readers:
                        if self._find_reader(name) is None:
                            self._add_name("readers", name)
                    new = drafts[len(self.drafts) :]
                    database.insert_drafts(self._connection, new)
                    self.drafts += new
                    self._assign()
            except BaseException:
                # The settings and drafts may be those of a file that is refused.
                self.campaign, self._last["actions"] = before
                del self.drafts[known:]
                raise
            self._load_actions()

    def apply_action(self, action: Action) -> None:
        with self._lock:
            with self._exclusive_transaction():
                self._load_actions()
                self.campaign.check(action, self._names("readers"), len(self.drafts))
                self._insert_action(action)
            self._load_actions()

    def error_types(self) -> list[str]:
        """Return the texts that are options of the form, then those that readers added."""
        return [*self.form.option_names, *self._names("error_types")]

    def review(self, reader: str, number: int) -> Review:
        with self._lock:
            reader = self._check_reader_and_study(reader, number)
            self._load_changes()
            return self._review(self._owner(reader, number), number).asked(self.form)

    def reviews(self, reader: str) -> list[Review]:
        with self._lock:
            key = self.reader_key(reader)
            self._load_changes()
            numbers = range(1, len(self.drafts) + 1)
            return [self._review(self._owner(key, number), number).asked(self.form) for number in numbers]

    def counted_reviews(self, reader: str) -> list[tuple[Draft, Review]]:
        """Return the drafts that are part of statistics, each with a reader's review."""
        pairs = zip(self.drafts, self.reviews(reader), strict=True)
        return [(draft, review) for draft, review in pairs if not draft.is_training]

    def add_change(self, reader: str, number: int, change_id: str, version: int, change: Change) -> Review:
        """Apply a change once and write it to disk; a new error type becomes one of `error_types`."""
        with self._lock, self._exclusive_transaction():
            self._load_changes()
            key = self._check_reader_and_study(reader, number)
            if reason := self.campaign.save_blocked_reason(key):
                raise SavingBlockedError(reason)
            owner = self._owner(key, number)
            review = self._review(owner, number)
            known = self._connection.execute("SELECT reader, study FROM changes WHERE id = ?", (change_id,)).fetchall()
            if known:
                if known != [(owner, number)]:
                    raise InputError("another change has this id", code=ErrorCode.DUPLICATE, field="id")
                return review
            if version != review.version:
                raise ConflictError
            if isinstance(change, Answer):
                change = change.model_copy(update={"values": self.form.clean(change.values)})
                for name, value in change.values.items():
                    is_choice = self.form.by_name[name].type == "choice"
                    if is_choice and isinstance(value, str) and value not in self.form.option_names:
                        self._add_name("error_types", value)
            review.check(change, self.form)
            sample_id = self.drafts[number - 1].sample_id
            fields = dumps(change.model_dump(mode="json", exclude_unset=True))
            self._connection.execute(
                "INSERT INTO changes (id, reader, study, sample_id, version, made, change) VALUES (?,?,?,?,?,?,?)",
                (change_id, owner, number, sample_id, version, database.timestamp(), fields),
            )
        return self.review(reader, number)

    def add_events(self, batch: EventBatch) -> None:
        """Write events of a page to disk; those that are already there stay."""
        key = self.reader_key(batch.reader)
        for event in batch.events:
            self._check_reader_and_study(key, event.number)
        now = database.timestamp()
        rows = [(batch.session, e.sequence, key, e.number, e.kind, e.clock, batch.sent, now) for e in batch.events]
        with self._lock, self._exclusive_transaction():
            others = "SELECT 1 FROM reading_events WHERE session = ? AND reader != ?"
            if self._connection.execute(others, (batch.session, key)).fetchone():
                raise InputError("another reader's session has this id", code=ErrorCode.DUPLICATE, field="session")
            self._connection.executemany(
                "INSERT OR IGNORE INTO reading_events (session, sequence, reader, study, kind, clock, sent, received)"
                " VALUES (?,?,?,?,?,?,?,?)",
                rows,
            )

    def events(self, reader: str) -> list[StoredEvent]:
        with self._lock:
            key = self.reader_key(reader)
            names = self.campaign.with_merged(key)
            if not self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'reading_events'").fetchone():
                return []  # an early file whose pages sent none
            rows = self._connection.execute(
                "SELECT reader, session, sequence, study, kind, clock, sent, received FROM reading_events"
                f" WHERE reader IN ({','.join('?' * len(names))}) ORDER BY number",
                names,
            ).fetchall()
            return [
                StoredEvent(session, sequence, study, kind, clock, sent, datetime.fromisoformat(received).timestamp())
                for name, session, sequence, study, kind, clock, sent, received in rows
                if len(names) == 1 or name == self._owner(key, study)
            ]

    def _assign(self) -> None:
        """Assign what is not assigned yet in a campaign, within a transaction."""
        if self.campaign.settings is None:
            return
        numbers: dict[str, dict[str, int]] = {}
        for number, draft in enumerate(self.drafts, 1):
            numbers.setdefault(draft.sample_id, {})[draft.arm] = number
        action = self.campaign.assign(self._names("readers"), numbers)
        if action.studies:
            self._insert_action(action)

    def _insert_action(self, action: Action) -> None:
        fields = dumps(action.model_dump(mode="json"))
        self._connection.execute("INSERT INTO actions (made, action) VALUES (?,?)", (database.timestamp(), fields))

    @contextmanager
    def _exclusive_transaction(self) -> Iterator[None]:
        """Run a transaction with an exclusive lock; it is on disk at the end."""
        try:
            with database.transaction(self._connection):
                yield
        except sqlite3.Error as error:
            is_moved = error.sqlite_errorcode == sqlite3.SQLITE_READONLY_DBMOVED
            reason = "removed or replaced since it was opened" if is_moved else error
            if database.is_locked_error(error):
                reason = "locked by another program"
            raise RunError(f"{self.path}: cannot be written: {reason}", code=ErrorCode.WRITE_FAILED) from error

    def _load_actions(self) -> None:
        apply = self.campaign.apply
        self._load("actions", "made, action", lambda made, text: apply(action_adapter.validate_json(text), made))

    def _load_changes(self) -> None:
        self._load_actions()
        self._load("changes", "reader, study, made, change", self._load_change)

    def _load_change(self, reader: str, number: int, made: str, text: str) -> None:
        change, at = change_adapter.validate_json(text), datetime.fromisoformat(made)
        self._reviews[reader, number] = self._review(reader, number).after(change, at)

    def _load(self, table: str, columns: str, load: Callable[..., None]) -> None:
        query = f"SELECT number, {columns} FROM {table} WHERE number > ? ORDER BY number"
        for number, *cells in self._connection.execute(query, (self._last[table],)).fetchall():
            try:
                load(*cells)
            except ValueError:
                message = f"{table.removesuffix('s')} {number} is damaged"
                raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=self.path) from None
            self._last[table] = number

    def _review(self, reader: str, number: int) -> Review:
        return self._reviews.get((reader, number)) or self.drafts[number - 1].review

    def _owner(self, reader: str, number: int) -> str:
        """Return the reader, or the one merged into them, whose review of a study counts."""
        return next((name for name in self.campaign.with_merged(reader) if (name, number) in self._reviews), reader)

    def _find_reader(self, reader: str) -> str | None:
        """Return the name under which a reader registered, or None; merged readers are also found."""
        names = self._names("readers")
        by_key = {name_key(name): name for name in names} | {name_key(self.campaign.name(name)): name for name in names}
        return by_key.get(name_key(reader))

    def _check_reader_and_study(self, reader: str, number: int) -> str:
        name = self.reader_key(reader)
        if not 1 <= number <= len(self.drafts):
            message = f"expected a study from 1 to {len(self.drafts)}, found {number}"
            raise InputError(message, code=ErrorCode.UNKNOWN_NAME, field="number")
        return name

    def _names(self, table: str) -> list[str]:
        with self._lock:
            return [name for (name,) in self._connection.execute(f"SELECT name FROM {table} ORDER BY number")]

    def _add_name(self, table: str, name: str) -> None:
        query = f"INSERT OR IGNORE INTO {table} (name, made) VALUES (?,?)"
        self._connection.execute(query, (name, database.timestamp()))
