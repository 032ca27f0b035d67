"""Geometry of boxes and pixel masks: the share of a sentence's region that its evidence covers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from radfact.io.coco import decode_mask
from radfact.metrics.radfact.options import Compat
from radfact.records import Sentence

PAPER_GRID = 224
"""Side length in pixels of the mask on which the published implementation compares boxes."""

# Coordinates are decimal numbers: binary rounding must not decide a share of exactly one half.
_ROUNDING = 1e-9

_Rectangle = tuple[float, float, float, float]


def spatially_entailed(
    sentence: Sentence, evidence: Sequence[Sentence], *, compat: Compat = "paper", threshold: float = 0.5
) -> bool:
    """Return whether enough of a sentence's region lies in the union of the regions of its evidence.

    `paper` mode tests `share > threshold`, as the published code; `exact` mode tests `share >= threshold`, as the text
    of the paper (section "RadFact"). An undefined share and evidence without any region are not entailed.
    """
    if not any(premise.has_region for premise in evidence):
        return False
    share = covered_share(sentence, evidence, compat=compat)
    if math.isnan(share):
        return False
    return share > threshold if compat == "paper" else share >= threshold - _ROUNDING


def has_area(sentence: Sentence) -> bool:
    """Return whether the region of a sentence covers anything, at any resolution."""
    return not math.isnan(covered_share(sentence, [sentence], compat="exact"))


def covered_share(sentence: Sentence, evidence: Sequence[Sentence], *, compat: Compat = "paper") -> float:
    """Return the share of a sentence's region in the union of its evidence, on a grid of 224 x 224 (`paper`) or not."""
    sizes = [mask.size for item in (sentence, *evidence) for mask in item.masks or ()]
    if compat == "exact" and not sizes:
        return _rectangle_share(_rectangles([sentence]), _rectangles(evidence))
    size = (PAPER_GRID, PAPER_GRID)
    if compat == "exact":
        size = max(height for height, _ in sizes), max(width for _, width in sizes)
    own = _draw([sentence], size, compat)
    area = int(np.count_nonzero(own))
    return int(np.count_nonzero(own & _draw(evidence, size, compat))) / area if area else math.nan


def _rectangles(sentences: Iterable[Sentence]) -> list[_Rectangle]:
    """Return the boxes with an area."""
    corners = (box.as_tuple() for sentence in sentences for box in sentence.boxes or ())
    return [(x0, y0, x1, y1) for x0, y0, x1, y1 in corners if x0 < x1 and y0 < y1]


def _rectangle_share(own: list[_Rectangle], evidence: list[_Rectangle]) -> float:
    """Return the share of the union of `own` inside the union of `evidence`."""
    if not own:
        return math.nan
    if len(own) == len(evidence) == 1:
        a, b = own[0], evidence[0]
        width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
        area = (a[2] - a[0]) * (a[3] - a[1])
        overlap = max(width, 0) * max(height, 0)
    else:
        corners = np.array(own + evidence, dtype=np.float64)  # (own + evidence, 4)
        # Between the distinct coordinates, each cell is inside or outside of a rectangle as a whole.
        xs, ys = np.unique(corners[:, 0::2]), np.unique(corners[:, 1::2])
        columns = np.searchsorted(xs, corners[:, 0::2])
        rows = np.searchsorted(ys, corners[:, 1::2])
        covered = np.zeros((2, len(ys) - 1, len(xs) - 1), dtype=np.bool_)  # (own | evidence, rows, columns)
        for index, ((x0, x1), (y0, y1)) in enumerate(zip(columns.tolist(), rows.tolist(), strict=True)):
            covered[int(index >= len(own)), y0:y1, x0:x1] = True
        areas = np.outer(np.diff(ys), np.diff(xs))
        area, overlap = float(areas[covered[0]].sum()), float(areas[covered[0] & covered[1]].sum())
    return overlap / area if area > 0 else math.nan


def _draw(sentences: Iterable[Sentence], size: tuple[int, int], compat: Compat) -> NDArray[np.bool_]:
    """Draw the union of the regions of `sentences` on a grid of `size` (height, width)."""
    height, width = size
    canvas = np.zeros(size, dtype=np.bool_)
    for sentence in sentences:
        for box in sentence.boxes or ():
            if compat == "paper":
                x0, y0, x1, y1 = (int(corner * PAPER_GRID) for corner in box.as_tuple())
            else:
                # A pixel belongs to a box that contains its center, so corners in whole pixels are exact.
                x0, x1 = math.ceil(box.x_min * width - 0.5), math.ceil(box.x_max * width - 0.5)
                y0, y1 = math.ceil(box.y_min * height - 0.5), math.ceil(box.y_max * height - 0.5)
            canvas[y0:y1, x0:x1] = True
        for mask in sentence.masks or ():
            canvas |= _resample(decode_mask(mask), size)
    return canvas


def _resample(pixels: NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Resample `pixels` (h, w) to `size` (height, width) by the nearest pixel center."""
    if pixels.shape == size:
        return pixels
    rows, columns = (
        ((np.arange(target) + 0.5) * source / target).astype(np.intp)
        for target, source in zip(size, pixels.shape, strict=True)
    )
    return pixels[np.ix_(rows, columns)]
