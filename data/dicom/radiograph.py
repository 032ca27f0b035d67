"""From the grey values of a radiograph, whatever it was stored as, to the 8 bit PNG of the archive (paper 004, B.4)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from data.dicom.resample import bspline_resize
from data.images import MAX_ASPECT
from radfact.errors import InputError
from radfact.io.jsonl import open_atomic

Levels: TypeAlias = npt.NDArray[np.uint8]

_NOT_AN_IMAGE = "there is no image in it: all its pixels are equal"


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """What was converted: sizes in pixels of the PNG and of its source, and how the source was stored."""

    width: int
    height: int
    source_width: int
    source_height: int
    photometric: str
    bits_stored: int


@dataclass(frozen=True, slots=True)
class Frame:
    """One decoded radiograph.

    Attributes:
        pixels: (H, W) finite values of any real type, on any scale.
        is_inverted: whether a viewer shows low values bright.
        is_cut: whether the values were cut off at both ends of a window.
        padded: (H, W) pixels that stand for "no image here", None where there are none.
        spacing: distance of the rows and of the columns in some common unit.
        photometric: photometric interpretation, as DICOM names it.
        bits_stored: depth of the source's pixels.
    """

    pixels: npt.NDArray[Any]
    is_inverted: bool = False
    is_cut: bool = False
    padded: npt.NDArray[np.bool_] | None = None
    spacing: tuple[float, float] = (1.0, 1.0)
    photometric: str = "MONOCHROME2"
    bits_stored: int = 16


def to_levels(frame: Frame, size: int, source: Path) -> Levels:
    """Resize a radiograph isotropically with B-splines and scale it from its darkest to its brightest value (paper 004, B.4).

    Dark is air and bright is bone whatever the radiograph's photometric interpretation. Pixels that are not square become so.
    Padding takes no part in the scaling: it becomes black, as dark as the radiograph's darkest value. B-splines swing beyond
    sharp edges, so that edges towards padding, or those that a window has cut, would set the contrast; there values are
    kept within the radiograph's own range. Nothing else is treated apart: borders and letters burned into the radiograph are radiograph.

    Args:
        frame: the radiograph.
        size: shorter side of the result, pixels.
        source: what errors name as the file.

    Returns:
        (H, W), with 0 and 255 among its values.

    Raises:
        InputError: the radiograph is constant, nothing but padding, or no radiograph by its shape.
    """
    height, width = _target_size(frame, size, source)
    pixels = _without_padding(frame, source)
    low, high = float(pixels.min()), float(pixels.max())
    # Tested before resizing, which leaves rounding errors of a constant radiograph that scaling would blow up.
    if low == high:
        raise InputError(_NOT_AN_IMAGE, file=source)
    resized = bspline_resize(pixels, height, width)
    if frame.padded is not None or frame.is_cut:
        np.clip(resized, low, high, out=resized)
    if frame.is_inverted:
        np.negative(resized, out=resized)
    low, high = float(resized.min()), float(resized.max())
    if low == high:
        raise InputError(_NOT_AN_IMAGE, file=source)
    resized -= low
    resized *= 255 / (high - low)
    return np.rint(resized, out=resized).astype(np.uint8)


def write_png(levels: Levels, target: Path) -> None:
    """Write a grey PNG without any text or tag, whole or not at all."""
    from PIL import Image

    with open_atomic(target, "wb") as handle:
        # Of zlib's strategies the one that is fastest on noisy radiographs and makes the smallest files of them as well.
        Image.fromarray(levels).save(handle, format="PNG", compress_type=zlib.Z_RLE)


def frame_to_png(frame: Frame, target: Path, size: int, source: Path) -> ImageInfo:
    """Write a radiograph as the archive's PNG and tell what became of it; see `to_levels` for arguments and errors."""
    levels = to_levels(frame, size, source)
    write_png(levels, target)
    return ImageInfo(
        width=levels.shape[1],
        height=levels.shape[0],
        source_width=frame.pixels.shape[1],
        source_height=frame.pixels.shape[0],
        photometric=frame.photometric,
        bits_stored=frame.bits_stored,
    )


def _target_size(frame: Frame, size: int, source: Path) -> tuple[int, int]:
    height, width = frame.pixels.shape
    tall, wide = height * frame.spacing[0], width * frame.spacing[1]
    if max(tall, wide) > MAX_ASPECT * min(tall, wide) or min(height, width) < 4:
        raise InputError(f"an image of {width} x {height} pixels is no radiograph", file=source)
    unit = min(tall, wide) / size
    return max(size, round(tall / unit)), max(size, round(wide / unit))


def _without_padding(frame: Frame, source: Path) -> npt.NDArray[Any]:
    """The pixels with the padding as dark as the darkest of the rest."""
    if frame.padded is None:
        return frame.pixels
    radiograph = frame.pixels[~frame.padded]
    if not radiograph.size:
        raise InputError("there is no image in it: all its pixels are padding", file=source)
    return np.where(frame.padded, radiograph.max() if frame.is_inverted else radiograph.min(), frame.pixels)
