"""Answers on disk: written as they come while a run goes on, finished in the order of what was asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.manifest import Failure, replace_failures
from maira.generate.request import Answer, Engine, Request, Unanswered
from radfact.errors import InputError, RunFailed
from radfact.jsonl import dumps, read_json, read_jsonl, write_json, write_jsonl

Row = dict[str, Any]
Key = tuple[Any, ...]


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
    """A short hash that differs between checkpoints: of the configuration, and the size and start of each weight file.

    Raises:
        InputError: the folder is no checkpoint.
    """
    files = sorted(path for path in checkpoint.glob("*") if path.suffix in (".json", ".safetensors") and path.is_file())
    if checkpoint / "config.json" not in files:
        raise InputError("no checkpoint here (config.json is missing)", file=checkpoint)
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

    `OUT.partial` holds rows as they come, `OUT` all of them in order when the run is done, `OUT.run.json` what decides
    them, so that only the same run is ever continued. What could not be answered is in `failures.jsonl` beside them,
    with the name of OUT as `source`; other rows of that file stay.

    Args:
        out: the file to make (JSON Lines).
        settings: everything that changes an answer; JSON values.
        key: columns of a row that together are unique.

    Attributes:
        rows: by key, what is answered.

    Raises:
        InputError: `out` holds answers of another run.
    """

    def __init__(self, out: Path, settings: dict[str, Any], key: Sequence[str] = ("sample_id",)) -> None:
        self.out, self.key = out, tuple(key)
        self.partial = out.with_name(f"{out.name}.partial")
        self.settings_file = out.with_name(f"{out.stem}.run.json")
        self.failures_file = out.with_name("failures.jsonl")
        if self.settings_file.exists():
            held = read_json(self.settings_file)
            changed = [key for key in settings if not isinstance(held, dict) or held.get(key) != settings[key]]
            if changed:
                raise InputError(
                    f"holds answers of another run (other {', '.join(changed)}); name another --out or remove it",
                    file=out,
                )
        elif out.exists():
            raise InputError("exists and was not made by this command; name another --out or remove it", file=out)
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.settings_file, settings)
        self.rows: dict[Key, Row] = {}
        for path in (self.out, self.partial):
            if path.exists():
                self._recover(path)

    def _recover(self, path: Path) -> None:
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            # The run was killed in the middle of a line; that answer is asked for again.
            path.write_bytes(whole)
        self._take(row for _, row in read_jsonl(path))

    def _take(self, rows: Iterable[Row]) -> None:
        self.rows |= {tuple(row[column] for column in self.key): row for row in rows}

    def add(self, rows: Sequence[Row]) -> None:
        """Put rows on disk."""
        with self.partial.open("a", encoding="utf-8") as handle:
            handle.writelines(dumps(row) + "\n" for row in rows)
        self._take(rows)

    def finish(self, order: Sequence[Key], failures: Sequence[Failure]) -> None:
        """Write all rows in the given order of keys, and the failures instead of this file's earlier ones."""
        write_jsonl(self.out, (self.rows[key] for key in order if key in self.rows))
        replace_failures(self.failures_file, self.out.name, failures)
        self.partial.unlink(missing_ok=True)


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
        on_progress: called with (answered so far, questions in all).

    Returns:
        Everything without an answer, and why.

    Raises:
        RunFailed: not one question of the run is answered.
    """
    failed = list(failures)
    left = [item for item in items if item.key not in file.rows]
    done, report = len(items) - len(left), on_progress or _unwatched
    report(done, len(items))
    if left:
        engine = start()
        try:
            for index, answer in engine.answers([item.request for item in left]):
                item = left[index]
                if isinstance(answer, Unanswered):
                    failed.append(Failure(sample_id=item.sample_id, stage="generate", reason=answer.reason))
                else:
                    file.add([item.row(answer, engine.name)])
                done += 1
                report(done, len(items))
        finally:
            engine.close()
    if not file.rows:
        raise RunFailed(f"nothing could be answered; the first: {failed[0].reason if failed else 'nothing is asked'}")
    file.finish([item.key for item in items], failed)
    return failed


def _unwatched(*_: int) -> None:
    """Progress that nobody looks at."""
