"""Random access to the studies of manifests and shards, without holding them in memory."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from maira.data.images import Gray, image_size, load_gray
from maira.data.manifest import manifest_folder, parse_study
from maira.data.shards import PackedSample, Shards
from maira.data.study import IMAGE_COLUMNS, Study
from maira.train.config.run_config import DataSource
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import parse_rows

Offsets = npt.NDArray[np.uint64]

_READ = 2**24
_LINES = 256


class StudyHeader(NamedTuple):
    """A study without pixels: its number in the source, and the (width, height) of its frontal."""

    number: int
    study: Study
    frontal_size: tuple[int, int]


class UnreadableSample(InputError):
    """An image or line of a sample that existed when the run began cannot be read."""


class StudySource(Protocol):
    """Studies by number.

    Attributes:
        location: path or URL, for messages.
        count: upper bound of the numbers, some of which may have no study.
    """

    location: str
    count: int

    def key(self) -> Any:
        """Return a JSON value that changes when the studies change."""

    def line(self, number: int) -> int | None:
        """Return the line of a study in a text file; None for other sources."""

    def scan(
        self, begin: int, end: int, split: str | None, errors: list[InputError] | None = None
    ) -> Iterator[StudyHeader]:
        """Yield the studies of a range of numbers without the pixels of their images.

        Args:
            begin: first number.
            end: number after the last.
            split: of the studies; None for all.
            errors: receives the errors of images, whose studies are skipped; None raises the first one.

        Raises:
            InputError: a study or an image cannot be read.
        """

    def read(self, number: int) -> PackedSample:
        """Return a study, with the bytes of its images if they are stored with it.

        Raises:
            UnreadableSample: the bytes are damaged.
            InputError: the study cannot be read.
        """

    def radiograph(self, sample: PackedSample, column: str) -> Gray:
        """Return the gray levels of an image of a study, (height, width).

        Args:
            sample: the study.
            column: of the image.

        Raises:
            UnreadableSample: the image cannot be read.
        """


class ManifestSource:
    """The lines of a manifest, numbered from 0.

    Args:
        path: `manifest.jsonl`.
        offsets: (lines + 1,), byte offsets of the lines and the end; None computes them.

    Raises:
        InputError: the file cannot be read.
    """

    def __init__(self, path: Path, offsets: Offsets | None = None) -> None:
        self.path, self.location = path, str(path)
        self.offsets = line_offsets(path) if offsets is None else offsets
        self.count = len(self.offsets) - 1
        self._folder = manifest_folder(path)

    def key(self) -> Any:
        """Return the name, size and time of the file."""
        return manifest_key(self.path)

    def line(self, number: int) -> int:
        """See `StudySource`."""
        return number + 1

    def scan(
        self, begin: int, end: int, split: str | None, errors: list[InputError] | None = None
    ) -> Iterator[StudyHeader]:
        """See `StudySource`."""
        for first in range(begin, end, _LINES):
            for line, row in self._rows(first, min(first + _LINES, end)):
                study = parse_study(row, self._folder, file=self.path, line=line)
                if split is not None and study.split != split:
                    continue
                size, image_errors = check_images(study)
                if size is not None and not image_errors:
                    yield StudyHeader(line - 1, study, size)
                elif errors is None:
                    raise image_errors[0]
                else:
                    errors += image_errors

    def read(self, number: int) -> PackedSample:
        """See `StudySource`."""
        for line, row in self._rows(number, number + 1):
            return PackedSample(parse_study(row, self._folder, file=self.path, line=line), {})
        raise InputError("has changed since the run began: the line is blank", file=self.path, line=number + 1)

    def radiograph(self, sample: PackedSample, column: str) -> Gray:
        """See `StudySource`."""
        return _load(getattr(sample.study, column))

    def _rows(self, begin: int, end: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Line numbers from 1 and objects of the lines from one number up to another."""
        at = int(self.offsets[begin])
        try:
            with self.path.open("rb") as handle:
                handle.seek(at)
                content = handle.read(int(self.offsets[end]) - at)
            text = content.decode("utf-8" if at else "utf-8-sig")
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", file=self.path) from None
        except UnicodeDecodeError as error:
            raise InputError(f"not UTF-8 text (byte {at + error.start})", file=self.path) from None
        # Not splitlines(): JSON strings may hold U+2028 and its like.
        return parse_rows(text.removesuffix("\n").split("\n"), self.path, begin + 1)


