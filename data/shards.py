"""Read training shards: any sample at random by one read of a file or an object store.

Shards are plain tar files in WebDataset's layout (https://github.com/webdataset/webdataset: the files of one sample
share the name up to the first dot and follow one another), so that other tools stream them; `data.pack_shards` writes them.
An image that several samples show is stored with each: a sample is one range of bytes, and on an object store one
request. Parquet would hold its images in row groups, which are only read whole.
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

from data.manifest import parse_study
from data.study import IMAGE_COLUMNS, Study
from radfact.errors import InputError
from radfact.io.jsonl import parse_rows
from radfact.records import Record, validated

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
"""A sample in the index: where its bytes lie in which shard, their checksum, its split and source (places in the lists
of `Index`), whether it has findings and a grounded report, and its number of phrases."""

_HEAD = 2**14
"""Bytes that mostly hold the record of a sample and the header of its first image."""
_MOST_OPEN = 256
_PART = 2**24


class Shard(Record):
    """One tar file: its name, size and checksum, and how many samples it has."""

    name: str
    bytes: NonNegativeInt
    sha256: str
    samples: NonNegativeInt


class Index(Record):
    """`index.json`; `index.npy` beside it has a `ROW` for each sample."""

    format: Literal[1]
    samples: NonNegativeInt
    shards: list[Shard]
    splits: list[str | None]
    sources: list[str | None]


@dataclass(frozen=True)
class PackedSample:
    """A sample as it was packed.

    Attributes:
        study: its images are named as members of the shard.
        images: the files' bytes as they were, by column of the study ("frontal", "lateral", "prior_frontal").
    """

    study: Study
    images: dict[str, bytes]


class Shards:
    """Packed samples, by number and in any order.

    May be used from several threads, and be handed to other processes.

    Args:
        where: folder of the shards, or its URL (`s3://...`, `memory://...`), which needs fsspec.

    Raises:
        InputError: there is no index, or it does not fit the shards.

    Attributes:
        index: names, sizes and checksums of the shards, names of splits and sources.
        rows: (samples,) of `ROW`, to choose samples by without reading them.
    """

    def __init__(self, where: Path | str) -> None:
        self.where = str(where)
        self._files = _Remote(self.where) if "://" in self.where else _Local(Path(where))
        row = _one_row(self._files.read(INDEX), self.where_is(INDEX))
        self.index = validated(Index, row, file=self.where_is(INDEX))
        try:
            self.rows: npt.NDArray[Any] = np.load(io.BytesIO(self._files.read(ROWS)), allow_pickle=False)
        except (ValueError, EOFError):
            raise InputError("is no index of shards, or a damaged one", file=self.where_is(ROWS)) from None
        if self.rows.dtype != ROW or len(self.rows) != self.index.samples:
            message = f"has {len(self.rows)} samples, but {INDEX} speaks of {self.index.samples}"
            raise InputError(message, file=self.where_is(ROWS))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> PackedSample:
        """One sample with its images, by one read.

        Raises:
            IndexError: there is no sample of this number.
            InputError: the shard cannot be read, or what is there is not what was packed.
        """
        members = self._members(number)
        images = {}
        for name, content in members.items():
            column = name.split(".")[1]
            if column in IMAGE_COLUMNS:
                images[column] = content
        return PackedSample(self._study(number, members), images)

    def __iter__(self) -> Iterator[PackedSample]:
        return self.read(range(len(self)))

    def read(self, numbers: Iterable[int]) -> Iterator[PackedSample]:
        """The samples of these numbers in their order."""
        return (self[number] for number in numbers)

    def study(self, number: int) -> Study:
        """One sample without its images, which are named as `image` takes them."""
        return self._study(number, self._members(number))

    def head(self, number: int) -> tuple[Study, bytes]:
        """One sample by a short read that leaves its checksum unproven: to look through many of them.

        Returns:
            The study, and the first bytes of its frontal, at least as many as an image's header mostly has.

        Raises:
            InputError: the shard cannot be read, or a sample's record is not there.
        """
        row = self.rows[number]
        name = self.index.shards[int(row["shard"])].name
        begin, size = int(row["offset"]), int(row["size"])
        members: dict[str, bytes] = {}
        # The record comes first and the frontal next, each behind a block with its name and size.
        wanted = min(size, _HEAD)
        while True:
            content = self._files.read(name, begin, begin + wanted)
            members = _whole_and_cut(content)
            if len(members) > 1 or wanted == size:
                break
            wanted = size
        if not any(member.endswith(".json") for member in members):
            raise InputError(f"sample {number} is not as it was packed; the shard is damaged", file=self.where_is(name))
        frontal = next((member for key, member in members.items() if key.split(".")[1] == "frontal"), b"")
        return self._study(number, members), frontal

    def image(self, path: Path | str) -> bytes:
        """The file of an image as it was packed.

        Args:
            path: as a study of these shards names it.

        Raises:
            InputError: no sample here has such an image.
        """
        name = Path(path).name
        key = name.split(".")[0]
        content = self._members(int(key)).get(name) if key.isdecimal() and int(key) < len(self) else None
        if content is None:
            raise InputError(f"there is no image {name}", file=self.where)
        return content

    def check(self, on_progress: Callable[[int, int], None] | None = None) -> list[str]:
        """What is wrong with the shards, each as one line: files that are missing, or are not as they were written.

        Args:
            on_progress: called with (shards checked, shards in all).
        """
        wrong = []
        for number, shard in enumerate(self.index.shards, start=1):
            file = self.where_is(shard.name)
            digest, read = hashlib.sha256(), 0
            try:
                while part := self._files.read(shard.name, read, read + _PART):
                    digest.update(part)
                    read += len(part)
            except InputError as error:
                wrong.append(str(error))
                continue
            if read != shard.bytes:
                wrong.append(f"{file}: has {read} bytes, and was written with {shard.bytes}")
            elif digest.hexdigest() != shard.sha256:
                wrong.append(f"{file}: its content has changed since it was written")
            if on_progress:
                on_progress(number, len(self.index.shards))
        return wrong

    def where_is(self, name: str) -> str:
        """Path or URL of one of the files."""
        return f"{self.where.rstrip('/')}/{name}"

    def _members(self, number: int) -> dict[str, bytes]:
        """Files of a sample by name."""
        row = self.rows[number]
        name = self.index.shards[int(row["shard"])].name
        begin, size = int(row["offset"]), int(row["size"])
        content = self._files.read(name, begin, begin + size)
        if len(content) != size or zlib.crc32(content) != row["crc32"]:
            message = f"sample {number} (bytes {begin} to {begin + size}) is not as it was packed; the shard is damaged"
            raise InputError(message, file=self.where_is(name))
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            return {member.name: content[member.offset_data : member.offset_data + member.size] for member in archive}

    def _study(self, number: int, members: dict[str, bytes]) -> Study:
        name = next(name for name in members if name.endswith(".json"))
        file = f"{self.where_is(self.index.shards[int(self.rows[number]['shard'])].name)}: {name}"
        return parse_study(_one_row(members[name], file), Path(), file=file)


def _whole_and_cut(content: bytes) -> dict[str, bytes]:
    """Members at the start of a sample by name; the last may be cut off if it is an image's."""
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


