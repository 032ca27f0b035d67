"""Decode the stored pixel values of a DICOM file in any transfer syntax used for radiographs."""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from maira.data.image_check import check_gray
from radfact.errors import ErrorCode, InputError, describe_choice
from radfact.records import is_missing

Stored: TypeAlias = npt.NDArray[np.integer]

COUNTS = (
    *("NumberOfFrames", "SamplesPerPixel", "Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit"),
    *("PixelRepresentation", "PlanarConfiguration"),
)
"""Elements with one whole number."""
STORAGE_TAGS = (
    *(*COUNTS, "SOPClassUID", "SOPInstanceUID", "Modality", "PhotometricInterpretation", "PixelData"),
    *(f"{c}PaletteColorLookupTable{part}" for c in ("Red", "Green", "Blue") for part in ("Descriptor", "Data")),
)
"""Elements that describe how pixels are stored, and the pixels."""
GRAYS, COLORS = ("MONOCHROME1", "MONOCHROME2"), ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
"""Photometric interpretations; some devices store gray images in color."""
_NUMBER = re.compile(r"(?![1-9]\d?\d?,\d{3}\b)([+-]?(\d+[.,]?\d*|[.,]\d+)(e[+-]?\d+)?) *[a-zµ]{0,2}", re.IGNORECASE)
"""A number with a decimal point or comma and perhaps a unit, but not 1,234, which may be a thousand."""


def numbers(header: Any, name: str, path: Path) -> list[float]:
    """Return the values of an element without missing ones; pydicom refuses decimal commas, units and `N/A`."""
    from pydicom.datadict import dictionary_VR

    is_text = name in header and dictionary_VR(name) in ("DS", "IS")
    value = header.get_item(name).value if is_text else header.get(name)
    values: list[float] = []
    parts = value.decode("latin-1").split("\\") if isinstance(value, bytes) else value
    for part in parts if hasattr(parts, "append") else [parts]:
        if (text := str(part).strip(" \0")) and not is_missing(text):
            if (number := _NUMBER.fullmatch(text)) is None:
                raise InputError(f"expected a number, found {describe_choice(text)}", file=path, field=name)
            values.append(float(number[1].replace(",", ".")))
    return values


def number(header: Any, name: str, path: Path, default: float = 0) -> float:
    """Return the value of an element, which some files have several times."""
    values = {*numbers(header, name, path)}
    if len(values) > 1:
        raise InputError(f"expected one value, found {len(values)} different ones", file=path, field=name)
    return values.pop() if values else default


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
    samples = 2 if header.PhotometricInterpretation == "YBR_FULL_422" else header.SamplesPerPixel
    expected = (header.Rows * header.Columns * header.BitsAllocated * samples + 7) // 8
    if not syntax.is_encapsulated and len(header.PixelData) < expected:
        message = f"expected {expected} bytes of pixels, found {len(header.PixelData)}; the file is truncated"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path, field="PixelData")


def decode(header: Any, path: Path) -> tuple[Stored, bool]:
    """Return the gray values (H, W) of a frame without unused bits, and whether unused bits above them are set."""
    from PIL import Image
    from pydicom import uid
    from pydicom.pixels import get_decoder

    syntax, is_color = header.file_meta.TransferSyntaxUID, header.PhotometricInterpretation not in GRAYS
    is_jpeg_2000 = syntax in (uid.JPEG2000Lossless, uid.JPEG2000)
    # GDCM cannot read some RLE, reads plain pixels only from a file on disk, and believes a header that contradicts the
    # sign of JPEG 2000; it reads other depths and JPEG.
    if is_jpeg_2000:
        uses_pydicom = header.BitsAllocated in (8, 16) and "pillow" in get_decoder(syntax).available_plugins
    else:
        uses_pydicom = header.BitsAllocated in (8, 16, 32) and (not syntax.is_encapsulated or syntax == uid.RLELossless)
    try:
        if is_color:
            pixels = _decode_color(header, path)
        else:
            pixels = _decode_with_pydicom(header, is_jpeg_2000) if uses_pydicom else _decode_with_gdcm(header)
        if pixels.shape == (header.Rows, header.Columns):
            size = 8 * pixels.itemsize
            unused = 0 if is_color else size - header.HighBit - 1
            above = pixels.view(pixels.dtype.str.replace("i", "u")) >> (size - unused) if unused > 0 else pixels[:0]
            # Signed values may be extended by their sign.
            exceeds = bool((above[above != 2**unused - 1] if pixels.dtype.kind == "i" else above).any())
            if uses_pydicom and not (is_jpeg_2000 or is_color):
                # The correction of unused bits in pydicom assumes that the stored bits are the lowest.
                pixels = (pixels << unused) >> (size - header.BitsStored)
            return pixels, exceeds
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
    pixels: Stored
    pixels, _ = get_decoder(header.file_meta.TransferSyntaxUID).as_array(
        header, decoding_plugin="pillow" if is_jpeg_2000 else "", view_only=True, correct_unused_bits=False
    )
    return pixels


def _decode_color(header: Any, path: Path) -> Stored:
    """Return the luma of a frame that is stored in color, but gray."""
    from pydicom.pixels import apply_color_lut, get_decoder

    pixels, _ = get_decoder(header.file_meta.TransferSyntaxUID).as_array(header)
    if header.SamplesPerPixel == 1:  # PALETTE COLOR
        pixels = apply_color_lut(pixels, header)
    check_gray(pixels, path, "PhotometricInterpretation")
    luma: Stored = np.rint(pixels @ np.array([0.299, 0.587, 0.114])).astype(pixels.dtype)
    return luma


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
