"""Images as the model sees them: grey, scaled to [0, 1], cut to the centred square; and the way back for boxes."""

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

from radfact.errors import InputError
from radfact.records import Box

if TYPE_CHECKING:
    from PIL import Image

Gray: TypeAlias = npt.NDArray[np.float32]

MAX_ASPECT = 64
"""Longer over shorter side beyond which an image is no radiograph, and resizing it would cost unbounded memory."""

_ORIENTATION = 0x0112
# Where a PNG keeps an orientation tag. Asking Pillow for the tag of one that has none decodes the whole image.
_PNG_TAGS = frozenset({"exif", "Raw profile type exif", "XML:com.adobe.xmp"})

# Shares closer than this are the same place: far below a pixel, far above rounding.
_TOLERANCE = 1e-9


def image_size(path: Path, content: IO[bytes] | None = None) -> tuple[int, int]:
    """(width, height) of an image file in pixels as `load_gray` reads it, taken from its header.

    Args:
        path: the file.
        content: its bytes, or its first ones, where they do not lie on the disk at `path`.

    Raises:
        InputError: the file cannot be read, is no image, or its header is damaged.
    """
    from PIL import Image

    with _naming_faults(path), Image.open(path if content is None else content) as image:
        width, height = image.size
        is_tagged = image.format == "PNG" and not _PNG_TAGS.isdisjoint(image.info)
        # Tags 5 to 8 turn the image by a quarter; of a TIFF Pillow gives the size after that.
        if (is_tagged or image.format not in ("PNG", "TIFF")) and image.getexif().get(_ORIENTATION, 1) >= 5:
            return height, width
        return width, height


def load_gray(path: Path | str, content: IO[bytes] | None = None) -> Gray:
    """Read an image of any depth as grey values on its own scale (16 bit is not clipped to 8, colour becomes luma).

    Transparent pixels are black. A photo's orientation tag is applied, as viewers do.

    Args:
        path: a PNG or JPEG, or whatever else Pillow reads, with one frame.
        content: the file's bytes where they do not lie on the disk at `path`, as those of a zip file's member.

    Returns:
        (H, W), finite, 0..255 for 8 bit and colour, 0..65535 for 16 bit.

    Raises:
        InputError: the file cannot be read, is no image, is damaged, or has several frames.
    """
    from PIL import Image, ImageOps

    with _naming_faults(path), Image.open(path if content is None else content) as image:
        frames = getattr(image, "n_frames", 1)
        if frames == 1:
            gray = gray_levels(ImageOps.exif_transpose(image))
    if frames != 1:
        raise InputError(f"has {frames} frames; an image with one is needed", file=path)
    if not np.isfinite(gray).all():
        raise InputError("has pixels that are not finite numbers", file=path)
    return gray


@contextmanager
def _naming_faults(path: Path | str) -> Iterator[None]:
    """What Pillow raises of an image file, as a line that says which file it is."""
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except FileNotFoundError:
        raise InputError("no such file", file=path) from None
    except UnidentifiedImageError:
        raise InputError("is no image that can be read; a PNG or JPEG is needed", file=path) from None
    except Image.DecompressionBombError:
        raise InputError("has far more pixels than a radiograph", file=path) from None
    except (OSError, SyntaxError, ValueError, EOFError, LookupError, zlib.error, struct.error) as error:
        # What Pillow's decoders raise for damaged files differs by format.
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(f"cannot be read as an image: {reason.splitlines()[0]}", file=path) from None


def gray_levels(image: Image.Image) -> Gray:
    """Grey values of an image of any mode, (H, W): colour becomes luma, transparent pixels become black."""
    if image.mode == "P":
        image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    if image.mode in ("LA", "PA", "RGBA"):
        luma, alpha = (np.asarray(band, np.float32) for band in image.convert("RGBA").convert("LA").split())
        return luma * (alpha / np.float32(255))
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return np.asarray(image).astype(np.float32)
    # By way of RGB, since CMYK, YCbCr and Lab photos have no luma of their own.
    return np.asarray((image if image.mode in ("1", "L") else image.convert("RGB")).convert("L"), np.float32)


