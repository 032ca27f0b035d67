"""DICOM films as grey values, whatever the way they are stored, and as the archive's PNG (paper 004, B.4)."""

from __future__ import annotations

import copy
import io
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from data.frames import Frame, ImageInfo, frame_to_png
from data.windows import WINDOW_TAGS, windowed
from radfact.errors import InputError

Stored = npt.NDArray[np.integer]

# Row spacing first, then column spacing; only their ratio matters here.
_SPACINGS = ("PixelSpacing", "ImagerPixelSpacing", "NominalScannedPixelSpacing", "PixelAspectRatio")
_MAX_SPACING_RATIO = 10

# What of a DICOM decides how its pixels are to be read, and nothing about the patient.
_PIXEL_TAGS = [
    *("SOPClassUID", "SOPInstanceUID", "Modality", "NumberOfFrames", "SamplesPerPixel", "PhotometricInterpretation"),
    *("Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelData"),
    *("PixelPaddingValue", "PixelPaddingRangeLimit", "RescaleIntercept", "RescaleSlope", *_SPACINGS, *WINDOW_TAGS),
]

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

# Pillow's own limit against files that claim an absurd size.
_MAX_PIXELS = 178_956_970


def dicom_to_png(source: Path, target: Path, size: int = 518, *, apply_windows: bool = False) -> ImageInfo:
    """Convert a radiograph from DICOM to an 8 bit PNG whose shorter side is `size` (paper 004, B.4).

    Args:
        source: a DICOM file with one grey frame.
        target: the PNG to write, whole or not at all. Nothing of the file but its pixels goes into it.
        size: shorter side of the result, pixels.
        apply_windows: see `read_dicom`.

    Raises:
        InputError: the file is no DICOM with one grey frame, or is damaged, constant, or of an unsupported kind; or
            SimpleITK and pydicom are not installed.
    """
    with opened(source) as content:
        frame = read_dicom(content, source, apply_windows=apply_windows)
    return frame_to_png(frame, target, size, source)


def read_dicom(content: IO[bytes], path: Path, *, apply_windows: bool = False) -> Frame:
    """Decode the one grey frame of a DICOM file.

    Without windows the values are those stored: scaling from darkest to brightest makes a rescale intercept and the
    amount of a slope equal, so that of both only the slope's sign is kept. While SimpleITK decodes, the process's
    standard error is shut, since its codecs write there on their own.

    Args:
        content: the file, seekable.
        path: what errors name as the file.
        apply_windows: show what a viewer shows, the values within the file's first window (VOI), rather than all of
            them as the paper has it.

    Raises:
        InputError: as `dicom_to_png`.
    """
    with _damage_named(path):
        header = _read_header(content, path)
        spacing = _spacing(header, path)
        stored = _decode(header, path)
        slope_is_negative = float(header.get("RescaleSlope") or 1) < 0
        is_negative = header.PhotometricInterpretation == "MONOCHROME1"
        return Frame(
            pixels=windowed(stored, header, path) if apply_windows else stored,
            is_inverted=is_negative if apply_windows else is_negative != slope_is_negative,
            padded=_padded(stored, header),
            spacing=spacing,
            photometric=str(header.PhotometricInterpretation),
            bits_stored=int(header.BitsStored),
        )


