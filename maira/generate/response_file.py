"""Responses on disk: appended while a run is in progress, and written in the order of the requests at its end.

Where a launcher started several processes (`maira.runtime.processes`), each generates its share and writes its own
partial file; the main process merges them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maira.data.manifest import Failure, read_failures, replace_failures
from maira.generate.engine import Engine, FailedRequest, GenerationRequest, Response, length_key
from maira.model.checkpoint import fingerprint
from maira.runtime.processes import join_group
from radfact.errors import ErrorCode, InputError, RunError, brief
from radfact.io.jsonl import append_jsonl, parse_rows, read_json, read_text, write_json, write_jsonl
from radfact.records import Box

Row = dict[str, Any]
Key = tuple[Any, ...]


@dataclass(frozen=True)
class GenerationItem:
    """A request of a run and the row that its response becomes.

    Attributes:
        key: values of the row's key columns, unique in the run.
        sample_id: sample of the study.
        request: request to the model.
        row: makes the row from the response and the model's name.
        reference: boxes on the original image that the row compares the response with.
    """

    key: Key
    sample_id: str
    request: GenerationRequest
    row: Callable[[Response, str], Row]
    reference: Sequence[Box] | None = None

    @property
    def request_hash(self) -> str:
        """Hash of prompt, reference and sizes of the image files: with the run's settings they determine the row.

        Paths and times are not included, so that a data set may be moved.
        """
        example = self.request.example
        boxes = None if self.reference is None else [box.model_dump() for box in self.reference]
        content = [example.prompt, [image.stat().st_size for image in example.images], boxes]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


def run_settings(checkpoint: Path, **options: Any) -> dict[str, Any]:
    """Return the settings that determine the responses of a run, as JSON values."""
    values: dict[str, Any] = json.loads(json.dumps({"checkpoint": fingerprint(checkpoint), **options}))
    return values


class ResponseFile:
    """The files of one run.

    `OUT.partial` holds rows as they arrive (`OUT.partial.1` and so on those of further processes), `OUT` all rows in
    order when the run is done. `OUT.run.json` holds the settings and, by key, the hash of each request
    (`GenerationItem.request_hash`): only the same run is resumed, with any number of processes, and a response is kept
    only for the request that it answers. `failures.jsonl` next to them lists failed requests, with the name of OUT as
    `source`; its other rows are kept. With several processes, every process creates this object at the same time.

    Args:
        out: file to write (JSON Lines).
        settings: everything that changes all responses; JSON values.
        items: requests, in the order of the finished file.
        failures: samples without a request; responses that they already have are kept, after the others.
        key: columns of a row that are unique together; the first is `sample_id`.

    Attributes:
        rows: finished rows by key.
        changed: number of responses on disk whose request has changed; they are generated again.
        group: processes of the run.

    Raises:
        InputError: `out` holds responses of another run or to other requests, or has the name of the list of failures,
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
            self._prepare(settings)
        self.group.gather()  # all processes read what the main process has prepared
        for path in self._existing_files():
            self.add_rows(_complete_rows(path))
        self.group.gather()  # no process appends before all have read

    def _prepare(self, settings: dict[str, Any]) -> None:
        """Check that the files on disk belong to this run, and remove responses to changed requests."""
        if self.out == self.failures_file:
            raise InputError(
                "is the list of failures; choose another --out", code=ErrorCode.OUTPUT_CONFLICT, file=self.out
            )
        read_failures(self.failures_file)  # an unreadable list must not be found at the end of the run only
        files = self._existing_files()
        known = self._read_hashes(settings, files[0]) if files else {}
        rows_by_file = {path: list(_complete_rows(path)) for path in files}
        request_hashes = {item.key: item.request_hash for item in self.items}
        hashes = {_key_name(key): digest for key, digest in request_hashes.items()}
        unreadable = {failure.sample_id for failure in self.failures}
        foreign, changed = set(), set()
        for key in map(self._key_of, (row for rows in rows_by_file.values() for row in rows)):
            name = _key_name(key)
            if key not in request_hashes and key[0] in unreadable:
                hashes[name] = known.get(name, "")
            elif key not in request_hashes:
                foreign.add(key)
            elif known.get(name) != request_hashes[key]:
                changed.add(key)
        if foreign:
            raise InputError(
                f"holds {len(foreign)} responses to other requests, such as {min(map(_key_name, foreign))}; choose "
                "another --out",
                code=ErrorCode.OUTPUT_CONFLICT,
                file=self.out,
            )
        # Before the hashes: a run killed in between must not find an old response with the hash of its new request.
        for path, rows in rows_by_file.items():
            current = [row for row in rows if self._key_of(row) not in changed]
            if not current:
                path.unlink()
            elif len(current) < len(rows) or path != self.out:  # the last line of a partial file may be incomplete
                write_jsonl(path, current)
        self.changed = len(changed)
        write_json(self.settings_file, {**settings, "requests": hashes})

    def _read_hashes(self, settings: dict[str, Any], file: Path) -> dict[str, str]:
        """Return the request hashes of the run on disk, by key name."""
        if not self.settings_file.exists():
            raise _not_ours(file)
        known = read_json(self.settings_file)
        changed = [key for key in settings if not isinstance(known, dict) or known.get(key) != settings[key]]
        if changed:
            raise InputError(
                f"holds responses of a run with another {', '.join(changed)}; choose another --out or remove it",
                code=ErrorCode.OUTPUT_CONFLICT,
                file=file,
            )
        hashes = known.get("requests", known.get("asked"))  # "asked" in older files
        return hashes if isinstance(hashes, dict) else {}

    def _existing_files(self) -> list[Path]:
        """Return the files with rows, including those of further processes and of an earlier run with more of them."""
        name = re.compile(re.escape(f"{self.out.name}.partial") + r"(\.[0-9]+)?")
        folder = self.out.parent
        partial = sorted(path for path in folder.iterdir() if name.fullmatch(path.name)) if folder.is_dir() else []
        return [path for path in (self.out, *partial) if path.exists()]

    def _key_of(self, row: Row) -> Key:
        try:
            return tuple(row[column] for column in self.key)
        except KeyError:
            raise _not_ours(self.out) from None

    def add_rows(self, rows: Iterable[Row]) -> None:
        """Add rows that are on disk, of any process."""
        self.rows |= {self._key_of(row): row for row in rows}

    def append(self, rows: Sequence[Row]) -> None:
        """Write rows to the partial file, so that not even a crash of the machine loses them."""
        append_jsonl(self.partial, rows)
        self.add_rows(rows)

    def finish(self) -> None:
        """Write all rows in the order of the items, and remove the partial files."""
        order = dict.fromkeys([*(item.key for item in self.items), *self.rows])
        write_jsonl(self.out, (self.rows[key] for key in order if key in self.rows))
        for partial in self._existing_files():
            if partial != self.out:
                partial.unlink()


