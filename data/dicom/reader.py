"""Read DICOM radiographs as gray values, and convert them to PNG (MAIRA-2, appendix B.4)."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from maira.data.archive import View
from maira.data.dicom.codecs import STORAGE_TAGS, Stored, check_decodable, decode
from maira.data.dicom.radiograph import Frame, ImageInfo, frame_to_png
from maira.data.dicom.windows import WINDOW_TAGS, stated_windows
from maira.data.dicom.windows import apply_windows as window_pixels
from maira.data.image_check import MAX_PIXELS, TAGS, ImageCheck, check_pixels, check_size, check_tags
from radfact.errors import ErrorCode, InputError

# Row spacing first, then column spacing; only their ratio matters here.
_SPACINGS = ("PixelSpacing", "ImagerPixelSpacing", "NominalScannedPixelSpacing", "PixelAspectRatio")
_MAX_SPACING_RATIO = 10

# Elements that decide how pixels are read and whether they show a chest; nothing about the patient.
_PIXEL_TAGS = [
    *(*STORAGE_TAGS, "PixelPaddingValue", "PixelPaddingRangeLimit", "RescaleIntercept", "RescaleSlope"),
    *(*_SPACINGS, *WINDOW_TAGS, *TAGS),
]

_MAX_INFLATED_BYTES = 4 * MAX_PIXELS + (64 << 20)
"""Maximum size of a deflated file: 32 bits for each pixel, and the other elements."""
_PIECE_BYTES = 1 << 20


def dicom_to_png(source: Path, target: Path, size: int = 518, *, apply_windows: bool = False) -> ImageInfo:
    """Convert a DICOM radiograph to an 8 bit PNG whose shorter side is `size` (MAIRA-2, appendix B.4).

    Args:
        source: a DICOM file with one gray frame.
        target: the PNG to write, atomically. It contains pixels only.
        size: shorter side of the result, pixels.
        apply_windows: see `read_dicom`.

    Raises:
        InputError: the file is not a DICOM with one gray frame, is damaged, constant or not supported, or SimpleITK
            and pydicom are not installed.
    """
    with open_binary(source) as content:
        frame = read_dicom(content, source, apply_windows=apply_windows)
    return frame_to_png(frame, target, size, source)


def read_dicom(
    content: IO[bytes],
    path: Path,
    *,
    apply_windows: bool = False,
    image_check: ImageCheck = "off",
    view: View | None = None,
) -> Frame:
    """Decode the single gray frame of a DICOM file.

    Without windows the values are those stored: scaling from darkest to brightest cancels rescale slope and intercept
    except for the sign of the slope.
    """
    with _errors_with_path(path):
        header = _read_header(content, path)
        if image_check == "refuse":
            check_tags(header, view, path)
        spacing = _spacing(header, path)
        stored = decode(header, path)
        slope, intercept = float(header.get("RescaleSlope") or 1), float(header.get("RescaleIntercept") or 0)
        is_negative = header.PhotometricInterpretation == "MONOCHROME1"
        padding = _padding(stored, header)
        pixels = window_pixels(stored, header, path).astype(np.float32) if apply_windows else stored
        if image_check == "refuse":
            check_pixels(pixels, path, padding=padding)
        return Frame(
            pixels=pixels,
            is_inverted=is_negative if apply_windows else is_negative != (slope < 0),
            is_clipped=apply_windows,
            padding=padding,
            spacing=spacing,
            photometric=str(header.PhotometricInterpretation),
            bits_stored=int(header.BitsStored),
            rescale=(slope, intercept),
            windows=tuple(stated_windows(header)),
        )


def read_instance(content: IO[bytes], path: Path) -> str | None:
    """Return the SOP instance UID of a DICOM file; None if it has none."""
    with _errors_with_path(path):
        header = _read_elements(content, path, ["SOPInstanceUID"])
        return str(header.get("SOPInstanceUID") or "") or None


def example_radiograph() -> Path:
    """Return the path of a real chest radiograph (computed radiography, MONOCHROME1): RG1_UNCR.dcm of pydicom-data.

    Raises:
        InputError: pydicom-data is not installed.
    """
    from importlib.util import find_spec

    # Not pydicom.data.get_testdata_file, which downloads missing files.
    package = find_spec("data_store")
    for folder in package.submodule_search_locations or [] if package else []:
        if (radiograph := Path(folder) / "data" / "RG1_UNCR.dcm").is_file():
            return radiograph
    message = "the example radiograph requires pydicom-data: pip install pydicom-data"
    raise InputError(message, code=ErrorCode.MISSING_REQUIREMENT)


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Convert errors of reading a file to InputError."""
    try:
        yield
    except FileNotFoundError:
        raise InputError("no such file", code=ErrorCode.FILE_NOT_FOUND, file=path) from None
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=path) from None


