"""Load images and prepare them as model input (gray, [0, 1], center crop); map boxes between image and crop."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from maira.data.image_check import check_size
from radfact.errors import ErrorCode, InputError
from radfact.records import Box

if TYPE_CHECKING:
    from PIL import Image

Gray: TypeAlias = npt.NDArray[np.float32]

MAX_ASPECT = 64
"""Largest ratio of longer to shorter side; beyond it, resizing would need unbounded memory."""
MAX_SIZE = 8192
"""Largest shorter side of a converted image in pixels; radiographs are smaller."""

_ORIENTATION = 0x0112
# Where a PNG stores an orientation tag. Reading a missing tag with Pillow decodes the whole image.
_PNG_TAGS = frozenset({"exif", "Raw profile type exif", "XML:com.adobe.xmp"})

# Shares closer than this are equal: far below a pixel, far above rounding errors.
_TOLERANCE = 1e-9


def image_size(path: Path, content: IO[bytes] | None = None) -> tuple[int, int]:
    """Return (width, height) in pixels of an image as `load_gray` reads it, from the file header."""
    from PIL import Image

    with _errors_with_path(path), Image.open(path if content is None else content) as image:
        check_size(*image.size, path)
        is_tagged = image.format == "PNG" and not _PNG_TAGS.isdisjoint(image.info)
        # Orientations 5 to 8 rotate by 90 degrees; Pillow applies them to the size of a TIFF already.
        if (is_tagged or image.format not in ("PNG", "TIFF")) and image.getexif().get(_ORIENTATION, 1) >= 5:
            return image.height, image.width
        return image.size


def load_gray(path: Path | str, content: IO[bytes] | None = None) -> Gray:
    """Read an image of any bit depth as gray values on its original scale.

    Color becomes luma, transparent pixels become black, and the orientation tag is applied.

    Args:
        path: a PNG, JPEG or other file that Pillow reads, with one frame.
        content: the file's bytes if it is not on disk, such as a member of a zip file.

    Returns:
        (H, W), finite, 0..255 for 8 bit and color, 0..65535 for 16 bit.

    Raises:
        InputError: the file cannot be read, is not an image, is damaged, or has several frames or too many pixels.
    """
    from PIL import Image, ImageOps

    with _errors_with_path(path), Image.open(path if content is None else content) as image:
        check_size(*image.size, path)
        if (frames := getattr(image, "n_frames", 1)) != 1:
            raise InputError(f"expected one frame, found {frames}", code=ErrorCode.INVALID_FORMAT, file=path)
        gray = gray_levels(ImageOps.exif_transpose(image))
    if not np.isfinite(gray).all():
        raise InputError("expected finite pixel values, found infinity or NaN", file=path)
    return gray


@contextmanager
def _errors_with_path(path: Path | str) -> Iterator[None]:
    """Convert errors of Pillow to InputError with the path."""
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError("no such file", code=ErrorCode.FILE_NOT_FOUND, file=path) from None
    except UnidentifiedImageError:
        raise InputError("expected a PNG or JPEG image", code=ErrorCode.INVALID_FORMAT, file=path) from None
    except Image.DecompressionBombError:
        raise InputError("more pixels than a radiograph has", file=path) from None
    except (OSError, SyntaxError, ValueError, EOFError, LookupError, zlib.error, struct.error) as error:
        # The exception for a damaged file depends on its format.
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        message = f"cannot be read as an image: {reason.splitlines()[0]}"
        raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=path) from None


def gray_levels(image: Image.Image) -> Gray:
    """Return gray values (H, W) of an image of any mode: color becomes luma, transparent pixels become black."""
    if image.mode == "P":
        image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    if image.mode in ("LA", "PA", "RGBA"):
        luma, alpha = (np.asarray(band, np.float32) for band in image.convert("RGBA").convert("LA").split())
        return luma * (alpha / np.float32(255))
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return np.asarray(image).astype(np.float32)
    # Via RGB, since Pillow cannot convert CMYK, YCbCr and Lab to luma.
    return np.asarray((image if image.mode in ("1", "L") else image.convert("RGB")).convert("L"), np.float32)


def prepare(image: npt.NDArray[np.floating] | npt.NDArray[np.integer], size: int) -> Gray:
    """Resize an image, scale it to [0, 1] and crop the centered square (MAIRA-2, appendix B.4).

    The image is resized (bicubic) if its shorter side is not `size`. Normalization by mean and standard deviation is
    left to the model's processor. A constant image becomes zeros.

    Args:
        image: (H, W) gray values on any finite scale.
        size: side of the square, pixels.

    Returns:
        (size, size) in [0, 1].

    Raises:
        InputError: the image is not (H, W), not finite, or one side is over `MAX_ASPECT` times the other.
    """
    from PIL import Image

    if image.ndim != 2 or 0 in image.shape:
        raise InputError(f"expected a gray image of shape (height, width), found {image.shape}")
    height, width = image.shape
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise InputError(f"expected a radiograph, found an image of {width} x {height} pixels")
    low, high = float(image.min()), float(image.max())
    if not np.isfinite(high - low):
        raise InputError("expected finite pixel values, found infinity or NaN")
    scaled = image.astype(np.float32)
    if min(height, width) != size:
        # Bicubic interpolation overshoots at sharp edges (markers, collimation), which must not affect the contrast.
        target = tuple(max(size, size * side // min(height, width)) for side in (width, height))
        resized = Image.fromarray(scaled).resize(target, Image.Resampling.BICUBIC)
        scaled = np.clip(np.asarray(resized, np.float32), low, high)
        low, high = float(scaled.min()), float(scaled.max())
    if low == high:
        return np.zeros((size, size), np.float32)
    top, left = ((side - size) // 2 for side in scaled.shape)
    crop = scaled[top : top + size, left : left + size]
    shares: Gray = np.clip((crop - np.float32(low)) / np.float32(high - low), 0, 1)
    return shares


@dataclass(frozen=True, slots=True)
class CropMap:
    """Map boxes between the original image and its center crop, both in shares.

    Args:
        width, height: size of the original image, pixels.

    Raises:
        InputError: a side is not positive.
    """

    width: int
    height: int

    def __post_init__(self) -> None:
        if self.width < 1 or self.height < 1:
            raise InputError(f"expected a positive image size, found {self.width} x {self.height} pixels")

    def to_crop(self, box: Box) -> tuple[Box | None, bool]:
        """Return the part of a box inside the crop, and whether the crop cut something off.

        The box is None if it lies outside the crop. A box without area inside the crop is kept.
        """
        shorter = min(self.width, self.height)
        (left, right), (top, bottom) = (
            [(share * side - (side - shorter) // 2) / shorter for share in ends] for ends, side in self._sides(box)
        )
        x_min, x_max, x_cut = _clip(left, right)
        y_min, y_max, y_cut = _clip(top, bottom)
        if x_min > x_max or y_min > y_max:
            return None, True
        return Box(x_min=x_min, y_min=y_min, x_max=x_max, y_max=y_max), x_cut or y_cut

    def to_original(self, box: Box) -> Box:
        """Return a box of the crop in shares of the original image."""
        shorter = min(self.width, self.height)
        (x_min, x_max), (y_min, y_max) = (
            [min(1.0, (share * shorter + (side - shorter) // 2) / side) for share in ends]
            for ends, side in self._sides(box)
        )
        return Box(x_min=x_min, y_min=y_min, x_max=x_max, y_max=y_max)

    def _sides(self, box: Box) -> tuple[tuple[tuple[float, float], int], tuple[tuple[float, float], int]]:
        return ((box.x_min, box.x_max), self.width), ((box.y_min, box.y_max), self.height)


def _clip(low: float, high: float) -> tuple[float, float, bool]:
    """Clip an interval to [0, 1]; return it and whether it changed. An empty result has its end before its start."""
    inside_low, inside_high = max(low, 0.0), min(high, 1.0)
    cut = inside_low - low > _TOLERANCE or high - inside_high > _TOLERANCE
    if cut and inside_high - inside_low <= _TOLERANCE:
        return 1.0, 0.0, True
    return min(inside_low, 1.0), max(inside_high, 0.0), cut