def _not_ours(file: Path) -> InputError:
    return InputError(
        "exists and was not written by this command; choose another --out or remove it",
        code=ErrorCode.OUTPUT_CONFLICT,
        file=file,
    )


def _key_name(key: Key) -> str:
    return " ".join(map(str, key))


def _complete_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of complete lines; a killed run may leave a partial last line, which is generated again."""
    text = read_text(path)
    return (row for _, row in parse_rows(text[: text.rfind("\n") + 1].split("\n"), path))


def generate_responses(
    file: ResponseFile, start: Callable[[], Engine], on_progress: Callable[[int, int], None] = lambda *_: None
) -> list[Failure]:
    """Generate the missing responses of a run, write each as it arrives, and finish the file.

    Args:
        file: file of the run.
        start: starts the engine; not called if no response is missing.
        on_progress: called with (finished requests, all requests); of several processes, with this one's share.

    Returns:
        Samples without a response and the reasons, without duplicates, in the order of the items.

    Raises:
        RunError: no request of the run has a response; the reasons are listed nevertheless.
    """
    items = file.items
    # Sorted by length, so that the processes share the long ones.
    missing = sorted(
        (item for item in items if item.key not in file.rows), key=lambda item: length_key(item.request), reverse=True
    )
    share = missing[file.group.rank :: file.group.size]
    finished = len(items) - len(missing) if file.group.size == 1 else 0
    on_progress(finished, finished + len(share))
    result = _generate_share(share, file, start, lambda done: on_progress(finished + done, finished + len(share)))
    failures = list(file.failures)
    for rows, failed in file.group.gather(result):
        file.add_rows(rows)
        failures += failed
    index = {item.sample_id: index for index, item in reversed(list(enumerate(items)))}
    failures = list(dict.fromkeys(failures))  # many phrases may share an unreadable image
    failures.sort(key=lambda failure: index.get(failure.sample_id or "", -1))
    has_responses = any(item.key in file.rows for item in items)
    if file.group.is_main:
        replace_failures(file.failures_file, file.out.name, failures)
        if has_responses:
            file.finish()
    file.group.gather()  # the finished file exists before any process continues
    if not has_responses:
        reason = failures[0].reason if failures else "there are no requests"
        raise RunError(f"no request has a response; first reason: {reason}")
    return failures


def _generate_share(
    items: Sequence[GenerationItem], file: ResponseFile, start: Callable[[], Engine], on_done: Callable[[int], None]
) -> tuple[list[Row], list[Failure]]:
    """Return the rows of the items' responses, which are on disk, and the failures."""
    rows: list[Row] = []
    failures: list[Failure] = []
    if not items:
        return rows, failures
    engine = start()
    try:
        for done, (index, response) in enumerate(engine.generate([item.request for item in items]), start=1):
            item = items[index]
            row = response if isinstance(response, FailedRequest) else _row(item, response, engine.name)
            if isinstance(row, FailedRequest):
                failures.append(Failure(sample_id=item.sample_id, stage="generate", reason=row.reason))
            else:
                rows.append(row)
                file.append(rows[-1:])
            on_done(done)
    finally:
        engine.close()
    return rows, failures


def _row(item: GenerationItem, response: Response, model: str) -> Row | FailedRequest:
    """Return the row of a response; a failure if it has no sentence.

    No report or phrase is trained with an empty answer: a normal study has sentences that say so, and a phrase without
    a box is repeated without one. A box completion may have no box.
    """
    row = item.row(response, model)
    if row.get("report", True):
        return row
    limit = "; it ended at the limit of new tokens" if response.cut_off else ""
    return FailedRequest(f"expected findings, found an empty response {brief(response.text)}{limit}")
