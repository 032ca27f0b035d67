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


def check_decodable(header: Any, path: Path) -> None:
    """Check the transfer syntax and the length of the pixel data."""
    from pydicom import uid

    syntax = header.file_meta.get("TransferSyntaxUID")
    if syntax is None:
        message = "missing, so the pixels cannot be decoded"
        raise InputError(message, code=ErrorCode.MISSING_FIELD, file=path, field="TransferSyntaxUID")
    # GDCM, the decoder in SimpleITK, supports these for a single frame; pydicom alone supports some of them.
    jpeg = [*uid.JPEGTransferSyntaxes, *uid.JPEGLSTransferSyntaxes, uid.JPEG2000Lossless, uid.JPEG2000]
    if syntax not in (*uid.UncompressedTransferSyntaxes, *jpeg, uid.RLELossless):
        message = f"{str(syntax.name)!r} is not supported; convert the file to explicit little endian"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path, field="TransferSyntaxUID")
    # SimpleITK would read beyond the end of the buffer.
    expected = (int(header.Rows) * int(header.Columns) * int(header.BitsAllocated) + 7) // 8
    if not syntax.is_encapsulated and len(header.PixelData) < expected:
        message = f"expected {expected} bytes of pixels, found {len(header.PixelData)}; the file is truncated"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path, field="PixelData")


def decode(header: Any, path: Path) -> Stored:
    """Return the stored values (H, W) of one gray frame, without the unused bits.

    The header has the elements of `STORAGE_TAGS` and was checked by `check_decodable`.
    """
    from PIL import Image
    from pydicom import uid
    from pydicom.pixels import get_decoder

    syntax = header.file_meta.TransferSyntaxUID
    is_jpeg_2000 = syntax in (uid.JPEG2000Lossless, uid.JPEG2000)
    # GDCM cannot read some RLE, reads plain pixels only from a file on disk, and believes a header that contradicts the
    # sign of JPEG 2000; it reads other depths and JPEG.
    if is_jpeg_2000:
        uses_pydicom = header.BitsAllocated in (8, 16) and "pillow" in get_decoder(syntax).available_plugins
    else:
        uses_pydicom = header.BitsAllocated in (8, 16, 32) and (not syntax.is_encapsulated or syntax == uid.RLELossless)
    try:
        pixels = _decode_with_pydicom(header, is_jpeg_2000) if uses_pydicom else _decode_with_gdcm(header)
        if pixels.shape == (header.Rows, header.Columns):
            return pixels
    except (OSError, RuntimeError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, InputError):
            raise
    # Not the decoders' messages: those of SimpleITK are C++ lines with memory addresses.
    message = f"pixels cannot be decoded as {syntax.name}; they are damaged or do not match the header"
    raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path, field="PixelData")


def _decode_with_pydicom(header: Any, is_jpeg_2000: bool) -> Stored:
    from PIL import Image
    from pydicom.encaps import get_frame
    from pydicom.pixels import get_decoder

    if is_jpeg_2000:
        # pydicom reshapes an image of another shape.
        with Image.open(io.BytesIO(get_frame(header.PixelData, 0, number_of_frames=1))) as image:
            if image.size != (header.Columns, header.Rows):
                raise ValueError("another size than in the header")
    # The correction of unused bits in pydicom assumes that the stored bits are the lowest.
    pixels: Stored
    pixels, _ = get_decoder(header.file_meta.TransferSyntaxUID).as_array(
        header, decoding_plugin="pillow" if is_jpeg_2000 else "", view_only=True, correct_unused_bits=False
    )
    unused = 8 * pixels.itemsize - header.BitsStored
    if is_jpeg_2000 or not unused:
        return pixels
    shifted: Stored = pixels << (8 * pixels.itemsize - 1 - header.HighBit)
    shifted >>= unused
    return shifted


def _decode_with_gdcm(header: Any) -> Stored:
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
    with tempfile.TemporaryDirectory() as folder, _stderr_silenced():
        dcmwrite(Path(folder) / "image.dcm", dataset)
        image = SimpleITK.ReadImage(str(Path(folder) / "image.dcm"), imageIO="GDCMImageIO")
    pixels: Stored = SimpleITK.GetArrayFromImage(image)
    return pixels.reshape(pixels.shape[-2:])


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
