"""The windows of a DICOM (VOI): which of a radiograph's values a viewer shows between black and white (PS3.3, C.11)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from radfact.errors import InputError

WINDOW_TAGS = ("ModalityLUTSequence", "VOILUTSequence", "WindowCenter", "WindowWidth", "VOILUTFunction")
"""The elements that `windowed` reads, beside the rescale slope and intercept."""

Floats = npt.NDArray[np.float64]


def windowed(pixels: npt.NDArray[np.integer], header: Any, path: Path) -> npt.NDArray[np.float32]:
    """Stored values as a viewer shows them: rescaled, then through the first VOI table or else the first window.

    pydicom's functions for this are not used: its tables wrap around where entries of 8 bits are more than 256, and its
    windows turn the radiograph to its negative where the rescale slope is below zero.

    Args:
        pixels: (H, W) stored values.
        header: the pydicom data set with `WINDOW_TAGS`, RescaleSlope and RescaleIntercept.
        path: what errors name as the file.

    Returns:
        (H, W): shares of the window's range, or the values of the table, or the rescaled values of a radiograph without.

    Raises:
        InputError: a window or table that the standard does not allow.
    """
    low, high = int(pixels.min()), int(pixels.max())
    if high - low >= 2**16:
        return _windowed(pixels.astype(np.float64), header, path).astype(np.float32)
    table = _windowed(np.arange(low, high + 1, dtype=np.float64), header, path).astype(np.float32)
    shown: npt.NDArray[np.float32] = table[pixels.astype(np.int64) - low]
    return shown


def _windowed(values: Floats, header: Any, path: Path) -> Floats:
    if table := header.get("ModalityLUTSequence"):
        values = _looked_up(values, table[0], header, path, "ModalityLUTSequence")
    else:
        slope, intercept = float(header.get("RescaleSlope") or 1), float(header.get("RescaleIntercept") or 0)
        if not np.isfinite([slope, intercept]).all():
            raise InputError(f"a slope of {slope:g} and an intercept of {intercept:g}", file=path, field="RescaleSlope")
        values = values * slope + intercept
    if table := header.get("VOILUTSequence"):
        return _looked_up(values, table[0], header, path, "VOILUTSequence")
    centre, width = (_first(header.get(name)) for name in ("WindowCenter", "WindowWidth"))
    if centre is None or width is None:
        return values
    function = str(header.get("VOILUTFunction") or "LINEAR")
    if not np.isfinite([centre, width]).all() or width < (1 if function == "LINEAR" else 0) or width == 0:
        raise InputError(f"no window is {width:g} wide around {centre:g}", file=path, field="WindowWidth")
    return _through_window(values, centre, width, function, path)


def _through_window(values: Floats, centre: float, width: float, function: str, path: Path) -> Floats:
    """Shares in [0, 1] of a window (PS3.3, C.11.2.1.2 and C.11.2.1.3)."""
    if function == "SIGMOID":
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp(-4 * (values - centre) / width))
    if function not in ("LINEAR", "LINEAR_EXACT"):
        message = f"{function!r} is unknown; LINEAR, LINEAR_EXACT and SIGMOID are known"
        raise InputError(message, file=path, field="VOILUTFunction")
    if function == "LINEAR":
        centre, width = centre - 0.5, width - 1
    if width == 0:
        return (values > centre).astype(np.float64)
    return np.clip((values - centre) / width + 0.5, 0, 1)


def _looked_up(values: Floats, item: Any, header: Any, path: Path, field: str) -> Floats:
    """Values through a table (PS3.3, C.11.1.1 and C.11.2.1.1); those beyond it take its first or last entry."""
    count, first, bits = (int(number) for number in item.LUTDescriptor)
    count = count or 2**16
    entries = item.LUTData
    if isinstance(entries, bytes):
        order = "<" if header.file_meta.TransferSyntaxUID.is_little_endian else ">"
        entries = np.frombuffer(entries, f"{order}u{1 if bits == 8 and len(entries) < 2 * count else 2}")
    table = np.atleast_1d(np.asarray(entries, np.float64))
    if len(table) < count:
        raise InputError(f"its table has {len(table)} entries where {count} belong", file=path, field=field)
    looked_up: Floats = table[np.clip(np.rint(values - first), 0, count - 1).astype(np.intp)]
    return looked_up


def _first(value: Any) -> float | None:
    if value is None or value == "":
        return None
    several = not isinstance(value, str | float | int) and hasattr(value, "__len__")
    return float(value[0]) if several else float(value)
