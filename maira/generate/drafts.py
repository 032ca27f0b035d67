"""Responses of a test set on disk, and drafts: a report for every study. Of several processes, each writes a file."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from maira.data.images import CropMap
from maira.data.manifest import Failure, read_failures, replace_failures
from maira.data.study import Study
from maira.generate.engine import (
    EngineOptions,
    FailedRequest,
    GenerationOptions,
    GenerationRequest,
    Response,
    Sampling,
    report_request,
    start_engine,
)
from maira.model.checkpoint import fingerprint
from maira.model.other_models import is_other_model
from maira.model.parser import Irregularity, ParsedReport, cut_repetitions, parse_report
from maira.model.prompts import NEW_TOKENS
from maira.model.task_examples import Example, drop_inputs, make_example
from maira.runtime.processes import join_group
from radfact.errors import ErrorCode, InputError, RunError, brief
from radfact.io.download import file_sha256
from radfact.io.jsonl import append_jsonl, parse_rows, read_json, read_text, write_json, write_jsonl
from radfact.records import Box, Sentence

Row = dict[str, Any]
T = TypeVar("T", bound=Any)


@dataclass(frozen=True)
class GenerationItem:
    """A request, and the row that its response and the model's name become; `reference` is boxes to compare with."""

    request: GenerationRequest
    row: Callable[[Response, str], Row]
    index: int | None = None
    reference: Sequence[Box] | None = None

    @property
    def sample_id(self) -> str:
        return self.request.example.sample_id

    @property
    def key(self) -> str:
        """What distinguishes the row in its run."""
        return _key(self.sample_id, self.index)

    def content_hash(self, image_hashes: Mapping[Path, str]) -> str:
        """Return a hash of prompt, images and reference, without paths and times: a data set may be moved."""
        example = self.request.example
        boxes = None if self.reference is None else [box.model_dump() for box in self.reference]
        content = [example.messages, example.answer_start, [image_hashes[image] for image in example.images], boxes]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


class ResponseFile:
    """The files of one run; with several processes, every process creates this object at the same time."""

    # `OUT.partial` (`OUT.partial.1` and so on of further processes) holds rows as they arrive, `OUT` all rows in order
    # when the run is done, `OUT.run.json` the settings and, by key, the hash of each request, and `failures.jsonl`
    # failed requests. `changed` is the number of responses on disk whose request has changed, which are generated
    # again.

    def __init__(
        self, out: Path, settings: Mapping[str, Any], items: Sequence[GenerationItem], failures: Sequence[Failure] = ()
    ) -> None:
        self.out, self.items, self.failures, self.group = out, items, failures, join_group()
        self.partial = out.with_name(f"{out.name}.partial" + (f".{self.group.rank}" if self.group.rank else ""))
        self.failures_file = out.with_name("failures.jsonl")
        prepared = self._prepare(settings) if self.group.is_main else None
        self.rows: dict[str, Row]
        self.rows, self.changed = self.group.gather(prepared)[0]

    def _prepare(self, settings: Mapping[str, Any]) -> tuple[dict[str, Row], int]:
        """Check that the files on disk belong to this run; keep and return their rows except of changed requests."""
        if self.out == self.failures_file:
            raise self._conflict("is the list of failures")
        read_failures(self.failures_file)  # an unreadable list must not be found at the end of the run only
        run_file = self.out.with_name(f"{self.out.stem}.run.json")
        files = self._files()
        known: dict[str, str] = {}
        if files:
            run = read_json(run_file) if run_file.exists() else None
            if not isinstance(run, dict):
                raise self._conflict("exists and was not written by this command")
            if changed_settings := [key for key in settings if run.get(key) != settings[key]]:
                raise self._conflict(f"holds responses of a run with another {', '.join(changed_settings)}")
            known = hashes if isinstance(hashes := run.get("requests"), dict) else {}
        rows_by_file: dict[Path, list[Row]] = {}
        for path in files:
            text = read_text(path)
            # A killed run may leave a partial last line, which is generated again.
            rows_by_file[path] = [row for _, row in parse_rows(text[: text.rfind("\n") + 1].split("\n"), path)]
        images = {image for item in self.items for image in item.request.example.images}
        with ThreadPoolExecutor(thread_name_prefix="maira-hashes") as readers:
            image_hashes = dict(zip(images, readers.map(_hash_image, images), strict=True))
        hashes = {item.key: item.content_hash(image_hashes) for item in self.items}
        unreadable = {failure.sample_id for failure in self.failures}
        rows = {self._key_of(row): row for rows in rows_by_file.values() for row in rows}
        if foreign := [key for key in rows if key not in hashes and rows[key]["sample_id"] not in unreadable]:
            raise self._conflict(f"holds {len(foreign)} responses to other requests, such as {min(foreign)}")
        hashes |= {key: known.get(key, "") for key in rows if key not in hashes}
        changed = {key for key in rows if known.get(key, "") != hashes[key]}
        # Before the hashes: a run killed in between must not find an old response with the hash of its new request.
        for path, on_disk in rows_by_file.items():
            current = [row for row in on_disk if self._key_of(row) not in changed]
            if not current:
                path.unlink()
            elif len(current) < len(on_disk) or path != self.out:  # the last line of a partial file may be incomplete
                write_jsonl(path, current)
        write_json(run_file, {**settings, "requests": hashes})
        return {key: row for key, row in rows.items() if key not in changed}, len(changed)

    def _files(self) -> list[Path]:
        """Return the files with rows, including those of further processes and of an earlier run with more of them."""
        name = re.compile(re.escape(self.out.name) + r"(\.partial(\.[0-9]+)?)?")
        folder = self.out.parent
        return sorted(path for path in folder.iterdir() if name.fullmatch(path.name)) if folder.is_dir() else []

    def _key_of(self, row: Row) -> str:
        if not isinstance(row.get("sample_id"), str):
            raise self._conflict("has a row without sample_id")
        return _key(row["sample_id"], row.get("index"))

    def _conflict(self, message: str) -> InputError:
        message = f"{message}; choose another --out or remove it"
        return InputError(message, code=ErrorCode.OUTPUT_CONFLICT, file=self.out)

    def append(self, key: str, row: Row) -> None:
        """Write a row to the partial file, so that not even a crash of the machine loses it."""
        append_jsonl(self.partial, [row])
        self.rows[key] = row

    def finish(self, failures: Sequence[Failure]) -> None:
        """Write the failures, and all rows in the order of the items in place of the partial files."""
        replace_failures(self.failures_file, self.out.name, failures)
        order = dict.fromkeys([*(item.key for item in self.items), *self.rows])
        if any(item.key in self.rows for item in self.items):
            write_jsonl(self.out, (self.rows[key] for key in order if key in self.rows))
            for path in self._files():
                if path != self.out:
                    path.unlink()