@contextmanager
def open_binary(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to read bytes; errors of reading in the block are InputError too."""
    with file_errors(path), path.open("rb") as content:
        yield content


@contextmanager
def _errors_with_path(path: Path) -> Iterator[None]:
    """Convert errors of pydicom to InputError: its parsers raise many types, some only when an element is accessed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (InputError, OSError, MemoryError):
        raise
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        message = f"damaged DICOM file: {reason}"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path) from None


def _read_header(content: IO[bytes], path: Path) -> Any:
    """Return the pixel elements of a file, checked and completed as far as possible without decoding."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        header = _read_elements(content, path, _PIXEL_TAGS)
    if "PixelData" not in header:
        is_truncated = any("End of file" in str(warning.message) for warning in caught)
        message = "truncated within the pixel data" if is_truncated else "DICOM file without pixels"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path)
    missing = [tag for tag in ("Rows", "Columns", "BitsAllocated", "PhotometricInterpretation") if not header.get(tag)]
    if missing:
        raise InputError("expected a value, found none or 0", code=ErrorCode.MISSING_FIELD, file=path, field=missing[0])
    frames = int(header.get("NumberOfFrames") or 1)
    if frames != 1:
        raise InputError(f"expected one frame, found {frames}", file=path, field="NumberOfFrames")
    photometric, samples = header.PhotometricInterpretation, int(header.get("SamplesPerPixel") or 1)
    if samples != 1 or photometric not in ("MONOCHROME1", "MONOCHROME2"):
        message = f"expected MONOCHROME1 or MONOCHROME2, found {photometric!r} with {samples} samples per pixel"
        raise InputError(message, file=path, field="PhotometricInterpretation")
    check_size(header.Columns, header.Rows, path)
    allocated = int(header.BitsAllocated)
    header.SamplesPerPixel, header.PixelRepresentation = 1, int(header.get("PixelRepresentation") or 0)
    header.BitsStored = stored = min(int(header.get("BitsStored") or allocated), allocated)
    # If HighBit is impossible, assume that the stored bits are the lowest, as in nearly all files.
    high = int(header.get("HighBit") or 0)
    header.HighBit = high if stored <= high < allocated else stored - 1
    check_decodable(header, path)
    return header


def _read_elements(content: IO[bytes], path: Path, tags: list[str]) -> Any:
    try:
        import pydicom
        from pydicom.errors import InvalidDicomError
        from pydicom.filereader import read_dataset, read_preamble
        from pydicom.uid import DeflatedExplicitVRLittleEndian
    except ImportError:
        message = "reading DICOM requires pydicom: pip install 'maira-radfact[model]'"
        raise InputError(message, code=ErrorCode.MISSING_REQUIREMENT) from None
    try:
        read_preamble(content, force=False)
    except InvalidDicomError:
        message = "expected a DICOM file, found no DICM prefix"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path) from None
    # A deflated file may inflate to more than any radiograph, and pydicom inflates all of it at once.
    meta = read_dataset(content, False, True, stop_when=lambda tag, _vr, _length: tag.group != 2)
    if meta.get("TransferSyntaxUID") == DeflatedExplicitVRLittleEndian:
        inflater, size = zlib.decompressobj(-zlib.MAX_WBITS), 0
        while not inflater.eof and (piece := inflater.unconsumed_tail or content.read(_PIECE_BYTES)):
            size += len(inflater.decompress(piece, _PIECE_BYTES))
            if size > _MAX_INFLATED_BYTES:
                message = f"expected at most {_MAX_INFLATED_BYTES >> 20} MB of inflated data, found more"
                raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path)
    content.seek(0)
    return pydicom.dcmread(content, specific_tags=tags, stop_before_pixels="PixelData" not in tags)


def _spacing(header: Any, path: Path) -> tuple[float, float]:
    """Return the (row, column) distance of pixel centers in a common unit; (1, 1) if the file does not state it."""
    for name in _SPACINGS:
        values = header.get(name)
        if values is None or values == "" or not any(values):
            continue
        row, column = map(float, values) if len(values) == 2 else (0.0, 0.0)
        ratio = row / column if column > 0 and row > 0 else 0.0
        if not 1 / _MAX_SPACING_RATIO <= ratio <= _MAX_SPACING_RATIO:
            shown = "\\".join(str(value) for value in values)
            raise InputError(f"expected row and column spacing, found {shown}", file=path, field=name)
        return row, column
    return 1.0, 1.0


def _padding(stored: Stored, header: Any) -> npt.NDArray[np.bool_] | None:
    """Return the mask of padding pixels (PS3.3, C.7.5.1.1.2), which have one value or a range of values."""
    value, limit = header.get("PixelPaddingValue"), header.get("PixelPaddingRangeLimit")
    if value is None or value == "":
        return None
    # Some files store the value unsigned for signed pixels or the other way round: compare bits.
    ends = np.array([value, value if limit in (None, "") else limit], np.int64).astype(stored.dtype)
    padding: npt.NDArray[np.bool_] = (stored >= ends.min()) & (stored <= ends.max())
    return padding if padding.any() else None
