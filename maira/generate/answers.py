"""Answers on disk: written as they come while a run goes on, finished in the order of what was asked.

Where a launcher started several processes (`maira.generate.processes`), each asks its share and writes a file of its
own; the main process puts them together.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.manifest import Failure, read_failures, replace_failures
from maira.generate.processes import join
from maira.generate.request import Answer, Engine, Request, Unanswered, rough_length
from radfact.errors import InputError, RunFailed
from radfact.jsonl import dumps, read_json, read_jsonl, write_json, write_jsonl

Row = dict[str, Any]
Key = tuple[Any, ...]

_DECIDING = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.safetensors.index.json",
    "*.safetensors",
)
"""Files of a checkpoint that decide its answers; drafts may lie beside them."""


@dataclass(frozen=True)
class Item:
    """One question of a run and the row that its answer becomes.

    Attributes:
        key: unique in the run; the values of the row's key columns.
        sample_id: of the study that it is about.
        request: what is asked.
        row: the row of an answer, made from the answer and the model's name.
    """

    key: Key
    sample_id: str
    request: Request
    row: Callable[[Answer, str], Row]


def fingerprint(checkpoint: Path) -> str:
    """A short hash that differs between checkpoints: of the size and start of each file that decides the answers.

    Raises:
        InputError: the folder is no checkpoint.
    """
    if not (checkpoint / "config.json").is_file():
        raise InputError("no checkpoint here (config.json is missing)", file=checkpoint)
    files = sorted(path for name in _DECIDING for path in checkpoint.glob(name) if path.is_file())
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name} {path.stat().st_size}".encode())
        with path.open("rb") as handle:
            digest.update(handle.read(1 << 20))
    return digest.hexdigest()[:12]


def settings_of(checkpoint: Path, **options: Any) -> dict[str, Any]:
    """What decides the answers of a run, as JSON values."""
    values: dict[str, Any] = json.loads(json.dumps({"checkpoint": fingerprint(checkpoint), **options}))
    return values


class AnswerFile:
    """The files of one run: what is answered, and what is still to ask.

    `OUT.partial` holds rows as they come (of processes beside the main one, `OUT.partial.1` and so on), `OUT` all of
    them in order when the run is done, `OUT.run.json` what decides them, so that only the same run is ever continued,
    with any number of processes. What could not be answered is in `failures.jsonl` beside them, with the name of OUT as
    `source`; other rows of that file stay. With several processes, all make theirs at the same time.

    Args:
        out: the file to make (JSON Lines).
        settings: everything that changes an answer; JSON values.
        key: columns of a row that together are unique.

    Attributes:
        rows: by key, what is answered.
        group: the processes of the run.

    Raises:
        InputError: `out` holds answers of another run, has the name of the list of failures, or that list cannot be
            read.
    """

    def __init__(self, out: Path, settings: dict[str, Any], key: Sequence[str] = ("sample_id",)) -> None:
        self.out, self.key, self.group = out, tuple(key), join()
        self.partial = out.with_name(f"{out.name}.partial" + (f".{self.group.rank}" if self.group.rank else ""))
        self.settings_file = out.with_name(f"{out.stem}.run.json")
        self.failures_file = out.with_name("failures.jsonl")
        self.rows: dict[Key, Row] = {}
        if self.group.is_main:
            self._claim(settings)
            for partial in self._partials():
                _cut_torn_line(partial)
        self.group.gather()  # what the main process has put right is what all of them read
        for path in (self.out, *self._partials()):
            if path.exists():
                self.take(row for _, row in read_jsonl(path))
        self.group.gather()  # and nobody adds to it before all have read it

    def _claim(self, settings: dict[str, Any]) -> None:
        """Make sure that the files are of this run, or make them so."""
        if self.out == self.failures_file:
            raise InputError("is where samples without an answer are listed; name another --out", file=self.out)
        read_failures(self.failures_file)  # what is wrong with it must not come to light when all is answered
        held = [path for path in (self.out, *self._partials()) if path.exists()]
        if not held:
            write_json(self.settings_file, settings)
            return
        if not self.settings_file.exists():
            raise InputError("exists and was not made by this command; name another --out or remove it", file=held[0])
        known = read_json(self.settings_file)
        changed = [key for key in settings if not isinstance(known, dict) or known.get(key) != settings[key]]
        if changed:
            raise InputError(
                f"holds answers of another run (other {', '.join(changed)}); name another --out or remove it",
                file=held[0],
            )

    def _partials(self) -> list[Path]:
        """The partial files of all processes, those of an earlier run with more of them included."""
        name = re.compile(re.escape(f"{self.out.name}.partial") + r"(\.[0-9]+)?")
        folder = self.out.parent
        return sorted(path for path in folder.iterdir() if name.fullmatch(path.name)) if folder.is_dir() else []

    def take(self, rows: Iterable[Row]) -> None:
        """Count rows that are on disk already, of whatever process, as answered."""
        self.rows |= {tuple(row[column] for column in self.key): row for row in rows}

    def add(self, rows: Sequence[Row]) -> None:
        """Put rows on disk, so that not even a crash of the machine loses them."""
        with self.partial.open("a", encoding="utf-8") as handle:
            handle.writelines(dumps(row) + "\n" for row in rows)
            handle.flush()
            os.fsync(handle.fileno())
        self.take(rows)

    def finish(self, order: Sequence[Key], failures: Sequence[Failure]) -> None:
        """Write all rows in the given order of keys, and the failures instead of this file's earlier ones."""
        write_jsonl(self.out, (self.rows[key] for key in order if key in self.rows))
        replace_failures(self.failures_file, self.out.name, failures)
        for partial in self._partials():
            partial.unlink()


