"""Random access to the studies of manifests and shards, without holding them in memory."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from maira.data.images import Gray, image_size, load_gray
from maira.data.manifest import manifest_folder, parse_study
from maira.data.shards import PackedSample, Shards
from maira.data.study import IMAGE_COLUMNS, Study
from maira.train.config.run_config import AnomalyConfig, DataSource
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import parse_rows, reading

_LINES = 256


class StudyHeader(NamedTuple):
    """A study without pixels: its number in the source, and the (width, height) of its frontal."""

    number: int
    study: Study
    frontal_size: tuple[int, int]


class UnreadableSample(InputError):
    """An image or line of a sample that existed when the run began cannot be read."""


@contextmanager
def reading_sample() -> Iterator[None]:
    """Context in which an `InputError` means that a sample cannot be read."""
    try:
        yield
    except InputError as error:
        place: dict[str, Any] = {"file": error.file, "line": error.line, "field": error.field}
        raise UnreadableSample(error.message, code=error.code, **place) from None


@contextmanager
def skipping_unreadable(config: AnomalyConfig, owner: str) -> Iterator[list[str]]:
    """Context for one sample; if it is unreadable, the list receives the reason, or the run ends."""
    reasons: list[str] = []
    try:
        yield reasons
    except UnreadableSample as error:
        if config.unreadable == "stop":
            hint = "Repair it, or set faults.unreadable=skip to skip such samples; the same command then resumes"
            message = f"{error.message}, in a sample of {owner}. {hint}"
            raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=error.file, line=error.line) from None
        reasons.append(str(error))


class ManifestSource:
    """The lines of a manifest, numbered from 0."""

    def __init__(self, path: Path) -> None:
        self.path, self.location = path, str(path)
        with reading(path), path.open("rb") as lines:
            self._version = _version(os.fstat(lines.fileno()))
            # (lines + 1,), byte offsets of the lines and the end
            self._offsets = np.cumsum([0, *map(len, lines)], dtype=np.uint64)
        self.count = len(self._offsets) - 1  # upper bound of the numbers, some of which may have no study
        self._folder = manifest_folder(path)

    def key(self) -> Any:
        """Return the name, size and modification time of the file."""
        return [self.location, *self._version]

    def scan(self, begin: int, end: int, split: str | None, errors: list[InputError]) -> Iterator[StudyHeader]:
        """Yield the studies of a range and split (None: all); `errors` gets those of images."""
        for first in range(begin, end, _LINES):
            for line, row in self._rows(first, min(first + _LINES, end)):
                study = parse_study(row, self._folder, file=self.path, line=line)
                if split is not None and study.split != split:
                    continue
                size, image_errors = check_images(study)
                if size is not None and not image_errors:
                    yield StudyHeader(line - 1, study, size)
                errors += image_errors

    def read(self, number: int) -> PackedSample:
        """Return a study, with the bytes of its images if they are stored with it."""
        for line, row in self._rows(number, number + 1):
            return PackedSample(parse_study(row, self._folder, file=self.path, line=line), {})
        raise InputError("expected a study, found a blank line", file=self.path, line=number + 1)

    def radiograph(self, sample: PackedSample, column: str) -> Gray:
        """Return the gray levels of an image of a study, (height, width)."""
        return load_gray(getattr(sample.study, column))

    def _rows(self, begin: int, end: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield line numbers from 1 and objects of the lines from one number up to another."""
        at = int(self._offsets[begin])
        with reading(self.path), self.path.open("rb") as handle:
            if _version(os.fstat(handle.fileno())) != self._version:
                message = "has changed since the run began; the data of a run must not change"
                raise InputError(message, code=ErrorCode.MISMATCH, file=self.path)
            handle.seek(at)
            content = handle.read(int(self._offsets[end]) - at)
        try:
            text = content.decode("utf-8" if at else "utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(f"not UTF-8 text (byte {at + error.start})", file=self.path) from None
        # Not splitlines(): JSON strings may hold U+2028 and its like.
        return parse_rows(text.removesuffix("\n").split("\n"), self.path, begin + 1)


class ShardSource:
    """The samples of shards in a folder or at a URL; methods as those of `ManifestSource`."""

    def __init__(self, location: str) -> None:
        self.shards, self.location = Shards(location), location
        self.count = len(self.shards)

    def key(self) -> Any:
        """Return the checksum of the index, which has those of all samples."""
        return [self.location, hashlib.sha256(self.shards.rows.tobytes()).hexdigest()]

    def scan(self, begin: int, end: int, split: str | None, errors: list[InputError]) -> Iterator[StudyHeader]:
        splits = self.shards.index.splits
        for number in range(begin, end):
            if split is not None and splits[int(self.shards.rows[number]["split"])] != split:
                continue
            study, head = self.shards.head(number)
            try:
                yield StudyHeader(number, study, self._frontal_size(number, study, head))
            except InputError as error:
                errors.append(error)

    def read(self, number: int) -> PackedSample:
        with reading_sample():
            return self.shards[number]

    def radiograph(self, sample: PackedSample, column: str) -> Gray:
        return load_gray(self._name(getattr(sample.study, column)), io.BytesIO(sample.images[column]))

    def _frontal_size(self, number: int, study: Study, head: bytes) -> tuple[int, int]:
        try:
            return image_size(study.frontal, io.BytesIO(head))
        except InputError:
            # Its header is longer than what was read.
            return image_size(self._name(study.frontal), io.BytesIO(self.shards[number].images["frontal"]))

    def _name(self, image: Path) -> Path:
        return Path(self.shards.path_of(image.name))


StudySource = ManifestSource | ShardSource


def open_source(source: DataSource) -> StudySource:
    return ShardSource(str(source.shards)) if source.manifest is None else ManifestSource(source.manifest)


def check_images(study: Study) -> tuple[tuple[int, int] | None, list[UnreadableSample]]:
    """Return (width, height) of a study's frontal, if known, and the errors of all its images, without their pixels."""
    size: tuple[int, int] | None = None
    errors: list[UnreadableSample] = []
    try:
        with reading_sample():
            size = image_size(study.frontal)
    except UnreadableSample as error:
        errors.append(error)
    others = [image for column in IMAGE_COLUMNS[1:] if (image := getattr(study, column)) is not None]
    missing = [image for image in others if not image.is_file()]
    errors += [UnreadableSample("no such file", code=ErrorCode.FILE_NOT_FOUND, file=image) for image in missing]
    return size, errors


def _version(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns
