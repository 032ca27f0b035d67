"""Box completion, and overlap of boxes as pixel masks (MAIRA-2, appendices D.1 and D.4).

Boxes are in shares of one square. For `box_completions` it is the model's crop, whose pixels are the default grid: a
box that the crop cuts counts as far as the model can see it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from maira.data.images import CropMap, image_size
from maira.data.study import Study
from maira.model.parser import IrregularityKind, parse_report, render_report
from maira.model.prompts import Preset, build_target
from maira.model.task_examples import BOX_CLIPPED, BOX_OUTSIDE, Example, make_example, to_crop_coordinates
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
    """Return `precision`, `recall` and `mean_iou`: means over phrases with bootstrap intervals over phrases.

    Phrases without a value (NaN) are not counted in `n`.
    """
    columns = {
        "precision": [overlap.precision for overlap in overlaps],
        "recall": [overlap.recall for overlap in overlaps],
        "mean_iou": [overlap.iou for overlap in overlaps],
    }
    return summarize(columns, replicates=replicates, seed=seed)


@dataclass(frozen=True, slots=True)
class BoxCompletion:
    """A grounded sentence of a reference report whose boxes the model completes.

    The example's prompt ends with the reference report up to the sentence's first `<box>`; its target is the rest of
    the sentence up to `</obj>`, where generation ends. `index` is that of the sentence in the reference report.
    """

    example: Example
    index: int
    text: str
    reference: tuple[Box, ...]
    """Boxes of the sentence clipped to the crop, in CROP coordinates."""
    is_clipped: bool
    """Whether the crop cuts off a box or a part of one."""

    def read(self, continuation: str, *, cut_off: bool = False) -> tuple[tuple[Box, ...], tuple[IrregularityKind, ...]]:
        """Parse the model's continuation of the prompt, in any form, up to the sentence's `</obj>`.

        Returns boxes in CROP coordinates, and irregularities; `cut_off` tells that generation stopped at its limit.
        """
        rest, end, _ = continuation.partition(OBJECT_END)
        parsed = parse_report(f"{OBJECT}{self.text}{BOX}{rest}{end}", cut_off=cut_off)
        kinds = tuple(note.kind for note in parsed.irregularities if note.index in (0, None))
        return parsed.sentences[0].boxes or (), kinds


def box_completions(study: Study, *, preset: Preset = "release") -> list[BoxCompletion]:
    """Return every grounded sentence of a study's reference report, each to be completed on its own.

    A sentence whose boxes are all outside the crop is skipped: the model's format has no box for it. The examples'
    notes count the losses (see `maira.model.task_examples.make_example`).

    Source: MAIRA-2, appendix D.1.
    """
    example = make_example(study, "grounded", preset=preset)
    crop = CropMap(*image_size(study.frontal))
    cropped, losses = to_crop_coordinates(study.grounded_findings or [], crop)
    clipped = {index for index, note in losses if note in (BOX_CLIPPED, BOX_OUTSIDE)}
    completions, preceding = [], ""
    for index, sentence in enumerate(cropped):
        rendered = render_report([sentence])
        if sentence.boxes:
            text, box, rest = rendered.partition(BOX)
            completed = replace(example, answer_start=build_target(preceding + text + box), target=rest)
            completions.append(BoxCompletion(completed, index, sentence.text, sentence.boxes, index in clipped))
        preceding += rendered
    return completions
