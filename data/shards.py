"""Training shards: a manifest and its images, packed, and read with random access: one read per sample."""

from __future__ import annotations

import hashlib
import io
import random
import re
import shutil
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import NonNegativeInt

from maira.data.manifest import Failure, iter_manifest, open_run_folder, parse_study, read_failures, write_failures
from maira.data.study import IMAGE_COLUMNS, Study
from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.jsonl import dumps, open_atomic, parse_json, read_json, write_json
from radfact.records import Record, Row, validate_model

INDEX, ROWS = "index.json", "index.npy"
FORMAT: Final = 1

_PLACE = [("shard", "<u4"), ("offset", "<u8"), ("size", "<u4"), ("crc32", "<u4")]
_CONTENT = [("split", "<u2"), ("source", "<u2"), ("findings", "?"), ("grounded", "?"), ("phrases", "<u2")]
ROW = np.dtype([*_PLACE, *_CONTENT])
"""A sample in the index: its shard, byte range and checksum, its split and source (positions in the lists of `Index`),
whether it has findings and a grounded report, and its number of phrases."""

_HEAD_BYTES = 2**14
"""Enough for the record of most samples and the header of the first image."""

SETTINGS, FAILURES = "pack.run.json", "failures.jsonl"

_PARTS = ".parts"
_READERS, _BATCH = 8, 32
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_END = bytes(2 * tarfile.BLOCKSIZE)
"""Two empty blocks end a tar file."""


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
    """Packed samples by number, in a folder or below a URL (`s3://...`); `rows`, (samples,) of `ROW`, select them."""

    def __init__(self, location: Path | str) -> None:
        from fsspec.core import url_to_fs

        self.location = str(location)
        try:
            self._system, self._root = url_to_fs(self.location)
        except (ImportError, ValueError) as error:
            message = f"cannot open the URL: {error}"
            raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=self.location) from None
        self.index = validate_model(Index, _json(self._read(INDEX), self.path_of(INDEX)), file=self.path_of(INDEX))
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
        images = {column: members[column] for column in IMAGE_COLUMNS if column in members}
        return PackedSample(self._study(number, members), images)

    def head(self, number: int) -> tuple[Study, bytes]:
        """Read a sample, and the first bytes of its frontal image; its checksum is not verified."""
        name, begin, size = self._place(number)
        members: dict[str, bytes] = {}
        # The record comes first and the frontal next, each after a tar header with its name and size.
        for length in (min(size, _HEAD_BYTES), size):
            members = _members(self._read(name, begin, begin + length))
            if len(members) > 1:
                break
        return self._study(number, members), members.get("frontal", b"")

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
        if "json" not in members:
            raise self._damaged(number)
        file = f"{self.path_of(self._place(number)[0])}: {number:09d}.json"
        return parse_study(_json(members["json"], file), Path(), file=file)

    def _damaged(self, number: int) -> InputError:
        name, begin, size = self._place(number)
        message = f"sample {number} (bytes {begin} to {begin + size}) is damaged"
        return InputError(message, code=ErrorCode.INVALID_FORMAT, file=self.path_of(name))


def _members(content: bytes) -> dict[str, bytes]:
    """Return the record ("json") and the images by column; the last one may be truncated if it is an image."""
    members = {}
    with suppress(tarfile.TarError), tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        for member in archive:
            column, end = member.name.split(".")[1], member.offset_data + member.size
            if end <= len(content) or column != "json":
                members[column] = content[member.offset_data : end]
    return members


def _json(content: bytes, file: str) -> Any:
    try:
        return parse_json(content.decode("utf-8"), file)
    except UnicodeDecodeError as error:
        message = f"expected UTF-8 text, found an invalid byte at {error.start}"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=file) from None


class _Part(Record):
    """A finished shard (None if no sample was left for one), the rows of its samples, and the skipped samples."""

    shard: Shard | None
    rows: list[tuple[int, ...]]
    failures: list[Failure]
    following: NonNegativeInt  # position of the next sample in the order of packing


