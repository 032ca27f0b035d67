"""DICOM to the 8 bit PNG of the archive: resized isotropically with B-splines, min-max scaled (paper 004, B.4)."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data.images import MAX_ASPECT
from radfact.errors import InputError
from radfact.jsonl import open_atomic

# Row spacing first, then column spacing; only their ratio matters here.
_SPACINGS = ("PixelSpacing", "ImagerPixelSpacing", "NominalScannedPixelSpacing", "PixelAspectRatio")
_MAX_SPACING_RATIO = 10

# What of a DICOM decides how its pixels are to be read, and nothing about the patient.
_PIXEL_TAGS = [
    *("SOPClassUID", "SOPInstanceUID", "Modality", "NumberOfFrames", "SamplesPerPixel", "PhotometricInterpretation"),
    *("Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelData"),
    *("RescaleIntercept", "RescaleSlope", *_SPACINGS),
]

# The transfer syntaxes that GDCM, the decoder inside SimpleITK, knows for a single frame.
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


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """What was converted: sizes in pixels of the PNG and of its source, and how the source was stored."""

    width: int
    height: int
    source_width: int
    source_height: int
    photometric: str
    bits_stored: int


def dicom_to_png(source: Path, target: Path, size: int = 518) -> ImageInfo:
    """Convert a radiograph from DICOM to an 8 bit PNG whose shorter side is `size` (paper 004, B.4).

    The rescale slope is applied, windows (VOI) are not. Dark is air and bright is bone whatever the file's photometric
    interpretation. Pixels that are not square become so. While SimpleITK decodes, the process's standard error is
    shut, since its codecs write there on their own.

    Args:
        source: a DICOM file with one grey frame.
        target: the PNG to write, whole or not at all.
        size: shorter side of the result, pixels.

    Raises:
        InputError: the file is no DICOM with one grey frame, or is damaged, constant, or of an unsupported kind; or
            SimpleITK and pydicom are not installed.
    """
    from PIL import Image

    with _damage_named(source):
        header = _read_header(source)
        spacing, bits_stored = _spacing(header, source), int(header.get("BitsStored") or header.BitsAllocated)
        pixels = _decode(source, header)
    resized = _resize(pixels, *spacing, size, source)
    low, high = float(resized.min()), float(resized.max())
    # The first test is for a constant film, of which resampling leaves rounding errors that scaling would blow up.
    if pixels.min() == pixels.max() or low == high:
        raise InputError("there is no image in it: all its pixels are equal", file=source)
    scaled = np.rint((resized - low) * (255 / (high - low))).astype(np.uint8)
    with open_atomic(target, "wb") as handle:
        Image.fromarray(scaled).save(handle, format="PNG")
    return ImageInfo(
        width=scaled.shape[1],
        height=scaled.shape[0],
        source_width=pixels.shape[1],
        source_height=pixels.shape[0],
        photometric=str(header.PhotometricInterpretation),
        bits_stored=bits_stored,
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


def _read_header(path: Path) -> Any:
    """The pixel elements of a file, checked as far as that goes without decoding."""
    try:
        import pydicom
        from pydicom.errors import InvalidDicomError
    except ImportError:
        raise InputError("reading DICOM needs pydicom: pip install 'maira-radfact[model]'") from None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            header = pydicom.dcmread(path, specific_tags=_PIXEL_TAGS)
        except FileNotFoundError:
            raise InputError("no such file", file=path) from None
        except InvalidDicomError:
            raise InputError("not a DICOM file (it has no DICM prefix)", file=path) from None
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}", file=path) from None
    if "PixelData" not in header:
        cut = any("End of file" in str(warning.message) for warning in caught)
        raise InputError("cut off within its pixel data" if cut else "a DICOM file without pixels", file=path)
    _check_one_gray_frame(header, path)
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


def _decode(path: Path, header: Any) -> npt.NDArray[np.float64]:
    """(H, W) rescaled pixel values, bright where a viewer shows bright."""
    if header.PhotometricInterpretation == "MONOCHROME2":
        return _read_pixels(path, header)
    # Whether a reader inverts MONOCHROME1 itself depends on its version, and GDCM fails at that for signed pixels of
    # odd depth. So it is never asked to: it gets the same pixels as MONOCHROME2, and the inversion is here, once.
    header.PhotometricInterpretation, stored = "MONOCHROME2", header.PhotometricInterpretation
    try:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "image.dcm"
            header.save_as(copy)
            return -_read_pixels(copy, header, path)
    finally:
        header.PhotometricInterpretation = stored


def _read_pixels(path: Path, header: Any, named: Path | None = None) -> npt.NDArray[np.float64]:
    sitk = _simpleitk()
    try:
        with _stderr_shut():
            pixels = sitk.GetArrayFromImage(sitk.ReadImage(str(path), imageIO="GDCMImageIO"))
    except RuntimeError:
        # Its reasons are lines of C++ with addresses in them.
        kind = _TRANSFER_SYNTAXES[header.file_meta.TransferSyntaxUID]
        message = f"the pixels cannot be decoded; they are damaged, or not what their header says ({kind})"
        raise InputError(message, file=named or path, field="PixelData") from None
    frame: npt.NDArray[np.float64] = pixels.reshape(pixels.shape[-2:]).astype(np.float64)
    if not np.isfinite(frame).all():
        raise InputError("has pixels that are not finite numbers", file=named or path, field="PixelData")
    return frame


def _resize(
    pixels: npt.NDArray[np.float64], row: float, column: float, size: int, path: Path
) -> npt.NDArray[np.float64]:
    """B-spline resampling to square pixels, so that the shorter side has `size` of them and the edges stay in place."""
    sitk = _simpleitk()
    height, width = pixels.shape
    tall, wide = height * row, width * column
    if max(tall, wide) > MAX_ASPECT * min(tall, wide) or min(height, width) < 4:
        raise InputError(f"an image of {width} x {height} pixels is no radiograph", file=path)
    unit = min(tall, wide) / size
    target = max(size, round(wide / unit)), max(size, round(tall / unit))
    spacing = wide / target[0], tall / target[1]
    image = sitk.GetImageFromArray(pixels)
    image.SetSpacing((column, row))
    origin = (spacing[0] - column) / 2, (spacing[1] - row) / 2
    resampled = sitk.Resample(image, target, sitk.Transform(), sitk.sitkBSpline, origin, spacing, image.GetDirection())
    resized: npt.NDArray[np.float64] = sitk.GetArrayFromImage(resampled)
    return resized


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