class ShardSource:
    """The samples of shards.

    Args:
        location: folder or URL.

    Raises:
        InputError: the index is missing or does not match the shards.
    """

    def __init__(self, location: str) -> None:
        self.shards, self.location = Shards(location), location
        self.count = len(self.shards)

    def key(self) -> Any:
        """Return the checksum of the index, which has those of all samples."""
        return [self.location, hashlib.sha256(self.shards.rows.tobytes()).hexdigest()]

    def line(self, number: int) -> None:
        """See `StudySource`."""

    def scan(
        self, begin: int, end: int, split: str | None, errors: list[InputError] | None = None
    ) -> Iterator[StudyHeader]:
        """See `StudySource`."""
        splits = self.shards.index.splits
        for number in range(begin, end):
            if split is not None and splits[int(self.shards.rows[number]["split"])] != split:
                continue
            study, head = self.shards.head(number)
            try:
                size = self._frontal_size(number, study, head)
            except InputError as error:
                if errors is None:
                    raise
                errors.append(error)
            else:
                yield StudyHeader(number, study, size)

    def read(self, number: int) -> PackedSample:
        """See `StudySource`."""
        try:
            return self.shards[number]
        except InputError as error:
            raise UnreadableSample(error.message, code=error.code, file=error.file) from None

    def radiograph(self, sample: PackedSample, column: str) -> Gray:
        """See `StudySource`."""
        return _load(self._name(getattr(sample.study, column)), io.BytesIO(sample.images[column]))

    def _frontal_size(self, number: int, study: Study, head: bytes) -> tuple[int, int]:
        try:
            return image_size(study.frontal, io.BytesIO(head))
        except InputError:
            # Its header is longer than what was read.
            content = self.shards[number].images["frontal"]
            return image_size(self._name(study.frontal), io.BytesIO(content))

    def _name(self, image: Path) -> Path:
        return Path(self.shards.path_of(image.name))


def open_source(source: DataSource, offsets: Offsets | None = None) -> StudySource:
    """Open a source.

    Args:
        source: a manifest or shards.
        offsets: of a manifest's lines, if known.

    Raises:
        InputError: the source cannot be read.
    """
    if source.manifest is not None:
        return ManifestSource(source.manifest, offsets)
    return ShardSource(str(source.shards))


def manifest_key(path: Path) -> Any:
    """Return the name, size and modification time of a manifest.

    Raises:
        InputError: the file does not exist.
    """
    try:
        status = path.stat()
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise InputError("no such file" if missing else f"cannot be read: {error.strerror}", file=path) from None
    return [str(path), status.st_size, status.st_mtime_ns]


def check_images(study: Study) -> tuple[tuple[int, int] | None, list[UnreadableSample]]:
    """Check the images of a study without reading pixels.

    Args:
        study: with its images as files.

    Returns:
        (width, height) of the frontal, if known, and the errors of all images.
    """
    size, errors = None, []
    try:
        size = image_size(study.frontal)
    except InputError as error:
        errors.append(UnreadableSample(error.message, code=error.code, file=error.file))
    others: list[Path | None] = [getattr(study, column) for column in IMAGE_COLUMNS[1:]]
    errors += [
        UnreadableSample("no such file", code=ErrorCode.FILE_NOT_FOUND, file=image)
        for image in others
        if image is not None and not image.is_file()
    ]
    return size, errors


def _load(path: Path, content: io.BytesIO | None = None) -> Gray:
    try:
        return load_gray(path, content)
    except InputError as error:
        raise UnreadableSample(error.message, code=error.code, file=error.file) from None


def line_offsets(path: Path) -> Offsets:
    """Return the byte offsets of the lines of a file and of its end: (lines + 1,).

    Raises:
        InputError: the file cannot be read.
    """
    parts = [np.zeros(1, np.uint64)]
    size = 0
    try:
        with path.open("rb") as handle:
            while content := handle.read(_READ):
                ends = np.flatnonzero(np.frombuffer(content, np.uint8) == ord("\n"))
                parts.append((ends + size + 1).astype(np.uint64))
                size += len(content)
    except FileNotFoundError:
        raise InputError("no such file", code=ErrorCode.FILE_NOT_FOUND, file=path) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=path) from None
    offsets = np.concatenate(parts)
    # A last line may lack its end.
    return offsets if offsets[-1] == size else np.append(offsets, np.uint64(size))
