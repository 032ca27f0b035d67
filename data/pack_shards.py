"""Pack a manifest and its images into training shards for `maira.data.shards`."""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from pydantic import NonNegativeInt

from maira.data.manifest import Failure, iter_manifest, open_run_folder, read_failures, write_failures
from maira.data.shards import FORMAT, INDEX, ROW, ROWS, Index, PackedSample, Shard
from maira.data.study import IMAGE_COLUMNS, Study
from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.jsonl import dumps, open_atomic, read_json, write_json
from radfact.records import Record, validate_model

SETTINGS, FAILURES = "pack.run.json", "failures.jsonl"

_PARTS = ".parts"
_READERS = 8
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_END = bytes(2 * tarfile.BLOCKSIZE)
"""Two empty blocks end a tar file."""


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
    """Write the samples of a manifest with their unchanged image files into tar files, and an index.

    An interrupted run resumes and reuses finished shards. A sample with a missing or damaged image is skipped and
    listed in `failures.jsonl`. The same manifest gives the same bytes. A shard exceeds its maximum size only for a
    larger single sample. `shuffle` is the seed of a random order, for tools that read shards sequentially. Returns the
    index, the number of shards from an earlier run, and the skipped samples.
    """
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
        for position, sample in _samples(studies, following, pool):
            on_progress(position, len(studies))
            if isinstance(sample, PackedSample):
                content = _members(f"{packed + len(rows):09d}", sample)
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
    if not rows:
        (out / name).unlink()
        return _Part(shard=None, rows=[], failures=failures, following=following)
    shard = Shard(name=name, bytes=offset + len(_END), samples=len(rows))
    return _Part(shard=shard, rows=rows, failures=failures, following=following)


def _samples(
    studies: Sequence[Study], first: int, pool: ThreadPoolExecutor
) -> Iterator[tuple[int, PackedSample | Failure]]:
    """Yield (position, sample) from a position on; images are read in batches, which bound the memory."""
    for begin in range(first, len(studies), 4 * _READERS):
        yield from enumerate(pool.map(_load, studies[begin : begin + 4 * _READERS]), start=begin)


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
