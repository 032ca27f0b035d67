"""Images of the review page: the gray values of the originals in several resolutions, and thumbnails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from maira.data.archive import Radiograph
from maira.data.dicom.convert import read_radiograph
from maira.data.dicom.radiograph import Frame, Window, fill_padding
from maira.data.study import IMAGE_COLUMNS
from maira.review.studies import ReviewSet
from radfact.errors import InputError

Values: TypeAlias = npt.NDArray[np.uint16]

THUMBNAIL_SIZE = 256
"""Longest side of a thumbnail, pixels."""

_CACHED_IMAGES = 12
"""About 20 MB each for a radiograph of 2,500 x 3,000 pixels; a page shows three and fetches three ahead."""
_SMALLEST_LEVEL = 300
"""The longest side of the smallest level is at most this many pixels."""
_CONTRAST = (1, 99)
"""Percentiles of the window that excludes borders and markers."""


@dataclass(frozen=True, slots=True)
class Pyramid:
    """Levels (H, W) of half the resolution of the one before, and `info` for the page (`scale`, `offset`)."""

    levels: tuple[Values, ...]
    info: dict[str, Any]

    def level(self, longest: int) -> tuple[Values, int]:
        """Return the smallest level whose longest side has at least this many pixels, and its reduction factor."""
        place = next((at for at, values in reversed([*enumerate(self.levels)]) if max(values.shape) >= longest), 0)
        return self.levels[place], 2**place


def describe_study(review_set: ReviewSet, number: int, place: int | None = None) -> dict[str, Any]:
    """Return the inputs of a study: URLs of the images, and texts."""
    images: dict[str, dict[str, str | bool] | None] = {}
    for kind in IMAGE_COLUMNS:
        path = f"{place or number}/{kind}"
        urls = {"url": f"/images/{path}", "thumbnail": f"/thumbnails/{path}"}
        try:
            image = review_set.image(number, kind)
            images[kind] = None if image is None else {**urls, "is_original": image[1]}
        except InputError as error:
            images[kind] = {"message": error.message}
    study = review_set.studies[number - 1]
    texts = {name: getattr(study, name) for name in ("indication", "technique", "comparison", "prior_report")}
    return {"images": images, **texts}


def load_pyramid(radiograph: Radiograph) -> Pyramid:
    try:
        modified = radiograph.path.stat().st_mtime_ns
    except OSError:
        raise InputError("no such image") from None
    return _load_pyramid(radiograph, modified)


@lru_cache(_CACHED_IMAGES)
def _load_pyramid(radiograph: Radiograph, _: int) -> Pyramid:
    frame = read_radiograph(radiograph)
    values, scale, offset = _as_values(frame, radiograph.location)
    levels = [values]
    while max(levels[-1].shape) > _SMALLEST_LEVEL and min(levels[-1].shape) > 1:
        levels.append(_halved(levels[-1]))
    height, width = values.shape
    ends = np.array([values.min(), values.max(), *np.percentile(levels[-1], _CONTRAST)]) * scale + offset
    row, column = frame.spacing
    unit = min(row, column)
    info = {
        "columns": width,
        "rows": height,
        # Pixels become square.
        "width": round(width * column / unit),
        "height": round(height * row / unit),
        "scale": scale,
        "offset": offset,
        "is_inverted": frame.is_inverted != (frame.rescale[0] < 0),
        "windows": [asdict(window) for window in _windows(frame.windows, ends)],
        "bits": frame.bits_stored,
    }
    return Pyramid(tuple(levels), info)


def thumbnail(pyramid: Pyramid) -> bytes:
    from PIL import Image

    info = pyramid.info
    values, _ = pyramid.level(THUMBNAIL_SIZE)
    window = info["windows"][0]
    shares = (values * info["scale"] + info["offset"] - window["center"]) / window["width"] + 0.5
    gray = np.clip(1 - shares if info["is_inverted"] else shares, 0, 1)
    image = Image.fromarray(np.rint(gray * 255).astype(np.uint8))
    longest = max(info["width"], info["height"])
    size = [max(1, round(side * THUMBNAIL_SIZE / longest)) for side in (info["width"], info["height"])]
    buffer = BytesIO()
    image.resize((size[0], size[1]), Image.Resampling.BOX).save(buffer, "PNG")
    return buffer.getvalue()


def _as_values(frame: Frame, source: Path) -> tuple[Values, float, float]:
    """Return the pixels as unsigned numbers of 16 bits, and their scale and offset to output values."""
    pixels = fill_padding(frame, source)
    slope, intercept = frame.rescale
    low, high = float(pixels.min()), float(pixels.max())
    # Wraps for signed pixels, and back in the conversion to unsigned ones.
    shifted = pixels - pixels.dtype.type(low)
    has_fractions = np.issubdtype(pixels.dtype, np.floating) and np.any(pixels[::7, ::7] % 1)
    if high - low < 2**16 and not has_fractions:
        return shifted.astype(np.uint16), slope, slope * low + intercept
    step = (high - low) / (2**16 - 1)
    return np.rint((pixels - low) / step).astype(np.uint16), slope * step, slope * low + intercept


def _halved(values: Values) -> Values:
    height, width = (side // 2 * 2 for side in values.shape)
    rows = values[:height:2, :width].astype(np.uint32) + values[1:height:2, :width]
    return ((rows[:, ::2] + rows[:, 1::2] + 2) >> 2).astype(np.uint16)


def _windows(stated: Sequence[Window], ends: npt.NDArray[np.floating]) -> list[Window]:
    """Return the windows of the file, then all values, then those without borders and markers."""
    low, high, *contrast = (float(value) for value in ends)
    ranges = {"All values": sorted((low, high)), f"{_CONTRAST[0]} to {_CONTRAST[1]} %": sorted(contrast)}
    own = [Window(name, (start + end) / 2, max(end - start, 1e-6)) for name, (start, end) in ranges.items()]
    return [*stated, *own]
