"""Convert a radiograph (DICOM, PNG or JPEG of 8 or 16 bit, on disk or in a zip file) to PNG."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO
from zipfile import BadZipFile, ZipFile

import numpy as np

from maira.data.archive import HEAD_BYTES, Radiograph, is_dicom
from maira.data.dicom.radiograph import Frame, ImageInfo, frame_to_png
from maira.data.dicom.reader import read_dicom
from maira.data.image_check import ImageCheck, check_gray, check_pixels
from maira.data.images import load_gray
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import reading

# File name suffixes of DICOM; a file with neither these nor a begin of DICOM is read as an image.
_DICOM_SUFFIXES = ("", ".dcm", ".dicom", ".dic", ".ima")
_GRAY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "I;16N", "F")


def radiograph_to_png(
    radiograph: Radiograph,
    target: Path,
    size: int = 518,
    *,
    apply_windows: bool = False,
    image_check: ImageCheck = "off",
) -> ImageInfo:
    """Convert a radiograph to an 8 bit PNG whose shorter side is `size` (MAIRA-2, appendix B.4).

    The format is detected by content. Color images are refused, except for those that are gray but for noise and small
    marks. Members of zip files are read into memory; the last used zip files stay open, so convert
    radiographs in the order of their zip files.

    Args:
        radiograph: location of the radiograph.
        target: the PNG to write, atomically. It contains pixels only.
        size: shorter side of the result, pixels.
        apply_windows: see `maira.data.dicom.reader.read_dicom`; other formats have no windows.
        image_check: whether to refuse images that cannot be chest radiographs (`maira.data.image_check`).

    Raises:
        InputError: the radiograph cannot be found, read or decoded, is constant, has another size than the archive
            states, or is not a radiograph.
    """
    frame = read_radiograph(radiograph, apply_windows=apply_windows, image_check=image_check)
    height, width = frame.pixels.shape
    if radiograph.size not in (None, (width, height)):
        expected = f"{radiograph.size[0]} x {radiograph.size[1]}"
        message = f"expected {expected} pixels, on which the boxes are defined, found {width} x {height}"
        raise InputError(message, code=ErrorCode.MISMATCH, file=radiograph.location)
    return frame_to_png(frame, target, size, radiograph.location)


def read_radiograph(radiograph: Radiograph, *, apply_windows: bool = False, image_check: ImageCheck = "off") -> Frame:
    """Decode a radiograph; see `radiograph_to_png`."""
    from PIL import Image

    name = radiograph.location
    with _open_content(radiograph) as content:
        begins_as_dicom = is_dicom(content.read(HEAD_BYTES))
        content.seek(0)
        if begins_as_dicom or name.suffix.lower() in _DICOM_SUFFIXES:
            return read_dicom(content, name, apply_windows=apply_windows, image_check=image_check, view=radiograph.view)
        gray = load_gray(name, content)
        if image_check == "refuse":
            check_pixels(gray, name)
        content.seek(0)
        with Image.open(content) as image:
            if image.mode not in _GRAY_MODES:
                check_gray(np.asarray(image.convert("RGB")), name)
    # The depth that the brightest pixel needs; the depth in the header may be greater.
    return Frame(gray, radiograph.is_inverted, bits_stored=max(8, int(gray.max()).bit_length()))


@contextmanager
def _open_content(radiograph: Radiograph) -> Iterator[IO[bytes]]:
    if radiograph.member is None:
        with reading(radiograph.path), radiograph.path.open("rb") as content:
            yield content
        return
    try:
        with reading(radiograph.path):
            modified = radiograph.path.stat().st_mtime_ns
            # A forked process must not share the file position with its parent.
            packed = _zip_file(radiograph.path, modified, os.getpid()).read(radiograph.member)
    except KeyError:
        raise InputError("no such member in the zip", code=ErrorCode.FILE_NOT_FOUND, file=radiograph.location) from None
    except (BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        # A wrong checksum, an encrypted member, or an unsupported compression method.
        message = f"cannot be extracted from the zip file: {error}"
        raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=radiograph.location) from None
    with io.BytesIO(packed) as content:
        yield content


@lru_cache(maxsize=4)
def _zip_file(path: Path, modified: int, process: int) -> ZipFile:
    del modified, process
    return ZipFile(path)
