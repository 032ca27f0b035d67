"""Shapes drawn by annotators, in per cent of an image, as boxes and masks."""

from __future__ import annotations

from collections.abc import Sequence

from radfact.records import Box, Mask

Point = tuple[float, float]
"""x and y in per cent of the image's width and height."""

LINE_WIDTH = 0.01
"""Width of the mask of a line, as share of the image's shorter side: about a central line on a radiograph of an adult."""

_OVERHANG = 0.5
"""Per cent that a shape may reach beyond the image, where hands and rounding bring it; it is cut there."""


class Unusable(ValueError):
    """A shape that cannot become a box or mask; `str()` says why."""


def box_of(x: float, y: float, width: float, height: float) -> Box | None:
    """A box from its upper left corner and size in per cent; None where it has no area (a click without a drag).

    Raises:
        Unusable: it does not lie on the image.
    """
    corners = [_share(value) for value in (x, y, x + width, y + height)]
    if corners[0] >= corners[2] or corners[1] >= corners[3]:
        return None
    return Box(x_min=corners[0], y_min=corners[1], x_max=corners[2], y_max=corners[3])


def polygon_mask(points: Sequence[Point], size: tuple[int, int]) -> Mask:
    """The inside of a polygon.

    Args:
        points: its corners.
        size: (height, width) of the image in pixels.

    Raises:
        Unusable: it has fewer than three corners, or does not lie on the image.
    """
    if len(points) < 3:
        raise Unusable(f"a polygon of {len(points)} points")
    from pycocotools import mask as coco

    flat = [value for point in _pixels(points, size) for value in point]
    encoded = coco.merge(coco.frPyObjects([flat], *size))
    return Mask(size=size, counts=encoded["counts"].decode())


def line_mask(points: Sequence[Point], size: tuple[int, int]) -> Mask:
    """A line through points, `LINE_WIDTH` wide.

    Args:
        points: its corners, from end to end.
        size: (height, width) of the image in pixels.

    Raises:
        Unusable: it has fewer than two corners, or does not lie on the image.
    """
    if len(points) < 2:
        raise Unusable(f"a line of {len(points)} points")
    import numpy as np
    from PIL import Image, ImageDraw
    from pycocotools import mask as coco

    canvas = Image.new("L", (size[1], size[0]))
    width = max(1, round(LINE_WIDTH * min(size)))
    ImageDraw.Draw(canvas).line(_pixels(points, size), fill=1, width=width, joint="curve")
    encoded = coco.encode(np.asfortranarray(np.asarray(canvas, dtype=np.uint8)))
    return Mask(size=size, counts=encoded["counts"].decode())


def _share(value: float) -> float:
    if not -_OVERHANG <= value <= 100 + _OVERHANG:
        raise Unusable(f"a shape that reaches beyond the image ({value:g} per cent)")
    return min(max(value / 100, 0.0), 1.0)


def _pixels(points: Sequence[Point], size: tuple[int, int]) -> list[Point]:
    height, width = size
    return [(_share(x) * width, _share(y) * height) for x, y in points]
