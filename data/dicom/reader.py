"""Read DICOM radiographs as gray values, and convert them to PNG (MAIRA-2, appendix B.4)."""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from maira.data.archive import HEAD_BYTES, View, is_dicom
from maira.data.dicom.codecs import COLORS, COUNTS, GRAYS, STORAGE_TAGS, check_decodable, decode, number, numbers
from maira.data.dicom.radiograph import Frame, ImageInfo, Window, frame_to_png
from maira.data.dicom.windows import WINDOW_TAGS, stated_windows
from maira.data.dicom.windows import apply_windows as window_pixels
from maira.data.image_check import MAX_PIXELS, TAGS, ImageCheck, check_pixels, check_size, check_tags
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import reading

# Row spacing first, then column spacing; only their ratio matters here.
_SPACINGS = ("PixelSpacing", "ImagerPixelSpacing", "NominalScannedPixelSpacing", "PixelAspectRatio")
_MAX_SPACING_RATIO = 10

# Elements that decide how pixels are read and whether they show a chest; nothing about the patient.
_PIXEL_TAGS = [
    *(*STORAGE_TAGS, "PixelPaddingValue", "PixelPaddingRangeLimit", "RescaleIntercept", "RescaleSlope"),
    *(*_SPACINGS, *WINDOW_TAGS, *TAGS, "PresentationLUTShape"),
]
_MAX_INFLATED_BYTES = 4 * MAX_PIXELS + (64 << 20)
"""Maximum size of a deflated file: 32 bits for each pixel, and the other elements."""
_PIECE_BYTES = 1 << 20


def dicom_to_png(source: Path, target: Path, size: int = 518, *, apply_windows: bool = False) -> ImageInfo:
    """Convert a DICOM file. See `maira.data.radiograph_to_png` for the arguments and errors."""
    with reading(source), source.open("rb") as content:
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
        spacing, photometric = _spacing(header, path), header.PhotometricInterpretation
        stored, exceeds = decode(header, path)
        doubts = [f"values above BitsStored {header.BitsStored}"] if exceeds else []
        shape = str(header.get("PresentationLUTShape") or "").upper()
        if (shape, photometric) in (("INVERSE", "MONOCHROME2"), ("IDENTITY", "MONOCHROME1")):
            doubts.append(f"PresentationLUTShape {shape} contradicts {photometric}")
        is_gray = photometric in GRAYS
        slope, is_negative = number(header, "RescaleSlope", path) or 1.0, photometric == "MONOCHROME1"
        intercept, windows = 0.0, tuple[Window, ...]()
        with nullcontext() if apply_windows else suppress(Exception):  # only recorded
            intercept = number(header, "RescaleIntercept", path)
            windows = tuple(stated_windows(header, path)) if is_gray else ()
        padding = _padding(stored, header, path) if is_gray else None
        applies = apply_windows and is_gray
        pixels = window_pixels(stored, header, path).astype(np.float32) if applies else stored
        if image_check == "refuse":
            check_pixels(pixels, path, padding=padding)
        return Frame(
            pixels=pixels,
            is_inverted=is_negative if applies else is_negative != (slope < 0),
            is_clipped=applies,
            padding=padding,
            spacing=spacing,
            photometric=photometric,
            bits_stored=header.BitsStored,
            rescale=(slope, intercept),
            windows=windows,
            doubts=tuple(doubts),
        )


def read_tags(content: IO[bytes], path: Path, *tags: str) -> dict[str, str]:
    """Return those of some elements that a DICOM file has, as texts."""
    with _errors_with_path(path):
        header = _read_elements(content, path, [*tags])
        return {tag: str(header[tag].value or "") for tag in tags if tag in header}


@contextmanager
def _errors_with_path(path: Path) -> Iterator[None]:
    """Convert errors of pydicom to InputError: its parsers raise many types, some only when an element is accessed."""
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except (InputError, OSError, MemoryError):
        raise
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"damaged DICOM file: {reason}", code=ErrorCode.INVALID_FORMAT, file=path) from None


