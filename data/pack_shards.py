"""Pack a manifest and its images into training shards for `maira.data.shards`."""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import tarfile
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import NonNegativeInt

from maira.data.manifest import Failure, open_run_folder, parse_study, read_failures, write_failures
from maira.data.shards import FORMAT, INDEX, ROW, ROWS, Index, PackedSample, Shard
from maira.data.study import IMAGE_COLUMNS, Study
from radfact.errors import ErrorCode, InputError, RunError, check_unique_id
from radfact.io.jsonl import dumps, open_atomic, parse_rows, read_json, read_lines, write_json
from radfact.records import Record, validate_model

SETTINGS, FAILURES = "pack.run.json", "failures.jsonl"

_PARTS = ".parts"
_READERS = 8
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_END = bytes(2 * tarfile.BLOCKSIZE)
"""Two empty blocks end a tar file."""


@dataclass(frozen=True)
class PackResult:
    """Totals of all shards, the number of shards from an earlier run, and the skipped samples with the reason."""

    samples: int
    shards: int
    bytes: int
    reused: int
    failures: list[Failure] = field(default_factory=list)


class _Line(NamedTuple):
    """A selected line of a manifest, with the codes of its split and source in the index."""

    text: str
    number: int
    split: int
    source: int


class _Part(Record):
    """A finished shard (None if no sample was left for one), the rows of its samples, and the skipped samples.

    Attributes:
        following: position of the next sample in the order of packing.
    """

    shard: Shard | None
    rows: list[tuple[int, ...]]
    failures: list[Failure]
    following: NonNegativeInt


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
) -> PackResult:
    """Write the samples of a manifest with their unchanged image files into tar files, and an index.

    An interrupted run resumes and reuses finished shards. A sample with a missing or damaged image is skipped and
    listed in `failures.jsonl`. The same manifest gives the same bytes. A shard exceeds its maximum size only for a
    larger single sample. `shuffle` is the seed of a random order, for tools that read shards sequentially.
    """
    manifest = Path(manifest)
    lines, split_names, source_names = _select(manifest, splits)
    if shuffle is not None:
        random.Random(shuffle).shuffle(lines)
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
        return _result(index, len(index.shards), read_failures(out / FAILURES))
    parts: list[_Part] = []
    reused = position = 0
    while position < len(lines):
        file = out / _PARTS / f"{len(parts):06d}.json"
        part = validate_model(_Part, read_json(file), file=file) if file.exists() and reused == len(parts) else None
        if part is not None and (part.shard is None or _is_complete(out, part.shard)):
            reused += 1
        else:
            part = _write_shard(out, manifest, lines, parts, shard_size, on_progress)
            write_json(file, part.model_dump(mode="json"))
        parts.append(part)
        position = part.following
    on_progress(len(lines), len(lines))
    failures = [failure for part in parts for failure in part.failures]
    write_failures(out / FAILURES, failures)
    shards = [part.shard for part in parts if part.shard is not None]
    if not shards:
        raise RunError(f"no sample could be packed; first of {len(failures)} failures: {failures[0].reason}")
    rows = np.array([row for part in parts for row in part.rows], ROW)
    with open_atomic(out / ROWS, "wb") as handle:
        np.save(handle, rows, allow_pickle=False)
    index = Index(format=FORMAT, samples=len(rows), shards=shards, splits=split_names, sources=source_names)
    # Last: the index marks a complete run.
    write_json(out / INDEX, index.model_dump(mode="json"))
    shutil.rmtree(out / _PARTS)
    return _result(index, reused, failures)


def _result(index: Index, reused: int, failures: list[Failure]) -> PackResult:
    return PackResult(index.samples, len(index.shards), sum(shard.bytes for shard in index.shards), reused, failures)


def _is_complete(out: Path, shard: Shard) -> bool:
    file = out / shard.name
    return file.is_file() and file.stat().st_size == shard.bytes


def _select(manifest: Path, splits: Collection[str] | None) -> tuple[list[_Line], list[str | None], list[str | None]]:
    """Return the selected lines, and the names of their splits and sources; every line is checked."""
    lines: list[_Line] = []
    split_codes: dict[str | None, int] = {}
    source_codes: dict[str | None, int] = {}
    seen: dict[str, int] = {}
    for number, text in enumerate(read_lines(manifest), start=1):
        for line, row in parse_rows([text], manifest, number):
            study = parse_study(row, manifest.parent, file=manifest, line=line)
            check_unique_id(seen, study.sample_id, line, file=manifest)
            if splits is None or study.split in splits:
                split = split_codes.setdefault(study.split, len(split_codes))
                lines.append(_Line(text, number, split, source_codes.setdefault(study.source, len(source_codes))))
    if not lines:
        selection = f" of the split {' or '.join(sorted(splits))}" if splits is not None else ""
        raise InputError(f"expected samples{selection}, found none", code=ErrorCode.EMPTY_INPUT, file=manifest)
    return lines, list(split_codes), list(source_codes)


def _write_shard(
    out: Path,
    manifest: Path,
    lines: list[_Line],
    parts: list[_Part],
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
        for position, sample in _samples(manifest, lines, following, pool):
            on_progress(position, len(lines))
            if isinstance(sample, PackedSample):
                content = _members(f"{packed + len(rows):09d}", sample)
                if rows and offset + len(content) + len(_END) > shard_size:
                    break
                study, line = sample.study, lines[position]
                reports = (study.findings is not None, study.grounded_findings is not None, len(study.phrases or ()))
                rows.append((number, offset, len(content), zlib.crc32(content), line.split, line.source, *reports))
                handle.write(content)
                offset += len(content)
            else:
                failures.append(sample)
            following = position + 1
        handle.write(_END)
    if not rows:
        (out / name).unlink()
        return _Part(shard=None, rows=[], failures=failures, following=following)
    shard = Shard(name=name, bytes=offset + len(_END), samples=len(rows))
    return _Part(shard=shard, rows=rows, failures=failures, following=following)


def _samples(
    manifest: Path, lines: list[_Line], first: int, pool: ThreadPoolExecutor
) -> Iterator[tuple[int, PackedSample | Failure]]:
    """Yield (position, sample) from a position on, with images read ahead."""
    in_flight: deque[tuple[int, Future[PackedSample | Failure]]] = deque()
    for position in range(first, len(lines)):
        line = lines[position]
        for _, row in parse_rows([line.text], manifest, line.number):
            study = parse_study(row, manifest.parent, file=manifest, line=line.number)
            in_flight.append((position, pool.submit(_load, study)))
        # The samples in flight bound the memory.
        if len(in_flight) > 4 * _READERS:
            oldest, sample = in_flight.popleft()
            yield oldest, sample.result()
    yield from ((position, sample.result()) for position, sample in in_flight)


def _load(study: Study) -> PackedSample | Failure:
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
    return PackedSample(study, images)


def _suffix(image: bytes) -> str | None:
    """Return the file name suffix of an image; None if it is not an image or truncated."""
    if image.startswith(b"\x89PNG\r\n\x1a\n") and b"IEND" in image[-64:]:
        return "png"
    return "jpg" if image.startswith(b"\xff\xd8\xff") and b"\xff\xd9" in image[-64:] else None


def _members(key: str, sample: PackedSample) -> bytes:
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
