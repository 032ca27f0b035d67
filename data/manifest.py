"""Manifests (the samples of a dataset as JSON Lines), lists of failures, and the settings record of a run folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import model_validator

from maira.data.study import IMAGE_COLUMNS, OptionalText, Study
from radfact.errors import EMPTY_TEXT, ErrorCode, InputError, check_unique_id
from radfact.io.jsonl import read_json, read_jsonl, write_json, write_jsonl
from radfact.records import Record, Text, validate_model

_TEXT_COLUMNS = ("prior_report", "indication", "technique", "comparison", "findings")


class Failure(Record):
    """A sample, image or table row that could not be processed.

    Attributes:
        sample_id: the sample, if there is one already.
        source: key in the source (a file, an accession), or the output file that the sample is missing from.
        stage: processing step that failed.
        reason: why.
    """

    sample_id: OptionalText = None
    source: OptionalText = None
    stage: Text
    reason: Text

    @model_validator(mode="after")
    def _require_id(self) -> Failure:
        if self.sample_id is None and self.source is None:
            raise ValueError("a failure needs a sample_id or a source key")
        return self


def read_manifest(path: Path | str, skipped: list[Failure] | None = None) -> list[Study]:
    """Read a manifest and make its image paths absolute. Images are not opened.

    Args:
        path: a JSON Lines file, one sample per line; relative image paths are relative to its folder.
        skipped: receives the samples without a frontal image; None makes them an error.

    Raises:
        InputError: the file cannot be read, a line is not a study, or a `sample_id` is a duplicate.
    """
    return list(iter_manifest(path, skipped))


def check_has_samples(count: int, file: Path | str | None = None) -> None:
    """Check that a manifest has samples."""
    if not count:
        raise InputError("expected at least one sample, found none", code=ErrorCode.EMPTY_INPUT, file=file)


def iter_manifest(path: Path | str, skipped: list[Failure] | None = None) -> Iterator[Study]:
    """Iterate over the samples of a manifest. See `read_manifest` for the arguments and errors."""
    folder = manifest_folder(path)
    line_of: dict[str, int] = {}
    for line, row in read_jsonl(path):
        if skipped is not None and isinstance(row.get("sample_id"), str) and not row.get("frontal"):
            # Other faults of the line are errors.
            parse_study(row | {"frontal": "missing"}, folder, file=path, line=line)
            reason = InputError("expected the path of the frontal image", file=path, line=line, field="frontal")
            skipped.append(Failure(sample_id=row["sample_id"], stage="read", reason=str(reason)))
            continue
        study = parse_study(row, folder, file=path, line=line)
        check_unique_id(line_of, study.sample_id, line, file=path)
        yield study


def parse_study(row: dict[str, Any], folder: Path, *, file: Path | str, line: int | None = None) -> Study:
    """Parse one line of a manifest."""
    for column in _TEXT_COLUMNS:
        if isinstance(text := row.get(column), str) and not text.strip():
            raise InputError(EMPTY_TEXT, file=file, line=line, field=column)
    paths = {c: row[c] for c in IMAGE_COLUMNS if isinstance(row.get(c), str) and row[c].strip()}
    # Joined as text: joining Path objects dominates the time to read 500,000 studies.
    joined = {c: os.path.join(folder, p) for c, p in paths.items()}  # noqa: PTH118
    study = validate_model(Study, row | joined, file=file, line=line)
    if study.originals is None:
        return study
    originals = {c: o.model_copy(update={"path": folder / o.path}) for c, o in study.originals.items()}
    return study.model_copy(update={"originals": originals})


def write_manifest(path: Path | str, studies: Iterable[Study]) -> int:
    """Write a manifest atomically and return the number of samples.

    Image paths below the manifest's folder are written relative to it, so that the folder can be moved.

    Args:
        path: the JSON Lines file to write.
        studies: samples; their relative image paths are relative to the manifest's folder.

    Raises:
        InputError: a `sample_id` is a duplicate.
    """
    folder = manifest_folder(path)
    return write_jsonl(path, _rows(studies, folder, path))


def read_failures(path: Path | str) -> list[Failure]:
    """Read a list of failures; a missing file gives an empty list."""
    if not Path(path).exists():
        return []
    return [validate_model(Failure, row, file=path, line=line) for line, row in read_jsonl(path)]


def write_failures(path: Path | str, failures: Iterable[Failure]) -> int:
    """Write failures as JSON Lines, atomically, and return their number; no failures give an empty file.

    Args:
        path: of the file.
        failures: none gives an empty file.
    """
    return write_jsonl(path, (failure.model_dump(mode="json") for failure in failures))


def replace_failures(path: Path | str, source: str, failures: Iterable[Failure]) -> None:
    """Replace the failures of one output in a `failures.jsonl` that several outputs share."""
    own = [failure.model_copy(update={"source": source}) for failure in failures]
    others = [failure for failure in read_failures(path) if failure.source != source]
    if own or others:
        write_failures(path, [*others, *own])
    else:
        Path(path).unlink(missing_ok=True)


def _rows(studies: Iterable[Study], folder: Path, path: Path | str) -> Iterator[dict[str, Any]]:
    line_of: dict[str, int] = {}
    for line, study in enumerate(studies, start=1):
        check_unique_id(line_of, study.sample_id, line, file=path)
        row = study.model_dump(mode="json")
        for column in IMAGE_COLUMNS:
            if (image := getattr(study, column)) is not None:
                row[column] = _below(folder, image).as_posix()
        for column, original in (study.originals or {}).items():
            row["originals"][column]["path"] = _below(folder, original.path).as_posix()
        yield row


def _below(folder: Path, path: Path) -> Path:
    """Return a path relative to a folder if it is below it."""
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def manifest_folder(path: Path | str) -> Path:
    """Return the folder that a manifest's relative image paths are relative to."""
    # Not resolve(): a dataset is often a folder of links, and keeps the name that the user knows.
    return Path(os.path.normpath(Path(path).parent.absolute()))


PREPARATION_RECORD = "prepare.run.json"
"""File with the settings of a folder of prepared radiographs, whatever their source."""


def open_run_folder(out: Path, record: str, settings: Mapping[str, object]) -> None:
    """Create a folder and record the settings of its run, or check that an earlier run had the same settings."""
    file = out / record
    if file.exists():
        recorded = read_json(file)
        changed = [n for n, value in settings.items() if not isinstance(recorded, dict) or recorded.get(n) != value]
        if changed:
            message = f"made with different settings ({', '.join(changed)}); choose another --out or remove the folder"
            raise InputError(message, code=ErrorCode.OUTPUT_CONFLICT, file=out)
        return
    if out.exists() and not out.is_dir():
        raise InputError("expected a folder, found a file", code=ErrorCode.OUTPUT_CONFLICT, file=out)
    # Hidden files may be left over from an unfinished record.
    if out.exists() and any(not entry.name.startswith(".") for entry in out.iterdir()):
        message = "is not empty and was not made by this command; choose another --out"
        raise InputError(message, code=ErrorCode.OUTPUT_CONFLICT, file=out)
    out.mkdir(parents=True, exist_ok=True)
    write_json(file, dict(settings))