def example_radiograph() -> Path:
    """A real chest film as DICOM (computed radiography, MONOCHROME1): RG1_UNCR.dcm of the package pydicom-data.

    Raises:
        InputError: pydicom-data is not installed, with the command that installs it.
    """
    from importlib.util import find_spec

    # Not pydicom.data.get_testdata_file, which downloads what it does not find.
    package = find_spec("data_store")
    for folder in package.submodule_search_locations or [] if package else []:
        if (film := Path(folder) / "data" / "RG1_UNCR.dcm").is_file():
            return film
    raise InputError("the example film is in the package pydicom-data: pip install pydicom-data")


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A file to read bytes from.

    Raises:
        InputError: it does not exist or cannot be read, also while the block reads on.
    """
    try:
        with path.open("rb") as content:
            yield content
    except FileNotFoundError:
        raise InputError("no such file", file=path) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=path) from None


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Damaged elements as InputError: pydicom passes on whatever its parsers raise or warn of, some only on access."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (InputError, OSError, MemoryError):
        raise
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"a damaged DICOM file: {reason}", file=path) from None


def _read_header(content: IO[bytes], path: Path) -> Any:
    """The pixel elements of a file, checked and filled up as far as that goes without decoding."""
    try:
        import pydicom
        from pydicom.errors import InvalidDicomError
    except ImportError:
        raise InputError("reading DICOM needs pydicom: pip install 'maira-radfact[model]'") from None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            header = pydicom.dcmread(content, specific_tags=_PIXEL_TAGS)
        except InvalidDicomError:
            raise InputError("not a DICOM file (it has no DICM prefix)", file=path) from None
    if "PixelData" not in header:
        cut = any("End of file" in str(warning.message) for warning in caught)
        raise InputError("cut off within its pixel data" if cut else "a DICOM file without pixels", file=path)
    _check_one_gray_frame(header, path)
    _check_bits(header, path)
    _check_complete(header, path)
    return header


def _check_one_gray_frame(header: Any, path: Path) -> None:
    missing = [tag for tag in ("Rows", "Columns", "BitsAllocated", "PhotometricInterpretation") if not header.get(tag)]
    if missing:
        raise InputError("an image needs a value here, none or 0 found", file=path, field=missing[0])
    frames = int(header.get("NumberOfFrames") or 1)
    if frames != 1:
        raise InputError(f"has {frames} frames; a radiograph has one", file=path, field="NumberOfFrames")
    photometric, samples = header.PhotometricInterpretation, int(header.get("SamplesPerPixel") or 1)
    if samples != 1 or photometric not in ("MONOCHROME1", "MONOCHROME2"):
        message = (
            f"{photometric!r} with {samples} samples a pixel is colour; a radiograph is MONOCHROME1 or MONOCHROME2"
        )
        raise InputError(message, file=path, field="PhotometricInterpretation")


def _check_bits(header: Any, path: Path) -> None:
    if header.Rows * header.Columns > _MAX_PIXELS:
        raise InputError(f"{header.Columns} x {header.Rows} pixels are far more than a radiograph has", file=path)
    allocated = int(header.BitsAllocated)
    header.SamplesPerPixel, header.PixelRepresentation = 1, int(header.get("PixelRepresentation") or 0)
    header.BitsStored = stored = int(header.get("BitsStored") or allocated)
    header.HighBit = high = int(header.get("HighBit") or stored - 1)
    if not stored - 1 <= high < allocated:
        message = f"{stored} bits with the highest at {high} do not fit into {allocated}"
        raise InputError(message, file=path, field="BitsStored")


def _check_complete(header: Any, path: Path) -> None:
    syntax = header.file_meta.get("TransferSyntaxUID")
    if syntax is None:
        raise InputError("is missing, so the pixels cannot be decoded", file=path, field="TransferSyntaxUID")
    if syntax not in _TRANSFER_SYNTAXES:
        message = f"{str(syntax.name)!r} cannot be decoded here; rewrite the file as explicit little endian"
        raise InputError(message, file=path, field="TransferSyntaxUID")
    if syntax.is_encapsulated:
        return
    # SimpleITK reads on beyond the end of such a file and hands over whatever lies in memory there.
    expected = (int(header.Rows) * int(header.Columns) * int(header.BitsAllocated) + 7) // 8
    if len(header.PixelData) < expected:
        message = f"cut off: {len(header.PixelData)} bytes of pixels where {expected} belong"
        raise InputError(message, file=path, field="PixelData")


def _spacing(header: Any, path: Path) -> tuple[float, float]:
    """(row, column) distance of pixel centres in some common unit; (1, 1) where the file does not say."""
    for name in _SPACINGS:
        values = header.get(name)
        if values is None or values == "" or not any(values):
            continue
        row, column = map(float, values) if len(values) == 2 else (0.0, 0.0)
        ratio = row / column if column > 0 and row > 0 else 0.0
        if not 1 / _MAX_SPACING_RATIO <= ratio <= _MAX_SPACING_RATIO:
            shown = "\\".join(str(value) for value in values)
            raise InputError(f"row and column spacing of one pixel cannot be {shown}", file=path, field=name)
        return row, column
    return 1.0, 1.0


def _decode(header: Any, path: Path) -> Stored:
    """(H, W) stored values, without what else may lie in the unused bits of a pixel."""
    syntax = header.file_meta.TransferSyntaxUID
    is_plain = not syntax.is_encapsulated and header.BitsAllocated in (8, 16, 32)
    if is_plain or (syntax in _PYDICOM_PLUGINS and header.BitsAllocated <= 16):
        pixels = _decode_with_pydicom(header, path)
    else:
        pixels = _decode_with_gdcm(header, path)
    if pixels.shape != (header.Rows, header.Columns):
        raise _undecodable(header, path)
    return pixels


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
    sitk = _simpleitk()
    # GDCM inverts MONOCHROME1 in some versions, and fails at that for signed pixels of odd depth; a rescale would make
    # floats of all pixels. So it gets the pixels alone, as MONOCHROME2.
    alone = copy.copy(header)
    alone.PhotometricInterpretation = "MONOCHROME2"
    for name in ("RescaleSlope", "RescaleIntercept"):
        if name in alone:
            del alone[name]
    try:
        with tempfile.TemporaryDirectory() as folder, _stderr_shut():
            alone.save_as(Path(folder) / "image.dcm")
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


def _padded(stored: Stored, header: Any) -> npt.NDArray[np.bool_] | None:
    """Which pixels are no image (PS3.3, C.7.5.1.1.2): of one value, or a range of values."""
    value, limit = header.get("PixelPaddingValue"), header.get("PixelPaddingRangeLimit")
    if value is None or value == "":
        return None
    # Some files give the value unsigned where pixels are signed, or the other way round: the same bits count.
    ends = np.array([value, value if limit in (None, "") else limit], np.int64).astype(stored.dtype)
    padded: npt.NDArray[np.bool_] = (stored >= ends.min()) & (stored <= ends.max())
    return padded if padded.any() else None


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
