"""Decode the stored pixel values of a DICOM file in any transfer syntax used for radiographs."""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from radfact.errors import ErrorCode, InputError

Stored: TypeAlias = npt.NDArray[np.integer]

STORAGE_TAGS = (
    *("SOPClassUID", "SOPInstanceUID", "Modality", "NumberOfFrames", "SamplesPerPixel", "PhotometricInterpretation"),
    *("Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelData"),
)
"""Elements that describe how pixels are stored, and the pixels."""

_RLE = "1.2.840.10008.1.2.5"
_JPEG_2000 = ("1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91")
# Transfer syntaxes that GDCM, the decoder in SimpleITK, supports for a single frame; pydicom supports some of them.
_TRANSFER_SYNTAXES = {
    "1.2.840.10008.1.2": "implicit little endian",
    "1.2.840.10008.1.2.1": "explicit little endian",
    "1.2.840.10008.1.2.1.99": "deflated",
    "1.2.840.10008.1.2.2": "explicit big endian",
    "1.2.840.10008.1.2.4.50": "JPEG baseline",
    "1.2.840.10008.1.2.4.51": "JPEG extended",
    "1.2.840.10008.1.2.4.57": "JPEG lossless",
    "1.2.840.10008.1.2.4.70": "JPEG lossless, first order",
    "1.2.840.10008.1.2.4.80": "JPEG-LS lossless",
    "1.2.840.10008.1.2.4.81": "JPEG-LS near-lossless",
    "1.2.840.10008.1.2.4.90": "JPEG 2000 lossless",
    "1.2.840.10008.1.2.4.91": "JPEG 2000",
    _RLE: "RLE",
}


def check_decodable(header: Any, path: Path) -> None:
    """Check the transfer syntax and the length of the pixel data."""
    syntax = header.file_meta.get("TransferSyntaxUID")
    if syntax is None:
        message = "missing, so the pixels cannot be decoded"
        raise InputError(message, code=ErrorCode.MISSING_FIELD, file=path, field="TransferSyntaxUID")
    if syntax not in _TRANSFER_SYNTAXES:
        message = f"{str(syntax.name)!r} is not supported; convert the file to explicit little endian"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path, field="TransferSyntaxUID")
    if syntax.is_encapsulated:
        return
    # SimpleITK would read beyond the end of the buffer.
    expected = (int(header.Rows) * int(header.Columns) * int(header.BitsAllocated) + 7) // 8
    if len(header.PixelData) < expected:
        message = f"expected {expected} bytes of pixels, found {len(header.PixelData)}; the file is truncated"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path, field="PixelData")


def decode(header: Any, path: Path) -> Stored:
    """Return the stored values (H, W) of one gray frame, without the unused bits.

    The header has the elements of `STORAGE_TAGS` and was checked by `check_decodable`.
    """
    syntax = header.file_meta.TransferSyntaxUID
    # GDCM cannot read some RLE, reads plain pixels only from a file on disk, and believes a header that contradicts the
    # sign of JPEG 2000; it reads other depths and JPEG.
    if syntax in _JPEG_2000 and header.BitsAllocated in (8, 16):
        pixels = _decode_with_pillow(header, path)
    elif (not syntax.is_encapsulated or syntax == _RLE) and header.BitsAllocated in (8, 16, 32):
        pixels = _decode_with_pydicom(header, path)
    else:
        pixels = _decode_with_gdcm(header, path)
    if pixels.shape != (header.Rows, header.Columns):
        raise _undecodable(header, path)
    return pixels


def _decode_with_pillow(header: Any, path: Path) -> Stored:
    from PIL import Image
    from pydicom.encaps import get_frame
    from pydicom.pixels import get_decoder

    decoder, pixels = get_decoder(header.file_meta.TransferSyntaxUID), None
    if "pillow" not in decoder.available_plugins:
        return _decode_with_gdcm(header, path)
    try:
        # pydicom reshapes an image of another shape.
        with Image.open(io.BytesIO(get_frame(header.PixelData, 0, number_of_frames=1))) as image:
            if image.size == (header.Columns, header.Rows):
                pixels, _ = decoder.as_array(
                    header, decoding_plugin="pillow", view_only=True, correct_unused_bits=False
                )
    except (OSError, RuntimeError, SyntaxError, ValueError, Image.DecompressionBombError):
        pixels = None
    if pixels is None:
        raise _undecodable(header, path)
    stored: Stored = pixels
    return stored


def _decode_with_pydicom(header: Any, path: Path) -> Stored:
    from pydicom.pixels import get_decoder

    pixels: Stored
    try:
        # The correction of unused bits in pydicom assumes that the stored bits are the lowest.
        pixels, _ = get_decoder(header.file_meta.TransferSyntaxUID).as_array(
            header, view_only=True, correct_unused_bits=False
        )
    except (RuntimeError, ValueError):
        raise _undecodable(header, path) from None
    unused = 8 * pixels.itemsize - header.BitsStored
    if not unused:
        return pixels
    shifted: Stored = pixels << (8 * pixels.itemsize - 1 - header.HighBit)
    shifted >>= unused
    return shifted


def _decode_with_gdcm(header: Any, path: Path) -> Stored:
    from pydicom import Dataset, dcmwrite

    try:
        import SimpleITK
    except ImportError:
        message = "reading DICOM requires SimpleITK: pip install 'maira-radfact[model]'"
        raise InputError(message, code=ErrorCode.MISSING_REQUIREMENT) from None
    # GDCM inverts MONOCHROME1 in some versions (and fails for signed pixels of odd depth), and converts rescaled pixels
    # to float. So it receives only the pixels, as MONOCHROME2.
    dataset = Dataset()
    dataset.preamble, dataset.file_meta = b"\0" * 128, header.file_meta
    for name in STORAGE_TAGS:
        if name in header and name != "PhotometricInterpretation":
            dataset.add(header[name])
    dataset.PhotometricInterpretation = "MONOCHROME2"
    try:
        with tempfile.TemporaryDirectory() as folder, _stderr_silenced():
            dcmwrite(Path(folder) / "image.dcm", dataset)
            image = SimpleITK.ReadImage(str(Path(folder) / "image.dcm"), imageIO="GDCMImageIO")
    except RuntimeError:
        # The messages of SimpleITK are C++ lines with memory addresses.
        raise _undecodable(header, path) from None
    pixels: Stored = SimpleITK.GetArrayFromImage(image)
    return pixels.reshape(pixels.shape[-2:])


def _undecodable(header: Any, path: Path) -> InputError:
    kind = _TRANSFER_SYNTAXES[header.file_meta.TransferSyntaxUID]
    message = f"pixels cannot be decoded as {kind}; they are damaged or do not match the header"
    return InputError(message, code=ErrorCode.INVALID_FORMAT, file=path, field="PixelData")


@contextmanager
def _stderr_silenced() -> Iterator[None]:
    """Silence the process's standard error, which the codecs of SimpleITK write to."""
    sys.stderr.flush()
    original = os.dup(2)
    try:
        with Path(os.devnull).open("w") as devnull:
            os.dup2(devnull.fileno(), 2)
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)
