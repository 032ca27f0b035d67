"""Answers on disk: written as they come while a run goes on, finished in the order of what was asked.

Where a launcher started several processes (`maira.runtime.processes`), each asks its share and writes a file of its
own; the main process puts them together.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.manifest import Failure, read_failures, replace_failures
from maira.generate.engine import Engine, FailedRequest, GenerationRequest, Response, length_key
from maira.model.checkpoint import fingerprint
from maira.runtime.processes import join_group
from radfact.errors import InputError, RunError
from radfact.io.jsonl import append_jsonl, parse_rows, read_json, read_text, write_json, write_jsonl
from radfact.records import Box

Row = dict[str, Any]
Key = tuple[Any, ...]


@dataclass(frozen=True)
class GenerationItem:
    """One question of a run and the row that its answer becomes.

    Attributes:
        key: unique in the run; the values of the row's key columns.
        sample_id: of the study that it is about.
        request: what is asked.
        row: the row of an answer, made from the answer and the model's name.
        reference: boxes on the original image that the row compares the answer with.
    """

    key: Key
    sample_id: str
    request: GenerationRequest
    row: Callable[[Response, str], Row]
    reference: Sequence[Box] | None = None

    @property
    def asked(self) -> str:
        """A short hash of what decides the row beside a run's settings: prompt, reference, sizes of the image files.

        Paths and times are no part of it, so that a data set may be moved.
        """
        example = self.request.example
        boxes = None if self.reference is None else [box.model_dump() for box in self.reference]
        decides = [example.prompt, [image.stat().st_size for image in example.images], boxes]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:12]


def run_settings(checkpoint: Path, **options: Any) -> dict[str, Any]:
    """What decides the answers of a run, as JSON values."""
    values: dict[str, Any] = json.loads(json.dumps({"checkpoint": fingerprint(checkpoint), **options}))
    return values


class ResponseFile:
    """The files of one run: what is answered, and what is still to ask.

    `OUT.partial` holds rows as they come (of processes beside the main one, `OUT.partial.1` and so on), `OUT` all of
    them in order when the run is done. `OUT.run.json` holds what decides them, and by key a hash of what is asked
    (`Item.asked`), so that only the same run is ever continued, with any number of processes, and an answer only stays
    for what it answers. What could not be answered is in `failures.jsonl` beside them, with the name of OUT as
    `source`; other rows of that file stay. With several processes, all make theirs at the same time.

    Args:
        out: the file to make (JSON Lines).
        settings: everything that changes all answers; JSON values.
        items: what is asked, in the order of the finished file.
        failures: what cannot even be asked; answers that their samples have already are kept, after the others.
        key: columns of a row that together are unique; the first is `sample_id`.

    Attributes:
        rows: by key, what is answered.
        changed: how many answers on disk were to something else under the same key; they are asked for again.
        group: the processes of the run.

    Raises:
        InputError: `out` holds answers of another run, or such as are not asked, has the name of the list of failures,
            or that list cannot be read.
    """

    def __init__(
        self,
        out: Path,
        settings: dict[str, Any],
        items: Sequence[GenerationItem],
        failures: Sequence[Failure] = (),
        key: Sequence[str] = ("sample_id",),
    ) -> None:
        self.out, self.items, self.failures, self.key, self.group = out, items, failures, tuple(key), join_group()
        self.partial = out.with_name(f"{out.name}.partial" + (f".{self.group.rank}" if self.group.rank else ""))
        self.settings_file = out.with_name(f"{out.stem}.run.json")
        self.failures_file = out.with_name("failures.jsonl")
        self.rows: dict[Key, Row] = {}
        self.changed = 0
        if self.group.is_main:
            self._claim(settings)
        self.group.gather()  # what the main process has put right is what all of them read
        for path in self._held():
            self.take(_whole_rows(path))
        self.group.gather()  # and nobody adds to it before all have read it

    def _claim(self, settings: dict[str, Any]) -> None:
        """Make sure that the files are of this run and hold no more than it asks, or make them so."""
        if self.out == self.failures_file:
            raise InputError("is where samples without an answer are listed; name another --out", file=self.out)
        read_failures(self.failures_file)  # what is wrong with it must not come to light when all is answered
        files = self._held()
        known = self._known(settings, files[0]) if files else {}
        held = {path: list(_whole_rows(path)) for path in files}
        asked = {item.key: item.asked for item in self.items}
        hashes = {_name(key): digest for key, digest in asked.items()}
        unreadable = {failure.sample_id for failure in self.failures}
        foreign, changed = set(), set()
        for key in map(self._key_of, (row for rows in held.values() for row in rows)):
            name = _name(key)
            if key not in asked and key[0] in unreadable:
                hashes[name] = known.get(name, "")
            elif key not in asked:
                foreign.add(key)
            elif known.get(name) != asked[key]:
                changed.add(key)
        if foreign:
            count = f"{len(foreign)} answer{'s that are' if len(foreign) > 1 else ' that is'}"
            raise InputError(
                f"holds {count} not asked here (such as {min(map(_name, foreign))}); name another --out", file=self.out
            )
        # Before the hashes: a run that is killed in between must not find an earlier answer beside its own hash.
        for path, rows in held.items():
            kept = [row for row in rows if self._key_of(row) not in changed]
            if not kept:
                path.unlink()
            elif len(kept) < len(rows) or path != self.out:  # the last line of a partial file may be torn
                write_jsonl(path, kept)
        self.changed = len(changed)
        write_json(self.settings_file, {**settings, "asked": hashes})

    def _known(self, settings: dict[str, Any], held: Path) -> dict[str, str]:
        """By name, the hash of what the answers on disk were asked."""
        if not self.settings_file.exists():
            raise InputError("exists and was not made by this command; name another --out or remove it", file=held)
        known = read_json(self.settings_file)
        changed = [key for key in settings if not isinstance(known, dict) or known.get(key) != settings[key]]
        if changed:
            raise InputError(
                f"holds answers of another run (other {', '.join(changed)}); name another --out or remove it", file=held
            )
        hashes = known.get("asked")
        return hashes if isinstance(hashes, dict) else {}

    def _held(self) -> list[Path]:
        """The files with answers, those of all processes and of an earlier run with more of them included."""
        name = re.compile(re.escape(f"{self.out.name}.partial") + r"(\.[0-9]+)?")
        folder = self.out.parent
        partial = sorted(path for path in folder.iterdir() if name.fullmatch(path.name)) if folder.is_dir() else []
        return [path for path in (self.out, *partial) if path.exists()]

    def _key_of(self, row: Row) -> Key:
        try:
            return tuple(row[column] for column in self.key)
        except KeyError:
            message = "exists and was not made by this command; name another --out or remove it"
            raise InputError(message, file=self.out) from None

    def take(self, rows: Iterable[Row]) -> None:
        """Count rows that are on disk already, of whatever process, as answered."""
        self.rows |= {self._key_of(row): row for row in rows}

    def add(self, rows: Sequence[Row]) -> None:
        """Put rows on disk, so that not even a crash of the machine loses them."""
        append_jsonl(self.partial, rows)
        self.take(rows)

    def finish(self) -> None:
        """Write all rows, in the order of the items."""
        order = dict.fromkeys([*(item.key for item in self.items), *self.rows])
        write_jsonl(self.out, (self.rows[key] for key in order if key in self.rows))
        for partial in self._held():
            if partial != self.out:
                partial.unlink()

    def list_failures(self, failures: Sequence[Failure]) -> None:
        """Write what has no answer, instead of what was listed of this file before."""
        replace_failures(self.failures_file, self.out.name, failures)


def _name(key: Key) -> str:
    return " ".join(map(str, key))


def _whole_rows(path: Path) -> Iterator[Row]:
    """The rows of whole lines: a run was killed in the middle of another, and that answer is asked for again."""
    text = read_text(path)
    return (row for _, row in parse_rows(text[: text.rfind("\n") + 1].split("\n"), path))


def generate_responses(
    file: ResponseFile, start: Callable[[], Engine], on_progress: Callable[[int, int], None] | None = None
) -> list[Failure]:
    """Ask what is not answered yet, put every answer on disk as it comes, and finish the file.

    Args:
        file: of this run, with what it asks.
        start: starts the engine; not called where nothing is left to ask.
        on_progress: called with (answered so far, questions in all); of several processes, of this one's share.

    Returns:
        Everything without an answer, and why, each sample and reason once, in the order of the items.

    Raises:
        RunError: not one question of the run is answered; why is listed all the same.
    """
    items = file.items
    left = [item for item in items if item.key not in file.rows]
    # In the order of their length, so that no process gets all of the long ones.
    left.sort(key=lambda item: length_key(item.request), reverse=True)
    share = left[file.group.rank :: file.group.count]
    known = len(items) - len(left) if file.group.count == 1 else 0
    told = on_progress or _unwatched
    told(known, known + len(share))
    answered, unanswered = _ask(share, file, start, lambda done: told(known + done, known + len(share)))
    failed = list(file.failures)
    for rows, missed in file.group.gather((answered, unanswered)):
        file.take(rows)
        failed += missed
    place = {item.sample_id: place for place, item in reversed(list(enumerate(items)))}
    failed = list(dict.fromkeys(failed))  # of a radiograph that many phrases are about, the reason once
    failed.sort(key=lambda failure: place.get(failure.sample_id or "", -1))
    is_answered = any(item.key in file.rows for item in items)
    if file.group.is_main:
        file.list_failures(failed)
        if is_answered:
            file.finish()
    file.group.gather()  # nobody goes on to what needs the finished file before it is there
    if not is_answered:
        raise RunError(f"nothing could be answered; the first: {failed[0].reason if failed else 'nothing is asked'}")
    return failed


def _ask(
    items: Sequence[GenerationItem], file: ResponseFile, start: Callable[[], Engine], told: Callable[[int], None]
) -> tuple[list[Row], list[Failure]]:
    """The rows of the items' answers, which are on disk, and what has no answer."""
    rows: list[Row] = []
    failed: list[Failure] = []
    if not items:
        return rows, failed
    engine = start()
    try:
        for done, (index, answer) in enumerate(engine.generate([item.request for item in items]), start=1):
            item = items[index]
            if isinstance(answer, FailedRequest):
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
