"""Overlap of boxes as pixel masks (MAIRA-2, appendices D.1 and D.4), in shares of one square: the model's crop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from maira.model.parser import IrregularityKind, parse_report
from maira.model.tokens import BOX, OBJECT, OBJECT_END
from radfact.records import Box
from radfact.statistics.bootstrap import Summary, summarize

GRID = 518
"""Side of the masks in pixels: that of the model's crop."""


class Overlap(NamedTuple):
    """Overlap of the boxes of one phrase with the reference boxes, in [0, 1]; NaN if the reference covers no pixel."""

    precision: float
    recall: float
    iou: float


def draw_boxes(boxes: Iterable[Box], grid: int = GRID) -> NDArray[np.bool_]:
    """Draw the union of boxes as a mask (grid, grid); a pixel belongs to a box that contains its center."""
    mask = np.zeros((grid, grid), np.bool_)
    for box in boxes:
        x_min, y_min, x_max, y_max = (math.ceil(share * grid - 0.5) for share in box.as_tuple())
        mask[y_min:y_max, x_min:x_max] = True
    return mask


def box_overlap(predicted: Iterable[Box], reference: Iterable[Box], grid: int = GRID) -> Overlap:
    """Return precision, recall and IoU of the pixel masks of one phrase; all are 0 without predicted boxes."""
    masks = draw_boxes(predicted, grid), draw_boxes(reference, grid)
    n_predicted, n_reference, n_both = (int(np.count_nonzero(mask)) for mask in (*masks, masks[0] & masks[1]))
    if not n_reference:
        return Overlap(math.nan, math.nan, math.nan)
    precision = n_both / n_predicted if n_predicted else 0.0
    return Overlap(precision, n_both / n_reference, n_both / (n_predicted + n_reference - n_both))


def summarize_overlaps(overlaps: Sequence[Overlap], *, replicates: int = 500, seed: int = 42) -> dict[str, Summary]:
    """Return the means of precision, recall and IoU over phrases, with bootstrap intervals; NaN is not counted."""
    columns = [list(column) for column in zip(*sorted(overlaps, key=str), strict=True)] or [[], [], []]
    names = ("precision", "recall", "mean_iou")
    return summarize(dict(zip(names, columns, strict=True)), replicates=replicates, seed=seed)


def read_completion(
    text: str, continuation: str, *, cut_off: bool = False
) -> tuple[tuple[Box, ...], tuple[IrregularityKind, ...]]:
    """Parse the continuation of a sentence's first `<box>` up to `</obj>`; returns boxes in CROP coordinates."""
    rest, end, _ = continuation.partition(OBJECT_END)
    parsed = parse_report(f"{OBJECT}{text}{BOX}{rest}{end}", cut_off=cut_off)
    kinds = tuple(note.kind for note in parsed.irregularities if note.index in (0, None))
    return parsed.sentences[0].boxes or (), kinds