def _cut_torn_line(path: Path) -> None:
    """Leave whole lines only: a run was killed in the middle of the last, and that answer is asked for again."""
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if len(whole) < len(text):
        path.write_bytes(whole)


def answer_all(
    items: Sequence[Item],
    file: AnswerFile,
    start: Callable[[], Engine],
    *,
    failures: Sequence[Failure] = (),
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Failure]:
    """Ask what is not answered yet, put every answer on disk as it comes, and finish the file.

    Args:
        items: everything that the finished file is about, in its order.
        file: of this run.
        start: starts the engine; not called where nothing is left to ask.
        failures: what could not even be asked.
        on_progress: called with (answered so far, questions in all); of several processes, of this one's share.

    Returns:
        Everything without an answer, and why, each sample and reason once, in the order of `items`.

    Raises:
        RunFailed: not one question of the run is answered.
    """
    left = [item for item in items if item.key not in file.rows]
    # In the order of their length, so that no process gets all of the long ones.
    left.sort(key=lambda item: rough_length(item.request), reverse=True)
    share = left[file.group.rank :: file.group.count]
    known = len(items) - len(left) if file.group.count == 1 else 0
    told = on_progress or _unwatched
    told(known, known + len(share))
    answered, unanswered = _ask(share, file, start, lambda done: told(known + done, known + len(share)))
    failed = list(failures)
    for rows, missed in file.group.gather((answered, unanswered)):
        file.take(rows)
        failed += missed
    if not any(item.key in file.rows for item in items):
        raise RunFailed(f"nothing could be answered; the first: {failed[0].reason if failed else 'nothing is asked'}")
    place = {item.sample_id: place for place, item in reversed(list(enumerate(items)))}
    failed = list(dict.fromkeys(failed))  # of a film that many phrases are about, the reason once
    failed.sort(key=lambda failure: place.get(failure.sample_id or "", -1))
    if file.group.is_main:
        file.finish([item.key for item in items], failed)
    file.group.gather()  # nobody goes on to what needs the finished file before it is there
    return failed


def _ask(
    items: Sequence[Item], file: AnswerFile, start: Callable[[], Engine], told: Callable[[int], None]
) -> tuple[list[Row], list[Failure]]:
    """The rows of the items' answers, which are on disk, and what has no answer."""
    rows: list[Row] = []
    failed: list[Failure] = []
    if not items:
        return rows, failed
    engine = start()
    try:
        for done, (index, answer) in enumerate(engine.answers([item.request for item in items]), start=1):
            item = items[index]
            if isinstance(answer, Unanswered):
                failed.append(Failure(sample_id=item.sample_id, stage="generate", reason=answer.reason))
            else:
                rows.append(item.row(answer, engine.name))
                file.add(rows[-1:])
            told(done)
    finally:
        engine.close()
    return rows, failed


def _unwatched(*_: int) -> None:
    """Progress that nobody looks at."""
