"""Images of the review page as 8 bit gray PNG, without any metadata of the file."""

from __future__ import annotations

from functools import lru_cache
from io import BytesIO
from pathlib import Path

import numpy as np

from data.images import image_size, load_gray
from data.study import IMAGE_COLUMNS
from maira.review.studies import ReviewSet
from radfact.errors import InputError

LONGEST_SIDE = 2048
"""Longest side in pixels of an image as first shown."""

_CACHED_IMAGES = 12


def describe_images(review_set: ReviewSet, number: int) -> dict[str, dict[str, str | int] | None]:
    """Return the URLs of a study's images and the sizes of the originals.

    Args:
        review_set: the studies.
        number: number of the study, from 1.

    Returns:
        By kind: `url`, `width` and `height` (pixels), or a `message` if the image cannot be shown, or None if there is
        none.
    """
    return {kind: _describe(review_set, number, kind) for kind in IMAGE_COLUMNS}


def _describe(review_set: ReviewSet, number: int, kind: str) -> dict[str, str | int] | None:
    try:
        path = review_set.image(number, kind)
        if path is None:
            return None
        width, height = image_size(path)
    except InputError as error:
        return {"message": error.message}
    return {"url": f"/images/{number}/{kind}", "width": width, "height": height}


def as_png(path: Path, *, full: bool) -> bytes:
    """Convert an image to PNG: 8 bit values unchanged, others scaled from their minimum to their maximum.

    Args:
        path: the file.
        full: full size; otherwise the longest side is at most `LONGEST_SIDE`.

    Raises:
        InputError: the file cannot be read as an image.
    """
    return _as_png(path, path.stat().st_mtime_ns, full)


@lru_cache(_CACHED_IMAGES)
def _as_png(path: Path, _: int, full: bool) -> bytes:
    from PIL import Image

    gray = load_gray(path)
    low, high = float(gray.min()), float(gray.max())
    if low < 0 or high > 255:
        gray = (gray - low) * np.float32(255 / max(high - low, 1e-9))
    image = Image.fromarray(np.round(gray).astype(np.uint8))
    if not full:
        image.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
    buffer = BytesIO()
    # Speed matters more than size on a local connection.
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
