"""Images for the review page: 8 bit grey PNG whatever the file is, so that nothing but pixels leaves it."""

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
"""Pixels of the longest side of an image as the page first shows it."""

_KEPT = 12


def describe_images(review_set: ReviewSet, number: int) -> dict[str, dict[str, str | int] | None]:
    """Where the page finds the images of a study, and how large the originals are.

    Args:
        review_set: the studies.
        number: of the study, from 1.

    Returns:
        By kind: `url`, `width` and `height` (pixels), a `message` where the image cannot be shown, or None where there
        is none.
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
    """An image as PNG: 8 bit values as they are, others scaled from their lowest to their highest.

    Args:
        path: the file.
        full: as large as it is; otherwise its longest side is `LONGEST_SIDE` at most.

    Raises:
        InputError: the file is no image that can be read.
    """
    return _as_png(path, path.stat().st_mtime_ns, full)


@lru_cache(_KEPT)
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
    # The way is short and the reviewer waits.
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
