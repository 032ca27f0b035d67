"""Any radiograph of an archive as its PNG: DICOM, PNG or JPEG of 8 or 16 bits, on the disk or in a zip file."""

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

from data.archive import Radiograph
from data.dicom.radiograph import Frame, ImageInfo, frame_to_png
from data.dicom.reader import opened, read_dicom
from data.images import load_gray
from radfact.errors import InputError

# Endings of a DICOM file; what lacks both these and the prefix of DICOM is left to the reader of pictures.
_DICOM_SUFFIXES = ("", ".dcm", ".dicom")
_GREY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "I;16N", "F")
# What a JPEG of grey in three channels, or a scanner, may make of grey; and what a coloured mark may cover of a radiograph.
_TINT = 16
"""Levels of 255 by which the channels of a grey pixel may differ."""
_COLOURED_SHARE = 0.02


def radiograph_to_png(
    radiograph: Radiograph, target: Path, size: int = 518, *, apply_windows: bool = False
) -> ImageInfo:
    """Convert a radiograph to an 8 bit PNG whose shorter side is `size`, by one path for all formats (paper 004, B.4).

    What decides is a file's content, not its name. A colour image is refused; of PNG and JPEG one that is grey in its
    colours but for noise and small marks becomes grey. A member of a zip file is read into memory, and nothing is
    unpacked on the disk; the zip files used last stay open, so that radiographs in the order of their zip files are converted
    fastest.

    Args:
        radiograph: where the radiograph is.
        target: the PNG to write, whole or not at all. Nothing of the radiograph but its pixels goes into it.
        size: shorter side of the result, pixels.
        apply_windows: see `data.dicom.reader.read_dicom`; other formats have no windows.

    Raises:
        InputError: the radiograph cannot be found, read or decoded, is constant, of another size than its archive says, or is
            no radiograph.
    """
    with _content(radiograph, radiograph.name) as content:
        frame = _read(content, radiograph, apply_windows)
    height, width = frame.pixels.shape
    if radiograph.size not in (None, (width, height)):
        raise InputError(
            f"has {width} x {height} pixels, but boxes were drawn on {radiograph.size[0]} x {radiograph.size[1]}",
            file=radiograph.name,
        )
    return frame_to_png(frame, target, size, radiograph.name)


def _read(content: IO[bytes], radiograph: Radiograph, apply_windows: bool) -> Frame:
    name = radiograph.name
    is_dicom = content.read(132)[128:] == b"DICM" or name.suffix.lower() in _DICOM_SUFFIXES
    content.seek(0)
    if is_dicom:
        return read_dicom(content, name, apply_windows=apply_windows)
    gray = load_gray(name, content)
    content.seek(0)
    _refuse_colour(content, name)
    # A picture is as deep as its brightest pixel needs; what it could have held says nothing about the radiograph.
    return Frame(gray, radiograph.is_inverted, bits_stored=max(8, int(gray.max()).bit_length()))


def _refuse_colour(content: IO[bytes], name: Path) -> None:
    from PIL import Image, ImageChops

    with Image.open(content) as image:
        if image.mode in _GREY_MODES:
            return
        red, green, blue = image.convert("RGB").split()
    spread = ImageChops.lighter(ImageChops.difference(red, green), ImageChops.difference(green, blue))
    counts = ImageChops.lighter(spread, ImageChops.difference(red, blue)).histogram()
    share = sum(counts[_TINT + 1 :]) / sum(counts)
    if share > _COLOURED_SHARE:
        raise InputError(f"is a colour image ({share:.0%} of its pixels are coloured); a radiograph is grey", file=name)


@contextmanager
def _content(radiograph: Radiograph, name: Path) -> Iterator[IO[bytes]]:
    if radiograph.member is None:
        with opened(radiograph.path) as content:
            yield content
        return
    try:
        changed = radiograph.path.stat().st_mtime_ns
        # A process that was forked must not share the place of reading with its parent.
        packed = _zip_file(radiograph.path, changed, os.getpid()).read(radiograph.member)
    except KeyError:
        raise InputError("no such member in the zip file", file=name) from None
    except FileNotFoundError:
        raise InputError("no such file", file=radiograph.path) from None
    except (BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        # A wrong checksum, an encrypted member, a way of compressing that Python does not know.
        raise InputError(f"cannot be taken out of the zip file: {error}", file=name) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=radiograph.path) from None
    with io.BytesIO(packed) as content:
        yield content


@lru_cache(maxsize=4)
def _zip_file(path: Path, changed: int, process: int) -> ZipFile:
    del changed, process
    return ZipFile(path)