def _one_row(content: bytes, file: str) -> dict[str, Any]:
    """A JSON object on one line or several."""
    try:
        text = content.decode("utf-8").replace("\n", " ")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text (byte {error.start})", file=file) from None
    rows = [row for _, row in parse_rows([text], file)]
    if not rows:
        raise InputError("is empty", file=file)
    return rows[0]


class _Local:
    """Files of a folder of this machine; those in use stay open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: OrderedDict[str, _Descriptor] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        try:
            if end is None:
                return (self.folder / name).read_bytes()
            handle = self._handle(name)
            # Without a position that threads or forked processes would share.
            return os.pread(handle.number, end - begin, begin)
        except FileNotFoundError:
            raise InputError("no such file", file=self.folder / name) from None
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", file=self.folder / name) from None

    def _handle(self, name: str) -> _Descriptor:
        with self._lock:
            handle = self._open.pop(name, None) or _Descriptor(self.folder / name)
            self._open[name] = handle
            if len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
            return handle

    def __reduce__(self) -> tuple[type[_Local], tuple[Path]]:
        return _Local, (self.folder,)


class _Descriptor:
    """An open file, closed when the last reader lets go of it."""

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


class _Remote:
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
            raise InputError(f"this URL cannot be opened: {error}", file=url) from None

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        try:
            content: bytes = self.system.cat_file(f"{self.root}/{name}", start=begin or None, end=end)
        except FileNotFoundError:
            raise InputError("no such file", file=f"{self.url}/{name}") from None
        except OSError as error:
            raise InputError(f"cannot be read: {error}", file=f"{self.url}/{name}") from None
        return content

    def __reduce__(self) -> tuple[type[_Remote], tuple[str]]:
        return _Remote, (self.url,)
