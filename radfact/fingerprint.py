"""Files of weights, told apart without reading hundreds of gigabytes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import BinaryIO

_EDGE = 4096
"""Bytes read on either side of a place."""
_LONGEST_HEADER = 100_000_000
"""Bytes that safetensors allow; the first bytes of another format, taken for a length, may say gigabytes."""
_PLACES = 16
"""Where a file says nothing of its tensors, it is read at so many places."""


def weights_digest(path: Path) -> bytes:
    """A hash of a file of weights, of its size and of samples, so that training any of its tensors shows in it.

    Of safetensors, the header and both ends and the middle of every tensor are read: what was trained may be a small
    part of a file, or the last rows of a tensor. Of other files, evenly spread places.

    Args:
        path: the file.

    Raises:
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        header, places = _read_header(file, size)
        digest.update(header)
        for place in places or [size * part // _PLACES for part in range(_PLACES + 1)]:
            file.seek(max(place - _EDGE, 0))
            digest.update(file.read(2 * _EDGE))
    return digest.digest()


def _read_header(file: BinaryIO, size: int) -> tuple[bytes, list[int]]:
    """The header of safetensors, and where its tensors begin, have their middle and end; nothing if it is none."""
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= min(size - 8, _LONGEST_HEADER):
        return b"", []
    header = file.read(length)
    try:
        spans = [one["data_offsets"] for name, one in json.loads(header).items() if name != "__metadata__"]
        places = {8 + length + place for begin, end in spans for place in (begin, (begin + end) // 2, end)}
    except (ValueError, TypeError, KeyError, AttributeError):
        return b"", []
    return header, sorted(places)
