"""Apply the windows (VOI) of a DICOM file as a viewer does (PS3.3, C.11)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from maira.data.dicom.codecs import number, numbers
from maira.data.dicom.radiograph import Window
from radfact.errors import InputError

WINDOW_TAGS = (
    *("ModalityLUTSequence", "VOILUTSequence", "VOILUTFunction"),
    *("WindowCenterWidthExplanation", "WindowCenter", "WindowWidth"),
)
"""Elements that `apply_windows` and `stated_windows` read, in addition to rescale slope and intercept."""

Floats = npt.NDArray[np.float64]


def stated_windows(header: Any, path: Path) -> Iterator[Window]:
    """Yield the valid windows of a file; tables and the shape of the function are ignored."""
    if header.get("ModalityLUTSequence"):
        # Windows are in values of this table, not in stored ones.
        return
    stated = header.get("WindowCenterWidthExplanation") or ""
    names = [stated] if isinstance(stated, str) else [str(name) for name in stated]
    centers, widths = (numbers(header, name, path) for name in ("WindowCenter", "WindowWidth"))
    for place, (center, width) in enumerate(zip(centers, widths, strict=False)):
        name = names[place].strip() if place < len(names) else ""
        if np.isfinite([center, width]).all() and width > 0:
            yield Window(name or f"Window {place + 1} of the file", center, width)


def apply_windows(stored: npt.NDArray[np.integer], header: Any, path: Path) -> Floats:
    """Rescale stored values and apply the first VOI table, or else the first window.

    pydicom's functions are not used: tables of 8 bit with more than 256 entries wrap around, and windows invert the
    radiograph for a negative rescale slope. The result (H, W) has shares of the window's range, values of the table, or
    rescaled values if the file has neither.
    """
    values = stored.astype(np.float64)
    if table := header.get("ModalityLUTSequence"):
        values = _look_up(values, table[0], header, path, "ModalityLUTSequence")
    else:
        slope, intercept = number(header, "RescaleSlope", path) or 1, number(header, "RescaleIntercept", path)
        if not np.isfinite([slope, intercept]).all():
            raise InputError(f"expected numbers, found {slope:g} and {intercept:g}", file=path, field="RescaleSlope")
        values = values * slope + intercept
    # An item may be empty.
    if table := [item for item in header.get("VOILUTSequence") or () if "LUTData" in item]:
        return _look_up(values, table[0], header, path, "VOILUTSequence")
    centers, widths = numbers(header, "WindowCenter", path), numbers(header, "WindowWidth", path)
    if not centers or not widths:
        return values
    center, width = centers[0], widths[0]
    function = str(header.get("VOILUTFunction") or "LINEAR")
    if not np.isfinite([center, width]).all() or width < (1 if function == "LINEAR" else 0) or width == 0:
        message = f"expected a window of positive width, found width {width:g} at center {center:g}"
        raise InputError(message, file=path, field="WindowWidth")
    # PS3.3, C.11.2.1.2 and C.11.2.1.3
    if function == "SIGMOID":
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp(-4 * (values - center) / width))
    if function not in ("LINEAR", "LINEAR_EXACT"):
        message = f"expected LINEAR, LINEAR_EXACT or SIGMOID, found {function!r}"
        raise InputError(message, file=path, field="VOILUTFunction")
    if function == "LINEAR":
        center, width = center - 0.5, width - 1
    if width == 0:
        return (values > center).astype(np.float64)
    return np.clip((values - center) / width + 0.5, 0, 1)


def _look_up(values: Floats, item: Any, header: Any, path: Path, field: str) -> Floats:
    """Look values up in a table (PS3.3, C.11.1.1 and C.11.2.1.1); values beyond it take its first or last entry."""
    count, first, bits = (int(number) for number in item.LUTDescriptor)
    count = count or 2**16
    entries = item.LUTData
    if isinstance(entries, bytes):
        order = "<" if header.file_meta.TransferSyntaxUID.is_little_endian else ">"
        entries = np.frombuffer(entries, f"{order}u{1 if bits == 8 and len(entries) < 2 * count else 2}")
    table = np.atleast_1d(np.asarray(entries, np.float64))
    if len(table) < count:
        raise InputError(f"expected {count} table entries, found {len(table)}", file=path, field=field)
    looked_up: Floats = table[np.clip(np.rint(values - first), 0, count - 1).astype(np.intp)]
    return looked_up