def prepare(image: npt.NDArray[np.floating] | npt.NDArray[np.integer], size: int) -> Gray:
    """Scale an image to [0, 1] and cut out the centred square that the model sees (paper B.4).

    An image whose shorter side is not `size` is first resized (bicubic) so that it is. Mean and deviation are left to
    the model's processor. A constant image becomes zeros.

    Args:
        image: (H, W) grey values on any finite scale.
        size: side of the square, pixels.

    Returns:
        (size, size) in [0, 1].

    Raises:
        InputError: the image is not (H, W), not finite, or one side is over `MAX_ASPECT` times the other.
    """
    if image.ndim != 2 or 0 in image.shape:
        raise InputError(f"a grey image has the shape (height, width), not {image.shape}")
    height, width = image.shape
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise InputError(f"an image of {width} x {height} pixels is no radiograph")
    low, high = float(image.min()), float(image.max())
    if not np.isfinite(high - low):
        raise InputError("the image has pixels that are not finite numbers")
    scaled = image.astype(np.float32)
    if min(height, width) != size:
        # Bicubic rings beyond the range at sharp edges (markers, collimation), which must not set the contrast.
        scaled = np.clip(_resize_shorter_side(scaled, size), low, high)
        low, high = float(scaled.min()), float(scaled.max())
    if low == high:
        return np.zeros((size, size), np.float32)
    top, left = ((side - size) // 2 for side in scaled.shape)
    crop = scaled[top : top + size, left : left + size]
    shares: Gray = np.clip((crop - np.float32(low)) / np.float32(high - low), 0, 1)
    return shares


@dataclass(frozen=True, slots=True)
class CropMap:
    """Original image <-> crop coordinates of boxes, both in shares: the crop is the centred square of the shorter side.

    Args:
        width, height: size of the original image, pixels.

    Raises:
        InputError: a side is not positive.
    """

    width: int
    height: int

    def __post_init__(self) -> None:
        if self.width < 1 or self.height < 1:
            raise InputError(f"an image of {self.width} x {self.height} pixels has no crop")

    def to_crop(self, box: Box) -> tuple[Box | None, bool]:
        """The part of a box of the original image that lies in the crop, and whether the crop cut something off.

        None stands for a box that has nothing in the crop. A box without area stays one where it lies in the crop.
        """
        x_min, x_max, x_cut = _clip(*(self._into(x, self.width) for x in (box.x_min, box.x_max)))
        y_min, y_max, y_cut = _clip(*(self._into(y, self.height) for y in (box.y_min, box.y_max)))
        if x_min > x_max or y_min > y_max:
            return None, True
        return Box(x_min=x_min, y_min=y_min, x_max=x_max, y_max=y_max), x_cut or y_cut

    def to_original(self, box: Box) -> Box:
        """A box of the crop on the original image."""
        x_min, x_max = (self._out_of(x, self.width) for x in (box.x_min, box.x_max))
        y_min, y_max = (self._out_of(y, self.height) for y in (box.y_min, box.y_max))
        return Box(x_min=x_min, y_min=y_min, x_max=x_max, y_max=y_max)

    def _into(self, share: float, side: int) -> float:
        shorter = min(self.width, self.height)
        return (share * side - (side - shorter) // 2) / shorter

    def _out_of(self, share: float, side: int) -> float:
        shorter = min(self.width, self.height)
        return min(1.0, (share * shorter + (side - shorter) // 2) / side)


def _clip(low: float, high: float) -> tuple[float, float, bool]:
    """An interval cut to [0, 1], and whether that changed it; with nothing left, its end lies before its start."""
    inside_low, inside_high = max(low, 0.0), min(high, 1.0)
    cut = inside_low - low > _TOLERANCE or high - inside_high > _TOLERANCE
    if cut and inside_high - inside_low <= _TOLERANCE:
        return 1.0, 0.0, True
    return min(inside_low, 1.0), max(inside_high, 0.0), cut


def _resize_shorter_side(image: Gray, size: int) -> Gray:
    from PIL import Image

    height, width = image.shape
    shorter = min(height, width)
    target = (max(size, size * width // shorter), max(size, size * height // shorter))
    resized = Image.fromarray(image).resize(target, Image.Resampling.BICUBIC)
    return np.asarray(resized, dtype=np.float32)
