"""Fingerprint files of weights without reading hundreds of gigabytes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import BinaryIO

_MARGIN = 4096
"""Bytes read on either side of a position."""
_MAX_HEADER = 100_000_000
"""Limit of safetensors in bytes; in another format the first bytes may give any length."""
_POSITIONS = 16
"""Number of evenly spread positions in a file of another format."""


def weights_digest(path: Path) -> bytes:
    """Hash the size and samples of a file of weights, with all tensors of safetensors: training changes the hash."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        header, positions = _read_header(file, size)
        digest.update(header)
        for position in positions or [size * part // _POSITIONS for part in range(_POSITIONS + 1)]:
            file.seek(max(position - _MARGIN, 0))
            digest.update(file.read(2 * _MARGIN))
    return digest.digest()


def _read_header(file: BinaryIO, size: int) -> tuple[bytes, list[int]]:
    """Return the header of safetensors and the begin, middle and end of each tensor; empty for other formats."""
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= min(size - 8, _MAX_HEADER):
        return b"", []
    header = file.read(length)
    try:
        spans = [tensor["data_offsets"] for name, tensor in json.loads(header).items() if name != "__metadata__"]
        positions = {8 + length + offset for begin, end in spans for offset in (begin, (begin + end) // 2, end)}
    except (ValueError, TypeError, KeyError, AttributeError):
        return b"", []
    return header, sorted(positions)
