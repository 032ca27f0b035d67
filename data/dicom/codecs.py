"""The pixels of a DICOM as they are stored, out of every transfer syntax that radiographs come in."""

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

from radfact.errors import InputError

Stored: TypeAlias = npt.NDArray[np.integer]

STORAGE_TAGS = (
    *("SOPClassUID", "SOPInstanceUID", "Modality", "NumberOfFrames", "SamplesPerPixel", "PhotometricInterpretation"),
    *("Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelData"),
)
"""The elements that say how pixels are stored, and the pixels."""

# The transfer syntaxes that GDCM, the decoder inside SimpleITK, knows for a single frame; pydicom knows some of them.
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
    "1.2.840.10008.1.2.5": "RLE",
}

# Where pydicom decodes in less time than GDCM, and with what.
_PYDICOM_PLUGINS = {
    "1.2.840.10008.1.2.4.90": "pillow",
    "1.2.840.10008.1.2.4.91": "pillow",
    "1.2.840.10008.1.2.5": "pydicom",
}


def check_decodable(header: Any, path: Path) -> None:
    """Refuse what no decoder here knows, and pixels that are fewer than their header says.

    Raises:
        InputError: naming the transfer syntax, or how much is missing.
    """
    syntax = header.file_meta.get("TransferSyntaxUID")
    if syntax is None:
        raise InputError("is missing, so the pixels cannot be decoded", file=path, field="TransferSyntaxUID")
    if syntax not in _TRANSFER_SYNTAXES:
        message = f"{str(syntax.name)!r} cannot be decoded here; rewrite the file as explicit little endian"
        raise InputError(message, file=path, field="TransferSyntaxUID")
    if syntax.is_encapsulated:
        return
    # SimpleITK would read on beyond the end of such a file and hand over whatever lies in memory there.
    expected = (int(header.Rows) * int(header.Columns) * int(header.BitsAllocated) + 7) // 8
    if len(header.PixelData) < expected:
        message = f"cut off: {len(header.PixelData)} bytes of pixels where {expected} belong"
        raise InputError(message, file=path, field="PixelData")


def decode(header: Any, path: Path) -> Stored:
    """The stored values of one grey frame, (H, W), without what else may lie in the unused bits of a pixel.

    While SimpleITK decodes, the process's standard error is shut, since its codecs write there on their own.

    Args:
        header: the pydicom data set, with all elements that describe its pixels, checked by `check_decodable`.
        path: what errors name as the file.

    Raises:
        InputError: the pixels are damaged, or SimpleITK is needed and not installed.
    """
    pixels = _decode_with_pydicom(header, path) if _is_for_pydicom(header) else _decode_with_gdcm(header, path)
    if pixels.shape != (header.Rows, header.Columns):
        raise _undecodable(header, path)
    return pixels


def _is_for_pydicom(header: Any) -> bool:
    from pydicom.pixels import get_decoder

    syntax = header.file_meta.TransferSyntaxUID
    if not syntax.is_encapsulated:
        return header.BitsAllocated in (8, 16, 32)
    plugin = _PYDICOM_PLUGINS.get(syntax)
    return plugin in get_decoder(syntax).available_plugins and header.BitsAllocated in (8, 16)


def _decode_with_pydicom(header: Any, path: Path) -> Stored:
    from pydicom.pixels import get_decoder

    syntax = header.file_meta.TransferSyntaxUID
    plugin = _PYDICOM_PLUGINS.get(syntax, "")
    if plugin == "pillow" and _codestream_shape(header) != (header.Rows, header.Columns):
        raise _undecodable(header, path)
    try:
        # Its correction of unused bits takes the stored ones to be the lowest.
        pixels: Stored
        pixels, _ = get_decoder(syntax).as_array(
            header, decoding_plugin=plugin, view_only=True, correct_unused_bits=False
        )
    except (RuntimeError, ValueError):
        raise _undecodable(header, path) from None
    unused = 8 * pixels.itemsize - header.BitsStored
    if plugin == "pillow" or not unused:
        return pixels
    shifted: Stored = pixels << (8 * pixels.itemsize - 1 - header.HighBit)
    shifted >>= unused
    return shifted


def _codestream_shape(header: Any) -> tuple[int, int] | None:
    from PIL import Image
    from pydicom.encaps import get_frame

    try:
        with Image.open(io.BytesIO(get_frame(header.PixelData, 0, number_of_frames=1))) as image:
            return image.height, image.width
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None


def _decode_with_gdcm(header: Any, path: Path) -> Stored:
    from pydicom import Dataset, dcmwrite

    sitk = _simpleitk()
    # GDCM inverts MONOCHROME1 in some versions, and fails at that for signed pixels of odd depth; a rescale would make
    # floats of all pixels. So it gets the pixels alone, as MONOCHROME2.
    alone = Dataset()
    alone.preamble, alone.file_meta = b"\0" * 128, header.file_meta
    for name in STORAGE_TAGS:
        if name in header and name != "PhotometricInterpretation":
            alone.add(header[name])
    alone.PhotometricInterpretation = "MONOCHROME2"
    try:
        with tempfile.TemporaryDirectory() as folder, _stderr_shut():
            dcmwrite(Path(folder) / "image.dcm", alone)
            image = sitk.ReadImage(str(Path(folder) / "image.dcm"), imageIO="GDCMImageIO")
    except RuntimeError:
        # Its reasons are lines of C++ with addresses in them.
        raise _undecodable(header, path) from None
    pixels: Stored = sitk.GetArrayFromImage(image)
    return pixels.reshape(pixels.shape[-2:])


def _undecodable(header: Any, path: Path) -> InputError:
    kind = _TRANSFER_SYNTAXES[header.file_meta.TransferSyntaxUID]
    message = f"the pixels cannot be decoded; they are damaged, or not what their header says ({kind})"
    return InputError(message, file=path, field="PixelData")


def _simpleitk() -> Any:
    try:
        import SimpleITK
    except ImportError:
        raise InputError("reading DICOM needs SimpleITK: pip install 'maira-radfact[model]'") from None
    return SimpleITK


@contextmanager
def _stderr_shut() -> Iterator[None]:
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
