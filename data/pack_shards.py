"""Pack a manifest and its images into training shards for `maira.data.shards`."""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import tarfile
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from pydantic import NonNegativeInt

from maira.data.manifest import Failure, open_run_folder, parse_study, read_failures, write_failures
from maira.data.shards import FORMAT, INDEX, ROW, ROWS, Index, Shard
from maira.data.study import IMAGE_COLUMNS, Study
from radfact.errors import ErrorCode, InputError, RunError, check_unique_id
from radfact.io.jsonl import dumps, open_atomic, parse_rows, read_json, read_lines, write_json
from radfact.records import Record, validate_model

SETTINGS, FAILURES = "pack.run.json", "failures.jsonl"

_PARTS = ".parts"
_BLOCK = 512
_READERS = 8
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True)
class PackResult:
    """Result of packing.

    Attributes:
        samples, shards, bytes: totals of all shards.
        reused: number of shards from an earlier run.
        failures: skipped samples, with the reason.
    """

    samples: int
    shards: int
    bytes: int
    reused: int
    failures: list[Failure] = field(default_factory=list)


class _Part(Record):
    """A finished shard and the state needed to continue with the next one.

    Attributes:
        shard: entry of the index.
        following: position of the next sample in the order of packing.
        failures: failures since the previous shard.
        splits, sources: names that the rows so far refer to.
    """

    shard: Shard
    following: NonNegativeInt
    failures: list[Failure]
    splits: list[str | None]
    sources: list[str | None]


@dataclass(frozen=True)
class _Sample:
    study: Study
    images: dict[str, bytes]


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
    on_progress: Callable[[int, int], None] | None = None,
) -> PackResult:
    """Write the samples of a manifest with their unchanged image files into tar files, and an index.

    An interrupted run resumes and reuses finished shards. A sample with a missing or damaged image is skipped and
    listed in `failures.jsonl`. The same manifest gives the same bytes.
    """
    manifest = Path(manifest)
    offsets = _offsets(manifest, splits)
    if shuffle is not None:
        random.Random(shuffle).shuffle(offsets)
    settings = {
        "format": FORMAT,
        "manifest": _sha256(manifest),
        "shard_size": shard_size,
        "splits": None if splits is None else sorted(splits),
        "shuffle": shuffle,
    }
    open_run_folder(out, SETTINGS, settings)
    for partial_file in out.glob(".shard-*"):
        # From a run that was killed while writing.
        partial_file.unlink()
    if (out / INDEX).exists():
        return _finished(out)
    parts = _finished_parts(out)
    reused = len(parts)
    start = parts[-1].following if parts else 0
    with manifest.open("rb") as handle, ThreadPoolExecutor(_READERS) as pool:
        samples = _samples(handle, manifest, offsets[start:], pool)
        trailing = _write_shards(out, parts, samples, start, shard_size, on_progress, len(offsets))
    return _finish(out, parts, trailing, reused)


def _offsets(manifest: Path, splits: Collection[str] | None) -> array[int]:
    """Return the file offsets of the selected samples, and check every line before anything is written."""
    offsets = array("Q")
    seen: dict[str, int] = {}
    offset = 0
    for number, text in enumerate(read_lines(manifest), start=1):
        for line, row in parse_rows([text], manifest, number):
            study = parse_study(row, manifest.parent, file=manifest, line=line)
            check_unique_id(seen, study.sample_id, line, file=manifest)
            if splits is None or study.split in splits:
                offsets.append(offset)
        offset += len(text.encode()) + 1
        if number == 1 and _has_byte_order_mark(manifest):
            offset += 3
    if not offsets:
        selection = f" of the split {' or '.join(sorted(splits))}" if splits is not None else ""
        raise InputError(f"expected samples{selection}, found none", code=ErrorCode.EMPTY_INPUT, file=manifest)
    return offsets


