"""Convert the gray values of a radiograph to an 8 bit PNG (MAIRA-2, appendix B.4)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from maira.data.dicom.resample import bspline_resize
from maira.data.images import MAX_ASPECT
from radfact.errors import InputError
from radfact.io.jsonl import open_atomic

_CONSTANT = "expected an image, found only equal pixels"


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """Sizes in pixels of a PNG and of its source, and how the source was stored."""

    width: int
    height: int
    source_width: int
    source_height: int
    photometric: str
    bits_stored: int
    doubts: tuple[str, ...] = ()  # contradictions of the file, with which the image may show something else


@dataclass(frozen=True, slots=True)
class Window:
    """A named range of values to display (PS3.3, C.11.2.1.2)."""

    name: str
    center: float
    width: float


@dataclass(frozen=True, slots=True)
class Frame:
    """One decoded radiograph."""

    pixels: npt.NDArray[Any]  # (H, W) finite values of any real type, on any scale
    is_inverted: bool = False  # low values are bright
    is_clipped: bool = False  # values were clipped to a window
    padding: npt.NDArray[np.bool_] | None = None  # (H, W) mask of pixels outside the image, if there are any
    spacing: tuple[float, float] = (1.0, 1.0)  # distance of rows and of columns in a common unit
    photometric: str = "MONOCHROME2"
    bits_stored: int = 16
    rescale: tuple[float, float] = (1.0, 0.0)  # slope and intercept from stored to output values (C.11.1.1.2)
    windows: tuple[Window, ...] = ()  # windows (VOI) that the file recommends, in output values
    doubts: tuple[str, ...] = ()  # contradictions of the file


def to_levels(frame: Frame, size: int, source: Path) -> npt.NDArray[np.uint8]:
    """Resize a radiograph with B-splines and scale it from 0 at its darkest to 255 at its brightest value (H, W).

    Air is dark and bone is bright for every photometric interpretation, and pixels become square. Padding becomes
    black and does not affect the scaling. B-splines overshoot at sharp edges: next to padding or clipped values, the
    result is clipped to the radiograph's range so that such edges do not set the contrast. Borders and burned-in
    letters are part of the radiograph (MAIRA-2, appendix B.4).
    """
    height, width = frame.pixels.shape
    tall, wide = height * frame.spacing[0], width * frame.spacing[1]
    if max(tall, wide) > MAX_ASPECT * min(tall, wide) or min(height, width) < 4:
        raise InputError(f"expected a radiograph, found an image of {width} x {height} pixels", file=source)
    unit = min(tall, wide) / size
    pixels = fill_padding(frame, source)
    low, high = float(pixels.min()), float(pixels.max())
    # Before resizing, whose rounding errors would be scaled to full contrast.
    if low == high:
        raise InputError(_CONSTANT, file=source)
    resized = bspline_resize(pixels, max(size, round(tall / unit)), max(size, round(wide / unit)))
    if frame.padding is not None or frame.is_clipped:
        resized = np.clip(resized, low, high)
    if frame.is_inverted:
        resized = -resized
    low, high = float(resized.min()), float(resized.max())
    if low == high:
        raise InputError(_CONSTANT, file=source)
    return np.rint((resized - low) * (255 / (high - low))).astype(np.uint8)


def frame_to_png(frame: Frame, target: Path, size: int, source: Path) -> ImageInfo:
    """Write a radiograph as gray PNG without metadata, atomically; see `to_levels` for the arguments."""
    from PIL import Image

    levels = to_levels(frame, size, source)
    with open_atomic(target, "wb") as handle:
        # The zlib strategy that is fastest on noisy radiographs and also gives the smallest files.
        Image.fromarray(levels).save(handle, format="PNG", compress_type=zlib.Z_RLE)
    height, width = levels.shape
    source_height, source_width = frame.pixels.shape
    return ImageInfo(width, height, source_width, source_height, frame.photometric, frame.bits_stored, frame.doubts)


def fill_padding(frame: Frame, source: Path) -> npt.NDArray[Any]:
    """Return the pixels with the padding as dark as the darkest pixel of the image."""
    if frame.padding is None:
        return frame.pixels
    radiograph = frame.pixels[~frame.padding]
    if not radiograph.size:
        raise InputError("expected an image, found only padding", file=source)
    return np.where(frame.padding, radiograph.max() if frame.is_inverted else radiograph.min(), frame.pixels)