def _read_header(content: IO[bytes], path: Path) -> Any:
    """Return the pixel elements of a file, checked and completed as far as possible without decoding."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        header = _read_elements(content, path, _PIXEL_TAGS)
    if "PixelData" not in header:
        is_truncated = any("End of file" in str(warning.message) for warning in caught)
        message = "truncated within the pixel data" if is_truncated else "DICOM file without pixels"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path)
    photometric = str(header.get("PhotometricInterpretation") or "").partition("\\")[0].strip(" \0").upper()
    value: dict[str, Any] = {name: int(number(header, name, path)) for name in COUNTS}
    value["PhotometricInterpretation"] = photometric
    missing = [tag for tag in ("Rows", "Columns", "BitsAllocated", "PhotometricInterpretation") if not value[tag]]
    if missing:
        raise InputError("expected a value, found none or 0", code=ErrorCode.MISSING_FIELD, file=path, field=missing[0])
    if (frames := value["NumberOfFrames"]) > 1:
        raise InputError(f"expected one frame, found {frames}", file=path, field="NumberOfFrames")
    samples = value["SamplesPerPixel"] = value["SamplesPerPixel"] or 1
    if photometric not in {1: (*GRAYS, "PALETTE COLOR"), 3: COLORS}.get(samples, ()):
        message = f"expected MONOCHROME1 or MONOCHROME2, found {photometric!r} with {samples} samples per pixel"
        raise InputError(message, file=path, field="PhotometricInterpretation")
    check_size(value["Columns"], value["Rows"], path)
    allocated, high = value["BitsAllocated"], value["HighBit"]
    value["BitsStored"] = stored = min(value["BitsStored"] or allocated, allocated)
    # If HighBit is impossible, assume that the stored bits are the lowest, as in nearly all files.
    value["HighBit"] = high if stored <= high < allocated else stored - 1
    for name in value:
        setattr(header, name, value[name])
    check_decodable(header, path)
    return header


def _read_elements(content: IO[bytes], path: Path, tags: list[str]) -> Any:
    try:
        import pydicom
        from pydicom import uid
        from pydicom.filereader import read_dataset, read_preamble
    except ImportError:
        message = "reading DICOM requires pydicom: pip install 'maira-radfact[model]'"
        raise InputError(message, code=ErrorCode.MISSING_REQUIREMENT) from None
    if not is_dicom(content.read(HEAD_BYTES)):
        message = "expected a DICOM file, found neither the DICM prefix nor its first element"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path)
    content.seek(0)
    read_preamble(content, force=True)
    # A deflated file may inflate to more than any radiograph, and pydicom inflates all of it at once.
    meta = read_dataset(content, False, True, stop_when=lambda tag, _vr, _length: tag.group != 2)
    if meta.get("TransferSyntaxUID") == uid.DeflatedExplicitVRLittleEndian:
        inflater, size = zlib.decompressobj(-zlib.MAX_WBITS), 0
        while not inflater.eof and (piece := inflater.unconsumed_tail or content.read(_PIECE_BYTES)):
            size += len(inflater.decompress(piece, _PIECE_BYTES))
            if size > _MAX_INFLATED_BYTES:
                message = f"expected at most {_MAX_INFLATED_BYTES >> 20} MB of inflated data, found more"
                raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path)
    content.seek(0)
    header = pydicom.dcmread(content, force=True, specific_tags=tags, stop_before_pixels="PixelData" not in tags)
    if "PixelData" in header and not header["PixelData"].is_undefined_length:
        # Without the group of the file's meta information, the encoding of the elements is that of the pixels.
        order = uid.ExplicitVRLittleEndian if header.original_encoding[1] else uid.ExplicitVRBigEndian
        syntax = uid.ImplicitVRLittleEndian if header.original_encoding[0] else order
        header.file_meta.setdefault("TransferSyntaxUID", syntax)
    return header


def _spacing(header: Any, path: Path) -> tuple[float, float]:
    """Return the (row, column) distance of pixel centers in a common unit; (1, 1) if the file does not state it."""
    for name in _SPACINGS:
        if not any(values := numbers(header, name, path)):
            continue
        # One value is that of both sides, but 2 may be the ratio 2:1.
        if len({*values}) == 1 and (values[1:] or values[0] == 1 or name != _SPACINGS[-1]):
            values = [values[0]] * 2
        row, column = values if len(values) == 2 else (0.0, 0.0)
        ratio = row / column if column > 0 and row > 0 else 0.0
        if not 1 / _MAX_SPACING_RATIO <= ratio <= _MAX_SPACING_RATIO:
            raise InputError(f"expected row and column spacing, found {values}", file=path, field=name)
        return row, column
    return 1.0, 1.0


def _padding(stored: npt.NDArray[np.integer], header: Any, path: Path) -> npt.NDArray[np.bool_] | None:
    """Return the mask of padding pixels (PS3.3, C.7.5.1.1.2), which have one value or a range of values."""
    value = number(header, "PixelPaddingValue", path, math.nan)
    if math.isnan(value):
        return None
    # Some files store the value unsigned for signed pixels or the other way round: compare bits.
    ends = np.array([value, number(header, "PixelPaddingRangeLimit", path, value)], np.int64).astype(stored.dtype)
    padding: npt.NDArray[np.bool_] = (stored >= ends.min()) & (stored <= ends.max())
    return padding if padding.any() else None
