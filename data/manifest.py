"""Manifests: the studies of a data set as JSON Lines, and beside them what could not be prepared."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import model_validator

from data.study import IMAGE_COLUMNS, OptionalText, Study
from radfact.errors import InputError, check_unique_id, suggest_name
from radfact.io.jsonl import read_jsonl, write_jsonl
from radfact.records import Record, Text, validated

_COLUMNS = frozenset(Study.model_fields)


class Failure(Record):
    """What was left out of a manifest: its `sample_id`, or the key of its source (a file, an accession) where it never
    became a sample; the stage that gave up, and why."""

    sample_id: OptionalText = None
    source: OptionalText = None
    stage: Text
    reason: Text

    @model_validator(mode="after")
    def _says_of_what(self) -> Failure:
        if self.sample_id is None and self.source is None:
            raise ValueError("a failure needs a sample_id or a source key")
        return self


def read_manifest(path: Path | str, left_out: list[Failure] | None = None) -> list[Study]:
    """Read a manifest, with image paths made absolute (relative ones are relative to the manifest's folder).

    Whether the images exist is left to who opens them.

    Args:
        path: a JSON Lines file, one sample a line.
        left_out: takes the samples without a frontal image, which are an error where it is None.

    Raises:
        InputError: the file cannot be read, a line is not a study, or a `sample_id` occurs twice.
    """
    return list(iter_manifest(path, left_out))


def iter_manifest(path: Path | str, left_out: list[Failure] | None = None) -> Iterator[Study]:
    """The samples of a manifest one by one, as `read_manifest` has them, for manifests larger than the memory."""
    folder = folder_of(path)
    line_of: dict[str, int] = {}
    for line, row in read_jsonl(path):
        if left_out is not None and isinstance(row.get("sample_id"), str) and not row.get("frontal"):
            _check_columns(row, path, line)
            reason = InputError("a study needs the path of its frontal image", file=path, line=line, field="frontal")
            left_out.append(Failure(sample_id=row["sample_id"], stage="read", reason=str(reason)))
            continue
        study = parse_study(row, folder, file=path, line=line)
        check_unique_id(line_of, study.sample_id, line, file=path)
        yield study


def parse_study(row: dict[str, Any], folder: Path, *, file: Path | str, line: int | None = None) -> Study:
    """One line of a manifest as a study.

    Args:
        row: the line's JSON object.
        folder: what relative paths of images are relative to.
        file, line: named in the error.

    Raises:
        InputError: it is no study.
    """
    _check_columns(row, file, line)
    paths = {c: row[c] for c in IMAGE_COLUMNS if isinstance(row.get(c), str) and row[c].strip()}
    # Joined as text: of 500,000 studies the joining of Path objects takes longer than all the rest.
    joined = {c: os.path.join(folder, p) for c, p in paths.items()}  # noqa: PTH118
    return validated(Study, row | joined, file=file, line=line)


def write_manifest(path: Path | str, studies: Iterable[Study]) -> int:
    """Write a manifest, whole or not at all, and return the number of samples.

    Images below the manifest's folder are written relative to it, so that the folder can be moved; others absolute.

    Args:
        path: the JSON Lines file to write.
        studies: a relative image path in them is relative to the manifest's folder, as on reading.

    Raises:
        InputError: a `sample_id` occurs twice.
    """
    folder = folder_of(path)
    return write_jsonl(path, _rows(studies, folder, path))


def read_failures(path: Path | str) -> list[Failure]:
    """Read what was left out; nothing where there is no such file.

    Raises:
        InputError: the file cannot be read, or a line is no failure.
    """
    if not Path(path).exists():
        return []
    return [validated(Failure, row, file=path, line=line) for line, row in read_jsonl(path)]


def write_failures(path: Path | str, failures: Iterable[Failure]) -> int:
    """Write what was left out as JSON Lines, whole or not at all, and return how many; none makes an empty file."""
    return write_jsonl(path, (failure.model_dump(mode="json") for failure in failures))


def replace_failures(path: Path | str, source: str, failures: Iterable[Failure]) -> None:
    """Write what one output left out into a `failures.jsonl` that several share: its earlier rows go, others stay.

    Args:
        path: the shared file; without any row it is removed.
        source: name of the output, which its rows get as their source.
        failures: each with a `sample_id`.
    """
    own = [failure.model_copy(update={"source": source}) for failure in failures]
    others = [failure for failure in read_failures(path) if failure.source != source]
    if own or others:
        write_failures(path, [*others, *own])
    else:
        Path(path).unlink(missing_ok=True)


def _rows(studies: Iterable[Study], folder: Path, path: Path | str) -> Iterator[dict[str, Any]]:
    line_of: dict[str, int] = {}
    for line, study in enumerate(studies, start=1):
        first = line_of.setdefault(study.sample_id, line)
        if first != line:
            message = f"must be unique, but samples {first} and {line} are both '{study.sample_id}'"
            raise InputError(message, file=path, field="sample_id")
        relative = {c: p.relative_to(folder) if p.is_relative_to(folder) else p for c, p in _images(study)}
        yield study.model_dump(mode="json") | {column: image.as_posix() for column, image in relative.items()}


def folder_of(path: Path | str) -> Path:
    """What the relative paths of a manifest's images are relative to."""
    # Not resolve(): a data set is often a folder of links, and stays under the name that the user knows it by.
    return Path(os.path.normpath(Path(path).parent.absolute()))


def _images(study: Study) -> Iterator[tuple[str, Path]]:
    for column in IMAGE_COLUMNS:
        if (image := getattr(study, column)) is not None:
            yield column, image


def _check_columns(row: dict[str, Any], file: Path | str, line: int | None) -> None:
    unknown = row.keys() - _COLUMNS
    for column in (c for c in row if c in unknown):
        hint = suggest_name(column, Study.model_fields, f"known are {', '.join(Study.model_fields)}")
        raise InputError(f"unknown column; {hint}", file=file, line=line, field=column)
