"""Resize with cubic B-splines as SimpleITK does, with two small matrix products instead of a filtered copy.

A B-spline through all pixels is linear and separable, and the weight of a pixel drops to a quarter with every pixel of
distance. So each row of the result is a short weighted sum of rows of the source, and likewise for columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# The pole of the cubic B-spline's inverse filter.
_POLE = 3**0.5 - 2
# Pixels on each side of a point; beyond, weights are below 1e-8.
_REACH = 14
# Rows of the result per matrix product.
_BLOCK = 8
# Multiplications per product: the data fit the CPU cache, and OpenBLAS, which starts threads from 262,144 on, stays on
# one core. Radiographs are converted in several processes, where threads compete for cores.
_PRODUCT = 200_000


def bspline_resize(pixels: npt.NDArray[np.integer] | npt.NDArray[np.floating], height: int, width: int) -> Floats:
    """Resample an image with cubic B-splines so that its outer edges stay in place.

    As with SimpleITK's `sitkBSpline`, the image is mirrored at its outermost pixel centers and not smoothed before it
    is reduced in size (MAIRA-2, appendix B.4).
    """
    return _resize_rows(_resize_rows(pixels, height).T, width).T


def _resize_rows(pixels: npt.NDArray[Any], height: int) -> Floats:
    resized: Floats = np.empty((height, pixels.shape[1]))
    for part, sources, weights in _blocks(pixels.shape[0], height):
        rows = pixels[sources]
        step = max(1, _PRODUCT // weights.size)
        for column in range(0, pixels.shape[1], step):
            tile = slice(column, column + step)
            np.matmul(weights, rows[:, tile].astype(np.float64), out=resized[part, tile])
    return resized


def _blocks(source: int, target: int) -> Iterator[tuple[slice, slice | npt.NDArray[np.intp], Floats]]:
    """Yield (rows of the result, rows of the source, weights) from the first to the last row."""
    centers = (np.arange(target) + 0.5) * (source / target) - 0.5
    floors = np.floor(centers).astype(np.intp)
    taps = _taps(centers - floors)
    for start in range(0, target, _BLOCK):
        part = slice(start, min(start + _BLOCK, target))
        first, last = int(floors[part.start]) - _REACH, int(floors[part.stop - 1]) + _REACH + 1
        weights: Floats = np.zeros((part.stop - part.start, last - first + 1))
        columns = (floors[part] - floors[part.start])[:, None] + np.arange(taps.shape[1])
        np.put_along_axis(weights, columns, taps[part], axis=1)
        if first >= 0 and last < source:
            yield part, slice(first, last + 1), weights
        else:
            mirrored = np.arange(first, last + 1) % (period := 2 * source - 2)
            yield part, np.minimum(mirrored, period - mirrored), weights


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