def parse_size(text: str) -> int:
    """Return the number of bytes of a size such as "500MB", "2 GB" or "1000000"."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMG]?)B?\s*", text, re.IGNORECASE)
    size = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if size < 1:
        raise InputError(f"expected a size such as 500MB or 2GB, found '{text}'", code=ErrorCode.INVALID_OPTION)
    return size


def pack(
    manifest: Path | str,
    out: Path,
    *,
    shard_size: int = 500 * 10**6,
    splits: Collection[str] | None = None,
    shuffle: int | None = None,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> tuple[Index, int, list[Failure]]:
    """Write the samples of a manifest with their unchanged image files into tar files, and an index."""
    manifest = Path(manifest)
    studies = [study for study in iter_manifest(manifest) if splits is None or study.split in splits]
    if not studies:
        selection = f" of the split {' or '.join(sorted(splits))}" if splits is not None else ""
        raise InputError(f"expected samples{selection}, found none", code=ErrorCode.EMPTY_INPUT, file=manifest)
    names = [list(dict.fromkeys(getattr(study, column) for study in studies)) for column in ("split", "source")]
    if shuffle is not None:
        random.Random(shuffle).shuffle(studies)
    settings = {
        "format": FORMAT,
        "manifest": hashlib.sha256(manifest.read_bytes()).hexdigest(),
        "shard_size": shard_size,
        "splits": None if splits is None else sorted(splits),
        "shuffle": shuffle,
    }
    open_run_folder(out, SETTINGS, settings)
    for partial_file in out.glob(".shard-*"):
        # From a run that was killed while writing.
        partial_file.unlink()
    if (out / INDEX).exists():
        index = validate_model(Index, read_json(out / INDEX), file=out / INDEX)
        if changed := next((shard for shard in index.shards if not _is_complete(out, shard)), None):
            message = "missing or changed since it was packed; remove the folder to pack again"
            raise InputError(message, code=ErrorCode.MISMATCH, file=out / changed.name)
        return index, len(index.shards), read_failures(out / FAILURES)
    parts: list[_Part] = []
    reused = position = 0
    while position < len(studies):
        file = out / _PARTS / f"{len(parts):06d}.json"
        part = validate_model(_Part, read_json(file), file=file) if file.exists() and reused == len(parts) else None
        if part is not None and (part.shard is None or _is_complete(out, part.shard)):
            reused += 1
        else:
            part = _write_shard(out, studies, names, parts, shard_size, on_progress)
            write_json(file, part.model_dump(mode="json"))
        parts.append(part)
        position = part.following
    on_progress(len(studies), len(studies))
    failures = [failure for part in parts for failure in part.failures]
    write_failures(out / FAILURES, failures)
    shards = [part.shard for part in parts if part.shard is not None]
    if not shards:
        raise RunError(f"no sample could be packed; first of {len(failures)} failures: {failures[0].reason}")
    rows = np.array([row for part in parts for row in part.rows], ROW)
    with open_atomic(out / ROWS, "wb") as handle:
        np.save(handle, rows, allow_pickle=False)
    index = Index(format=FORMAT, samples=len(rows), shards=shards, splits=names[0], sources=names[1])
    # Last: the index marks a complete run.
    write_json(out / INDEX, index.model_dump(mode="json"))
    shutil.rmtree(out / _PARTS)
    return index, reused, failures


def _is_complete(out: Path, shard: Shard) -> bool:
    file = out / shard.name
    return file.is_file() and file.stat().st_size == shard.bytes


def _write_shard(
    out: Path,
    studies: Sequence[Study],
    names: Sequence[list[str | None]],
    parts: Sequence[_Part],
    shard_size: int,
    on_progress: Callable[[int, int], None],
) -> _Part:
    """Write the shard after those of `parts`, with as many samples as fit."""
    number, following = len(parts), parts[-1].following if parts else 0
    packed = sum(len(part.rows) for part in parts)
    name, offset = f"shard-{number:06d}.tar", 0
    rows: list[tuple[int, ...]] = []
    failures: list[Failure] = []
    with ThreadPoolExecutor(_READERS) as pool, open_atomic(out / name, "wb") as handle:
        # Images are read in batches, which bound the memory.
        batches = (
            enumerate(pool.map(_load, studies[begin : begin + _BATCH]), start=begin)
            for begin in range(following, len(studies), _BATCH)
        )
        for position, sample in chain.from_iterable(batches):
            on_progress(position, len(studies))
            if isinstance(sample, PackedSample):
                content = _as_members(f"{packed + len(rows):09d}", sample)
                if rows and offset + len(content) + len(_END) > shard_size:
                    break
                study = sample.study
                codes = names[0].index(study.split), names[1].index(study.source)
                reports = (study.findings is not None, study.grounded_findings is not None, len(study.phrases or ()))
                rows.append((number, offset, len(content), zlib.crc32(content), *codes, *reports))
                handle.write(content)
                offset += len(content)
            else:
                failures.append(sample)
            following = position + 1
        handle.write(_END)
    shard = Shard(name=name, bytes=offset + len(_END), samples=len(rows)) if rows else None
    if shard is None:
        (out / name).unlink()
    return _Part(shard=shard, rows=rows, failures=failures, following=following)


def _load(study: Study) -> PackedSample | Failure:
    images = {}
    for column in IMAGE_COLUMNS:
        path: Path | None = getattr(study, column)
        if path is None:
            continue
        try:
            images[column] = path.read_bytes()
            reason = None if _suffix(images[column]) else "expected a complete PNG or JPEG"
        except OSError as error:
            reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        if reason is not None:
            return Failure(sample_id=study.sample_id, stage="pack", reason=f"{path}: {reason}")
    return PackedSample(study, images)


def _suffix(image: bytes) -> str | None:
    """Return the file name suffix of an image; None if it is not an image or truncated."""
    if image.startswith(b"\x89PNG\r\n\x1a\n") and b"IEND" in image[-64:]:
        return "png"
    return "jpg" if image.startswith(b"\xff\xd8\xff") and b"\xff\xd9" in image[-64:] else None


def _as_members(key: str, sample: PackedSample) -> bytes:
    """Return a sample as tar members, the record first."""
    names = {column: f"{key}.{column}.{_suffix(image)}" for column, image in sample.images.items()}
    # Shards are read elsewhere, without the original files.
    record = dumps(sample.study.model_dump(mode="json") | names | {"originals": None}).encode()
    files = [(f"{key}.json", record), *((names[column], image) for column, image in sample.images.items())]
    content = []
    for name, data in files:
        # Without owner and time, so that the same samples give the same bytes.
        info = tarfile.TarInfo(name)
        info.size = len(data)
        content += [info.tobuf(tarfile.USTAR_FORMAT), data, bytes(-len(data) % tarfile.BLOCKSIZE)]
    return b"".join(content)