def _has_byte_order_mark(path: Path) -> bool:
    with path.open("rb") as handle:
        return handle.read(3) == b"\xef\xbb\xbf"


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _finished(out: Path) -> PackResult:
    """Return the result of a complete earlier run."""
    index = validate_model(Index, read_json(out / INDEX), file=out / INDEX)
    for shard in index.shards:
        file = out / shard.name
        if not file.is_file() or file.stat().st_size != shard.bytes:
            message = "missing or changed since it was packed; remove the folder to pack again"
            raise InputError(message, code=ErrorCode.MISMATCH, file=file)
    size = sum(shard.bytes for shard in index.shards)
    return PackResult(index.samples, len(index.shards), size, len(index.shards), read_failures(out / FAILURES))


def _finished_parts(out: Path) -> list[_Part]:
    """Return the shards of an earlier run up to the first incomplete one."""
    parts: list[_Part] = []
    while (file := _part_file(out, len(parts), "json")).exists():
        part = validate_model(_Part, read_json(file), file=file)
        shard = out / part.shard.name
        if not shard.is_file() or shard.stat().st_size != part.shard.bytes:
            break
        parts.append(part)
    return parts


def _part_file(out: Path, number: int, suffix: str) -> Path:
    return out / _PARTS / f"{number:06d}.{suffix}"


def _samples(
    handle: IO[bytes], manifest: Path, offsets: array[int], pool: ThreadPoolExecutor
) -> Iterator[_Sample | Failure]:
    """Yield the samples at the given offsets, with images read ahead."""
    in_flight: deque[Future[_Sample | Failure]] = deque()
    for offset in offsets:
        handle.seek(offset)
        text = handle.readline().decode("utf-8-sig")
        for _, row in parse_rows([text], manifest):
            in_flight.append(pool.submit(_load, parse_study(row, manifest.parent, file=manifest)))
        # The samples in flight bound the memory.
        if len(in_flight) > 4 * _READERS:
            yield in_flight.popleft().result()
    while in_flight:
        yield in_flight.popleft().result()


def _load(study: Study) -> _Sample | Failure:
    images = {}
    for column in IMAGE_COLUMNS:
        path: Path | None = getattr(study, column)
        if path is None:
            continue
        try:
            images[column] = path.read_bytes()
        except OSError as error:
            reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
            return Failure(sample_id=study.sample_id, stage="pack", reason=f"{path}: {reason}")
        if _suffix(images[column]) is None:
            reason = f"{path}: expected a complete PNG or JPEG"
            return Failure(sample_id=study.sample_id, stage="pack", reason=reason)
    return _Sample(study, images)


def _suffix(image: bytes) -> str | None:
    """Return the file name suffix of an image; None if it is not an image or truncated."""
    if image.startswith(b"\x89PNG\r\n\x1a\n") and b"IEND" in image[-64:]:
        return "png"
    return "jpg" if image.startswith(b"\xff\xd8\xff") and b"\xff\xd9" in image[-64:] else None


def _write_shards(
    out: Path,
    parts: list[_Part],
    samples: Iterator[_Sample | Failure],
    start: int,
    shard_size: int,
    on_progress: Callable[[int, int], None] | None,
    total: int,
) -> list[Failure]:
    """Write shards and append them to `parts`; return the failures after the last shard."""
    packed = sum(part.shard.samples for part in parts)
    splits, sources = (list(parts[-1].splits), list(parts[-1].sources)) if parts else ([], [])
    failures: list[Failure] = []
    writer: _ShardWriter | None = None
    with ExitStack() as stack:

        def finish(following: int) -> None:
            nonlocal writer, failures
            if writer is None:
                return
            writer.end()
            # Renames the shard to its final name.
            stack.close()
            shard, rows = writer.finished()
            with open_atomic(_part_file(out, len(parts), "npy"), "wb") as handle:
                np.save(handle, rows, allow_pickle=False)
            part = _Part(shard=shard, following=following, failures=failures, splits=splits, sources=sources)
            write_json(_part_file(out, len(parts), "json"), part.model_dump(mode="json"))
            parts.append(part)
            writer, failures = None, []

        for position, sample in enumerate(samples, start=start):
            if on_progress:
                on_progress(position, total)
            if isinstance(sample, Failure):
                failures.append(sample)
                continue
            content = _members(f"{packed:09d}", sample)
            if writer is not None and writer.size + len(content) > shard_size:
                finish(position)
            if writer is None:
                name = f"shard-{len(parts):06d}.tar"
                writer = _ShardWriter(name, len(parts), stack.enter_context(open_atomic(out / name, "wb")))
            writer.add(
                content, sample.study, _index_of(splits, sample.study.split), _index_of(sources, sample.study.source)
            )
            packed += 1
        finish(total)
        if on_progress:
            on_progress(total, total)
    return failures


