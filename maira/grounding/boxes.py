"""Boxes alone, without judging any text: box completion and phrase grounding on pixel masks (paper 004, D.1, D.4).

Boxes are shares of one square, and compared as such. For `box_completions` it is the model's crop, whose pixels are the
default grid: a box that the crop cuts counts as far as the model can see it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.images import CropMap, image_size
from data.study import Study
from maira.model.parser import IrregularityKind, parse_report, render_report
from maira.model.prompts import Preset, build_target
from maira.model.task_examples import BOX_CLIPPED, BOX_OUTSIDE, Example, make_example, to_crop_coordinates
from maira.model.tokens import BOX, OBJECT, OBJECT_END
from radfact.records import Box
from radfact.statistics.bootstrap import Summary, summarize

GRID = 518
"""Pixels a side of the masks: those of the model's crop (specification, "Evaluation of boxes alone")."""


class Overlap(NamedTuple):
    """How the boxes for one phrase meet the reference's, each in [0, 1]; NaN where the reference covers no pixel."""

    precision: float
    recall: float
    iou: float


def draw_boxes(boxes: Iterable[Box], grid: int = GRID) -> NDArray[np.bool_]:
    """The union of boxes as pixels, (grid, grid): a pixel belongs to a box that holds its centre.

    Args:
        boxes: in shares of a square.
        grid: pixels a side.
    """
    mask = np.zeros((grid, grid), np.bool_)
    for box in boxes:
        x_min, y_min, x_max, y_max = (math.ceil(share * grid - 0.5) for share in box.as_tuple())
        mask[y_min:y_max, x_min:x_max] = True
    return mask


def overlap(answered: Iterable[Box], reference: Iterable[Box], grid: int = GRID) -> Overlap:
    """Precision, recall and intersection over union of the pixel masks of one phrase; no box is 0 throughout.

    Args:
        answered: the model's boxes.
        reference: the boxes that are right, in the same coordinates.
        grid: pixels a side of the masks.
    """
    said, true = draw_boxes(answered, grid), draw_boxes(reference, grid)
    covered, wanted, both = (int(np.count_nonzero(mask)) for mask in (said, true, said & true))
    if not wanted:
        return Overlap(math.nan, math.nan, math.nan)
    return Overlap(both / covered if covered else 0.0, both / wanted, both / (covered + wanted - both))


def summarize_overlaps(overlaps: Sequence[Overlap], *, replicates: int = 500, seed: int = 42) -> dict[str, Summary]:
    """`precision`, `recall` and `mean_iou`: means over phrases with bootstrap intervals over phrases.

    Args:
        overlaps: one a phrase; those whose reference covers nothing have no value and are not in `n`.
        replicates, seed: of the bootstrap.
    """
    columns = {
        "precision": [one.precision for one in overlaps],
        "recall": [one.recall for one in overlaps],
        "mean_iou": [one.iou for one in overlaps],
    }
    return summarize(columns, replicates=replicates, seed=seed)


@dataclass(frozen=True, slots=True)
class BoxCompletion:
    """One grounded sentence of a reference report whose boxes the model is to complete.

    Attributes:
        example: its prompt ends with the reference report up to and including the sentence's first `<box>`; its target
            is the rest of the sentence, up to and including `</obj>`, where generating ends.
        index: of the sentence in the reference report.
        text: of the sentence.
        reference: its boxes as far as they lie in the crop, in CROP coordinates.
        is_clipped: the crop cuts off a part of a box, or a whole one.
    """

    example: Example
    index: int
    text: str
    reference: tuple[Box, ...]
    is_clipped: bool

    def read(self, continuation: str, *, cut_off: bool = False) -> tuple[tuple[Box, ...], tuple[IrregularityKind, ...]]:
        """The boxes of what the model wrote after the prompt, in CROP coordinates, and what is irregular about it.

        What follows the sentence's `</obj>` is no part of the answer.

        Args:
            continuation: the model's text, whatever it looks like.
            cut_off: whether generation is known to have stopped at its limit.
        """
        rest, end, _ = continuation.partition(OBJECT_END)
        parsed = parse_report(f"{OBJECT}{self.text}{BOX}{rest}{end}", cut_off=cut_off)
        kinds = tuple(note.kind for note in parsed.irregularities if note.index in (0, None))
        return parsed.sentences[0].boxes or (), kinds


def box_completions(study: Study, *, preset: Preset = "release") -> list[BoxCompletion]:
    """Every grounded sentence of a study's reference report, each to be completed on its own (paper 004, D.1).

    A sentence all of whose boxes lie outside the crop is not asked: the model's format has no box for it. The
    examples' notes count what the crop cost (see `maira.model.task_examples.make_example`).

    Args:
        study: with image paths that can be opened.
        preset: wording of the prompt.

    Raises:
        InputError: as `maira.model.task_examples.make_example` does.
    """
    example = make_example(study, "grounded", preset=preset)
    sentences = study.grounded_findings or []
    cropped, lost = to_crop_coordinates(sentences, CropMap(*image_size(study.frontal)))
    is_cut = {index for index, note in lost if note in (BOX_CLIPPED, BOX_OUTSIDE)}
    asked, before = [], ""
    for index, seen in enumerate(cropped):
        written = render_report([seen])
        if seen.boxes:
            text, box, rest = written.partition(BOX)
            start = replace(example, prompt=example.prompt + build_target(before + text + box), target=rest)
            asked.append(BoxCompletion(start, index, seen.text, seen.boxes, index in is_cut))
        before += written
    return asked
