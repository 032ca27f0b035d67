"""Confidence intervals of proportions."""

from __future__ import annotations

import math

_Z = 1.959963984540054


def wilson_interval(part: int, whole: int) -> tuple[float, float] | None:
    """Return the 95% interval of a proportion by Wilson's score method; None without a case.

    It is not empty where no or every case is in the part.
    """
    if not whole:
        return None
    share, z2 = part / whole, _Z**2
    center = (share + z2 / (2 * whole)) / (1 + z2 / whole)
    half = _Z / (1 + z2 / whole) * math.sqrt(share * (1 - share) / whole + z2 / (4 * whole**2))
    return (0.0 if part == 0 else center - half), (1.0 if part == whole else center + half)
