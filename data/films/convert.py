"""Any film of an archive as its PNG: DICOM, PNG or JPEG of 8 or 16 bits, on the disk or in a zip file."""

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

from data.archive import Film
from data.films.dicom import opened, read_dicom
from data.films.frames import Frame, ImageInfo, frame_to_png
from data.images import load_gray
from radfact.errors import InputError

# Endings of a DICOM file; what lacks both these and the prefix of DICOM is left to the reader of pictures.
_DICOM_SUFFIXES = ("", ".dcm", ".dicom")


def film_to_png(film: Film, target: Path, size: int = 518, *, apply_windows: bool = False) -> ImageInfo:
    """Convert a film to an 8 bit PNG whose shorter side is `size`, by one path for all formats (paper 004, B.4).

    What decides is a file's content, not its name. Colour becomes grey in PNG and JPEG and is refused in DICOM, as
    there it means another kind of image. A member of a zip file is read into memory, and nothing is unpacked on the
    disk; the zip files used last stay open, so that films in the order of their zip files are converted fastest.

    Args:
        film: where the film is.
        target: the PNG to write, whole or not at all. Nothing of the film but its pixels goes into it.
        size: shorter side of the result, pixels.
        apply_windows: see `data.films.dicom.read_dicom`; other formats have no windows.

    Raises:
        InputError: the film cannot be found, read or decoded, is constant, or is no radiograph.
    """
    name = film.path if film.member is None else film.path / film.member
    with _content(film, name) as content:
        frame = _read(content, name, apply_windows)
    return frame_to_png(frame, target, size, name)


def _read(content: IO[bytes], name: Path, apply_windows: bool) -> Frame:
    is_dicom = content.read(132)[128:] == b"DICM" or name.suffix.lower() in _DICOM_SUFFIXES
    content.seek(0)
    if is_dicom:
        return read_dicom(content, name, apply_windows=apply_windows)
    gray = load_gray(name, content)
    # A picture is as deep as its brightest pixel needs; what it could have held says nothing about the film.
    return Frame(gray, bits_stored=max(8, int(gray.max()).bit_length()))


@contextmanager
def _content(film: Film, name: Path) -> Iterator[IO[bytes]]:
    if film.member is None:
        with opened(film.path) as content:
            yield content
        return
    try:
        changed = film.path.stat().st_mtime_ns
        # A process that was forked must not share the place of reading with its parent.
        packed = _zip_file(film.path, changed, os.getpid()).read(film.member)
    except KeyError:
        raise InputError("no such member in the zip file", file=name) from None
    except FileNotFoundError:
        raise InputError("no such file", file=film.path) from None
    except (BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        # A wrong checksum, an encrypted member, a way of compressing that Python does not know.
        raise InputError(f"cannot be taken out of the zip file: {error}", file=name) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=film.path) from None
    with io.BytesIO(packed) as content:
        yield content


@lru_cache(maxsize=4)
def _zip_file(path: Path, changed: int, process: int) -> ZipFile:
    del changed, process
    return ZipFile(path)
