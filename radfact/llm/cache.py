"""Answers kept on disk: committed before they count, so that a run that is taken up again asks nothing twice."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radfact.errors import InputError


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The text that a model answered, and the tokens that it took."""

    text: str
    tokens_in: int
    tokens_out: int


def answer_key(**parts: Any) -> str:
    """SHA-256 of everything that changes an answer (model, messages, parameters), as canonical JSON."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class AnswerCache:
    """A table of answers in one SQLite file."""

    def __init__(self, folder: Path | str) -> None:
        """Open or make `folder`/answers.sqlite.

        Raises:
            InputError: the folder cannot be used or the file is no answer cache.
        """
        self.path = Path(folder) / "answers.sqlite"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # The client's event loop runs in a thread of its own; only that thread writes.
            self._connection = sqlite3.connect(self.path, check_same_thread=False, timeout=30)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS answers"
                " (key TEXT PRIMARY KEY, text TEXT NOT NULL, tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL)"
            )
        except (OSError, sqlite3.Error) as error:
            raise InputError(
                f"no usable answer cache ({error}); name another folder or remove it", file=self.path
            ) from None

    def get(self, key: str) -> StoredAnswer | None:
        """The answer under `key`, if there is one."""
        row = self._connection.execute(
            "SELECT text, tokens_in, tokens_out FROM answers WHERE key = ?", (key,)
        ).fetchone()
        return None if row is None else StoredAnswer(*row)

    def put(self, key: str, answer: StoredAnswer) -> None:
        """Store an answer; it is on disk when this returns."""
        with self._connection:
            self._connection.execute(
                "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)",
                (key, answer.text, answer.tokens_in, answer.tokens_out),
            )

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
