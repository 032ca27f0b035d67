"""Read training shards with random access: one read of a file or object store per sample.

Shards are tar files in the layout of WebDataset (https://github.com/webdataset/webdataset: consecutive files of a
sample share the name up to the first dot), so other tools can stream them; `pack_shards.py` writes them. A sample is
one range of bytes and one request to an object store, so an image shown in several samples is stored with each.
Parquet would store images in row groups, which can only be read as a whole.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import NonNegativeInt

from maira.data.manifest import parse_study
from maira.data.study import IMAGE_COLUMNS, Study
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import parse_rows
from radfact.records import Record, validate_model

INDEX, ROWS = "index.json", "index.npy"
FORMAT: Final = 1

ROW = np.dtype(
    [
        ("shard", "<u4"),
        ("offset", "<u8"),
        ("size", "<u4"),
        ("crc32", "<u4"),
        ("split", "<u2"),
        ("source", "<u2"),
        ("findings", "?"),
        ("grounded", "?"),
        ("phrases", "<u2"),
    ]
)
"""A sample in the index: its shard, byte range and checksum, its split and source (positions in the lists of `Index`),
whether it has findings and a grounded report, and its number of phrases."""

_HEAD_BYTES = 2**14
"""Enough for the record of most samples and the header of the first image."""
_MAX_OPEN_FILES = 256
_CHUNK_BYTES = 2**24


class Shard(Record):
    """A tar file: its name, size, checksum and number of samples."""

    name: str
    bytes: NonNegativeInt
    sha256: str
    samples: NonNegativeInt


class Index(Record):
    """Content of `index.json`; `index.npy` contains a `ROW` for each sample."""

    format: Literal[1]
    samples: NonNegativeInt
    shards: list[Shard]
    splits: list[str | None]
    sources: list[str | None]


@dataclass(frozen=True)
class PackedSample:
    """A packed sample.

    Attributes:
        study: the sample; its image paths are names of shard members.
        images: bytes of the image files by column of the study ("frontal", "lateral", "prior_frontal").
    """

    study: Study
    images: dict[str, bytes]


class Shards:
    """Packed samples by number. Thread-safe, and can be pickled.

    Attributes:
        index: names, sizes and checksums of the shards, names of splits and sources.
        rows: (samples,) of `ROW`, to select samples without reading them.
    """

    def __init__(self, location: Path | str) -> None:
        self.location = str(location)
        self._files = _RemoteFiles(self.location) if "://" in self.location else _LocalFiles(Path(location))
        row = _parse_object(self._files.read(INDEX), self.path_of(INDEX))
        self.index = validate_model(Index, row, file=self.path_of(INDEX))
        try:
            self.rows: npt.NDArray[Any] = np.load(io.BytesIO(self._files.read(ROWS)), allow_pickle=False)
        except (ValueError, EOFError):
            message = "expected an index of shards; the file is damaged"
            raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=self.path_of(ROWS)) from None
        if self.rows.dtype != ROW or len(self.rows) != self.index.samples:
            message = f"expected {self.index.samples} samples as in {INDEX}, found {len(self.rows)}"
            raise InputError(message, code=ErrorCode.MISMATCH, file=self.path_of(ROWS))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> PackedSample:
        """Read a sample with its images."""
        members = self._members(number)
        columns = {name.split(".")[1]: content for name, content in members.items()}
        images = {column: content for column, content in columns.items() if column in IMAGE_COLUMNS}
        return PackedSample(self._study(number, members), images)

    def __iter__(self) -> Iterator[PackedSample]:
        return self.read(range(len(self)))

    def read(self, numbers: Iterable[int]) -> Iterator[PackedSample]:
        """Iterate over the samples of the given numbers."""
        return (self[number] for number in numbers)

    def study(self, number: int) -> Study:
        """Return a sample without its images; their paths are valid arguments of `image`."""
        return self._study(number, self._members(number))

    def head(self, number: int) -> tuple[Study, bytes]:
        """Read the start of a sample without verifying its checksum, to scan many samples.

        Returns:
            The study, and the first bytes of its frontal image, usually including the image header.
        """
        row = self.rows[number]
        name = self.index.shards[int(row["shard"])].name
        begin, size = int(row["offset"]), int(row["size"])
        members: dict[str, bytes] = {}
        # The record comes first and the frontal next, each after a tar header with its name and size.
        for length in (min(size, _HEAD_BYTES), size):
            members = _leading_members(self._files.read(name, begin, begin + length))
            if len(members) > 1:
                break
        if not any(member.endswith(".json") for member in members):
            raise self._damaged(number, name)
        frontal = next((member for key, member in members.items() if key.split(".")[1] == "frontal"), b"")
        return self._study(number, members), frontal

    def image(self, path: Path | str) -> bytes:
        """Return the bytes of an image file."""
        name = Path(path).name
        key = name.split(".")[0]
        content = self._members(int(key)).get(name) if key.isdecimal() and int(key) < len(self) else None
        if content is None:
            raise InputError(f"no image {name}", code=ErrorCode.FILE_NOT_FOUND, file=self.location)
        return content

    def check(self, on_progress: Callable[[int, int], None] | None = None) -> list[str]:
        """Verify size and checksum of all shards, and return one line per defect."""
        defects = []
        for number, shard in enumerate(self.index.shards, start=1):
            file = self.path_of(shard.name)
            digest, size = hashlib.sha256(), 0
            try:
                while chunk := self._files.read(shard.name, size, size + _CHUNK_BYTES):
                    digest.update(chunk)
                    size += len(chunk)
            except InputError as error:
                defects.append(str(error))
                continue
            if size != shard.bytes:
                defects.append(f"{file}: expected {shard.bytes} bytes, found {size}")
            elif digest.hexdigest() != shard.sha256:
                defects.append(f"{file}: the checksum differs; the file was changed")
            if on_progress:
                on_progress(number, len(self.index.shards))
        return defects

    def path_of(self, name: str) -> str:
        """Return the path or URL of a file."""
        return f"{self.location.rstrip('/')}/{name}"

    def _members(self, number: int) -> dict[str, bytes]:
        """Return the files of a sample by name."""
        row = self.rows[number]
        name = self.index.shards[int(row["shard"])].name
        begin, size = int(row["offset"]), int(row["size"])
        content = self._files.read(name, begin, begin + size)
        if len(content) != size or zlib.crc32(content) != row["crc32"]:
            raise self._damaged(number, name)
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            return {member.name: content[member.offset_data : member.offset_data + member.size] for member in archive}

    def _damaged(self, number: int, shard: str) -> InputError:
        begin, size = int(self.rows[number]["offset"]), int(self.rows[number]["size"])
        message = f"sample {number} (bytes {begin} to {begin + size}) is damaged"
        return InputError(message, code=ErrorCode.INVALID_FORMAT, file=self.path_of(shard))

    def _study(self, number: int, members: dict[str, bytes]) -> Study:
        name = next(name for name in members if name.endswith(".json"))
        file = f"{self.path_of(self.index.shards[int(self.rows[number]['shard'])].name)}: {name}"
        return parse_study(_parse_object(members[name], file), Path(), file=file)


def _leading_members(content: bytes) -> dict[str, bytes]:
    """Return the tar members at the start of a sample by name; the last one may be truncated if it is an image."""
    members = {}
    at = 0
    while at + tarfile.BLOCKSIZE <= len(content):
        try:
            member = tarfile.TarInfo.frombuf(content[at : at + tarfile.BLOCKSIZE], "utf-8", "strict")
        except tarfile.TarError:
            break
        at += tarfile.BLOCKSIZE
        if at + member.size > len(content) and member.name.endswith(".json"):
            break
        members[member.name] = content[at : at + member.size]
        at += -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    return members


def _parse_object(content: bytes, file: str) -> dict[str, Any]:
    """Parse a JSON object on one or several lines."""
    try:
        text = content.decode("utf-8").replace("\n", " ")
    except UnicodeDecodeError as error:
        message = f"expected UTF-8 text, found an invalid byte at {error.start}"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=file) from None
    rows = [row for _, row in parse_rows([text], file)]
    if not rows:
        raise InputError("expected a JSON object, found nothing", code=ErrorCode.EMPTY_INPUT, file=file)
    return rows[0]


class _LocalFiles:
    """Files in a local folder; the last used files stay open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: OrderedDict[str, _Descriptor] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        try:
            if end is None:
                return (self.folder / name).read_bytes()
            handle = self._handle(name)
            # pread() has no file position that threads or forked processes would share.
            return os.pread(handle.number, end - begin, begin)
        except FileNotFoundError:
            raise InputError("no such file", code=ErrorCode.FILE_NOT_FOUND, file=self.folder / name) from None
        except OSError as error:
            message = f"cannot be read: {error.strerror}"
            raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=self.folder / name) from None

    def _handle(self, name: str) -> _Descriptor:
        with self._lock:
            handle = self._open.pop(name, None) or _Descriptor(self.folder / name)
            self._open[name] = handle
            if len(self._open) > _MAX_OPEN_FILES:
                self._open.popitem(last=False)
            return handle

    def __reduce__(self) -> tuple[type[_LocalFiles], tuple[Path]]:
        return _LocalFiles, (self.folder,)


class _Descriptor:
    """An open file, closed when the last reader releases it."""

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


class _RemoteFiles:
    """Files below a URL, through fsspec."""

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ModuleNotFoundError:
            raise InputError("a URL needs the package fsspec: pip install fsspec", file=url) from None
        self.url = url.rstrip("/")
        try:
            self.system, self.root = url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise InputError(f"cannot open the URL: {error}", code=ErrorCode.FILE_UNREADABLE, file=url) from None

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        try:
            content: bytes = self.system.cat_file(f"{self.root}/{name}", start=begin or None, end=end)
        except FileNotFoundError:
            message = "no such file"
            raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=f"{self.url}/{name}") from None
        except OSError as error:
            message = f"cannot be read: {error}"
            raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=f"{self.url}/{name}") from None
        return content

    def __reduce__(self) -> tuple[type[_RemoteFiles], tuple[str]]:
        return _RemoteFiles, (self.url,)
