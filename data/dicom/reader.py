"""DICOM radiographs as grey values, whatever the way they are stored, and as the archive's PNG (paper 004, B.4)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from data.dicom.codecs import STORAGE_TAGS, Stored, check_decodable, decode
from data.dicom.radiograph import Frame, ImageInfo, frame_to_png
from data.dicom.windows import WINDOW_TAGS, windowed
from radfact.errors import InputError

# Row spacing first, then column spacing; only their ratio matters here.
_SPACINGS = ("PixelSpacing", "ImagerPixelSpacing", "NominalScannedPixelSpacing", "PixelAspectRatio")
_MAX_SPACING_RATIO = 10

# What of a DICOM decides how its pixels are to be read, and nothing about the patient.
_PIXEL_TAGS = [
    *(*STORAGE_TAGS, "PixelPaddingValue", "PixelPaddingRangeLimit", "RescaleIntercept", "RescaleSlope"),
    *(*_SPACINGS, *WINDOW_TAGS),
]

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
    amount of a slope equal, so that of both only the slope's sign is kept.

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
        stored = decode(header, path)
        slope_is_negative = float(header.get("RescaleSlope") or 1) < 0
        is_negative = header.PhotometricInterpretation == "MONOCHROME1"
        return Frame(
            pixels=windowed(stored, header, path) if apply_windows else stored,
            is_inverted=is_negative if apply_windows else is_negative != slope_is_negative,
            is_cut=apply_windows,
            padded=_padded(stored, header),
            spacing=spacing,
            photometric=str(header.PhotometricInterpretation),
            bits_stored=int(header.BitsStored),
        )


def example_radiograph() -> Path:
    """A real chest radiograph as DICOM (computed radiography, MONOCHROME1): RG1_UNCR.dcm of the package pydicom-data.

    Raises:
        InputError: pydicom-data is not installed, with the command that installs it.
    """
    from importlib.util import find_spec

    # Not pydicom.data.get_testdata_file, which downloads what it does not find.
    package = find_spec("data_store")
    for folder in package.submodule_search_locations or [] if package else []:
        if (radiograph := Path(folder) / "data" / "RG1_UNCR.dcm").is_file():
            return radiograph
    raise InputError("the example radiograph is in the package pydicom-data: pip install pydicom-data")


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
    _fill_up(header, path)
    check_decodable(header, path)
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


def _fill_up(header: Any, path: Path) -> None:
    if header.Rows * header.Columns > _MAX_PIXELS:
        raise InputError(f"{header.Columns} x {header.Rows} pixels are far more than a radiograph has", file=path)
    allocated = int(header.BitsAllocated)
    header.SamplesPerPixel, header.PixelRepresentation = 1, int(header.get("PixelRepresentation") or 0)
    header.BitsStored = stored = min(int(header.get("BitsStored") or allocated), allocated)
    # Where the highest bit cannot be what the header says, the stored bits are the lowest, as nearly always.
    high = int(header.get("HighBit") or 0)
    header.HighBit = high if stored <= high < allocated else stored - 1


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


def _padded(stored: Stored, header: Any) -> npt.NDArray[np.bool_] | None:
    """Which pixels are no image (PS3.3, C.7.5.1.1.2): of one value, or a range of values."""
    value, limit = header.get("PixelPaddingValue"), header.get("PixelPaddingRangeLimit")
    if value is None or value == "":
        return None
    # Some files give the value unsigned where pixels are signed, or the other way round: the same bits count.
    ends = np.array([value, value if limit in (None, "") else limit], np.int64).astype(stored.dtype)
    padded: npt.NDArray[np.bool_] = (stored >= ends.min()) & (stored <= ends.max())
    return padded if padded.any() else None