def _index_of(names: list[str | None], name: str | None) -> int:
    if name not in names:
        names.append(name)
    return names.index(name)


class _ShardWriter:
    """Writes samples to a tar file."""

    def __init__(self, name: str, number: int, handle: IO[bytes]) -> None:
        self.name, self.number, self.handle = name, number, handle
        # Includes the two empty blocks that end a tar file.
        self.size = 2 * _BLOCK
        self.rows: list[tuple[Any, ...]] = []
        self._digest = hashlib.sha256()
        self._offset = 0

    def add(self, content: bytes, study: Study, split: int, source: int) -> None:
        """Append the members of a sample."""
        location = (self.number, self._offset, len(content), zlib.crc32(content))
        reports = (study.findings is not None, study.grounded_findings is not None, len(study.phrases or ()))
        self.rows.append((*location, split, source, *reports))
        self._write(content)
        self.size += len(content)

    def end(self) -> None:
        """Write the end of the archive."""
        self._write(bytes(2 * _BLOCK))

    def finished(self) -> tuple[Shard, npt.NDArray[Any]]:
        """Return the entries of the index."""
        shard = Shard(name=self.name, bytes=self._offset, sha256=self._digest.hexdigest(), samples=len(self.rows))
        return shard, np.array(self.rows, ROW)

    def _write(self, content: bytes) -> None:
        self.handle.write(content)
        self._digest.update(content)
        self._offset += len(content)


def _members(key: str, sample: _Sample) -> bytes:
    """Return a sample as tar members (blocks of 512 bytes), the record first."""
    names = {column: f"{key}.{column}.{_suffix(image)}" for column, image in sample.images.items()}
    # Shards are read elsewhere, without the original files.
    record = dumps(sample.study.model_dump(mode="json") | names | {"originals": None}).encode()
    files = [(f"{key}.json", record), *((names[column], image) for column, image in sample.images.items())]
    content = []
    for name, data in files:
        # Without owner and time, so that the same samples give the same bytes.
        info = tarfile.TarInfo(name)
        info.size = len(data)
        content += [info.tobuf(tarfile.USTAR_FORMAT), data, bytes(-len(data) % _BLOCK)]
    return b"".join(content)


def _finish(out: Path, parts: list[_Part], trailing: list[Failure], reused: int) -> PackResult:
    failures = [*(failure for part in parts for failure in part.failures), *trailing]
    write_failures(out / FAILURES, failures)
    if not parts:
        raise RunError(f"no sample could be packed; first of {len(failures)} failures: {failures[0].reason}")
    with open_atomic(out / ROWS, "wb") as handle:
        rows = [np.load(_part_file(out, number, "npy"), allow_pickle=False) for number in range(len(parts))]
        np.save(handle, np.concatenate(rows), allow_pickle=False)
    shards = [part.shard for part in parts]
    count = sum(shard.samples for shard in shards)
    index = Index(format=FORMAT, samples=count, shards=shards, splits=parts[-1].splits, sources=parts[-1].sources)
    # Last: the index marks a complete run.
    write_json(out / INDEX, index.model_dump(mode="json"))
    shutil.rmtree(out / _PARTS)
    return PackResult(count, len(shards), sum(shard.bytes for shard in shards), reused, failures)
