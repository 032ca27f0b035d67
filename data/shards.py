"""Read training shards with random access: one read of a file or object store per sample.

Shards are tar files in the layout of WebDataset (https://github.com/webdataset/webdataset: consecutive files of a
sample share the name up to the first dot), so other tools can stream them; `pack_shards.py` writes them. A sample is
one range of bytes and one request to an object store, so an image shown in several samples is stored with each.
Parquet would store images in row groups, which can only be read as a whole.
"""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import NonNegativeInt

from maira.data.manifest import parse_study
from maira.data.study import IMAGE_COLUMNS, Study
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import parse_json
from radfact.records import Row, validate_model

INDEX, ROWS = "index.json", "index.npy"
FORMAT: Final = 1

_PLACE = [("shard", "<u4"), ("offset", "<u8"), ("size", "<u4"), ("crc32", "<u4")]
_CONTENT = [("split", "<u2"), ("source", "<u2"), ("findings", "?"), ("grounded", "?"), ("phrases", "<u2")]
ROW = np.dtype([*_PLACE, *_CONTENT])
"""A sample in the index: its shard, byte range and checksum, its split and source (positions in the lists of `Index`),
whether it has findings and a grounded report, and its number of phrases."""

_HEAD_BYTES = 2**14
"""Enough for the record of most samples and the header of the first image."""


class Shard(Row):
    """A tar file: its name, size and number of samples."""

    name: str
    bytes: NonNegativeInt
    samples: NonNegativeInt


class Index(Row):
    """Content of `index.json`; `index.npy` contains a `ROW` for each sample."""

    format: Literal[1]
    samples: NonNegativeInt
    shards: list[Shard]
    splits: list[str | None]
    sources: list[str | None]


@dataclass(frozen=True)
class PackedSample:
    """A sample, and the bytes of its images by column; its image paths are names of shard members."""

    study: Study
    images: dict[str, bytes]


class Shards:
    """Packed samples by number, in a folder or below a URL (`s3://...`, `memory://...`). Can be pickled.

    The `index` names shards, splits and sources; `rows`, (samples,) of `ROW`, select samples without reading them.
    """

    def __init__(self, location: Path | str) -> None:
        from fsspec.core import url_to_fs

        self.location = str(location)
        try:
            self._system, self._root = url_to_fs(self.location)
        except (ImportError, ValueError) as error:
            message = f"cannot open the URL: {error}"
            raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=self.location) from None
        content = parse_json(_text(self._read(INDEX), self.path_of(INDEX)), self.path_of(INDEX))
        self.index = validate_model(Index, content, file=self.path_of(INDEX))
        try:
            self.rows: npt.NDArray[Any] = np.load(io.BytesIO(self._read(ROWS)), allow_pickle=False)
        except (ValueError, EOFError):
            message = "expected an index of shards; the file is damaged"
            raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=self.path_of(ROWS)) from None
        if self.rows.dtype != ROW or len(self.rows) != self.index.samples:
            message = f"expected {self.index.samples} samples as in {INDEX}, found {len(self.rows)}"
            raise InputError(message, code=ErrorCode.MISMATCH, file=self.path_of(ROWS))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[PackedSample]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> PackedSample:
        """Read a sample with its images; its checksum is verified."""
        name, begin, size = self._place(number)
        content = self._read(name, begin, begin + size)
        if len(content) != size or zlib.crc32(content) != self.rows[number]["crc32"]:
            raise self._damaged(number)
        members = _members(content)
        columns = {member.split(".")[1]: content for member, content in members.items()}
        images = {column: content for column, content in columns.items() if column in IMAGE_COLUMNS}
        return PackedSample(self._study(number, members), images)

    def head(self, number: int) -> tuple[Study, bytes]:
        """Read a sample, and the first bytes of its frontal image, usually with the image header.

        Its checksum is not verified: this serves to scan many samples.
        """
        name, begin, size = self._place(number)
        members: dict[str, bytes] = {}
        # The record comes first and the frontal next, each after a tar header with its name and size.
        for length in (min(size, _HEAD_BYTES), size):
            members = _members(self._read(name, begin, begin + length))
            if len(members) > 1:
                break
        frontal = next((member for key, member in members.items() if key.split(".")[1] == "frontal"), b"")
        return self._study(number, members), frontal

    def path_of(self, name: str) -> str:
        """Return the path or URL of a file."""
        return f"{self.location.rstrip('/')}/{name}"

    def _place(self, number: int) -> tuple[str, int, int]:
        """Return the shard of a sample, and the begin and length of its bytes there."""
        row = self.rows[number]
        return self.index.shards[int(row["shard"])].name, int(row["offset"]), int(row["size"])

    def _read(self, name: str, begin: int | None = None, end: int | None = None) -> bytes:
        try:
            content: bytes = self._system.cat_file(f"{self._root}/{name}", start=begin, end=end)
        except FileNotFoundError:
            raise InputError("no such file", code=ErrorCode.FILE_NOT_FOUND, file=self.path_of(name)) from None
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
            raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=self.path_of(name)) from None
        return content

    def _study(self, number: int, members: dict[str, bytes]) -> Study:
        name = next((name for name in members if name.endswith(".json")), None)
        if name is None:
            raise self._damaged(number)
        file = f"{self.path_of(self._place(number)[0])}: {name}"
        return parse_study(parse_json(_text(members[name], file), file), Path(), file=file)

    def _damaged(self, number: int) -> InputError:
        name, begin, size = self._place(number)
        message = f"sample {number} (bytes {begin} to {begin + size}) is damaged"
        return InputError(message, code=ErrorCode.INVALID_FORMAT, file=self.path_of(name))


def _members(content: bytes) -> dict[str, bytes]:
    """Return the tar members at the start of a sample by name; the last one may be truncated if it is an image."""
    members = {}
    with suppress(tarfile.TarError), tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        for member in archive:
            end = member.offset_data + member.size
            if end <= len(content) or not member.name.endswith(".json"):
                members[member.name] = content[member.offset_data : end]
    return members


def _text(content: bytes, file: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"expected UTF-8 text, found an invalid byte at {error.start}"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=file) from None
