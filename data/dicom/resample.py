"""Resize with cubic B-splines as SimpleITK does, with short weighted sums instead of a filtered copy.

A B-spline through all pixels is linear and separable, and the weight of a pixel drops to a quarter with every pixel of
distance. So each row of the result is a short weighted sum of rows of the source, and likewise for columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# The pole of the cubic B-spline's inverse filter.
_POLE = 3**0.5 - 2
# Pixels on each side of a point; beyond, weights are below 1e-8.
_REACH = 14


def bspline_resize(pixels: npt.NDArray[np.integer] | npt.NDArray[np.floating], height: int, width: int) -> Floats:
    """Resample an image to (height, width) with cubic B-splines so that its outer edges stay in place.

    As with SimpleITK's `sitkBSpline`, the image is mirrored at its outermost pixel centers and not smoothed before it
    is reduced in size (MAIRA-2, appendix B.4). The result overshoots the range of `pixels` at sharp edges.
    """
    return _resize_rows(_resize_rows(pixels, height).T, width).T


def _resize_rows(pixels: npt.NDArray[Any], height: int) -> Floats:
    centers = (np.arange(height) + 0.5) * (len(pixels) / height) - 0.5
    floors = np.floor(centers).astype(np.intp)
    mirrored = np.pad(np.ascontiguousarray(pixels, np.float64), ((_REACH + 1, _REACH + 1), (0, 0)), "reflect")
    resized: Floats = np.empty((height, pixels.shape[1]))
    for row, (first, taps) in enumerate(zip(floors + 1, _taps(centers - floors), strict=True)):
        # Not matmul: OpenBLAS would start threads, which compete for cores with the other converting processes.
        np.einsum("t,tw->w", taps, mirrored[first : first + len(taps)], out=resized[row])
    return resized


def _taps(fractions: Floats) -> Floats:
    """Return the weights of the pixels -_REACH to _REACH + 1 for the value at points in [0, 1), one row per point.

    The value at x is the sum of c[j] * B(x - j), with coefficients c[j] = sum of sqrt(3) * pole^|j - i| * pixel[i]
    (Unser, Splines: a perfect fit for signal and image processing, 1999).
    """
    nearest = np.arange(-1, 3)  # coefficients with influence between pixels 0 and 1
    distance = np.abs(fractions[:, None] - nearest)
    basis = np.where(distance < 1, 2 / 3 - distance**2 * (1 - distance / 2), (2 - distance) ** 3 / 6)
    response = 3**0.5 * _POLE ** np.abs(nearest[:, None] - np.arange(-_REACH, _REACH + 2))
    taps: Floats = basis @ response
    return taps