def _hash_image(path: Path) -> str:
    """Return the hash of the file's content; "" for an unreadable one, which the engine reports."""
    try:
        return file_sha256(path)
    except OSError:
        return ""


def _key(sample_id: str, index: int | None) -> str:
    return sample_id if index is None else f"{sample_id} {index}"


def generate_rows(
    samples: Iterable[T],
    make: Callable[[T], Iterable[GenerationItem]],
    checkpoint: Path | None,
    out: Path,
    engine_options: EngineOptions,
    settings: Mapping[str, Any],
    failures: Iterable[Failure] = (),
    on_changed: Callable[[int], None] = lambda _: None,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> tuple[list[GenerationItem], list[Row], list[Failure]]:
    """Generate missing responses, write each as it arrives, and finish the file; return items, rows and failures."""
    items: list[GenerationItem] = []
    failures = list(failures)
    for sample in samples:
        try:
            made = list(make(sample))
            images = [image for item in made for image in item.request.example.images]
            if missing_image := next((image for image in images if not image.is_file()), None):
                raise InputError("no such file", code=ErrorCode.FILE_NOT_FOUND, file=missing_image)
        except InputError as error:
            failures.append(Failure(sample_id=sample.sample_id, stage="read", reason=str(error)))
        else:
            items += made
    settings = {**_model_settings(checkpoint, engine_options), "free": engine_options.free, **settings}
    file = ResponseFile(out, settings, items, failures)
    if file.changed:
        on_changed(file.changed)
    # Sorted by length, so that the processes share the long ones.
    missing = [item for item in items if item.key not in file.rows]
    missing.sort(key=lambda item: item.request.length_key, reverse=True)
    share = missing[file.group.rank :: file.group.size]
    finished = len(items) - len(missing) if file.group.size == 1 else 0
    on_progress(finished, finished + len(share))
    failed: list[Failure] = []
    if share:
        engine = start_engine(checkpoint, engine_options)
        try:
            for done, (index, response) in enumerate(engine.generate([item.request for item in share]), start=1):
                item = share[index]
                row = response if isinstance(response, FailedRequest) else _row(item, response, engine.name)
                if isinstance(row, FailedRequest):
                    failed.append(Failure(sample_id=item.sample_id, stage="generate", reason=row.reason))
                else:
                    file.append(item.key, row)
                on_progress(finished + done, finished + len(share))
        finally:
            engine.close()
    new_rows = {item.key: file.rows[item.key] for item in share if item.key in file.rows}
    for other_rows, other_failures in file.group.gather((new_rows, failed)):
        file.rows |= other_rows
        failures += other_failures
    index_of = {item.sample_id: index for index, item in reversed(list(enumerate(items)))}
    failures = list(dict.fromkeys(failures))  # many phrases may share an unreadable image
    failures.sort(key=lambda failure: index_of.get(failure.sample_id or "", -1))
    if file.group.is_main:
        file.finish(failures)
    file.group.wait()  # the finished file exists before any process continues
    rows = [file.rows[item.key] for item in items if item.key in file.rows]
    if not rows:
        reason = failures[0].reason if failures else "there are no requests"
        raise RunError(f"no request has a response; first reason: {reason}")
    return items, rows, failures


def _model_settings(checkpoint: Path | None, options: EngineOptions) -> dict[str, Any]:
    """Return what identifies the model in the settings of a run."""
    if checkpoint is not None:
        return {"checkpoint": fingerprint(checkpoint)}
    arguments = json.loads(json.dumps({k: v for k, v in options.engine_args.items() if k != "timeout"}, default=str))
    return {"model": options.model, "base_url": options.base_url, "engine_args": arguments}


def _row(item: GenerationItem, response: Response, model: str) -> Row | FailedRequest:
    """Return the row of a response; a failure if it has no sentence, which no model is trained to write."""
    row = item.row(response, model)
    if row.get("report", True):
        return row
    limit = "; it ended at the limit of new tokens" if response.cut_off else ""
    return FailedRequest(f"expected findings, found an empty response {brief(row['raw'])}{limit}")


def parse_response(response: Response, example: Example, *, cut_loops: bool) -> ParsedReport:
    """Parse a response, by default without the third and further copies of a sentence."""
    expects_objects = example.whole_images and example.task != "findings"
    parsed = parse_report(response.text, cut_off=response.cut_off, expects_objects=expects_objects)
    return cut_repetitions(parsed) if cut_loops else parsed


def response_columns(response: Response, irregularities: Iterable[Irregularity], model: str) -> Row:
    """Return the columns that rows of all tasks share."""
    return {
        "raw": response.raw or response.text,
        "irregularities": [irregularity.model_dump() for irregularity in irregularities],
        "model": model,
        "seconds": round(response.seconds, 4),
    }


def to_original_coordinates(sentences: Iterable[Sentence], crop: CropMap) -> list[dict[str, Any]]:
    """Return sentences as records, with boxes converted from the model's crop to the original frontal image."""
    located = [(s.text, tuple(map(crop.to_original, s.boxes)) if s.boxes else None) for s in sentences]
    return [Sentence(text=text, boxes=boxes).model_dump(include={"text", "boxes"}) for text, boxes in located]


def make_draft(example: Example, response: Response, model: str, *, cut_loops: bool = True) -> Row:
    """Make the record of a draft, by default without the third and further copies of a sentence."""
    parsed = parse_response(response, example, cut_loops=cut_loops)
    is_narrative = example.task == "findings"
    return {
        "sample_id": example.sample_id,
        "report": parsed.text if is_narrative else to_original_coordinates(parsed.sentences, example.crop),
        **response_columns(response, parsed.irregularities, model),
    }


def generate_drafts(
    studies: Sequence[Study],
    checkpoint: Path | None,
    out: Path,
    options: GenerationOptions = GenerationOptions(),
    engine: EngineOptions = EngineOptions(),
    *,
    failures: Sequence[Failure] = (),
    **callbacks: Callable[..., None],
) -> tuple[int, list[Failure]]:
    """Draft a report for every study, also by a server's model (without checkpoint); the same settings resume."""
    limit = options.max_new_tokens or NEW_TOKENS[options.task]
    temperature, seed, is_other = options.temperature, options.seed or 0, is_other_model(checkpoint)
    if checkpoint is None and options.seed is not None:
        message = "not available with --engine server; a server may have --engine-arg seed=N"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field="seed")

    def make(study: Study) -> list[GenerationItem]:
        shown = without_references(drop_inputs(study, options.drop))
        example = make_example(shown, options.task, preset=options.preset, whole_images=is_other)
        request = report_request(example, limit)
        if temperature is not None:
            # A study's draft does not depend on the other studies.
            digest = hashlib.sha256(f"{seed} {study.sample_id}".encode()).digest()
            request = replace(request, sampling=Sampling(temperature, int.from_bytes(digest[:8], "little")))
        return [GenerationItem(request, partial(make_draft, example, cut_loops=not engine.free))]

    settings = {
        "task": options.task,
        "preset": options.preset,
        "drop": sorted(options.drop) or None,
        "max_new_tokens": limit,
        "temperature": temperature,
        "seed": None if temperature is None else seed,
    }
    _, rows, failed = generate_rows(studies, make, checkpoint, out, engine, settings, failures, **callbacks)
    return len(rows), failed


def without_references(study: Study) -> Study:
    """Remove the reference reports, whose faults do not matter to generation."""
    return study.model_copy(update={"findings": None, "grounded_findings": None})
