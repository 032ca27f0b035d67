"""Files of weights, told apart without reading hundreds of gigabytes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import BinaryIO

_EDGE = 4096
"""Bytes read on either side of a place."""
_PLACES = 16
"""Where a file says nothing of its tensors, it is read at so many places."""


def weights_digest(path: Path) -> bytes:
    """A hash of a file of weights that differs where any of its tensors was trained: of its size and of samples.

    Of safetensors, header and both ends of every tensor are read: what was trained may be a small part of a file, or
    the last rows of a tensor, but no tensor that was trained keeps both of its ends. Of other files, evenly spread
    places.

    Args:
        path: the file.

    Raises:
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for start in _tensors(file, size) or [size * place // _PLACES for place in range(_PLACES + 1)]:
            file.seek(max(start - _EDGE, 0))
            digest.update(file.read(2 * _EDGE))
    return digest.digest()


def _tensors(file: BinaryIO, size: int) -> list[int]:
    """Where the tensors of safetensors begin and end in the file; nothing if it is none."""
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= size - 8:
        return []
    try:
        header = json.loads(file.read(length))
        ends = {end for name, tensor in header.items() if name != "__metadata__" for end in tensor["data_offsets"]}
    except (ValueError, TypeError, KeyError, AttributeError):
        return []
    return [8 + length + end for end in sorted(ends)]
